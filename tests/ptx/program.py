"""What XLA makes of a function: instructions, kernels, launches, and where arrays lie."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ptx.lint import FLOAT
from ptx.state import Launch

KINDS = {"kKernel", "kCustomKernel", "kCopy", "kMemzero", "kMemset32BitValue", "kSequential"}
# These hold others, which are listed too.
KINDS |= {"kWhile", "kConditional", "kAsyncStart", "kAsyncDone", "kDynamicSliceFusion"}
# Data movement; the emulator checks that what is added so are integers.
KINDS |= {"kAllGather", "kAllToAll", "kAllReduce"}
#: Products by a library.
GEMMS = {"kGemm", "kCublasLtMatmul"}
_PRODUCTS = {
    "dot",
    "scaled-dot",
    "ragged-dot",
    "convolution",
    "triangular-solve",
    "cholesky",
    "fft",
}
_OWN_KERNELS = {"__gpu$xla.gpu.triton", "__gpu$xla.gpu.ptx"}


#: The names of the kernels of ``primitives/gpu``.
OWN = re.compile(r"(tiles|thin|rows|chain|columns)(__\d+)?")


class Instruction(NamedTuple):
    """One HLO instruction; operands and results are named "name" or "name {index}"."""

    name: str
    shapes: list[tuple[str, ...]]  # type, dimensions, layout of each array
    opcode: str
    operands: list[str]
    text: str


class Program(NamedTuple):
    """What XLA made of a function."""

    kernels: dict[str, str]  # PTX modules by kernel
    computations: dict[str, list[Instruction]]  # the last instruction is the root
    entry: str
    launches: dict[str, list[Launch]]  # by instruction
    slices: dict[str, tuple[int, int, int]]  # allocation, offset, size of each array by name
    allocations: dict[int, int]  # sizes
    structure: Any  # of the result
    arguments: list[list[Any]]  # the part of each argument that each device has, as an index
    results: list[list[Any]]  # likewise
    shapes: list[tuple[int, ...]]  # of the results, whole

    @property
    def ptx(self) -> str:
        return "\n".join(dict.fromkeys(self.kernels.values()))

    def arrays(self, name: str) -> list[str]:
        """The names of the arrays that an instruction results in."""
        if name in self.slices:
            return [name]
        found = [s for s in self.slices if s.startswith(f"{name} {{") and not s.endswith("{}")]
        inner = [s for s in found if not any(t.startswith(s[:-1] + ",") for t in found)]
        return sorted(inner, key=lambda s: [int(i) for i in re.findall(r"\d+", s.split()[1])])

    @property
    def library_calls(self) -> set[str]:
        """What is not in ``ptx``, so that nothing here looks at it."""
        launches = [launch for launches in self.launches.values() for launch in launches]
        unknown = {x.kernel or x.kind for x in launches if x.kind not in KINDS}
        return unknown | {x.kernel for x in launches if x.kernel and x.kernel not in self.kernels}

    @property
    def choices(self) -> set[str]:
        """Instructions whose order of additions XLA, a library or an autotuner chooses.

        These are products and convolutions, whatever they have become, and sums of floats in
        fusions whose tiles are chosen; and all calls but those of kernels that we wrote.
        """
        found = set()
        for instructions in self.computations.values():
            for x in instructions:
                target = re.search(r'custom_call_target="([^"]*)"', x.text)
                if x.opcode in _PRODUCTS or (target and target[1] not in _OWN_KERNELS):
                    found.add(f"{target[1] if target else x.opcode} {x.name}")
                elif x.opcode == "fusion" and '"kind":"__triton' in x.text:
                    inner = self.computations[re.search(r"calls=(%[\w.\-]+)", x.text)[1]]
                    found |= {f"{y.opcode} {x.name}" for y in inner if self._adds_floats(y)}
        return found

    def _adds_floats(self, x: Instruction) -> bool:
        if x.opcode not in ("reduce", "reduce-window", "scan"):
            return False
        steps = self.computations[re.search(r"to_apply=(%[\w.\-]+)", x.text)[1]]
        return any(
            step.opcode in ("add", "multiply", "subtract") and FLOAT.fullmatch(kind)
            for step in steps
            for kind, *_ in step.shapes
        )
