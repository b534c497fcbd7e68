"""Audit what JAX compiles while something runs, and compare what it would compile."""

from __future__ import annotations

import contextlib
import itertools
import re

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


def module_text(lowered) -> str:
    """The StableHLO of a lowered program; two are equal if they differ in names alone."""
    numbers = itertools.count()
    names: dict[str, str] = {}

    def number(match: re.Match) -> str:
        return names.setdefault(match[0], f"@{next(numbers)}")

    return re.sub(r"@\w+", number, re.sub(r"jax.result_info = \"[^\"]*\"", "", lowered.as_text()))
