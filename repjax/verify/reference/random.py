"""Random bits of threefry2x32, as integers: docs/numerics.md, section 10.

Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3": the block cipher of two words,
20 rounds.  How keys and counts are made of seeds and shapes is that of ``jax.random``.
"""

from __future__ import annotations

import math

import numpy as np

from repjax.verify.reference.arithmetic import exact, width, wrap
from repjax.verify.reference.table import NoReference, Operation, of_all

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = np.uint32(0x1BD11BDA)
#: A parameter for what ``jax_threefry_partitionable`` says, True unless it is given.
PARTITIONABLE = "jax_threefry_partitionable"


@np.errstate(over="ignore")
def threefry2x32(first, second, x, y):
    """The two words of a count, encrypted by those of a key; arrays of uint32 that broadcast."""
    keys = np.uint32(first), np.uint32(second), np.uint32(first) ^ np.uint32(second) ^ _PARITY
    x, y = x + keys[0], y + keys[1]
    for step in range(5):
        for r in _ROTATIONS[step % 2]:
            x = x + y
            y = (y << np.uint32(r)) | (y >> np.uint32(32 - r))
            y = x ^ y
        x, y = x + keys[(step + 1) % 3], y + keys[(step + 2) % 3] + np.uint32(step + 1)
    return x, y


def _counts(shape):
    """64-bit counts, in their high and low words."""
    count = np.arange(math.prod(shape), dtype=np.uint64).reshape(shape)
    return (count >> np.uint64(32)).astype(np.uint32), count.astype(np.uint32)


def _hash(key, count):
    """Words of any number: the first half beside the second."""
    flat = count.ravel()
    padded = np.concatenate([flat, np.zeros(flat.size % 2, np.uint32)])
    words = np.concatenate(threefry2x32(*key, *np.split(padded, 2)))
    return words[: flat.size].reshape(count.shape)


def _seeded(seed: int) -> np.ndarray:
    return np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)


def _words(keys) -> np.ndarray:
    """[..., 2]"""
    return np.ascontiguousarray(keys).view(np.uint32).reshape(*keys.shape, 2)


def _keys(words) -> np.ndarray:
    return np.ascontiguousarray(words, np.uint32).view("V8")[..., 0]


def _each(function, keys, *others) -> np.ndarray:
    """``function(words of a key, ...)`` of every key of an array."""
    words = _words(keys)
    others = [np.broadcast_to(x, keys.shape) for x in others]
    found = [function(words[i], *(x[i] for x in others)) for i in np.ndindex(*keys.shape)]
    if not found:
        raise NoReference("random bits: expected a key, received an array of none")
    return np.stack(found).reshape((*keys.shape, *found[0].shape))


def _is_partitionable(operation: Operation) -> bool:
    return operation.params.get(PARTITIONABLE, True)


@of_all("random_seed")
def random_seed(operation: Operation):
    (seeds,) = operation.operands
    bits = width(seeds.dtype)
    # The high word is that of the seed's own bits, shifted by 32.
    found = [_seeded(int(s) % (1 << bits)) for s in exact(seeds).ravel()]
    return [_keys(np.stack(found).reshape(*seeds.shape, 2))]


@of_all("random_fold_in")
def random_fold_in(operation: Operation):
    keys, data = operation.operands
    keys = np.broadcast_to(keys, operation.shape)

    def one(key, x):
        return _hash(key, _seeded(int(x) & 0xFFFFFFFF))

    return [_keys(_each(one, keys, data))]


@of_all("random_split")
def random_split(operation: Operation):
    (keys,), shape = operation.operands, operation.params["shape"]

    def one(key):
        if _is_partitionable(operation):
            return np.stack(threefry2x32(*key, *_counts(shape)), -1)
        count = np.arange(2 * math.prod(shape), dtype=np.uint32)
        return _hash(key, count).reshape(*shape, 2)

    return [_keys(_each(one, keys))]


@of_all("random_bits")
def random_bits(operation: Operation):
    (keys,) = operation.operands
    shape, bits = operation.params["shape"], operation.params["bit_width"]
    draw = _partitionable_bits if _is_partitionable(operation) else _original_bits
    return [_each(lambda key: draw(key, bits, shape), keys).astype(operation.dtype)]


def _partitionable_bits(key, bits: int, shape):
    high, low = threefry2x32(*key, *_counts(shape))
    if bits == 64:
        return high.astype(np.uint64) << np.uint64(32) | low
    return wrap((high ^ low).astype(np.int64), f"uint{bits}")


def _original_bits(key, bits: int, shape):
    size = math.prod(shape)
    words = _hash(key, np.arange(-(-bits * size // 32), dtype=np.uint32))
    if bits == 64:
        high, low = np.split(words, 2)
        found = high.astype(np.uint64) << np.uint64(32) | low
    else:
        found = words.astype("<u4").view(f"<u{bits // 8}")[:size]
    return found.reshape(shape)


@of_all("random_wrap")
def random_wrap(operation: Operation):
    return [_keys(operation.operands[0])]


@of_all("random_unwrap")
def random_unwrap(operation: Operation):
    return [_words(operation.operands[0])]


@of_all("threefry2x32")
def _threefry2x32(operation: Operation):
    return [*threefry2x32(*operation.operands)]
