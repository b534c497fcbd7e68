"""Reference networks of the literature, for stock Flax layers and for repjax's."""

from repjax.models.lenet import LeNet1, LeNet4, LeNet5

__all__ = ["LeNet1", "LeNet4", "LeNet5"]
