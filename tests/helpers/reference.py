"""The contract's contractions and window operations, written again in NumPy.

An oracle for tests, independent of the library: nothing here imports repjax or JAX.
Arrays are float32; results are canonical.  Slow, and plain enough to check by reading.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

TINY = np.float32(2.0**-126)
CANONICAL_NAN = np.uint32(0x7FC00000)


def bits(x):
    """The bits of a float32 array, with every NaN the canonical one."""
    x = np.asarray(x)
    assert x.dtype == np.float32, x.dtype
    return np.where(np.isnan(x), CANONICAL_NAN, x.view(np.uint32))


def guard(x):
    """The canonical value after any rounded operation but an addition."""
    return np.where(np.abs(x) <= TINY, np.float32(0), x)


def flush(x):
    """The canonical value after an addition, which is exact below the smallest normal."""
    return np.where(np.abs(x) < TINY, np.float32(0), x)


def add(a, b):
    with np.errstate(all="ignore"):
        return flush(a + b)


# --- fused multiply-add ----------------------------------------------------------------


def fma_exact(a, b, c) -> np.float32:
    """``a*b + c`` of three finite float32 numbers, rounded to binary32, by rational numbers.

    Subnormal results are kept.
    """
    return rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


def rounded(exact: Fraction) -> np.float32:
    """The nearest binary32 number, of two the even one.  The sign of a zero is positive."""
    size = abs(exact)
    if size <= Fraction(2) ** -150:  # a tie with zero goes to zero, the even one
        return np.float32(0)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent  # now 2**exponent <= size
    ulp = Fraction(2) ** (max(exponent, -126) - 23)
    nearest = round(size / ulp) * ulp  # Fraction rounds half to even
    result = math.inf if nearest >= 2**128 else float(nearest)
    return np.float32(math.copysign(result, exact))


def fma(a, b, c):
    """``a*b + c`` rounded once to binary32 with gradual underflow, elementwise.

    The product is exact in float64; its sum with c is rounded to odd (to the neighbour
    with an odd last bit, if inexact), which makes the second rounding harmless.
    """
    with np.errstate(all="ignore"):
        p = np.multiply(a, b, dtype=np.float64)
        c = np.asarray(c, np.float64)
        t = p + c
        v = t - p
        error = (p - (t - v)) + (c - v)
        even = t.view(np.int64) % 2 == 0
        inexact = np.isfinite(t) & (error != 0)
        odd = np.where(inexact & even, np.nextafter(t, np.copysign(np.inf, error)), t)
        return odd.astype(np.float32)


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


# --- contractions ----------------------------------------------------------------------


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


# --- order-independent -----------------------------------------------------------------


def _exponent(x) -> int | None:
    """E with ``2**E <= |x| < 2**(E + 1)``, None of zero."""
    return math.frexp(x)[1] - 1 if x else None


def _most(exponents) -> int:
    return max((e for e in exponents if e is not None), default=0)


def order_independent_sum(xs) -> np.float32:
    """Of finite numbers."""
    t = min(38, 61 - (len(xs) - 1).bit_length())
    unit = Fraction(2) ** (_most(map(_exponent, xs)) - t)
    return guard(rounded(sum(round(Fraction(float(x)) / unit) for x in xs) * unit))


#: The bits of grids and of sums, without and with precision=HIGHEST.
GRIDS = {None: (22, 62), "highest": (30, 94)}


def order_independent_dot(a, b, bits=22, of_sum=62):
    """``a[m, k] @ b[k, n]`` of finite numbers, on the grids of the contract."""
    (m, k), n = a.shape, b.shape[1]
    t = min(bits, (of_sum - (k - 1).bit_length()) // 2)
    in_a = [[_exponent(x) for x in row] for row in a]
    in_b = [[_exponent(x) for x in row] for row in b]
    used = [any(e is not None for e in row) for row in in_b]
    s = [_most(row) for row in in_b]
    out = np.zeros((m, n), np.float32)
    columns = []
    for j in range(n):
        f = _most(e[j] - s[i] for i, e in enumerate(in_b) if e[j] is not None)
        scale = [Fraction(2) ** (t - 1 - s[i] - f) for i in range(k)]
        columns.append((f, [round(Fraction(float(b[i, j])) * scale[i]) for i in range(k)]))
    for row in range(m):
        e = _most(x + s[i] for i, x in enumerate(in_a[row]) if used[i] and x is not None)
        scale = [Fraction(2) ** (s[i] + t - 1 - e) for i in range(k)]
        alpha = [round(Fraction(float(a[row, i])) * scale[i]) * used[i] for i in range(k)]
        for j, (f, beta) in enumerate(columns):
            total = sum(x * y for x, y in zip(alpha, beta, strict=True))
            out[row, j] = guard(rounded(total * Fraction(2) ** (e + f + 2 - 2 * t)))
    return out


def order_independent_convolution(x, w, strides, bits=22, of_sum=62):
    """A convolution ``[batch, features, ...]`` with ``[outs, features, ...]``, no padding.

    All windows of an element of the batch are one row, and all weights of an output feature
    one column, with one s for an input feature.
    """
    terms = math.prod(w.shape[1:])
    t = min(bits, (of_sum - (terms - 1).bit_length()) // 2)
    s = [_most(map(_exponent, w[:, c].ravel())) for c in range(w.shape[1])]
    used = [bool(w[:, c].any()) for c in range(w.shape[1])]

    def on_grid(v, sign):
        """Integers on the grid of v[features, ...], whose features are scaled by s, and it."""
        scaled = (
            _exponent(value) + sign * s[c]
            for c in range(len(s))
            for value in v[c].ravel()
            if used[c] and value
        )
        e = _most(scaled)
        units = [Fraction(2) ** (t - 1 - e + sign * s[c]) * used[c] for c in range(len(s))]
        rows = [[round(Fraction(float(y)) * u) for y in v[c].ravel()] for c, u in enumerate(units)]
        return np.array(rows, object).reshape(v.shape), e

    window = w.shape[2:]
    spatial = output_sizes(x.shape[2:], window, strides, (1,) * len(window))
    out = np.zeros((x.shape[0], w.shape[0], *spatial), np.float32)
    weights = [on_grid(v, -1) for v in w]
    for image, v in enumerate(x):
        alpha, e = on_grid(v, 1)
        for o, (beta, f) in enumerate(weights):
            for at in np.ndindex(*spatial):
                part = [
                    slice(i * d, i * d + n) for i, d, n in zip(at, strides, window, strict=True)
                ]
                total = int((alpha[(slice(None), *part)] * beta).sum())
                out[(image, o, *at)] = guard(rounded(total * Fraction(2) ** (e + f + 2 - 2 * t)))
    return out


# --- windows ---------------------------------------------------------------------------


def _windows(shape, window, strides, padding, base_dilation, window_dilation):
    """Pairs of an output position and the elements of its window, row-major.

    An element is an index into the operand, or None for padding and holes.
    """
    inside = np.arange(math.prod(shape)).reshape(shape)
    index = dilate_and_pad(inside, -1, padding, base_dilation)
    outputs = output_sizes(index.shape, window, strides, window_dilation)
    for o in np.ndindex(*outputs):
        found = []
        for w in np.ndindex(*window):
            at = tuple(np.multiply(o, strides) + np.multiply(w, window_dilation))
            flat = index[at]
            found.append(None if flat < 0 else np.unravel_index(flat, shape))
        yield o, found


def window_outputs(shape, window, strides, padding, base_dilation, window_dilation):
    padded = dilate_and_pad(np.zeros(shape, np.int8), 0, padding, base_dilation).shape
    return output_sizes(padded, window, strides, window_dilation)


def _reduce_window(operand, reduce, outside, parameters):
    out = np.zeros(window_outputs(operand.shape, *parameters), np.float32)
    for o, elements in _windows(operand.shape, *parameters):
        out[o] = reduce([np.float32(outside) if e is None else operand[e] for e in elements])
    return out


def _parameters(
    window_dimensions, window_strides, padding, base_dilation=None, window_dilation=None
):
    ones = (1,) * len(window_dimensions)
    dilations = (base_dilation or ones, window_dilation or ones)
    return (window_dimensions, window_strides, padding, *dilations)


def reduce_window_max(operand, **parameters):
    return _reduce_window(operand, np.max, -np.inf, _parameters(**parameters))


def reduce_window_min(operand, **parameters):
    return _reduce_window(operand, np.min, np.inf, _parameters(**parameters))


def pairwise(x):
    """The pairwise sum of a list, padding and all."""
    x = np.array(x, np.float32)
    x = np.concatenate([x, np.zeros((1 << (len(x) - 1).bit_length()) - len(x), np.float32)])
    while len(x) > 1:
        half = len(x) // 2
        x = add(x[:half], x[half:])
    return x[0]


def reduce_window_sum(operand, **parameters):
    return _reduce_window(operand, pairwise, 0, _parameters(**parameters))


def _select(operand, elements, largest):
    """The first NaN, or the first largest (smallest) element; None if there is none at all."""
    best = None
    for e in elements:
        if e is None or (best is not None and np.isnan(operand[best])):
            continue
        x = operand[e]
        if best is None or np.isnan(x) or (x > operand[best] if largest else x < operand[best]):
            best = e
    return best


def select_and_gather_add(tangents, operand, *, largest, **parameters):
    parameters = _parameters(**parameters)
    out = np.zeros(window_outputs(operand.shape, *parameters), np.float32)
    for o, elements in _windows(operand.shape, *parameters):
        chosen = _select(operand, elements, largest)
        if chosen is not None:
            out[o] = tangents[chosen]
    return out


def select_and_scatter_add(source, operand, *, largest, **parameters):
    out = np.zeros_like(operand)
    for o, elements in _windows(operand.shape, *_parameters(**parameters)):
        chosen = _select(operand, elements, largest)
        if chosen is not None:
            out[chosen] = add(out[chosen], source[o])
    return out
