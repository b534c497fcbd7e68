"""Reference networks of the literature, for stock Flax layers and for repjax's."""

from repjax.models.gpt import GPT
from repjax.models.language import log_probs
from repjax.models.lenet import LeNet1, LeNet4, LeNet5
from repjax.models.llama import Llama

__all__ = ["GPT", "LeNet1", "LeNet4", "LeNet5", "Llama", "log_probs"]
