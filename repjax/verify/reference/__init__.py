"""An independent reference for every operation of docs/numerics.md.

NumPy, fractions and mpmath compute here, never JAX, XLA or code of the library: what agrees with
this was computed in two ways that share nothing.  It is slow, and plain enough to check by reading.

A primitive is named as in a trace (``exp``, ``dot_general``, ``add_any``), or as one of repjax's
own (``repjax_add_n``).  Its parameters are those of the equation; objects of JAX among them are
read by attribute.  A key of ``jax.random`` is its words as one element of NumPy's type ``V8``
(:func:`keys`); its type has the name ``key<fry>``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from repjax.verify.reference import (  # which enter themselves into the table
    arithmetic,
    complex_numbers,
    elementary,
    fourier,
    linalg,
    movement,
    products,
    programs,
    random,
    scatters,
    special,
    sums,
    values,
    windows,
)
from repjax.verify.reference.table import (
    COMPLEX,
    EXCEPTIONS,
    PARTS,
    REFERENCES,
    NoReference,
    Operation,
    call,
    short,
)

__all__ = [
    "COMPLEX",
    "EXCEPTIONS",
    "PARTS",
    "REFERENCES",
    "NoReference",
    "Operation",
    "arithmetic",
    "call",
    "complex_numbers",
    "compute",
    "element",
    "elementary",
    "fourier",
    "keys",
    "linalg",
    "movement",
    "operation",
    "products",
    "programs",
    "random",
    "scatters",
    "short",
    "special",
    "sums",
    "values",
    "windows",
    "words",
]

Results = Sequence[tuple[str, tuple[int, ...]]]


def keys(words: np.ndarray) -> np.ndarray:
    """Keys, of the words that ``jax.random.key_data`` gives, along the last axis."""
    words = np.ascontiguousarray(words, np.uint32)
    return words.view(f"V{4 * words.shape[-1]}")[..., 0]


def words(keys: np.ndarray) -> np.ndarray:
    """The inverse of :func:`keys`."""
    return np.ascontiguousarray(keys).view(np.uint32).reshape(*keys.shape, keys.itemsize // 4)


def _dtype(name: str) -> np.dtype:
    if name.startswith("key<"):
        if name != "key<fry>":
            raise NoReference(f"expected keys of threefry, key<fry>, received {name}")
        return np.dtype("V8")
    return np.dtype(name)


def operation(
    primitive: str,
    operands: Sequence[np.ndarray],
    params: Mapping[str, Any],
    *,
    results: Results,
    accumulation: str = "pairwise",
    contraction: str = "sequential",
) -> Operation:
    """The operation that :func:`compute` computes."""
    return Operation(
        short(primitive),
        tuple(values.canonical(np.asarray(x)) for x in operands),
        params,
        tuple((_dtype(name), tuple(shape)) for name, shape in results),
        accumulation,
        contraction,
    )


def compute(
    primitive: str,
    operands: Sequence[np.ndarray],
    params: Mapping[str, Any],
    *,
    results: Results,
    accumulation: str = "pairwise",
    contraction: str = "sequential",
) -> list[np.ndarray]:
    """What an operation gives.

    Args:
      primitive: its name.
      operands: arrays; made canonical first.
      params: the parameters of its equation.
      results: names of the types, and shapes, of what it gives.
      accumulation, contraction: the orders of sums and of products, where the parameters do not
        say them.

    Returns:
      Canonical arrays of these types.

    Raises:
      NoReference: there is none for this primitive, or for these types.
    """
    return call(
        operation(
            primitive,
            operands,
            params,
            results=results,
            accumulation=accumulation,
            contraction=contraction,
        )
    )


def element(
    primitive: str,
    operands: Sequence[np.ndarray],
    params: Mapping[str, Any],
    index: tuple[int, ...],
    *,
    result: int = 0,
    results: Results,
    accumulation: str = "pairwise",
    contraction: str = "sequential",
) -> np.ndarray:
    """One element of what :func:`compute` gives, from what it is made of, where that is less.

    Args:
      index: of the element in the result of the number ``result``.

    Returns:
      An array without dimensions.
    """
    of = operation(
        primitive,
        operands,
        params,
        results=results,
        accumulation=accumulation,
        contraction=contraction,
    )
    if of.name in PARTS:
        of, index = PARTS[of.name](of, tuple(index), result)
    return np.asarray(call(of)[result][tuple(index)])
