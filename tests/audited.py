"""Audit everything that JAX compiles while something runs."""

from __future__ import annotations

import contextlib

from jax._src.interpreters import pxla

from repjax.verify.audit import Finding, audit_module


@contextlib.contextmanager
def audited():
    """Yields the list of findings in all programs that are compiled within the block."""
    findings: list[Finding] = []
    lower = pxla.lower_sharding_computation

    def audit_lowered(*args, **kwargs):
        computation = lower(*args, **kwargs)
        findings.extend(audit_module(computation.stablehlo()))
        return computation

    pxla.lower_sharding_computation = audit_lowered
    try:
        yield findings
    finally:
        pxla.lower_sharding_computation = lower
