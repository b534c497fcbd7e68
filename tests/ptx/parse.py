"""PTX as instructions: what :mod:`ptx.lint` reads and :mod:`ptx.machine` executes."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple


class Step(NamedTuple):
    """One instruction."""

    guard: str
    negated: bool
    op: list[str]  # the opcode's parts
    operands: list[str]
    text: str


class Kernel(NamedTuple):
    """A function of a PTX module."""

    name: str
    params: list[str]
    symbols: dict[str, tuple[str, int, int, bytes]]  # space, alignment, size, initial bytes
    registers: dict[str, str]  # types by register, or by its name without the number
    labels: dict[str, int]
    code: list[Step]


def _symbols(text: str) -> Iterator[tuple[str, tuple[str, int, int, bytes]]]:
    pattern = (
        r"\.(global|const|shared|local)\s+(?:\.align\s+(\d+)\s+)?\.[bu](\d+)\s+([\w$.]+)"
        r"(\[\d*\])?(?:\s*=\s*\{([^}]*)\})?"
    )
    for space, align, bits, name, count, data in re.findall(pattern, text):
        element = int(bits) // 8
        values = [int(x, 0) % 2 ** int(bits) for x in data.split(",")] if data else []
        initial = b"".join(x.to_bytes(element, "little") for x in values)
        size = max((int(count.strip("[]") or 0) if count else 1) * element, len(initial))
        yield name, (space.replace("const", "global"), int(align or 1), size, initial)


@functools.lru_cache(maxsize=64)
def parse(ptx: str) -> dict[str, Kernel]:
    """The functions of one PTX module, or of several one after another."""
    ptx = re.sub(r"/\*.*?\*/", " ", ptx, flags=re.S)
    ptx = re.sub(r"//[^\n]*|^\s*\.(loc|file|section)\b[^\n;]*", "", ptx, flags=re.M)
    kernels = {}
    for module in re.split(r"^(?=\.version\b)", ptx, flags=re.M):
        header = r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$.]+)\s*\(([^)]*)\)[^{;]*\{"
        bodies, outside = [], module
        for found in re.finditer(header, module):
            end, depth = found.end(), 1
            while depth:
                end = re.compile(r"[{}]").search(module, end).end()
                depth += 1 if module[end - 1] == "{" else -1
            bodies.append((found[1], found[2], module[found.end() : end - 1]))
            outside = outside.replace(bodies[-1][2], "")
        for name, params, body in bodies:
            params = [p.split()[-1] for p in params.split(",") if p.strip()]
            kernel = kernels[name] = Kernel(name, params, dict(_symbols(outside)), {}, {}, [])
            # Braces between statements are scopes; those of vector operands stay.
            for found in re.finditer(r"[\s{};]*(?:([\w$%.]+):(?!:)|([^;\s{}][^;]*))", body):
                _parse_statement(kernel, found[1], found[2] and " ".join(found[2].split()))
    return kernels


def _parse_statement(kernel: Kernel, label: str | None, text: str | None) -> None:
    if label:
        kernel.labels[label] = len(kernel.code)
    elif text and text.startswith(".reg"):
        _, kind, names = text.split(None, 2)
        for name in names.split(","):
            kernel.registers[re.sub(r"<.*", "", name.strip())] = kind[1:]
    elif text and text.startswith("."):
        kernel.symbols.update(_symbols(text))
    elif text:
        negated, guard, op, rest = re.match(r"(?:@(!?)([\w%$.]+)\s+)?(\S+)\s*(.*)", text).groups()
        operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s{}]+", rest)
        kernel.code.append(Step(guard or "", bool(negated), op.split("."), operands, text))


def synchronizations(kernel: Kernel) -> dict[str, list[int]]:
    """The instructions that only make others wait, or see what others did, by their kind."""
    kinds: dict[str, list[int]] = {}
    for i, step in enumerate(kernel.code):
        name = ".".join(step.op)
        found = re.match(r"bar(rier)?\b|fence\.proxy|wgmma\.(fence|wait)|cp\.async\.wait", name)
        if found:
            kinds.setdefault(found[0], []).append(i)
    return kinds


def without(kernel: Kernel, steps: list[int]) -> Kernel:
    """The kernel, of which some instructions do nothing."""
    code = [*kernel.code]
    for i in steps:
        code[i] = Step("", False, ["nop"], [], f"without {code[i].text}")
    return kernel._replace(code=code)
