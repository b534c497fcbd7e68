"""LeNet-1, LeNet-4 and LeNet-5 as Flax Linen modules.

Source: Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, "Gradient-based learning applied
to document recognition", Proceedings of the IEEE 86(11):2278-2324, 1998 (LeNet-5 in
section II.B, LeNet-1 and LeNet-4 in section III.C, initialisation in appendix A).

What is simplified, here as in most modern versions:

* subsampling is plain 2x2 average (or max) pooling, without the paper's trainable
  coefficient and bias per map and without its squashing function;
* every map of a convolution sees all maps below it, where the paper connects some
  (its Table I for LeNet-5, pairs of maps for LeNet-4);
* the squashing function is tanh(a), not 1.7159 tanh(2a/3), and it follows each
  convolution directly;
* the output layer is affine and returns logits, not Euclidean radial basis functions.

The layers come from the ``layers`` field, a namespace with ``Conv``, ``Dense``,
``avg_pool``, ``max_pool``, ``tanh`` and ``relu``: ``flax.linen`` by default, or
``repjax.nn``.  Names, shapes and initial bits of the parameters do not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import flax.linen as nn
import jax
import numpy as np

ACTIVATIONS = ("tanh", "relu")
POOLS = ("avg", "max")


def uniform_fan_in(key, shape, dtype=np.float32):
    """Weights uniform in [-2.4/fan_in, 2.4/fan_in), appendix A of the paper.

    Args:
      key: a PRNG key.
      shape: (..., fan-in axes, outputs): the fan-in is the product of all axes but the last.
      dtype: float32.

    Only the last multiplication rounds.  The samples on [-1, 1) are multiples of 2**-22,
    so that every step of `jax.random.uniform` is exact, fused into an FMA or not, and the
    weights have the same bits with and without repjax.
    """
    if np.dtype(dtype) != np.float32:
        raise TypeError(
            f"uniform_fan_in: expected dtype float32, received {np.dtype(dtype).name}; "
            "initialise in float32 and convert the parameters afterwards"
        )
    bound = np.float32(2.4 / math.prod(shape[:-1]))
    return jax.random.uniform(key, shape, np.float32, minval=-1.0, maxval=1.0) * bound


class LeNet(nn.Module):
    """What the three networks share: options, layers and the check of the input.

    Attributes:
      classes: number of outputs.
      activation: "tanh" (the paper's kind) or "relu".
      pool: "avg" (the paper's kind) or "max", over 2x2 windows with stride 2.
      layers: the namespace of the layers, `flax.linen` or `repjax.nn`.
      kernel_init: initial weights; :func:`uniform_fan_in` is the paper's, and later studies take
        `flax.linen.initializers.glorot_uniform()`.
    """

    classes: int = 10
    activation: str = "tanh"
    pool: str = "avg"
    layers: ModuleType = nn
    kernel_init: Callable[..., Any] = uniform_fan_in

    input_shape: ClassVar[tuple[int, int, int]]

    def _conv(self, features, name):
        return self.layers.Conv(
            features, (5, 5), padding="VALID", kernel_init=self.kernel_init, name=name
        )

    def _dense(self, features, name):
        return self.layers.Dense(features, kernel_init=self.kernel_init, name=name)

    def _activate(self, x):
        _check_choice("activation", self.activation, ACTIVATIONS)
        return getattr(self.layers, self.activation)(x)

    def _subsample(self, x):
        _check_choice("pool", self.pool, POOLS)
        return getattr(self.layers, f"{self.pool}_pool")(x, (2, 2), strides=(2, 2))

    def _check_images(self, images):
        expected = ("batch", *self.input_shape)
        if images.ndim != 4 or images.shape[1:] != self.input_shape or images.dtype != np.float32:
            raise ValueError(
                f"{type(self).__name__}: expected float32 images of shape {expected}, received "
                f"{images.dtype} of shape {images.shape}; pad or repeat pixels to that size, "
                "channels last, and convert to float32"
            )


def _check_choice(field, value, choices):
    if value not in choices:
        raise ValueError(
            f"LeNet: expected {field} to be one of {choices}, received {value!r}; "
            "choose one of these"
        )


def _flatten(x):
    return x.reshape(x.shape[0], -1)


class LeNet1(LeNet):
    """LeNet-1: float32 images (batch, 28, 28, 1) to logits (batch, classes).

    ======  =================  ===========  ==========
    layer   operation          output       parameters
    ======  =================  ===========  ==========
    c1      convolution 5x5    24 x 24 x 4  104
    s2      pooling 2x2        12 x 12 x 4
    c3      convolution 5x5    8 x 8 x 12   1,212
    s4      pooling 2x2        4 x 4 x 12
    output  affine             10           1,930
    ======  =================  ===========  ==========
    """

    input_shape: ClassVar[tuple[int, int, int]] = (28, 28, 1)

    @nn.compact
    def __call__(self, images):
        self._check_images(images)
        x = self._subsample(self._activate(self._conv(4, "c1")(images)))
        x = self._subsample(self._activate(self._conv(12, "c3")(x)))
        return self._dense(self.classes, "output")(_flatten(x))


class LeNet4(LeNet):
    """LeNet-4: float32 images (batch, 32, 32, 1) to logits (batch, classes).

    ======  =================  ============  ==========
    layer   operation          output        parameters
    ======  =================  ============  ==========
    c1      convolution 5x5    28 x 28 x 4   104
    s2      pooling 2x2        14 x 14 x 4
    c3      convolution 5x5    10 x 10 x 16  1,616
    s4      pooling 2x2        5 x 5 x 16
    f5      affine             120           48,120
    output  affine             10            1,210
    ======  =================  ============  ==========
    """

    input_shape: ClassVar[tuple[int, int, int]] = (32, 32, 1)

    @nn.compact
    def __call__(self, images):
        self._check_images(images)
        x = self._subsample(self._activate(self._conv(4, "c1")(images)))
        x = self._subsample(self._activate(self._conv(16, "c3")(x)))
        x = self._activate(self._dense(120, "f5")(_flatten(x)))
        return self._dense(self.classes, "output")(x)


class LeNet5(LeNet):
    """LeNet-5: float32 images (batch, 32, 32, 1) to logits (batch, classes).

    ======  =================  ============  ==========
    layer   operation          output        parameters
    ======  =================  ============  ==========
    c1      convolution 5x5    28 x 28 x 6   156
    s2      pooling 2x2        14 x 14 x 6
    c3      convolution 5x5    10 x 10 x 16  2,416
    s4      pooling 2x2        5 x 5 x 16
    c5      convolution 5x5    1 x 1 x 120   48,120
    f6      affine             84            10,164
    output  affine             10            850
    ======  =================  ============  ==========
    """

    input_shape: ClassVar[tuple[int, int, int]] = (32, 32, 1)

    @nn.compact
    def __call__(self, images):
        self._check_images(images)
        x = self._subsample(self._activate(self._conv(6, "c1")(images)))
        x = self._subsample(self._activate(self._conv(16, "c3")(x)))
        x = self._activate(self._conv(120, "c5")(x))
        x = self._activate(self._dense(84, "f6")(_flatten(x)))
        return self._dense(self.classes, "output")(x)
