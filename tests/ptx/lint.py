"""Instructions of PTX whose bits are not fixed."""

from __future__ import annotations

import re
from typing import NamedTuple

from ptx.parse import parse

RULES = {
    "approx": "hardware approximation, whose bits vary between architectures",
    "div-full": "division that is accurate to 2 ulp",
    "ftz": "flushes subnormals to zero",
    "contract": "add, sub or mul without a rounding modifier, which ptxas may contract to an FMA",
    "atomic": "atomic floating-point update, whose order is not fixed",
    "cas": "compare-and-swap, the usual loop behind a floating-point atomic",
    "mma": "floating-point matrix unit, whose order and rounding are not documented",
    "fma": "fused multiply-add",
}
FLOAT = re.compile(r"(b?f16|t?f32|f64|e\dm\d)(x\d)?")


class Finding(NamedTuple):
    """One instruction that falls under a rule of :data:`RULES`."""

    kernel: str
    rule: str
    instruction: str


def rules_of(instruction: str) -> set[str]:
    """The rules that one PTX instruction, without its guard, falls under."""
    name, *modifiers = instruction.split(None, 1)[0].split(".")
    is_float = any(map(FLOAT.fullmatch, modifiers))
    is_mma = name in ("mma", "wgmma", "wmma")
    holds = {
        "approx": "approx" in modifiers,
        "div-full": name == "div" and "full" in modifiers,
        "ftz": "ftz" in modifiers,
        "contract": name in ("add", "sub", "mul")
        and is_float
        and not {"rn", "rz", "rm", "rp"} & {*modifiers},
        "atomic": name in ("atom", "red", "multimem") and is_float,
        "cas": name == "atom" and "cas" in modifiers,
        "mma": (is_mma and is_float)
        or (name == "tcgen05" and "mma" in modifiers and "kind::i8" not in modifiers),
        "fma": name == "fma" or (name == "mad" and is_float),
    }
    return {rule for rule, found in holds.items() if found}


def lint(ptx: str) -> list[Finding]:
    """The instructions that fall under a rule.

    Raises ValueError if there is no kernel, so that an empty dump never passes.
    """
    kernels = parse(ptx)
    if not kernels:
        raise ValueError("expected PTX with a kernel, received none")
    return [
        Finding(kernel.name, rule, step.text)
        for kernel in kernels.values()
        for step in kernel.code
        for rule in sorted(rules_of(".".join(step.op)))
    ]
