"""The types of repjax.nnx: those of flax.nnx, of whose classes its own are subclasses."""

from flax.nnx import *  # noqa: F403
