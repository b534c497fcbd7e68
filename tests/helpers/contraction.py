"""What contraction does to a function: its jaxpr with chosen products fused into additions.

A compiler may turn any float64 product that feeds an add or subtract into a fused
multiply-add.  :func:`interpret` does so at chosen sites.
"""

from __future__ import annotations

import jax
import numpy as np


def _two_sum(a, b):
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _two_product(a, b):
    def halves(v):  # Veltkamp
        high = v * 134217729.0
        high = high - (high - v)
        return high, v - high

    p, (ah, al), (bh, bl) = a * b, halves(a), halves(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def fma(a, b, c):
    """Fused multiply-add by rounding to odd (Boldo and Melquiond 2008), NumPy float64."""
    uh, ul = _two_product(a, b)
    th, tl = _two_sum(c, ul)
    vh, vl = _two_sum(uh, th)
    z, e = _two_sum(tl, vl)
    i = z.view(np.int64)
    odd = (i - ((e.view(np.int64) ^ i) >> 63 & 1)) | 1
    y = vh + np.where(e != 0, odd, i).view(np.float64)
    return np.where(np.isfinite(y), y, a * b + c)


def interpret(jaxpr, consts, args, choices):
    """Evaluate; at each sum of n products, the next choice modulo n + 1 fuses one or none."""
    values, products = dict(zip(jaxpr.constvars, consts, strict=True)), {}
    values |= dict(zip(jaxpr.invars, args, strict=True))
    for eqn in jaxpr.eqns:
        ins = [np.asarray(v.val if hasattr(v, "val") else values[v]) for v in eqn.invars]
        name, out = eqn.primitive.name, eqn.outvars[0]
        if name in ("jit", "pjit"):
            inner = eqn.params["jaxpr"]
            outs = interpret(inner.jaxpr, inner.consts, ins, choices)
            values |= zip(eqn.outvars, outs, strict=True)
            continue
        fusible = []
        if name in ("add", "sub") and out.aval.dtype == np.float64:
            sign = -1.0 if name == "sub" else 1.0
            left, right = (None if hasattr(v, "val") else products.get(v) for v in eqn.invars)
            if left:
                fusible.append((*left, sign * ins[1]))
            if right:
                fusible.append((sign * right[0], right[1], ins[0]))
        if fusible and (choice := next(choices) % (len(fusible) + 1)):
            values[out] = fma(*fusible[choice - 1])
            continue
        values[out] = np.asarray(eqn.primitive.bind(*map(jax.numpy.asarray, ins), **eqn.params))
        if name == "mul" and out.aval.dtype == np.float64:
            products[out] = ins
    return [values[v] for v in jaxpr.outvars]
