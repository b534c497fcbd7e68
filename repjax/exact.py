"""Exact sums over time: numbers arrive in any order, in any parts, and are rounded once.

An :class:`Accumulator` holds the exact sum of all that was added to it, so that what it gives
depends on the terms alone: not on the order in which they arrive, on how they are spread over
microbatches, devices or machines, or on where a run was interrupted.  So does its state: equal sums
are equal bits.

The terms have to be the same.  The gradient of a microbatch is a rounded number, and another one
for another microbatch; so add the gradients of the *examples*, with :meth:`Accumulator.add_each`,
and compute these inside repjax, so that they do not depend on the rest of the batch::

    def gradients(parameters, examples):  # one for each example
        return jax.vmap(jax.grad(loss), (None, 0))(parameters, examples)

    total = Accumulator.like(parameters)
    for microbatch in microbatches:
        total = total.add_each(gradients(parameters, microbatch))
    gradient = total.round()

Everything is integer arithmetic on 32 bits: it is the same on all platforms, whether repjax is
enabled or not, and needs no 64-bit types.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from repjax.primitives.core import canonical

#: Words of 32 bits, the lowest first, in two's complement: multiples of 2**-149.  Float32 numbers
#: are below 2**(277 - 149), so that there is room for 2**40 of them.
_WORDS = 10
_LOWEST = -149
#: In the word behind these: which infinities and NaNs there were.
_NAN, _ABOVE, _BELOW = 1, 2, 4
#: So many terms are added at once: sums of their halves of words are below 2**31.
_MOST = 1 << 15
_FORMATS = (np.dtype(np.float32), *canonical.HALVES)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Accumulator:
    """The exact sums of trees of arrays, element by element; a pytree itself.

    Make one with :meth:`like`.  Methods give a new one; they may be used inside ``jax.jit``, loops
    and ``shard_map``, and the accumulator be saved by :mod:`repjax.checkpoint`.

    Attributes:
      words: the tree, with int32 ``[11, *shape]`` for an array of this shape: the sum in two's
        complement, and which infinities and NaNs were among the terms.  The same for equal sums.
      formats: the tree's formats, as names.
    """

    words: Any
    formats: tuple[str, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def like(cls, tree: Any) -> Accumulator:
        """The sum of nothing, +0, for arrays of these shapes and types.

        Args:
          tree: of float32, float16 and bfloat16 arrays, or of ``jax.ShapeDtypeStruct``.

        Raises:
          TypeError: a leaf of another type.
        """
        formats = tuple(_format(path, x) for path, x in _paths(tree))
        zeros = jax.tree.map(lambda x: jnp.zeros((_WORDS + 1, *np.shape(x)), np.int32), tree)
        return cls(zeros, formats)

    def add(self, tree: Any) -> Accumulator:
        """The sum with one more term: a tree of the same structure, shapes and types.

        Raises:
          TypeError, ValueError: a tree that differs in one of these.
        """
        return self._add(tree, each=False)

    def add_each(self, tree: Any) -> Accumulator:
        """The sum with more terms, as many as the leading axis of the arrays has elements.

        Raises:
          TypeError, ValueError: arrays that do not have the accumulator's types and structure, or
            not its shapes behind one leading axis.
        """
        return self._add(tree, each=True)

    def _add(self, tree: Any, each: bool) -> Accumulator:
        self._check(tree, each)
        words = jax.tree.map(functools.partial(_added, each=each), self.words, tree)
        return dataclasses.replace(self, words=words)

    def merge(self, other: Accumulator) -> Accumulator:
        """The sum of all terms of both.

        Raises:
          TypeError, ValueError: one of another tree, with other shapes or types.
        """
        if not isinstance(other, Accumulator):
            raise TypeError(f"merge expected an Accumulator, received {type(other).__name__}")
        if self.formats != other.formats or _shapes(self.words) != _shapes(other.words):
            raise ValueError(
                f"merge expected an Accumulator of the same tree, "
                f"{_described(self.formats, *_shapes(self.words))}, received "
                f"{_described(other.formats, *_shapes(other.words))}; make both of one tree"
            )
        return dataclasses.replace(self, words=jax.tree.map(_merged, self.words, other.words))

    def psum(self, axis_name) -> Accumulator:
        """Inside ``shard_map`` or ``pmap``, the sum of all terms that the devices have.

        For up to 2**15 devices along the axes of a mesh ``axis_name``.
        """

        def of_all(words):
            return _merged_along_front(lax.all_gather(words, axis_name))

        return dataclasses.replace(self, words=jax.tree.map(of_all, self.words))

    def round(self) -> Any:
        """The tree of guard(RN(the exact sum)), in the formats of the tree.

        Infinities and NaNs give what IEEE arithmetic gives in any order.
        """
        leaves, structure = jax.tree.flatten(self.words)
        pairs = zip(leaves, self.formats, strict=True)
        return jax.tree.unflatten(structure, [_rounded(words, dtype) for words, dtype in pairs])

    def _check(self, tree: Any, each: bool) -> None:
        formats = tuple(_format(path, x) for path, x in _paths(tree))
        received = (
            jax.tree.structure(tree),
            [np.shape(x)[int(each) :] for x in jax.tree.leaves(tree)],
        )
        expected = _shapes(self.words)
        if formats != self.formats or received != expected or (each and _counts(tree) is None):
            what = "arrays with one leading axis of terms, and behind it " if each else ""
            raise ValueError(
                f"expected {what}{_described(self.formats, *expected)}, received "
                f"{_described(formats, *received)}; make the Accumulator of a tree like one term"
            )


def _paths(tree):
    return jax.tree_util.tree_flatten_with_path(tree)[0]


def _format(path, x) -> str:
    dtype = np.dtype(getattr(x, "dtype", type(x)))
    if dtype not in _FORMATS:
        raise TypeError(
            f"an Accumulator expected float32, float16 or bfloat16 arrays, received {dtype} at "
            f"{jax.tree_util.keystr(path) or 'the root'}; convert it with .astype"
        )
    return dtype.name


def _shapes(words):
    return jax.tree.structure(words), [np.shape(x)[1:] for x in jax.tree.leaves(words)]


def _described(formats, structure, shapes) -> str:
    leaves = (f"{name}{list(shape)}" for name, shape in zip(formats, shapes, strict=True))
    return str(jax.tree.unflatten(structure, leaves)).replace("'", "")


def _counts(tree) -> int | None:
    """The size of all leading axes, or None if there is none."""
    counts = {np.shape(x)[0] if np.shape(x) else None for x in jax.tree.leaves(tree)}
    return counts.pop() if len(counts) == 1 else 0 if not counts else None


# --- on arrays --------------------------------------------------------------------------


def _unsigned(x):
    return lax.bitcast_convert_type(x, np.uint32)


def _signed(x):
    return lax.bitcast_convert_type(x, np.int32)


def _of_numbers(x):
    """The words of floats, uint32 ``[11, ...]``; what is not finite is in the last one."""
    wide = canonical.widen(x) if x.dtype in canonical.HALVES else x
    bits = _unsigned(wide)
    field = (bits >> 23) & np.uint32(0xFF)
    mantissa = (bits & np.uint32(0x7FFFFF)) | np.uint32(0x800000)
    mantissa = jnp.where((field == 0) | (field == 0xFF), np.uint32(0), mantissa)
    place = jnp.maximum(field, np.uint32(1)) - np.uint32(1)
    word, shift = place >> 5, place & np.uint32(31)
    low = mantissa << shift
    high = jnp.where(
        shift == 0, np.uint32(0), mantissa >> ((np.uint32(32) - shift) & np.uint32(31))
    )
    index = lax.broadcasted_iota(np.uint32, (_WORDS, *x.shape), 0)
    words = jnp.where(index == word, low, np.uint32(0)) | jnp.where(
        index == word + np.uint32(1), high, np.uint32(0)
    )
    negative = bits >> 31 == 1
    nan = (field == 0xFF) & (bits & np.uint32(0x7FFFFF) != 0)
    flags = jnp.where(nan, _NAN, jnp.where(negative, _BELOW, _ABOVE)).astype(np.uint32)
    flags = jnp.where(field == 0xFF, flags, np.uint32(0))
    words = jnp.where(negative, _negated(words), words)
    return jnp.concatenate([words, flags[None]])


def _negated(words):
    """In two's complement: the lowest word that is not zero is negated, those above inverted."""
    is_zero = jnp.cumsum((words != 0).astype(np.uint32), 0, dtype=np.uint32) == 0
    below = jnp.concatenate([jnp.ones_like(is_zero[:1]), is_zero[:-1]])
    return jnp.where(below, ~words + np.uint32(1), ~words)


def _carried(halves):
    """Words from sums of their lower and upper halves, uint32 ``[2, 10, ...]``, modulo 2**320."""
    carry, words = jnp.zeros_like(halves[0, 0]), []
    for i in range(_WORDS):
        low = halves[0, i] + carry
        high = halves[1, i] + (low >> 16)
        words.append((low & np.uint32(0xFFFF)) | high << 16)
        carry = high >> 16
    return jnp.stack(words)


def _merged_along_front(words):
    """The sums of words, int32 ``[count, 11, ...]``, over the front."""
    words = _unsigned(words)
    while len(words) > _MOST:
        parts = [words[i : i + _MOST] for i in range(0, len(words), _MOST)]
        words = jnp.stack([_unsigned(_merged_along_front(_signed(part))) for part in parts])
    sums = words[:, :_WORDS]
    halves = jnp.stack([sums & np.uint32(0xFFFF), sums >> 16])
    total = _carried(jnp.sum(halves, 1, dtype=np.uint32))
    # One after the other: devices have no common or.
    flags = sum(jnp.max(words[:, _WORDS:] & np.uint32(flag), 0) for flag in (_NAN, _ABOVE, _BELOW))
    return _signed(jnp.concatenate([total, flags]))


@jax.jit
def _merged(words, others):
    return _merged_along_front(jnp.stack([words, others]))


@functools.partial(jax.jit, static_argnames="each")
def _added(words, x, *, each):
    x = jnp.asarray(x)
    more = jnp.moveaxis(_of_numbers(x), 1, 0) if each else _of_numbers(x)[None]
    return _merged_along_front(jnp.concatenate([words[None], _signed(more)]))


@functools.partial(jax.jit, static_argnames="dtype")
def _rounded(words, dtype):
    f = canonical.FORMATS[np.dtype(dtype)]
    words = _unsigned(words)
    flags, words = words[_WORDS], words[:_WORDS]
    negative = words[-1] >> 31 == 1
    words = jnp.where(negative, _negated(words), words)

    # The highest word that is not zero, the one below it, and whether there is anything below.
    top, below, rest = (jnp.zeros_like(words[0]) for _ in range(3))
    highest = jnp.zeros_like(words[0])
    for i in range(_WORDS):
        found = words[i] != 0
        lower = words[i - 1] if i else jnp.zeros_like(words[0])
        under = jnp.any(words[: max(0, i - 1)] != 0, 0).astype(np.uint32)
        top, below = jnp.where(found, words[i], top), jnp.where(found, lower, below)
        rest = jnp.where(found, under, rest)
        highest = jnp.where(found, np.uint32(32 * i), highest)
    zeros = lax.clz(top) & np.uint32(31)
    moved = jnp.where(zeros == 0, np.uint32(0), below >> ((np.uint32(32) - zeros) & np.uint32(31)))
    first = top << zeros | moved  # 32 bits, the highest of which is 1
    sticky = ((below << zeros) | rest) != 0

    dropped = np.uint32(31 - f.mantissa_bits)
    mantissa = first >> dropped
    lost, half = first & np.uint32((1 << int(dropped)) - 1), np.uint32(1 << int(dropped) >> 1)
    up = (lost > half) | ((lost == half) & (sticky | (mantissa & np.uint32(1) == 1)))
    # Where the first bit counts 2**exponent; a mantissa that overflows carries into the field.
    exponent = (highest + np.uint32(31) - zeros).astype(np.int32) + _LOWEST
    field = exponent + f.bias
    bits = (jnp.maximum(field, 0) << f.mantissa_bits) + up.astype(np.int32)
    bits = bits + mantissa.astype(np.int32) - (1 << f.mantissa_bits)
    bits = jnp.where((top == 0) | (field <= 0) | (bits <= f.tiny), 0, bits)
    bits = jnp.minimum(bits, f.infinity)
    bits = jnp.where(field > 2 * f.bias, f.infinity, bits)
    sign = np.uint32(1 << (8 * f.int_dtype.itemsize - 1))
    bits = _unsigned(bits) | jnp.where(negative & (bits != 0), sign, np.uint32(0))
    # What is not finite decides.
    infinity = np.uint32(f.infinity) | jnp.where(flags == _BELOW, sign, np.uint32(0))
    is_infinite = (flags == _ABOVE) | (flags == _BELOW)
    instead = jnp.where(is_infinite, infinity, np.uint32(f.nan))
    bits = jnp.where(flags == 0, bits, instead)
    integers = bits.astype(np.dtype(f"uint{8 * f.int_dtype.itemsize}"))
    return lax.bitcast_convert_type(integers, f.float_dtype)
