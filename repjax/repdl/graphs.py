"""RepDL's layers and losses; the docstring of :mod:`repjax.repdl` has the notation."""

from __future__ import annotations

import functools
import operator

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from numpy.lib.array_utils import normalize_axis_tuple

from repjax.repdl.define import ANY, arrays, factor, in_order, refuse, with_gradient

# --- sums -----------------------------------------------------------------------------


def _mean(x, axes):
    return jnp.sum(x, axes) * factor(x.shape, axes)


@functools.cache
def _reduction(shape, axes, average: bool):
    kept = tuple(1 if a in axes else n for a, n in enumerate(shape))
    scale = factor(shape, axes) if average else None

    def forward(x):
        return _mean(x, axes) if average else jnp.sum(x, axes)

    def gradient(_, g):
        g = g if scale is None else g * scale
        return (jnp.broadcast_to(jnp.reshape(g, kept), shape),)

    return with_gradient(forward, gradient)


def _reduce(name: str, x, axis, average: bool):
    (x,) = arrays(name, "a float32 array", [x], [ANY])
    axes = normalize_axis_tuple(range(x.ndim) if axis is None else axis, x.ndim)
    if average and 0 in (x.shape[a] for a in axes):
        raise ValueError(
            f"repjax.repdl.{name}: expected at least one element to take the mean of, received "
            f"axis={axis} of shape {list(x.shape)}"
        )
    return _reduction(x.shape, axes, average)(x)


def sum(x: jax.Array, axis: int | tuple[int, ...] | None = None) -> jax.Array:
    """The sum over ``axis`` (all without it), in row-major order of the axes, whatever their order.

    Gradient: g, broadcast.

    RepDL's ``sum1d``, ``sum2d_dim0``, ``sum2d_dim1`` and ``sum4d_dim023`` are those over axes 0,
    0, 1 and (0, 2, 3).  float32 in and out.
    """
    return _reduce("sum", x, axis, False)


def mean(x: jax.Array, axis: int | tuple[int, ...] | None = None) -> jax.Array:
    """rn(s * f(n)), s the :func:`sum` of the n elements over ``axis``.

    Gradient: rn(g * f(n)), broadcast.  (RepDL's own, of a matrix over axis 0, fails for one that
    is not square.)  float32 in and out.
    """
    return _reduce("mean", x, axis, True)


# --- layers ---------------------------------------------------------------------------


def _linear(x, weight, bias):
    y = lax.dot_general(x, weight, (((1,), (1,)), ((), ())))
    return y if bias is None else y + bias[None]


def _linear_gradient(args, g):
    x, weight, bias = args
    return (
        lax.dot_general(g, weight, (((1,), (0,)), ((), ()))),
        lax.dot_general(g, x, (((0,), (0,)), ((), ()))),
        None if bias is None else jnp.sum(g, 0),
    )


_linear = with_gradient(_linear, _linear_gradient)


def linear(x: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """y[n, o] = rn(c + bias[o]), c the chain over i of x[n, i] and weight[o, i].

    Gradient: for x[n, i] the chain over o of g[n, o] and weight[o, i]; for weight[o, i] the chain
    over n of g[n, o] and x[n, i]; for bias the sum over n of g.

    Args:
      x: float32[batch, in].
      weight: float32[out, in], as in PyTorch.
      bias: float32[out] or None.

    Returns:
      float32[batch, out].
    """
    expected = "float32 x[batch, in], weight[out, in] and bias[out]"
    given = x, weight, bias
    x, weight, bias = arrays("linear", expected, given, [(2,), (2,), (1, None)])
    outs, ins = weight.shape
    if x.shape[1] != ins or (bias is not None and bias.shape != (outs,)):
        refuse("linear", expected, *given)
    return _linear(x, weight, bias)


def _pair(name: str, value, least: int) -> tuple[int, int]:
    try:
        pair = tuple(map(operator.index, value if np.ndim(value) else (value, value)))
    except TypeError:  # not integers
        pair = ()
    if len(pair) != 2 or min(pair) < least:
        raise ValueError(
            f"repjax.repdl: expected {name} to be an integer or a pair of integers >= {least}, "
            f"received {value!r}"
        )
    return pair


def _convolve(lhs, rhs, **parameters):
    """[n, c, ...] and [o, c, ...]: the chain over (c, positions of rhs)."""
    spec = ("NCHW", "OIHW", "NCHW")
    return lax.conv_general_dilated(lhs, rhs, **parameters, dimension_numbers=spec)


@functools.cache
def _conv2d(stride, padding, dilation):
    axes = range(2)

    def forward(x, weight, bias):
        low_and_high = [(p, p) for p in padding]
        y = _convolve(x, weight, window_strides=stride, padding=low_and_high, rhs_dilation=dilation)
        return y if bias is None else y + bias[None, :, None, None]

    def gradient(args, g):
        x, weight, bias = args
        size, window, out = (v.shape[2:] for v in (x, weight, g))
        # From the first tap to the last, and from the first output to the last.
        reach = [(window[i] - 1) * dilation[i] for i in axes]
        extent = [(out[i] - 1) * stride[i] for i in axes]

        # JAX's own gradient reverses the kernel, and goes through its taps from the last to the
        # first.  Reversing the image and the cotangent instead, they ascend.
        before = [padding[i] + size[i] - 1 - extent[i] for i in axes]
        after = [size[i] - 1 + reach[i] - extent[i] - before[i] for i in axes]
        of_x = _convolve(
            lax.rev(g, (2, 3)),
            lax.transpose(weight, (1, 0, 2, 3)),
            window_strides=(1, 1),
            padding=list(zip(before, after, strict=True)),
            lhs_dilation=stride,
            rhs_dilation=dilation,
        )
        after = [reach[i] + extent[i] + 1 - size[i] - padding[i] for i in axes]
        of_weight = _convolve(
            lax.transpose(x, (1, 0, 2, 3)),
            lax.transpose(g, (1, 0, 2, 3)),
            window_strides=dilation,
            padding=list(zip(padding, after, strict=True)),
            rhs_dilation=stride,
        )
        return (
            lax.rev(of_x, (2, 3)),
            lax.transpose(of_weight, (1, 0, 2, 3)),
            None if bias is None else jnp.sum(g, (0, 2, 3)),
        )

    return with_gradient(forward, gradient)


def conv2d(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> jax.Array:
    """y[n, o, p, q] = rn(c + bias[o]), c the chain over (i, k, l), the input channel first.

    Its factors are x[n, i, h, w], with h = p * stride - padding + k * dilation and w likewise, and
    weight[o, i, k, l].

    Gradient: for x[n, i, h, w] the chain over (o, k, l), k and l ascending, of g[n, o, p, q] and
    weight[o, i, k, l]; for weight[o, i, k, l] the chain over (n, p, q) of g[n, o, p, q] and
    x[n, i, h, w]; for bias[o] the sum over (n, p, q) of g.  (The input gradient of
    ``jax.lax.conv_general_dilated`` has k and l descending, and other bits.)

    RepDL has no dilation, and no gradient with groups: these are its orders with k * dilation for
    k, and within each group.

    Args:
      x: float32[batch, in, height, width].
      weight: float32[out, in / groups, kernel height, kernel width].
      bias: float32[out] or None.
      stride, padding, dilation: integers, or pairs for height and width.
      groups: into how many groups the channels are divided.

    Returns:
      float32[batch, out, ...].
    """
    expected = (
        f"float32 x[batch, in, height, width], weight[out, in / {groups}, kernel height, kernel "
        "width] not larger than the padded image, and bias[out], in and out multiples of groups"
    )
    given = x, weight, bias
    x, weight, bias = arrays("conv2d", expected, given, [(4,), (4,), (1, None)])
    stride, padding, dilation = (
        _pair(*pair)
        for pair in (("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1))
    )
    outs, features, *window = weight.shape
    fits = (
        x.shape[2 + i] + 2 * padding[i] > (window[i] - 1) * dilation[i] and window[i] > 0
        for i in range(2)
    )
    if (
        not all(fits)
        or groups < 1
        or outs % groups
        or x.shape[1] != features * groups
        or (bias is not None and bias.shape != (outs,))
    ):
        refuse("conv2d", expected, *given)
    convolve = _conv2d(stride, padding, dilation)
    if groups == 1:
        return convolve(x, weight, bias)
    x = jnp.reshape(x, (len(x), groups, features, *x.shape[2:]))
    weight, bias = (
        None if v is None else jnp.reshape(v, (groups, outs // groups, *v.shape[1:]))
        for v in (weight, bias)
    )
    y = jax.vmap(convolve, (1, 0, 0), 1)(x, weight, bias)
    return jnp.reshape(y, (len(x), outs, *y.shape[3:]))


_relu = with_gradient(lambda x: jnp.maximum(x, 0), lambda args, g: (jnp.where(args[0] <= 0, 0, g),))


def relu(x: jax.Array) -> jax.Array:
    """max(x, 0), exact; gradient: 0 where x <= 0, else g.  PyTorch's; float32 of any shape."""
    return _relu(*arrays("relu", "a float32 array", [x], [ANY]))


def max_pool2d(
    x: jax.Array,
    window: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
) -> jax.Array:
    """The maximum of each window, exact; padding is -inf.  PyTorch's, which RepDL uses.

    Gradient: each cotangent goes to the first of the largest elements of its window, row-major
    (PyTorch chooses the last NaN, this the first); what reaches one element is the sum over
    the windows, row-major.

    Args:
      x: float32[batch, channels, height, width].
      window, stride, padding: integers, or pairs for height and width; the stride is the window
        by default, and the padding at most half of it.

    Returns:
      float32[batch, channels, ...]; windows that do not fit are left out.
    """
    expected = "a float32 array [batch, channels, height, width], not smaller than the window"
    (x,) = arrays("max_pool2d", expected, [x], [(4,)])
    window = _pair("window", window, 1)
    stride = window if stride is None else _pair("stride", stride, 1)
    padding = _pair("padding", padding, 0)
    if any(2 * padding[i] > window[i] for i in range(2)):
        raise ValueError(
            f"repjax.repdl.max_pool2d: expected a padding of at most half of the window {window}, "
            f"received {padding}"
        )
    if any(x.shape[2 + i] + 2 * padding[i] < window[i] for i in range(2)):
        refuse("max_pool2d", expected, x)
    return _max_pool(window, stride, padding)(x)


@functools.cache
def _max_pool(window, stride, padding):
    pads = [(0, 0), (0, 0), *((p, p) for p in padding)]

    def forward(x):
        return lax.reduce_window(x, -np.inf, lax.max, (1, 1, *window), (1, 1, *stride), pads)

    return in_order(forward)


def _along(v, ndim: int):
    """[c] against [n, c] or [n, c, h, w]."""
    return jnp.reshape(v, (1, -1, *(1,) * (ndim - 2)))


def _axes(x) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _statistics(x):
    center = _mean(x, _axes(x))
    d = x - _along(center, x.ndim)
    return center, _mean(d * d, _axes(x))


def _normalized(x, center, variance, weight, bias, eps):
    center, std, weight, bias = (
        _along(v, x.ndim) for v in (center, jnp.sqrt(variance + eps), weight, bias)
    )
    return (x - center) / std * weight + bias


def _normalized_gradient(x, center, variance, weight, eps, g):
    """The cotangents of x, where the statistics are constants, and of the other four."""
    axes = _axes(x)
    std = jnp.sqrt(variance + eps)
    of_variance = _along(weight / (2 * std * std * std), x.ndim)
    of_center = -weight / std * jnp.sum(g, axes)
    center, wide_std = _along(center, x.ndim), _along(std, x.ndim)
    return (
        _along(weight / std, x.ndim) * g,
        of_center,
        jnp.sum(g * (center - x) * of_variance, axes),
        jnp.sum((x - center) / wide_std * g, axes),
        jnp.sum(g, axes),
    )


@functools.cache
def _batch_norm(eps: float):
    def forward(x, weight, bias):
        return _normalized(x, *_statistics(x), weight, bias, eps)

    def gradient(args, g):
        x, weight, _ = args
        center, variance = _statistics(x)
        direct, of_center, of_variance, of_weight, of_bias = _normalized_gradient(
            x, center, variance, weight, eps, g
        )
        scale = factor(x.shape, _axes(x))
        d = x - _along(center, x.ndim)
        half = _along(of_variance * scale, x.ndim) * d
        of_d = half + half
        of_center = (of_center + jnp.sum(-of_d, _axes(x))) * scale
        return direct + of_d + _along(of_center, x.ndim), of_weight, of_bias

    return with_gradient(forward, gradient)


@functools.cache
def _batch_norm_of_constants(eps: float):
    def forward(x, mean, variance, weight, bias):
        return _normalized(x, mean, variance, weight, bias, eps)

    def gradient(args, g):
        return _normalized_gradient(*args[:4], eps, g)

    return with_gradient(forward, gradient)


def batch_norm(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array,
    mean: jax.Array | None = None,
    variance: jax.Array | None = None,
    eps: float = 1e-5,
) -> jax.Array:
    """((x - mean) / std) * weight + bias with std = sqrt(variance + eps), each step rounded.

    Without ``mean`` and ``variance`` they are those of the batch: :func:`mean` over all axes but
    the channels, m, and the mean of rn(d * d), d = rn(x - m).  In the order of PyTorch's autograd,
    with n the elements of a channel and sums over all axes but the channels, the gradients are

    * bias: the sum of g; weight: the sum of rn(((x - m) / std) * g), each step rounded;
    * variance: v = the sum of (g * (m - x)) * (weight / (((2 * std) * std) * std));
    * mean: u = (-weight / std) * the sum of g;
    * x, where mean and variance are given: (weight / std) * g;
    * x, where they are the batch's: ((weight / std) * g + b) + (u + the sum of -b) * f(n) with
      b = 2 * rn(rn(v * f(n)) * d).

    RepDL's module never updates its running statistics, and neither does this.

    Args:
      x: float32[batch, channels] or float32[batch, channels, height, width].
      weight, bias: float32[channels].
      mean, variance: float32[channels], or both None.
      eps: a Python float.

    Returns:
      A float32 array of the shape of x.
    """
    expected = (
        "float32 x[batch, channels] or x[batch, channels, height, width], weight and bias[channels]"
        ", mean and variance[channels] or both None"
    )
    given = x, weight, bias, mean, variance
    ranks = [(2, 4), (1,), (1,), (1, None), (1, None)]
    x, weight, bias, mean, variance = arrays("batch_norm", expected, given, ranks)
    sizes = [v.shape for v in (weight, bias, mean, variance) if v is not None]
    if set(sizes) != {x.shape[1:2]} or len(sizes) % 2:
        refuse("batch_norm", expected, *given)
    if mean is None:
        return _batch_norm(float(eps))(x, weight, bias)
    return _batch_norm_of_constants(float(eps))(x, mean, variance, weight, bias)


# --- losses ---------------------------------------------------------------------------


def _shifted(x):
    return x - jnp.max(x, -1, keepdims=True)


def softmax_graph(x: jax.Array) -> jax.Array:
    e = jnp.exp(_shifted(x))
    return e / jnp.sum(e, -1, keepdims=True)


def _softmax_gradient(args, g):
    y = softmax_graph(*args)
    return (y * (g - jnp.sum(y * g, -1, keepdims=True)),)


_softmax = with_gradient(softmax_graph, _softmax_gradient)


def softmax(x: jax.Array) -> jax.Array:
    """y = rn(e / s) over the last axis: e = exp(rn(x - max x)), correctly rounded, s the sum of e.

    Gradient: rn(y * rn(g - t)), t the sum of rn(y * g).  RepDL's ``softmax`` has none, so that
    this one is ours; its cross-entropy does not need it.

    float32[..., classes] in and out; RepDL has it for matrices.
    """
    expected = "a float32 array [..., classes]"
    (x,) = arrays("softmax", expected, [x], [ANY[1:]])
    if x.shape[-1] == 0:
        refuse("softmax", expected, x)
    return _softmax(x)


def _cross_entropy(logits, labels):
    shifted = _shifted(logits)
    # A label that is none takes NaN.
    index = jnp.where(labels < 0, logits.shape[1], labels)[:, None]
    target = jnp.take_along_axis(shifted, index, 1, mode="fill")[:, 0]
    return _mean(jnp.log(jnp.sum(jnp.exp(shifted), 1)) - target, (0,))


def _cross_entropy_gradient(args, g):
    logits, labels = args
    at_label = labels[:, None] == jnp.arange(logits.shape[1])[None]
    one_hot = jnp.where(at_label, np.float32(1), np.float32(0))
    scale = factor(logits.shape, (0,))
    return (softmax_graph(logits) - one_hot) * scale * g, None


_cross_entropy = with_gradient(_cross_entropy, _cross_entropy_gradient)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The :func:`mean` over the batch of rn(log(s) - t).

    In each row, s is the sum of e = exp(rn(x - max x)), and t the element of rn(x - max x) at the
    label; exp and log are correctly rounded.  RepDL's log is that of float64, rounded again, and
    misrounded for s = 0x1.827a74p-7 (0x3c413d3a), 0x1.2f1fd6p+3 (0x41178feb), 0x1.bacb4ap+25
    (0x4c5d65a5), 0x1.b121a6p+76 (0x65d890d3) and 0x1.6351d8p+95 (0x6f31a8ec): where s is one of
    these (the first is below any s), the loss may differ in its last bits.  The gradient has
    no logarithm.

    Gradient: rn(rn(rn(p - o) * f(batch)) * g), p the :func:`softmax` and o 1 at the label, else 0.

    Args:
      logits: float32[batch, classes].
      labels: integers[batch] in 0, ..., classes - 1; any other makes the loss NaN.

    Returns:
      A float32 scalar.
    """
    expected = "float32 logits[batch, classes], neither empty, and integer labels[batch]"
    given = logits, labels
    (logits,) = arrays("cross_entropy", expected, [logits], [(2,)])
    labels = jnp.asarray(labels)
    if (
        not jnp.issubdtype(labels.dtype, jnp.integer)
        or labels.shape != logits.shape[:1]
        or 0 in logits.shape
    ):
        refuse("cross_entropy", expected, *given)
    return _cross_entropy(logits, labels)
