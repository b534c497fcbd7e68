"""Reference networks of the literature, for stock Flax layers and for repjax's."""

from repjax.models.forecaster import Forecaster
from repjax.models.gpt import GPT
from repjax.models.graphsage import GraphSAGE
from repjax.models.language import log_probs
from repjax.models.lenet import LeNet1, LeNet4, LeNet5
from repjax.models.llama import Llama
from repjax.models.resnet import ResNet38, ResNet56, WideResNet28x10

__all__ = [
    "GPT",
    "Forecaster",
    "GraphSAGE",
    "LeNet1",
    "LeNet4",
    "LeNet5",
    "Llama",
    "ResNet38",
    "ResNet56",
    "WideResNet28x10",
    "log_probs",
]
