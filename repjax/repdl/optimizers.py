"""Optimizers of PyTorch in RepDL's manner: Adam is RepDL's own, SGD and AdamW are ours."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp

from repjax.lax import fma
from repjax.optim import reproducible
from repjax.primitives.operations.decay import decayed_quotient_p, decayed_root_p


def adam(
    learning_rate: float,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
) -> optax.GradientTransformation:
    """Adam in RepDL's order, as an optax transformation with the state of ``optax.scale_by_adam``.

    For a gradient g, parameter p, moments m and v, from +0, and step t = 1, 2, ...:

        g = fma(weight_decay, p, g), if weight_decay is not 0
        m = fma(1 - b1, g, rn(m * b1))
        v = rn(rn(v * b2) + rn(rn(g * g) * (1 - b2)))
        d = rn(rn(sqrt(v) / sqrt(1 - b2**t)) + eps)
        update = rn(rn(m / d) * (-learning_rate / (1 - b1**t)))

    and ``repjax.optim.apply_updates`` gives p = rn(p + update).  With ``amsgrad`` w = max(w, v),
    from +0, takes the place of v in d, as in PyTorch; the state is that of
    ``optax.scale_by_amsgrad``.

    All constants are computed in float64, each operation rounded on its own, and then rounded to
    float32; those with t too, also under ``jit``, where t is traced.  RepDL takes b**t from C's
    ``pow``, here it is correctly rounded (``operations/decay.py``).  The two may differ in the last
    bit of a float64, which seldom reaches the float32 constant: for b1 = 0.9, b2 = 0.999 and rates
    1e-3 and 1e-2 all constants of the first 100,000 steps are those of CPython with glibc.

    Args:
      learning_rate, b1, b2, eps, weight_decay: Python floats.  For another learning rate, as
        PyTorch's schedulers set them between steps, make another transformation: the state
        of one serves all.
      amsgrad: whether the second moment in d never decreases (Reddi, Kale and Kumar 2018).

    Returns:
      A transformation of float32 parameters.  ``update`` needs ``params`` if weight_decay is not 0.

    Raises:
      TypeError: a gradient is not float32, or ``amsgrad`` is no bool.
      ValueError: a hyperparameter is out of range, or ``params`` are missing.
    """
    return _adam("adam", False, learning_rate, b1, b2, eps, weight_decay, amsgrad)


def adamw(
    learning_rate: float,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    amsgrad: bool = False,
) -> optax.GradientTransformation:
    """Adam whose weight decay does not pass through the moments (Loshchilov and Hutter 2019).

    That of :func:`adam` without decay, with the update u there, and then

        update = fma(-learning_rate * weight_decay, p, u), if weight_decay is not 0

    which is what ``torch.div(exp_avg, denom).mul(-step_size).add(param, alpha=-lr * weight_decay)``
    adds to the parameter.  PyTorch's own AdamW multiplies the parameter by 1 - lr * weight_decay
    first: two roundings of the parameter where there is one here, and other bits.

    Args and errors are those of :func:`adam`; the product of the two rates is computed in float64.
    """
    return _adam("adamw", True, learning_rate, b1, b2, eps, weight_decay, amsgrad)


def _adam(name, decoupled, learning_rate, b1, b2, eps, weight_decay, amsgrad):
    rates = {"b1": b1, "b2": b2}
    if not all(isinstance(b, float | int) and 0 <= b < 1 for b in rates.values()):
        raise ValueError(f"repjax.repdl.{name}: expected b1 and b2 in [0, 1), received {rates}")
    _check_floats(name, learning_rate=learning_rate, eps=eps, weight_decay=weight_decay)
    _check_bool(name, amsgrad=amsgrad)
    b1, b2, learning_rate = float(b1), float(b2), float(learning_rate)
    state_of = optax.ScaleByAmsgradState if amsgrad else optax.ScaleByAdamState

    def init(params):
        zeros = functools.partial(jax.tree.map, jnp.zeros_like)
        moments = (zeros(params) for _ in range(3 if amsgrad else 2))
        return state_of(jnp.zeros([], jnp.int32), *moments)

    def update(gradients, state, params=None):
        _check_step(name, gradients, params, weight_decay)
        if weight_decay and not decoupled:
            gradients = jax.tree.map(_added(weight_decay), gradients, params)
        t = optax.safe_increment(state.count)
        scale = decayed_quotient_p.bind(t, base=b1, numerator=-learning_rate)
        root = decayed_root_p.bind(t, base=b2)
        mu = jax.tree.map(
            lambda g, m: fma(jnp.full_like(g, 1 - b1), g, m * b1), gradients, state.mu
        )
        nu = jax.tree.map(lambda g, v: v * b2 + g * g * (1 - b2), gradients, state.nu)
        largest = (jax.tree.map(jnp.maximum, state.nu_max, nu),) if amsgrad else ()
        updates = jax.tree.map(
            lambda m, v: m / (jnp.sqrt(v) / root + eps) * scale, mu, *(largest or (nu,))
        )
        if weight_decay and decoupled:
            updates = jax.tree.map(_added(-learning_rate * weight_decay), updates, params)
        return updates, state_of(t, mu, nu, *largest)

    return reproducible(optax.GradientTransformation(init, update))


def sgd(
    learning_rate: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> optax.GradientTransformation:
    """Stochastic gradient descent with PyTorch's momentum, as an optax transformation.

    For a gradient g, parameter p and momentum b, from +0:

        g = fma(weight_decay, p, g), if weight_decay is not 0
        b = rn(rn(b * momentum) + g), if momentum is not 0
        g = fma(momentum, b, g) with nesterov, or else b, if momentum is not 0
        update = rn(g * -learning_rate)

    and ``repjax.optim.apply_updates`` gives p = rn(p + update): ``grad.add(param,
    alpha=weight_decay)``, ``buf.mul_(momentum).add_(grad)``, ``grad.add(buf, alpha=momentum)`` and
    ``param.add_(grad.mul(-lr))`` in PyTorch, whose own SGD adds the product to the parameter
    without rounding it first.  RepDL has no SGD.

    Args:
      learning_rate, momentum, weight_decay: Python floats; for another learning rate make another
        transformation: the state of one serves all.
      nesterov: whether the step looks ahead, for which momentum has to be more than 0.

    Returns:
      A transformation of float32 parameters.  ``update`` needs ``params`` if weight_decay is not 0.

    Raises:
      TypeError: a gradient is not float32, or ``nesterov`` is no bool.
      ValueError: a hyperparameter is out of range, or ``params`` are missing.
    """
    _check_floats("sgd", learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay)
    _check_bool("sgd", nesterov=nesterov)
    if nesterov and not momentum:
        raise ValueError(
            "repjax.repdl.sgd: expected a momentum of more than 0 with nesterov, received 0"
        )

    def init(params):
        return optax.TraceState(jax.tree.map(jnp.zeros_like, params)) if momentum else ()

    def update(gradients, state, params=None):
        _check_step("sgd", gradients, params, weight_decay)
        if weight_decay:
            gradients = jax.tree.map(_added(weight_decay), gradients, params)
        if momentum:
            trace = jax.tree.map(lambda g, b: b * momentum + g, gradients, state.trace)
            state = optax.TraceState(trace)
            gradients = jax.tree.map(_added(momentum), gradients, trace) if nesterov else trace
        return jax.tree.map(lambda g: g * -learning_rate, gradients), state

    return reproducible(optax.GradientTransformation(init, update))


def _added(factor: float):
    """``x.add(other, alpha=factor)`` of PyTorch, one rounding."""
    return lambda x, other: fma(jnp.full_like(other, factor), other, x)


def _check_floats(name: str, **given: Any) -> None:
    if not all(isinstance(x, float | int) and 0 <= x < math.inf for x in given.values()):
        raise ValueError(
            f"repjax.repdl.{name}: expected finite Python floats >= 0, received {given}; for a "
            "schedule make one transformation for each rate"
        )


def _check_bool(name: str, **given: Any) -> None:
    for argument, value in given.items():
        if not isinstance(value, bool):
            raise TypeError(
                f"repjax.repdl.{name}: expected {argument} True or False, received {value!r}"
            )


def _check_step(name: str, gradients, params, weight_decay: float) -> None:
    if params is None and weight_decay:
        raise ValueError(f"repjax.repdl.{name}: expected params with weight_decay, received None")
    if wrong := {str(x.dtype) for x in jax.tree.leaves(gradients) if x.dtype != np.float32}:
        raise TypeError(
            f"repjax.repdl.{name}: expected float32 gradients, received {wrong}; RepDL has no "
            "other format"
        )
