"""Arrays as bits: how the tests compare them, and what they feed."""

from __future__ import annotations

import jax
import numpy as np

from repjax.verify.reference.values import canonical as canonical

#: float32 patterns at which operations change their behaviour; half of them, the other
#: half differs in the sign.
SPECIALS = np.array(
    [
        0x00000000,  # zero
        0x00000001,  # the smallest subnormal number
        0x007FFFFF,  # the largest
        0x00800000,  # the smallest normal number, and its neighbour
        0x00800001,
        0x01000000,
        0x33800000,  # 2**-24, 2**-23
        0x34000000,
        0x3EFFFFFF,  # around 1/2, 1, 3/2, 5/2
        0x3F000000,
        0x3F7FFFFF,
        0x3F800000,
        0x3F800001,
        0x3FC00000,
        0x40200000,
        0x42FE0000,  # 127, 128, 255, 256, 32767, 32768, 65535, 65536
        0x43000000,
        0x437F0000,
        0x43800000,
        0x46FFFE00,
        0x47000000,
        0x477FFF00,
        0x47800000,
        0x4AFFFFFF,  # 2**23 - 1/2, 2**24, below and at 2**31, 2**32
        0x4B800000,
        0x4EFFFFFF,
        0x4F000000,
        0x4F7FFFFF,
        0x4F800000,
        0x5F7FFFFF,  # around the square root of the largest number
        0x7F000000,
        0x7F7FFFFF,  # the largest number
        0x7F800000,  # infinity
        0x7F800001,  # NaNs: signalling, canonical, all ones
        0x7FC00000,
        0x7FFFFFFF,
    ],
    np.uint32,
)
SPECIALS = np.concatenate([SPECIALS, SPECIALS | np.uint32(1 << 31)]).view(np.float32)


def bits(x) -> np.ndarray:
    """The bits of an array as unsigned integers of its width."""
    if jax.dtypes.issubdtype(getattr(x, "dtype", None), jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    x = np.asarray(x)
    return x.view(f"u{x.dtype.itemsize}")


def same_bits(x, y) -> bool:
    """Whether two arrays have the same type, shape and bits."""
    x, y = np.asarray(x), np.asarray(y)
    return x.dtype == y.dtype and x.shape == y.shape and bool((bits(x) == bits(y)).all())


def assert_same_bits(actual, expected, what: str = "") -> None:
    """Two trees of arrays have one structure, and their leaves dtype, shape and bits.

    The message names the first element that differs, with both patterns.
    """
    got, structure = jax.tree_util.tree_flatten_with_path(actual)
    want, wanted = jax.tree_util.tree_flatten_with_path(expected)
    assert structure == wanted, f"{what}: expected {wanted}, received {structure}"
    for (path, x), (_, y) in zip(got, want, strict=True):
        name = what + jax.tree_util.keystr(path)
        kinds = [f"{a.dtype}{list(a.shape)}" for a in map(_array, (x, y))]
        assert kinds[0] == kinds[1], f"{name}: expected {kinds[1]}, received {kinds[0]}"
        _assert_same_elements(bits(x), bits(y), _array(x), _array(y), name)


def _array(x):
    return x if hasattr(x, "dtype") else np.asarray(x)


def _assert_same_elements(i, j, x, y, name):
    different = np.argwhere(i != j)
    if not len(different):
        return
    at = tuple(map(int, different[0]))
    digits = 2 + 2 * i.dtype.itemsize
    values = (np.asarray(a)[at] if i.shape == a.shape else "a key" for a in (y, x))
    expected, received = values
    raise AssertionError(
        f"{name or 'array'}: {len(different)} of {i.size} elements differ, the first at {at}: "
        f"expected {j[at]:#0{digits}x} ({expected}), received {i[at]:#0{digits}x} ({received})"
    )


def patterns(n: int, seed: int = 0, dtype=np.float32) -> np.ndarray:
    """``n`` random bit patterns, any of them: subnormals, -0 and NaNs with payloads too."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    if dtype == np.bool_:
        return rng.random(n) < 0.5
    raw = rng.integers(0, 256, n * dtype.itemsize, np.uint8)
    return raw.view(dtype)


def normal(shape, seed: int = 0) -> np.ndarray:
    """float32 numbers from the normal distribution."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
