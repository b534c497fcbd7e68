"""The geometry of a convolution: the parameters that say where its window meets its operand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from jax import lax

from repjax.primitives.operations.reductions.window import output_size, pad_dilated


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The parameters of ``conv_general_dilated`` but those of precision and type.

    ``dimension_numbers`` is a ``jax.lax.ConvDimensionNumbers``, ``padding`` pairs of numbers, which
    may be negative, and crop then.  Along a spatial axis output u and tap v of the window (``rhs``)
    meet at position ``stride * u + rhs_dilation * v`` of ``lhs``, dilated and padded.
    """

    window_strides: Sequence[int]
    padding: Sequence[tuple[int, int]]
    lhs_dilation: Sequence[int]
    rhs_dilation: Sequence[int]
    dimension_numbers: lax.ConvDimensionNumbers
    feature_group_count: int
    batch_group_count: int

    @property
    def rank(self) -> int:
        """How many axes are spatial."""
        return len(self.padding)

    @property
    def groups(self) -> int:
        """Groups of features or of the batch: one of the two is 1."""
        return self.feature_group_count * self.batch_group_count

    @property
    def crops(self) -> bool:
        return any(low < 0 or high < 0 for low, high in self.padding)

    @property
    def has_holes(self) -> bool:
        return any(dilation > 1 for dilation in self.lhs_dilation)

    @property
    def has_strided_holes(self) -> bool:
        """Whether an axis has a stride and holes, of which ``problems.convolution`` takes one."""
        pairs = zip(self.window_strides, self.lhs_dilation, strict=True)
        return any(stride > 1 and dilation > 1 for stride, dilation in pairs)

    def transposed(self, lhs, rhs):
        """Both operands as (batch or outputs, features, spatial), and their geometry."""
        lhs_spec, rhs_spec, out_spec = self.dimension_numbers
        lhs, rhs = lax.transpose(lhs, lhs_spec), lax.transpose(rhs, rhs_spec)
        spec = tuple(range(lhs.ndim))
        numbers = lax.ConvDimensionNumbers(spec, spec, out_spec)
        return lhs, rhs, dataclasses.replace(self, dimension_numbers=numbers)

    def as_specified(self, out):
        """The result, which is (batch, features, spatial), with its axes in their places."""
        out_spec = self.dimension_numbers[2]
        return lax.transpose(out, [out_spec.index(d) for d in range(len(out_spec))])

    def filled(self, lhs, spatial=None):
        """``lhs`` dilated and padded with zeros, along its axes ``spatial``."""
        spatial = self.dimension_numbers[0][2:] if spatial is None else spatial
        pads, dilations = [(0, 0)] * lhs.ndim, [1] * lhs.ndim
        for d, pad, dilation in zip(spatial, self.padding, self.lhs_dilation, strict=True):
            pads[d], dilations[d] = pad, dilation
        return pad_dilated(lhs, 0, pads, dilations)

    def of_filled(self) -> Geometry:
        """What is left to do with a ``lhs`` that is :meth:`filled`."""
        nothing = {"padding": [(0, 0)] * self.rank, "lhs_dilation": [1] * self.rank}
        return dataclasses.replace(self, **nothing)

    def positions(self, size, window) -> list[int]:
        """How many outputs there are along each spatial axis of these sizes, after filling."""
        numbers = zip(size, window, self.window_strides, self.rhs_dilation, strict=True)
        return [output_size(*of_axis) for of_axis in numbers]

    def terms(self, rhs) -> int:
        """How many products an output is the sum of: the elements of its kernel in ``rhs``."""
        return math.prod(rhs.shape[d] for d in self.dimension_numbers[1][1:])


#: The names of the parameters.
PARAMETERS = tuple(field.name for field in dataclasses.fields(Geometry))
