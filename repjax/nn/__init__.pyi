"""The types of repjax.nn: those of flax.linen, of whose layers its own are subclasses."""

from flax.linen import *  # noqa: F403
from jax import Array
from jax.typing import ArrayLike

from repjax.nn.conversion import convert as convert

def softmax_cross_entropy(
    logits: ArrayLike,
    labels: ArrayLike,
    axis: int | tuple[int, ...] | None = -1,
    where: ArrayLike | None = None,
) -> Array: ...
def softmax_cross_entropy_with_integer_labels(
    logits: ArrayLike,
    labels: ArrayLike,
    axis: int | tuple[int, ...] = -1,
    where: ArrayLike | None = None,
) -> Array: ...
