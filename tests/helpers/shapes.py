"""On what results do not depend: the promises of docs/numerics.md, section 21, as programs.

An operation takes x[rows, terms] and, if it is a product, w[terms, columns].  A *variation* changes
these arrays and says which part of the result must keep its bits.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import repjax
from helpers.bits import same_bits

FORMATS = ("float32", "float16", "bfloat16")
ROWS, TERMS, MORE, COLUMNS = (1, 2, 5), (1, 2, 3, 7, 24, 40, 64, 100), (1, 3, 8, 24), 3


class Data(NamedTuple):
    """Operands, and which part of a result is looked at: an index."""

    x: np.ndarray
    w: np.ndarray
    part: Any = ()


def numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of different sizes, so that sums in another order have other bits."""
    return rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape)


# --- variations -------------------------------------------------------------------------

_ALL = slice(None)


def _among(x: np.ndarray, others: np.ndarray, axis: int, at: np.ndarray) -> np.ndarray:
    """The slices of x at the positions ``at`` of an axis, and the others around them."""
    shape = list(others.shape)
    shape[axis] += len(at)
    whole = np.empty(shape)
    whole[(_ALL,) * axis + (at,)] = x
    whole[(_ALL,) * axis + (np.setdiff1d(np.arange(whole.shape[axis]), at),)] = others
    return whole


def _places(rng, count: int, more: int) -> np.ndarray:
    return np.sort(rng.choice(count + more, count, replace=False))


def _rows(rng, op: Operation, data: Data) -> Data:
    """Other rows, before, between and behind."""
    more = rng.choice(MORE)
    at = _places(rng, len(data.x), more)
    return Data(_among(data.x, numbers(rng, (more, data.x.shape[1])), 0, at), data.w, (at,))


def _columns(rng, op: Operation, data: Data) -> Data:
    """Other columns of the second operand."""
    more = rng.choice(MORE)
    at = _places(rng, COLUMNS, more)
    others = numbers(rng, (len(data.w), more)) * 2.0**9
    return Data(data.x, _among(data.w, others, 1, at), (_ALL, at))


def _inserted(rng, op: Operation, data: Data, more: int, at: np.ndarray, zeros: bool) -> Data:
    """Terms that are nothing, with any numbers or with zeros as their counterparts."""
    nothing = np.full((len(data.x), more), op.nothing)
    others = numbers(rng, (more, COLUMNS)) * (0.0 if zeros else 2.0**9)
    part = (_ALL, at) if op.along_terms else ()
    return Data(_among(data.x, nothing, 1, at), _among(data.w, others, 0, at), part)


def _behind(rng, op: Operation, data: Data) -> Data:
    return _inserted(rng, op, data, rng.choice(MORE), np.arange(data.x.shape[1]), False)


def _in_front(rng, op: Operation, data: Data) -> Data:
    more = rng.choice(MORE)
    return _inserted(rng, op, data, more, more + np.arange(data.x.shape[1]), False)


def _between(rng, op: Operation, data: Data) -> Data:
    more = rng.choice(MORE)
    return _inserted(rng, op, data, more, _places(rng, data.x.shape[1], more), False)


def _of_both(rng, op: Operation, data: Data) -> Data:
    more = rng.choice(MORE)
    return _inserted(rng, op, data, more, _places(rng, data.x.shape[1], more), True)


def _later(rng, op: Operation, data: Data) -> Data:
    """Other elements, and another number of them, behind the first ones."""
    kept = rng.integers(1, data.x.shape[1] + 1)
    others = numbers(rng, (len(data.x), rng.choice(MORE)))
    return Data(np.concatenate([data.x[:, :kept], others], 1), data.w, (_ALL, slice(0, kept)))


#: By the heading of a column of the table.
VARIATIONS: dict[str, Callable[..., Data]] = {
    "rows": _rows,
    "columns": _columns,
    "behind": _behind,
    "in front": _in_front,
    "between": _between,
    "of both": _of_both,
    "later": _later,
}

# --- operations -------------------------------------------------------------------------

_YES = {"rows": True}
_ZEROS = {"behind": True, "in front": True, "between": True}
_ENDS = {"behind": True, "in front": True, "between": False}
_PRODUCT = {"columns": True, "of both": True}


@dataclasses.dataclass(frozen=True)
class Operation:
    """One row of the table.

    Attributes:
      name: as the table has it.
      compute: a function of x and w.
      holds: by variation, whether the result keeps its bits; others do not apply.
      orders: keywords of ``repjax.reproducible``.
      nothing: the term that is nothing: a zero, or an infinity of a maximum.
      along_terms: whether the result has an element for each term.
    """

    name: str
    compute: Callable[[Any, Any], Any]
    holds: Mapping[str, bool]
    orders: Mapping[str, str] = dataclasses.field(default_factory=dict)
    nothing: float = 0.0
    along_terms: bool = False

    @functools.cached_property
    def _run(self):
        return repjax.reproducible(self.compute, **self.orders)

    def run(self, data: Data, dtype, plain: bool = False) -> np.ndarray:
        """The part of the result that a variation looks at, in plain JAX or by repjax."""
        function = jax.jit(self.compute) if plain else self._run
        return np.asarray(function(*(v.astype(dtype) for v in data[:2])))[data.part]


def _softmax(x, w=None):
    return jax.nn.softmax(x / 16)  # so that it has more than one term that is not almost 0


def _segment_sums(x, w):
    ids = jnp.repeat(jnp.arange(len(x)), x.shape[1])
    return jax.ops.segment_sum(x.reshape(-1), ids, len(x))


def _convolution(x, w):
    return lax.conv(x[:, None], jnp.ones((2, 1, 1), x.dtype) * w[0, 0], (1,), "SAME")


def _one_key_a_row(x, w):
    keys = jax.vmap(jax.random.key)(lax.bitcast_convert_type(x[:, 0].astype("float32"), np.uint32))
    return jax.vmap(lambda key: jax.random.normal(key, x.shape[1:], x.dtype))(keys)


def _one_key(x, w):
    return jax.random.normal(jax.random.key(0), x.shape, x.dtype)


def _weights_gradient(x, w):
    """Of a dense layer: terms are the examples of a batch, masked by zeros of their losses."""
    return jax.grad(lambda v: jnp.vdot(x.T, w @ v.astype(w.dtype)))(jnp.ones((COLUMNS, len(x))))


def _dot(x, w, precision=None):
    return jnp.matmul(x, w, precision=precision)


_SEQUENTIAL = {"accumulation": "sequential"}
_ANY_ORDER = {"contraction": "order_independent"}
_EXACT = {"accumulation": "exact", "contraction": "exact"}
_INF = {"nothing": -np.inf}
_ALONG = {"along_terms": True}

OPERATIONS = (
    Operation("sum, `pairwise`", lambda x, w: x.sum(1), _YES | _ENDS),
    Operation("sum, `sequential`", lambda x, w: x.sum(1), _YES | _ZEROS, _SEQUENTIAL),
    Operation(
        "sum, `order_independent`",
        lambda x, w: x.sum(1),
        _YES | _ZEROS,
        {"accumulation": "order_independent"},
    ),
    Operation("sum, `exact`", lambda x, w: x.sum(1), _YES | _ZEROS, _EXACT),
    Operation("maximum", lambda x, w: x.max(1), _YES | _ZEROS, **_INF),
    Operation("`softmax`, masked by -inf", _softmax, _YES | _ENDS, **_INF, **_ALONG),
    Operation(
        "`softmax`, sums `sequential`", _softmax, _YES | _ZEROS, _SEQUENTIAL, **_INF, **_ALONG
    ),
    Operation("`logsumexp`", lambda x, w: jax.nn.logsumexp(x / 16, 1), _YES | _ENDS, **_INF),
    Operation(
        "`cumsum`, `pairwise`",
        lambda x, w: jnp.cumsum(x, 1),
        _YES | {"behind": True, "in front": False, "between": False, "later": True},
        **_ALONG,
    ),
    Operation(
        "`cumsum`, `sequential`",
        lambda x, w: jnp.cumsum(x, 1),
        _YES | _ZEROS | {"later": True},
        _SEQUENTIAL,
        **_ALONG,
    ),
    Operation(
        "`cumsum`, `exact`",
        lambda x, w: jnp.cumsum(x, 1),
        _YES | _ZEROS | {"later": True},
        _EXACT,
        **_ALONG,
    ),
    Operation(
        "`cumlogsumexp`",
        lambda x, w: lax.cumlogsumexp(x, 1),
        _YES | {"behind": True, "in front": False, "between": False, "later": True},
        **_INF,
        **_ALONG,
    ),
    Operation("product, `sequential`", _dot, _YES | _ZEROS | _PRODUCT),
    Operation(
        "product, `order_independent`",
        _dot,
        _YES | dict.fromkeys(_ZEROS, False) | _PRODUCT | {"columns": False},
        _ANY_ORDER,
    ),
    Operation(
        "the same with HIGHEST",
        functools.partial(_dot, precision="highest"),
        _YES | dict.fromkeys(_ZEROS, False) | _PRODUCT | {"columns": False},
        _ANY_ORDER,
    ),
    Operation("product, `exact`", _dot, _YES | _ZEROS | _PRODUCT, _EXACT),
    Operation("convolution, `sequential`", _convolution, _YES),
    Operation(
        "attention: softmax of scores masked by -inf, times values",
        lambda x, w: _softmax(x) @ w,
        _YES | _ENDS | {"columns": True},
        **_INF,
    ),
    Operation(
        "gradient of a layer's weights; terms are examples",
        _weights_gradient,
        _ZEROS | {"of both": True},
    ),
    Operation("`segment_sum`, gradient of an embedding", _segment_sums, _YES | _ZEROS),
    Operation("layer norm", lambda x, w: jax.nn.standardize(x), _YES),
    Operation("sort", lambda x, w: -jnp.sort(-x), _YES | {"behind": True}, **_INF, **_ALONG),
    Operation("Fourier transform", lambda x, w: jnp.fft.fft(x.astype("float32")).real, _YES),
    Operation("random numbers, one key a row", _one_key_a_row, _YES),
    Operation("random numbers, one key", _one_key, {"rows": False}),
)


# --- cases ------------------------------------------------------------------------------


class Case(NamedTuple):
    """An operation, a variation, a format, and the seed of the data; how many terms, if given."""

    operation: Operation
    variation: str
    dtype: str
    seed: int
    terms: int | None = None

    def __str__(self) -> str:
        return f"{self.operation.name}, {self.variation}, {self.dtype}, seed {self.seed}"

    def same(self, plain: bool = False) -> bool:
        """Whether the variation changes no bits."""
        rng = np.random.default_rng(self.seed)
        rows, terms = rng.choice(ROWS), self.terms or rng.choice(TERMS)
        data = Data(numbers(rng, (rows, terms)), numbers(rng, (terms, COLUMNS)))
        other = VARIATIONS[self.variation](rng, self.operation, data)
        of_both = data._replace(part=_both_have(self.variation, other))
        return same_bits(*(self.operation.run(d, self.dtype, plain) for d in (of_both, other)))


def _both_have(variation: str, other: Data) -> Any:
    """The part of the first result that a variation keeps: the elements before the later ones."""
    return other.part if variation == "later" else ()


def cases(start: int, stop: int) -> Iterator[Case]:
    """Cases by number: every operation, variation and format in turn, with other data each time."""
    every = [
        (operation, variation, dtype)
        for operation in OPERATIONS
        for variation in operation.holds
        for dtype in FORMATS
    ]
    for number in range(start, stop):
        seed, which = divmod(number, len(every))
        yield Case(*every[which], seed)


# --- the table of the documentation -----------------------------------------------------

_HEADINGS = {
    "rows": "other rows",
    "columns": "other columns",
    "behind": "zeros behind",
    "in front": "zeros in front",
    "between": "zeros between",
    "of both": "zeros of both operands",
    "later": "later elements",
}


def table() -> str:
    """The table of docs/numerics.md, section 21."""
    marks = {True: "yes", False: "**no**", None: ""}
    lines = [f"| operation | {' | '.join(_HEADINGS[v] for v in VARIATIONS)} |"]
    lines.append("|---" * (len(VARIATIONS) + 1) + "|")
    for operation in OPERATIONS:
        cells = (marks[operation.holds.get(v)] for v in VARIATIONS)
        lines.append(f"| {operation.name} | {' | '.join(cells)} |")
    return "\n".join(lines)
