"""Matrix products and convolutions: docs/numerics.md, section 5."""

from __future__ import annotations

import math

import numpy as np

from repjax.verify.reference import values
from repjax.verify.reference.arithmetic import converted, wrap
from repjax.verify.reference.table import NoReference, Operation, in_float32, of, part
from repjax.verify.reference.values import FLOAT32, ExactSum, fma, guard, multiply, nearest


def chain(terms, shape, step=fma):
    """``s = step(a, b, s)`` over pairs of arrays that broadcast to ``shape``, from +0."""
    s = np.zeros(shape, np.float32)
    for a, b in terms:
        s = step(a, b, s)
    return guard(s)


def wrapping(terms, shape, step=None):
    """Sums of products of integers, modulo 2**64."""
    with np.errstate(over="ignore"):
        return sum(
            (a.astype(np.int64) * b.astype(np.int64) for a, b in terms), np.zeros(shape, np.int64)
        )


def unbounded(terms, shape, step=None):
    """Sums of products of Python's integers."""
    return sum((a * b for a, b in terms), np.zeros(shape, object))


def exact_chain(dtype):
    """Exact sums of exact products, rounded once to a format."""

    def chain(terms, shape, step=None):
        total = ExactSum(shape)
        for a, b in terms:
            with np.errstate(invalid="ignore"):
                total.add(np.multiply(a, b, dtype=np.float64))
        return total.rounded(dtype)

    return chain


def dot_general(lhs, rhs, dimension_numbers, step=fma, order=list, chain=chain):
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = dimension_numbers
    lhs_free = [d for d in range(lhs.ndim) if d not in (*lhs_contracting, *lhs_batch)]
    rhs_free = [d for d in range(rhs.ndim) if d not in (*rhs_contracting, *rhs_batch)]
    b, m, n = len(lhs_batch), len(lhs_free), len(rhs_free)
    lhs = lhs.transpose([*lhs_contracting, *lhs_batch, *lhs_free])
    rhs = rhs.transpose([*rhs_contracting, *rhs_batch, *rhs_free])
    contracted = lhs.shape[: len(lhs_contracting)]
    rest_lhs, rest_rhs = lhs.shape[len(contracted) :], rhs.shape[len(contracted) :]
    shape = rest_lhs + rest_rhs[b:]

    def term(k):
        x, y = lhs[k], rhs[k]  # [batch, m], [batch, n]
        return x.reshape(x.shape + (1,) * n), y.reshape(y.shape[:b] + (1,) * m + y.shape[b:])

    return chain((term(k) for k in order(np.ndindex(*contracted))), shape, step)


def dilate_and_pad(x, value, padding, dilation):
    """``dilation - 1`` holes between the elements, then ``padding``; negative padding crops."""
    sizes = [max(0, (n - 1) * d + 1) for n, d in zip(x.shape, dilation, strict=True)]
    y = np.full(sizes, value, x.dtype)
    y[tuple(slice(None, None, d) for d in dilation)] = x
    widths = [(max(0, low), max(0, high)) for low, high in padding]
    y = np.pad(y, widths, constant_values=value) if widths else y
    crop = [
        slice(max(0, -low), max(0, y.shape[d] - max(0, -high)))
        for d, (low, high) in enumerate(padding)
    ]
    return y[tuple(crop)]


def output_sizes(shape, window, strides, dilation):
    """How many windows fit, one dimension at a time, by trying."""
    sizes = []
    for size, w, s, d in zip(shape, window, strides, dilation, strict=True):
        n = 0
        while n * s + (w - 1) * d < size:
            n += 1
        sizes.append(n)
    return tuple(sizes)


def conv_general_dilated(
    lhs,
    rhs,
    *,
    window_strides,
    padding,
    lhs_dilation,
    rhs_dilation,
    dimension_numbers,
    feature_group_count,
    batch_group_count,
    step=fma,
    order=list,
    chain=chain,
):
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    x, w = lhs.transpose(lhs_spec), rhs.transpose(rhs_spec)
    x = dilate_and_pad(x, 0, [(0, 0), (0, 0), *padding], [1, 1, *lhs_dilation])
    outs, features, *window = w.shape
    spatial = output_sizes(x.shape[2:], window, window_strides, rhs_dilation)
    batch = x.shape[0] // batch_group_count
    out = np.zeros((batch, outs, *spatial), chain((), ()).dtype)

    def term(o, k):
        """Input and weight of output feature ``o`` at the k-th position of the kernel."""
        feature, *tap = k
        feature += features * (o * feature_group_count // outs)
        first = batch * (o * batch_group_count // outs)
        at = tuple(
            slice(t * r, t * r + n * s, s)
            for t, r, s, n in zip(tap, rhs_dilation, window_strides, spatial, strict=True)
        )
        patch = x[(slice(first, first + batch), feature, *at)]
        return patch[tuple(slice(0, n) for n in (batch, *spatial))], w[(o, *k)]

    if out.size:
        for o in range(outs):
            positions = order(np.ndindex(features, *window))
            out[:, o] = chain((term(o, k) for k in positions), (batch, *spatial), step)
    return out.transpose([out_spec.index(d) for d in range(out.ndim)])


# --- order-independent ------------------------------------------------------------------

#: The bits of grids and of sums, without and with precision=HIGHEST.
GRIDS = {None: (22, 62), "highest": (30, 94)}


def _exponents(x) -> np.ndarray:
    """E(x), and -10000 of zeros, which is below every sum of a few exponents."""
    return np.where(x == 0, -10_000, np.frexp(np.asarray(x, np.float64))[1] - 1)


def _largest(exponents, axis) -> np.ndarray:
    """The largest exponents along axes, which are kept; 0 where there are only zeros."""
    most = exponents.max(axis, initial=-10_000, keepdims=True)
    return np.where(most < -5_000, 0, most)


def _on_grid(x, power) -> np.ndarray:
    """The nearest integers of ``x * 2**power``, ties to even, which float64 holds exactly."""
    return np.rint(np.ldexp(np.asarray(x, np.float64), power)).astype(np.int64)


def _scaled(total, power) -> np.ndarray:
    """Integers times powers of two, rounded once, canonical."""
    total, power = np.broadcast_arrays(total, power)
    out = np.empty(total.shape, np.float32)
    with np.errstate(over="ignore"):
        for i in np.ndindex(out.shape):
            v = int(total[i])
            out[i] = nearest(int(v < 0), abs(v), int(power[i]), 24)
    return guard(out)


def bits_of_grid(terms: int, bits: int, of_sum: int) -> int:
    return min(bits, (of_sum - (terms - 1).bit_length()) // 2)


def _exact(t: int):
    """Integers of t bits, and the chain whose sums of their products are exact."""
    return (np.int64, wrapping) if t <= GRIDS[None][0] else (object, unbounded)


def order_independent_dot(a, b, bits=22, of_sum=62):
    """``a[m, k] @ b[k, n]`` of finite numbers, on the grids of the contract."""
    terms = a.shape[1]
    if not terms or not a.size or not b.size:
        return np.zeros((a.shape[0], b.shape[1]), np.float32)
    t = bits_of_grid(terms, bits, of_sum)
    in_a, in_b = _exponents(a), _exponents(b)
    used = in_b.max(1) > -5_000  # [k]
    s = _largest(in_b, 1)  # [k, 1]
    e = _largest(np.where(used, in_a + s.T, -10_000), 1)  # [m, 1]
    f = _largest(np.where(in_b > -5_000, in_b - s, -10_000), 0)  # [1, n]
    kind, _ = _exact(t)
    alpha = _on_grid(a * used, s.T + (t - 1) - e).astype(kind)
    beta = _on_grid(b, (t - 1) - s - f).astype(kind)
    return _scaled(alpha @ beta, e + f + 2 - 2 * t)


def _is_highest(precision) -> bool:
    """Whether one operand has ``precision=HIGHEST``, by name."""
    return isinstance(precision, tuple) and any(
        getattr(p, "name", p) in ("HIGHEST", "highest") for p in precision
    )


def _what_is_not_finite(product, lhs, rhs):
    """The sums of the terms that are not finite, 0 where there are none."""

    def signs(x):
        return np.where(np.isfinite(x), np.sign(x), x)

    def step(a, b, s):
        with np.errstate(invalid="ignore"):
            term = np.asarray(a * b)
            return s + np.where(np.isfinite(term), np.float32(0), term)

    return product(signs(lhs), signs(rhs), step=step)


def _finite(x):
    return np.where(np.isfinite(x), x, np.float32(0))


def _in_no_order(product, on_grids, lhs, rhs):
    result = on_grids(_finite(lhs), _finite(rhs))
    if np.isfinite(lhs).all() and np.isfinite(rhs).all():
        return result
    total = _what_is_not_finite(product, lhs, rhs)
    return np.where(total == 0, result, total)


def dot_general_in_no_order(lhs, rhs, dimension_numbers, precision=None):
    """An order-independent ``dot_general`` of any numbers."""
    grids = GRIDS["highest" if _is_highest(precision) else None]
    contracting, batch = dimension_numbers
    free = [
        [d for d in range(x.ndim) if d not in (*contracting[i], *batch[i])]
        for i, x in enumerate((lhs, rhs))
    ]

    def matrices(x, i, order):
        axes = {"b": batch[i], "f": free[i], "k": contracting[i]}
        sizes = [math.prod(x.shape[d] for d in axes[letter]) for letter in order]
        return x.transpose([d for letter in order for d in axes[letter]]).reshape(sizes)

    def on_grids(lhs, rhs):
        a, b = matrices(lhs, 0, "bfk"), matrices(rhs, 1, "bkf")
        shape = [lhs.shape[d] for d in (*batch[0], *free[0])] + [rhs.shape[d] for d in free[1]]
        pairs = zip(a, b, strict=True)
        found = [order_independent_dot(x, y, *grids) for x, y in pairs]
        return np.array(found, np.float32).reshape(shape)

    def product(lhs, rhs, step):
        return dot_general(lhs, rhs, dimension_numbers, step)

    return _in_no_order(product, on_grids, lhs, rhs)


def convolution_in_no_order(lhs, rhs, precision=None, **parameters):
    """An order-independent ``conv_general_dilated`` of any numbers."""
    bits, of_sum = GRIDS["highest" if _is_highest(precision) else None]

    def on_grids(lhs, rhs):
        return _convolution_on_grids(lhs, rhs, bits, of_sum, **parameters)

    def product(lhs, rhs, step):
        return conv_general_dilated(lhs, rhs, step=step, **parameters)

    return _in_no_order(product, on_grids, lhs, rhs)


def _convolution_on_grids(
    lhs,
    rhs,
    bits,
    of_sum,
    *,
    padding,
    lhs_dilation,
    dimension_numbers,
    feature_group_count,
    batch_group_count,
    **windows,
):
    """Of finite numbers: s of an input feature of a group, e of an element of the batch, f of an
    output feature."""
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    x, w = lhs.transpose(lhs_spec), rhs.transpose(rhs_spec)
    # What is cropped has no exponent.
    x = dilate_and_pad(x, 0, [(0, 0), (0, 0), *padding], [1, 1, *lhs_dilation])
    groups = feature_group_count * batch_group_count
    rank, terms = x.ndim - 2, math.prod(w.shape[1:])
    plain = {
        **windows,
        "padding": ((0, 0),) * rank,
        "lhs_dilation": (1,) * rank,
        "dimension_numbers": (tuple(range(x.ndim)),) * 3,
        "feature_group_count": 1,
        "batch_group_count": 1,
    }
    outs, features = w.shape[0] // groups, w.shape[1]
    batch = x.shape[0] // batch_group_count
    t = bits_of_grid(max(1, terms), bits, of_sum)
    kind, exact_chain = _exact(t)
    window = tuple(range(2, x.ndim))
    found = []
    for g in range(groups):
        image, feature = divmod(g, feature_group_count)
        a = x[batch * image :][:batch, features * feature :][:, :features]
        b = w[outs * g :][:outs]
        in_a, in_b = _exponents(a), _exponents(b)
        used = in_b.max((0, *window), initial=-10_000, keepdims=True) > -5_000
        s = _largest(in_b, (0, *window))  # [1, features, 1...]
        e = _largest(np.where(used, in_a + s, -10_000), (1, *window))
        f = _largest(np.where(in_b > -5_000, in_b - s, -10_000), (1, *window))
        alpha = _on_grid(a * used, s + (t - 1) - e).astype(kind)
        beta = _on_grid(b, (t - 1) - s - f).astype(kind)
        total = conv_general_dilated(alpha, beta, chain=exact_chain, **plain)
        found.append(_scaled(total, e + np.moveaxis(f, 0, 1) + 2 - 2 * t))
    return np.concatenate(found, 1).transpose([out_spec.index(d) for d in range(x.ndim)])


def order_independent_convolution(x, w, strides, bits=22, of_sum=62):
    """A convolution ``[batch, features, ...]`` with ``[outs, features, ...]``, no padding."""
    rank = x.ndim - 2
    return _convolution_on_grids(
        x,
        w,
        bits,
        of_sum,
        window_strides=strides,
        rhs_dilation=(1,) * rank,
        padding=((0, 0),) * rank,
        lhs_dilation=(1,) * rank,
        dimension_numbers=(tuple(range(x.ndim)),) * 3,
        feature_group_count=1,
        batch_group_count=1,
    )


# --- the operations ---------------------------------------------------------------------

#: Parameters of a convolution.
GEOMETRY = (
    "window_strides",
    "padding",
    "lhs_dilation",
    "rhs_dilation",
    "dimension_numbers",
    "feature_group_count",
    "batch_group_count",
)


def contraction_of(operation: Operation) -> str:
    return operation.params.get("contraction") or operation.contraction


def _enter(name: str, sequential, in_no_order, keep) -> None:
    def on_floats(operation: Operation):
        lhs, rhs = (converted(x, FLOAT32) for x in operation.operands)
        kept = {k: operation.params[k] for k in keep}
        order = contraction_of(operation)
        if order == "sequential":
            return [sequential(lhs, rhs, **kept)]
        if order != "order_independent":
            raise NoReference(
                f"{name}: expected the contraction sequential, order_independent or exact, "
                f"received {order!r}"
            )
        return [in_no_order(lhs, rhs, precision=operation.params.get("precision"), **kept)]

    narrow = in_float32(on_floats, guard)

    def exactly(operation: Operation):
        lhs, rhs = (converted(x, FLOAT32) for x in operation.operands)
        kept = {k: operation.params[k] for k in keep}
        return [sequential(lhs, rhs, chain=exact_chain(operation.dtype), **kept)]

    @of(name, f"integer_{name}")
    def compute(operation: Operation):
        dtypes = (*(x.dtype for x in operation.operands), operation.dtype)
        if any(map(values.is_float, dtypes)):
            is_exact = contraction_of(operation) == "exact"
            return (exactly if is_exact else narrow)(operation)
        kept = {k: operation.params[k] for k in keep}
        operands = [x.astype(np.int64) for x in operation.operands]
        total = sequential(*operands, chain=wrapping, **kept)
        return [wrap(total, operation.dtype) if operation.dtype.kind != "b" else total != 0]


_enter("dot_general", dot_general, dot_general_in_no_order, ("dimension_numbers",))
_enter("conv_general_dilated", conv_general_dilated, convolution_in_no_order, GEOMETRY)


@of("ragged_dot_general", ending=guard)
def ragged_dot_general(operation: Operation):
    """The chain of a row runs over the terms of its own group."""
    lhs, rhs, sizes = operation.operands
    numbers = operation.params["ragged_dot_dimension_numbers"]
    contracting, batch = numbers.dot_dimension_numbers
    if any(map(len, batch)) or sizes.ndim != 1 or operation.contraction != "sequential":
        raise NoReference(
            "ragged_dot_general: expected group sizes of one dimension, no batch dimensions and "
            "the contraction sequential"
        )
    (ragged,) = numbers.lhs_ragged_dimensions
    ends = np.cumsum(sizes.astype(np.int64))
    rows = [slice(int(e - n), int(e)) for e, n in zip(ends, sizes, strict=True)]
    out = np.zeros(operation.shape, np.float32)

    def of_group(x, axis, part):
        return x[(slice(None),) * axis + (part,)]

    if ragged in contracting[0]:
        along = contracting[1][contracting[0].index(ragged)]
        for g, part_ in enumerate(rows):
            operands = of_group(lhs, ragged, part_), of_group(rhs, along, part_)
            out[g] = dot_general(*operands, (contracting, ((), ())))
        return [out]
    (axis,) = numbers.rhs_group_dimensions
    inner = contracting[0], tuple(d - (d > axis) for d in contracting[1])
    row_axis = ragged - sum(d < ragged for d in contracting[0])
    for g, part_ in enumerate(rows):
        product = dot_general(
            of_group(lhs, ragged, part_), np.take(rhs, g, axis), (inner, ((), ()))
        )
        out[(slice(None),) * row_axis + (part_,)] = product
    return [out]


@of("scaled_matmul", "scaled_matmul_wrapper")
def scaled_matmul(operation: Operation):
    a, b, *scales = operation.operands
    dtype = operation.dtype

    def scaled(x, scale):
        x, scale = converted(x, dtype), converted(scale, dtype)
        blocks = np.asarray(x, np.float32).reshape(*scale.shape, -1)
        product = multiply(blocks, np.asarray(scale, np.float32)[..., None])
        return np.asarray(values.narrow(product, dtype), np.float32).reshape(x.shape)

    if operation.contraction != "sequential":
        raise NoReference("scaled_matmul: expected the contraction sequential")
    product = dot_general(*map(scaled, (a, b), scales), (((2,), (2,)), ((0,), (0,))))
    return [values.narrow(product, dtype)]


# --- parts ------------------------------------------------------------------------------


def _whole(operation: Operation) -> bool:
    """Whether an element depends on all of an operand."""
    inexact = any(values.is_float(x.dtype) or x.dtype.kind == "c" for x in operation.operands)
    return inexact and contraction_of(operation) == "order_independent"


@part("dot_general", "integer_dot_general")
def _row_and_column(operation: Operation, index, result=0):
    if _whole(operation):
        return operation, index
    contracting, batch = operation.params["dimension_numbers"]
    lhs, rhs = operation.operands
    free = [
        [d for d in range(x.ndim) if d not in (*contracting[i], *batch[i])]
        for i, x in enumerate((lhs, rhs))
    ]
    b, m = len(batch[0]), len(free[0])
    of_batch, rest = index[:b], (index[b : b + m], index[b + m :])

    def cut(x, i):
        at = dict(zip((*batch[i], *free[i]), (*of_batch, *rest[i]), strict=True))
        return x[tuple(slice(at[d], at[d] + 1) if d in at else slice(None) for d in range(x.ndim))]

    results = ((operation.dtype, (1,) * len(index)),)
    return operation.with_(operands=(cut(lhs, 0), cut(rhs, 1)), results=results), (0,) * len(index)


@part("conv_general_dilated", "integer_conv_general_dilated")
def _window(operation: Operation, index, result=0):
    """The elements below the kernel, padding and holes included."""
    if _whole(operation):
        return operation, index
    p = operation.params
    lhs_spec, rhs_spec, out_spec = p["dimension_numbers"]
    lhs, rhs = operation.operands
    x, w = lhs.transpose(lhs_spec), rhs.transpose(rhs_spec)
    x = dilate_and_pad(x, 0, [(0, 0), (0, 0), *p["padding"]], [1, 1, *p["lhs_dilation"]])
    outs, features, *window = w.shape
    image, out, *at = (index[d] for d in out_spec)
    first = features * (out * p["feature_group_count"] // outs)
    image += x.shape[0] // p["batch_group_count"] * (out * p["batch_group_count"] // outs)
    taps = tuple(
        slice(i * s, i * s + (n - 1) * r + 1, r)
        for i, s, r, n in zip(at, p["window_strides"], p["rhs_dilation"], window, strict=True)
    )
    operands = x[(slice(image, image + 1), slice(first, first + features), *taps)], w[out : out + 1]
    rank = len(window)
    params = {
        **p,
        "window_strides": (1,) * rank,
        "padding": ((0, 0),) * rank,
        "lhs_dilation": (1,) * rank,
        "rhs_dilation": (1,) * rank,
        "dimension_numbers": (tuple(range(rank + 2)),) * 3,
        "feature_group_count": 1,
        "batch_group_count": 1,
    }
    results = ((operation.dtype, (1,) * len(index)),)
    return operation.with_(operands=operands, params=params, results=results), (0,) * len(index)
