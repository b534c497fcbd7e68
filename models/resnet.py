"""Residual networks with pre-activation: ResNet-38, ResNet-56 and WRN-28-10.

Sources: K. He et al., "Identity Mappings in Deep Residual Networks", ECCV 2016
(blocks that begin with normalisation); S. Zagoruyko and N. Komodakis, "Wide Residual Networks",
BMVC 2016 (WRN-28-10).  ResNet-38 and ResNet-56 have the sizes of the networks that B. Chen et al.
trained ("Towards training reproducible deep learning models", ICSE 2022): 16, 32 and 64 maps,
convolutions with biases, and where a stage begins with half the pixels, a projection by a 1x1
convolution with stride 2 of the activated input.

=========  ======  ============  ==========================
network    blocks  widths        trainable parameters
=========  ======  ============  ==========================
ResNet-38  3 x 6   16, 32, 64    565,386 (3 channels, 10 classes)
ResNet-56  3 x 9   16, 32, 64    857,706 (3 channels, 10 classes)
WRN-28-10  3 x 4   160, 320, 640  36,536,884 (3 channels, 100 classes)
=========  ======  ============  ==========================

Batch normalisation keeps moving averages (momentum 0.9) in the collection ``batch_stats``.
"""

from __future__ import annotations

import flax.linen as nn
import numpy as np


class ResNet(nn.Module):
    """What the three networks share.

    Attributes:
      classes: number of outputs.
      blocks: residual blocks of each stage, each of two 3x3 convolutions.
      widths: maps of each stage; every stage after the first begins with stride 2.
      use_bias: whether convolutions have biases.

    ``apply(variables, images, train)`` takes float32 images (batch, height, width, channels), and
    gives float32 logits (batch, classes).  With ``train``, batches are normalised by their own
    statistics, and ``batch_stats`` has to be mutable; without it, by the moving averages.
    """

    classes: int = 10
    blocks: int = 6
    widths: tuple[int, ...] = (16, 32, 64)
    use_bias: bool = True

    def _conv(self, x, features, size=3, stride=1):
        return nn.Conv(
            features,
            (size, size),
            (stride, stride),
            use_bias=self.use_bias,
            kernel_init=nn.initializers.he_normal(),
        )(x)

    def _activate(self, x, train):
        return nn.relu(nn.BatchNorm(not train, momentum=0.9, epsilon=1e-5)(x))

    def _block(self, x, features, stride, train):
        activated = self._activate(x, train)
        h = self._conv(activated, features, stride=stride)
        h = self._conv(self._activate(h, train), features)
        if stride != 1 or features != x.shape[-1]:
            x = self._conv(activated, features, 1, stride)
        return x + h

    @nn.compact
    def __call__(self, images, train: bool = False):
        if images.ndim != 4 or images.dtype != np.float32:
            raise ValueError(
                f"{type(self).__name__}: expected float32 images of shape (batch, height, width, "
                f"channels), received {images.dtype} of shape {images.shape}; put channels last "
                "and convert to float32"
            )
        x = self._conv(images, 16)
        for stage, features in enumerate(self.widths):
            for block in range(self.blocks):
                x = self._block(x, features, 2 if stage and not block else 1, train)
        x = self._activate(x, train).mean(axis=(1, 2))
        return nn.Dense(self.classes, kernel_init=nn.initializers.he_normal())(x)


class ResNet38(ResNet):
    """ResNet-38: 37 convolutions of 3x3 and an affine layer."""

    blocks: int = 6


class ResNet56(ResNet):
    """ResNet-56: 55 convolutions of 3x3 and an affine layer."""

    blocks: int = 9


class WideResNet28x10(ResNet):
    """WRN-28-10: ten times as wide, without biases of convolutions and without dropout."""

    blocks: int = 4
    widths: tuple[int, ...] = (160, 320, 640)
    use_bias: bool = False
