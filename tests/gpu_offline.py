"""Compile for GPUs that need not be there, lint the PTX, and run it on the CPU, bit for bit.

    python tests/gpu_offline.py [--targets sm_80 ...] [--only PREFIX ...] [--run] [--training]
    python tests/gpu_offline.py --large | --races | --devices | --controls

For every case of ``repjax.verify.vectors``: XLA compiles it deviceless, :func:`lint` looks for
instructions whose bits are not fixed, and, with --run, :func:`run` executes the program and its
result is compared with the CPU's.  One JSON object for each; exits with 1 if anything was found.

Whatever is run is searched for races.  --large are products of which a GPU is full, --races all our
kernels with their warps in random orders, and without each of their barriers.

What this does not show: that the program fits and runs on a device; what ptxas, which is trusted,
or an autotuner on the device makes of it.  XLA may choose another algorithm there for what is left
to a library.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental import topologies
from jax.experimental.pallas import triton
from networks import block_gradients
from ptx_emulator import (
    CONSTANTS,
    EmulationError,
    Launch,
    Machine,
    is_whole,
    parse,
    synchronizations,
    without,
)

import repjax
from repjax.primitives.gpu import contractions, sums
from repjax.verify import conformance, vectors

# --- devices ------------------------------------------------------------------------------

#: Of the vendor's data sheets and its table of compute capabilities: name, threads and bytes of
#: shared memory of a multiprocessor, shared memory of a block, multiprocessors, float32 units in
#: each, bytes/s of memory, bytes of L2 cache, GHz, bytes of memory.
TARGETS = {
    "sm_80": ("NVIDIA A100", 2048, 167936, 166912, 108, 64, 2039e9, 40 << 20, 1.41, 80 << 30),
    "sm_89": ("NVIDIA L4", 1536, 102400, 101376, 58, 128, 300e9, 48 << 20, 2.04, 24 << 30),
    "sm_90": ("NVIDIA H200", 2048, 233472, 232448, 132, 128, 4800e9, 50 << 20, 1.98, 141 << 30),
    "sm_100": ("NVIDIA B200", 2048, 233472, 232448, 148, 128, 8000e9, 126 << 20, 1.96, 180 << 30),
}


def describe(target: str) -> str:
    """A GpuTargetConfigProto in text form: what XLA wants to know of a device."""
    name, threads, shared, per_block, cores, units, bandwidth, cache, clock, memory = TARGETS[
        target
    ]
    major, minor = divmod(int(target.removeprefix("sm_")), 10)
    own = "feature_extension: ACCELERATED_FEATURES" if major >= 9 else ""
    return f"""
        gpu_device_info {{
          cuda_compute_capability {{ major: {major} minor: {minor} {own} }}
          threads_per_core_limit: {threads} shared_memory_per_core: {shared}
          shared_memory_per_block_optin: {per_block} core_count: {cores} fpus_per_core: {units}
          memory_bandwidth: {bandwidth:.0f} l2_cache_size: {cache} clock_rate_ghz: {clock}
          device_memory_size: {memory} shared_memory_per_block: 49152
          threads_per_block_limit: 1024 threads_per_warp: 32
          block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
          registers_per_core_limit: 65536 registers_per_block_limit: 65536
        }}
        platform_name: "CUDA" device_description_str: "{name}"
        dnn_version_info {{ major: 9 minor: 10 }}
    """


@functools.cache
def mesh_of(target: str, devices: int = 1):
    topology = topologies.get_topology_desc(
        "", platform="cuda", target_config=describe(target), topology=f"1x1x{devices}"
    )
    return topologies.make_mesh(topo=topology, mesh_shape=(devices,), axis_names=("x",))


# --- compilation --------------------------------------------------------------------------


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
        unknown = {x.kernel or x.kind for x in launches if x.kind not in _KINDS}
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
            step.opcode in ("add", "multiply", "subtract") and _FLOAT.fullmatch(kind)
            for step in steps
            for kind, *_ in step.shapes
        )


_KINDS = {"kKernel", "kCustomKernel", "kCopy", "kMemzero", "kMemset32BitValue", "kSequential"}
# These hold others, which are listed too.
_KINDS |= {"kWhile", "kConditional", "kAsyncStart", "kAsyncDone", "kDynamicSliceFusion"}
# Data movement; the emulator checks that what is added so are integers.
_KINDS |= {"kAllGather", "kAllToAll", "kAllReduce"}
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
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\](?:\{([\d,]*)[^}]*\})?")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_LAUNCH = re.compile(
    r"(\S+) grid: \[([\d, ]+)\] threads: \[([\d, ]+)\] +shared_memory: (\d+)", re.MULTILINE
)
_ENTRY = re.compile(r"\.entry\s+([\w$.]+)")
_OPERAND = re.compile(r"%([\w.\-]+)((?:#\d+)*)")


def compile_for(target: str, function, *arguments, devices: int = 1, specs=None) -> Program:
    """Compile a function of arrays for one of :data:`TARGETS`.

    ``specs`` is how each argument is split over the devices, whose axis is ``x``.
    """
    mesh = mesh_of(target, devices)
    specs = specs or [jax.P()] * len(arguments)

    def struct(x, spec):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=jax.NamedSharding(mesh, spec))

    structs = [
        jax.tree.map(functools.partial(struct, spec=spec), argument)
        for argument, spec in zip(arguments, specs, strict=True)
    ]
    with tempfile.TemporaryDirectory(prefix="gpu_offline_") as dump:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # tells Pallas the device
            lowered = jax.jit(function, keep_unused=True).trace(*structs).lower()
            compiled = lowered.compile(
                compiler_options={
                    "xla_dump_to": dump,
                    "xla_dump_hlo_as_text": True,
                    "xla_dump_emitter_re": "ptx",
                    "xla_dump_large_constants": True,
                }
            )
        files = {path.name: path.read_text() for path in sorted(pathlib.Path(dump).iterdir())}

    def dumped(ending: str) -> str:
        found = [text for name, text in files.items() if name.endswith(ending)]
        if len(found) != 1:
            raise RuntimeError(
                f"expected one dump of {ending}, received {len(found)} of {[*files]}"
            )
        return found[0]

    modules = [text for name, text in files.items() if name.endswith(".ptx")]
    modules += _given(dumped("gpu_after_optimizations.txt"))
    kernels = {entry: text for text in modules for entry in _ENTRY.findall(text)}
    computations, entry = _computations(dumped("gpu_after_optimizations.txt"))
    # Without kernels, there are no launches to list.
    listed = any(name.endswith("thunk_sequence.txt") for name in files)
    launches = (
        _launches(dumped("thunk_sequence.txt"), dumped("thunk_metadata.txt")) if listed else {}
    )
    slices, sizes = _buffers(dumped("buffer-assignment.txt"), dumped("assignment-values.txt"))
    of_arguments = [_parts(mesh, x.sharding, x.shape) for x in jax.tree.leaves(structs)]
    whole = [x.shape for x in jax.tree.leaves(lowered.out_info)]
    of_results = [
        _parts(mesh, *pair)
        for pair in zip(jax.tree.leaves(compiled.output_shardings), whole, strict=True)
    ]
    placed = (lowered.out_tree, of_arguments, of_results, whole)
    return Program(kernels, computations, entry, launches, slices, sizes, *placed)


def _given(hlo: str) -> list[str]:
    """The PTX that a program brings along, which XLA leaves to the driver, and does not dump."""
    found = re.findall(r'kernel_data = "((?:[^"\\]|\\.)*)"', hlo)
    return [re.sub(r"\\([\dA-F]{2})", lambda code: chr(int(code[1], 16)), text) for text in found]


def _parts(mesh, sharding, shape) -> list[Any]:
    """The part of an array that each device of a mesh has."""
    parts = sharding.devices_indices_map(shape)
    return [parts[device] for device in mesh.devices.flat]


def _computations(hlo: str):
    hlo = re.sub(r"/\*.*?\*/", "", hlo)
    computations, entry = {}, ""
    for name, body in re.findall(r"^(ENTRY %\S+|%\S+) .*?\{\n(.*?)^\}", hlo, re.M | re.S):
        if name.startswith("ENTRY "):
            entry = name = name.removeprefix("ENTRY ")
        lines = [_INSTRUCTION.match(line) for line in body.splitlines()]
        root = [line.startswith("  ROOT") for line in body.splitlines()].index(True)
        instructions = []
        for found in lines:
            own, shape, opcode, rest = found.groups()
            inside = rest if opcode == "constant" else rest.split(")")[0]
            operands = [
                n + (f" {{{i[1:].replace('#', ',')}}}" if i else "")
                for n, i in _OPERAND.findall(inside)
            ]
            shapes = _SHAPE.findall(shape)
            instructions.append(Instruction(own, shapes, opcode, operands, rest))
        # The root stands last in what is executed, so that it is easy to find.
        computations[name] = [*instructions[:root], *instructions[root + 1 :], instructions[root]]
    return computations, entry


def _launches(sequence: str, metadata: str) -> dict[str, list[Launch]]:
    names = re.findall(r'profile_annotation: "([^"]*)"\s+thunk_id: (\d+)', metadata)
    names = {int(number): name for name, number in names}
    launches: dict[str, list[Launch]] = {}
    for number, kind, rest in re.findall(r"^\s*(\d+): (k\w+)(.*)$", sequence, re.M):
        found = _LAUNCH.search(rest)
        kernel, *sizes = found.groups() if found else ("", "1", "1", "0")
        grid, block = (tuple(map(int, size.split(","))) for size in sizes[:2])
        launch = Launch(kind, kernel, grid, block, int(sizes[2]))
        launches.setdefault(names.get(int(number), kind), []).append(launch)
    return launches


def _buffers(assignment: str, values: str):
    """Where each array lies, by all names that it has."""
    text = assignment + values
    sizes = {
        int(n): int(size) for n, size in re.findall(r"^allocation (\d+): size (\d+)", text, re.M)
    }
    by_value = {}
    for block in re.split(r"^(?=allocation \d+:)", assignment, flags=re.M)[1:]:
        number = int(block.split()[1].rstrip(":"))
        for value, size, offset in re.findall(
            r"value: <(\d+) .*?@\d+> \(size=(\d+),offset=(\d+)\)", block
        ):
            by_value[int(value)] = number, int(offset), int(size)
    slices = {}
    for value, positions in re.findall(
        r"^<(\d+) [^\n]*\n positions:\n(.*?)\n uses:", text, re.M | re.S
    ):
        for position in positions.splitlines():
            slices[position.strip()] = by_value[int(value)]
    return slices, sizes


# --- lint ---------------------------------------------------------------------------------

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
_FLOAT = re.compile(r"(b?f16|t?f32|f64|e\dm\d)(x\d)?")


class Finding(NamedTuple):
    """One instruction that falls under a rule of :data:`RULES`."""

    kernel: str
    rule: str
    instruction: str


def rules_of(instruction: str) -> set[str]:
    """The rules that one PTX instruction, without its guard, falls under."""
    name, *modifiers = instruction.split(None, 1)[0].split(".")
    is_float = any(map(_FLOAT.fullmatch, modifiers))
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


# --- a program ----------------------------------------------------------------------------

_HLO_TYPES = {"pred": "bool", "bf16": "bfloat16", "c64": "complex64", "c128": "complex128"} | {
    f"{letter}{bits}": f"{kind}{bits}"
    for bits in (8, 16, 32, 64)
    for letter, kind in (("s", "int"), ("u", "uint"), ("f", "float"))
}
_MOVES_NOTHING = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy-done"}
_COLLECTIVES = ("all-gather", "all-to-all", "all-reduce")
_MOVES_NOTHING |= {f"{name}-done" for name in _COLLECTIVES}
# What says where a slice lies.
_SCALAR = {"add": np.add, "subtract": np.subtract, "select": np.where}
_REDUCTIONS = {"add": np.add, "and": np.bitwise_and, "maximum": np.maximum}


class Run(NamedTuple):
    """What a program computed."""

    results: Any
    inexact: set[str]  # opcodes whose bits are not fixed


#: The names of the kernels of ``primitives/gpu``.
OWN = re.compile(r"(tiles|thin|rows|chain|columns)(__\d+)?")


class Choices(NamedTuple):
    """What a device may do in this way or another, and what is left out.

    Attributes:
      order: generates the order of warps, instead of one step by all after the other.
      blocks: of our kernels, those that are run; or all.
      fill: the bytes of memory before anything is written.
      races: whether to look for them, where some blocks are run in their kernels alone.
      controls: if given, what is found without each synchronization of our kernels, and without
        all of a kind, by kernel.
    """

    order: np.random.Generator | None = None
    blocks: Sequence[int] | None = None
    fill: int = 0xA5
    races: bool = True
    controls: dict[tuple[str, str], str] | None = None


_USUAL = Choices()


class _Executor:
    """A program in memory, laid out as XLA laid it out."""

    def __init__(self, program: Program, arguments, device: int, choices: Choices):
        self.program, self.inexact, self.start, end = program, set(), {}, 256
        self.device, self.choices = device, choices
        self.copied: dict[str, bytes] = {}  # operands of copies that have not ended
        self.rounds: list[int] = []  # of the loops that are being executed, the innermost last
        for number, size in program.allocations.items():
            self.start[number], end = end, end + -(-size // 256) * 256 + 256
        self.memory = np.full(end + CONSTANTS, choices.fill, np.uint8)
        for instructions in program.computations.values():
            for x in instructions:
                if x.opcode == "constant" and x.name in program.slices:
                    self.write(x.name, _constant(x), x.shapes[0])
        for x in program.computations[program.entry]:
            if x.opcode == "parameter":
                self.write(x.name, arguments[int(x.text.split(")")[0])], x.shapes[0])

    def bytes_of(self, name: str):
        allocation, offset, size = self.program.slices[name]
        start = self.start[allocation] + offset
        return self.memory[start : start + size]

    def write(self, name, value, shape):
        dtype, dims, order = _layout(shape)
        if (value.dtype, value.shape) != (dtype, dims):
            raise TypeError(f"{name}: expected {dtype}{dims}, received {value.dtype}{value.shape}")
        data = _physical(value, order).view(np.uint8)
        self.bytes_of(name)[: data.size] = data

    def read(self, name, shape):
        dtype, dims, order = _layout(shape)
        data = self.bytes_of(name)[: math.prod(dims) * dtype.itemsize].copy()
        return data.view(dtype).reshape([dims[i] for i in order]).transpose(np.argsort(order))

    def results(self) -> list[np.ndarray]:
        root = self.program.computations[self.program.entry][-1]
        names = self.program.arrays(root.name)
        return [self.read(name, shape) for name, shape in zip(names, root.shapes, strict=True)]

    def execute(self, computation: str) -> Iterator[Instruction]:
        """Yields where devices exchange values, and goes on when they have (:func:`_exchange`)."""
        for x in self.program.computations[computation]:
            launches = self.program.launches.get(x.name, [])
            if any(launch.kernel for launch in launches):
                self._copy_operands(x, sum(launch.kind == "kCopy" for launch in launches))
                for launch in launches:
                    if launch.kernel:
                        self._launch(x, launch)
                continue
            if x.opcode in _MOVES_NOTHING:
                continue
            if collective := self._collective(x):
                yield collective
            elif x.opcode == "while":
                condition, body = (
                    re.search(rf"{word}=(%[\w.\-]+)", x.text)[1] for word in ("condition", "body")
                )
                last = self.program.computations[condition][-1].name
                self.rounds.append(0)
                while (yield from self.execute(condition)) or self.bytes_of(last)[0]:
                    yield from self.execute(body)
                    self.rounds[-1] += 1
                self.rounds.pop()
            elif x.opcode == "conditional":
                yield from self.execute(self._branch(x))
            elif x.opcode == "call":
                yield from self.execute(re.search(r"to_apply=(%[\w.\-]+)", x.text)[1])
            elif x.opcode == "async-start":
                self.copied[x.name] = self._operands_of(x)
            elif x.opcode == "async-done":
                (start,) = x.operands
                if start in self.copied:
                    yield from self._finish(self._named(start))
            elif self._kinds(x) == {"kDynamicSliceFusion"}:
                self._dynamic_slice(x)
            elif x.opcode in ("copy", "copy-start"):
                self.bytes_of(x.name)[...] = self.bytes_of(x.operands[0])
            elif self._kinds(x) == {"kMemzero"}:
                self.bytes_of(x.name)[...] = 0
            elif x.opcode == "fusion" and self._kinds(x) == {"kCopy"}:
                self._slice(x)
            elif x.opcode == "partition-id":
                self.write(x.name, np.uint32(self.device), x.shapes[0])
            else:
                raise NotImplementedError(f"HLO {x.opcode} {x.name} {self._kinds(x)}")

    def _slice(self, x: Instruction) -> None:
        """A part of an array that lies together."""
        operand, inner = self.program.computations[re.search(r"calls=(%[\w.\-]+)", x.text)[1]]
        if inner.opcode != "slice":
            raise NotImplementedError(f"HLO {x.opcode} {x.name} by a copy: {inner.opcode}")
        bounds = re.findall(r"\[(\d+):(\d+)(?::1)?\]", inner.text)
        value = self.read(x.operands[0], operand.shapes[0])
        self.write(x.name, value[tuple(slice(int(a), int(b)) for a, b in bounds)], x.shapes[0])

    def _named(self, name: str) -> Instruction:
        computations = self.program.computations.values()
        return next(x for instructions in computations for x in instructions if x.name == name)

    def _operands_of(self, x: Instruction) -> bytes:
        return b"".join(self.bytes_of(operand).tobytes() for operand in x.operands)

    def _finish(self, start: Instruction) -> Iterator[Instruction]:
        """What was started takes effect when it is waited for, on the operands of its start."""
        if self._operands_of(start) != self.copied.pop(start.name):
            raise EmulationError(f"{start.name}: its operands change before it has ended")
        yield from self.execute(re.search(r"calls=(%[\w.\-]+)", start.text)[1])

    def _dynamic_slice(self, x: Instruction) -> None:
        """A part of an array by a copy: where it lies, the runtime knows by the round of a loop."""
        inner = self.program.computations[re.search(r"calls=(%[\w.\-]+)", x.text)[1]]
        values: dict[str, Any] = {}
        for y in inner:
            dtype, dims, order = _layout(y.shapes[0])
            operands = [values[operand] for operand in y.operands]
            if y.opcode == "parameter":
                value = self.read(x.operands[int(y.text.split(")")[0])], y.shapes[0])
            elif y.opcode == "constant":
                value = _constant(y)
            elif y.opcode in _SCALAR:
                value = _SCALAR[y.opcode](*operands)
            elif y.opcode == "compare" and "direction=LT" in y.text:
                value = np.less(*operands)
            elif y.opcode == "bitcast":
                whole = _physical(operands[0], _layout(self._shape(inner, y.operands[0]))[2])
                value = whole.view(dtype).reshape([dims[i] for i in order])
                value = value.transpose(np.argsort(order))
            elif y.opcode in ("dynamic-slice", "dynamic-update-slice"):
                updates = y.opcode == "dynamic-update-slice"
                array, sizes = operands[0], operands[1].shape if updates else dims
                most = np.subtract(array.shape, sizes)
                starts = np.clip(np.array(operands[1 + updates :], np.int64), 0, most)
                part = tuple(slice(a, a + n) for a, n in zip(starts, sizes, strict=True))
                self._check_place(y, array.astype(dtype), starts, self._shape(inner, y.operands[0]))
                value = array[part]
                if updates:
                    value = array.copy()
                    value[part] = operands[1]
            else:
                raise NotImplementedError(f"HLO {x.opcode} {x.name} by a copy: {y.opcode}")
            values[y.name] = value
        self.write(x.name, value, x.shapes[0])

    def _check_place(self, x: Instruction, array, starts, shape) -> None:
        """That the offset which the runtime computes is that of the slice."""
        found = re.search(
            r'"byte_offset":"(-?\d+)","byte_stride":"(-?\d+)","loop_index":"(\d+)"', x.text
        )
        if not found:
            raise NotImplementedError(f"HLO {x.opcode} {x.name} without a place: {x.text}")
        offset, stride, loop = map(int, found.groups())
        runtime = offset + stride * self.rounds[-1 - loop]
        *_, order = _layout(shape)
        flat = np.ravel_multi_index([starts[i] for i in order], [array.shape[i] for i in order])
        if runtime != flat * array.itemsize:
            raise EmulationError(f"{x.name} starts at {flat * array.itemsize}, not {runtime}")

    def _shape(self, instructions, name: str):
        return next(x.shapes[0] for x in instructions if x.name == name)

    def _collective(self, x: Instruction) -> Instruction | None:
        """The instruction as a collective, which it may start, if it is one."""
        if x.opcode == "async-start":
            inner = self.program.computations[re.search(r"calls=(%[\w.\-]+)", x.text)[1]][-1]
            if inner.opcode in _COLLECTIVES:
                x = x._replace(opcode=inner.opcode, text=inner.text)
        return x if x.opcode.removesuffix("-start") in _COLLECTIVES else None

    def _copy_operands(self, x, count: int) -> None:
        """Before a kernel that works in place: the operands that lie elsewhere, in order."""
        slices, results = self.program.slices, self.program.arrays(x.name)
        here = {slices[result] for result in results}
        elsewhere = [operand for operand in x.operands if slices[operand] not in here]
        free = [r for r in results if slices[r] not in {slices[o] for o in x.operands}]
        for operand in elsewhere[:count]:
            same_size = [r for r in free if slices[r][2] == slices[operand][2]]
            free.remove(same_size[0])
            self.bytes_of(same_size[0])[...] = self.bytes_of(operand)

    def _kinds(self, x):
        return {launch.kind for launch in self.program.launches.get(x.name, [])}

    def _branch(self, x) -> str:
        chosen = int(self.bytes_of(x.operands[0])[0])
        if listed := re.search(r"branch_computations=\{([^}]*)\}", x.text):
            index = self.bytes_of(x.operands[0]).view(np.int32)[0]
            branches = listed[1].split(", ")
            return branches[index if 0 <= index < len(branches) else -1]
        word = "true" if chosen else "false"
        return re.search(rf"{word}_computation=(%[\w.\-]+)", x.text)[1]

    def _launch(self, x, launch):
        if launch.kernel not in self.program.kernels:
            raise NotImplementedError(f"{x.opcode} {x.name} by a library: {launch.kernel}")
        slices = [self.program.slices[y] for y in (*x.operands, *self.program.arrays(x.name))]
        places = [(self.start[allocation] + offset, size) for allocation, offset, size in slices]
        kernel = parse(self.program.kernels[launch.kernel])[launch.kernel]
        is_own = OWN.fullmatch(launch.kernel) is not None
        only = self.choices.blocks if is_own else None
        options: dict[str, Any] = {"only": only, "order": self.choices.order}
        options["races"] = self.choices.races and (self.choices.blocks is None or is_own)
        if is_own and self.choices.controls is not None:
            self._try_without(kernel, launch, places)
        machine = Machine(kernel, launch, self.memory, places, **options)
        with np.errstate(all="ignore"):
            machine.run()
        open_bits = {"approx", "div-full", "contract"}
        self.inexact |= machine.inexact | {x for x in machine.opcodes if rules_of(x) & open_bits}

    def _try_without(self, kernel, launch, places) -> None:
        """The kernel without each of its synchronizations, on copies of the memory."""
        kinds = synchronizations(kernel)
        wholes = [(f"all {kind}", steps) for kind, steps in kinds.items()]
        ones = [(f"{i}: {kernel.code[i].text}", [i]) for steps in kinds.values() for i in steps]
        for name, steps in wholes + ones:
            spoiled, memory = without(kernel, steps), self.memory.copy()
            machine = Machine(spoiled, launch, memory, places, only=[0])
            try:
                with np.errstate(all="ignore"):
                    machine.run()
            except EmulationError as error:
                found = str(error)
            else:
                found = ""
            self.choices.controls[kernel.name, name] = found


def _physical(value: np.ndarray, order) -> np.ndarray:
    """The elements as they lie in memory."""
    return np.ascontiguousarray(value.transpose(order)).reshape(-1)


def _constant(x: Instruction) -> np.ndarray:
    """Numbers, ``true`` and ``false``, or 1 and 0 for those in arrays; complex ones in brackets."""
    dtype, shape, _ = _layout(x.shapes[0])
    text = re.match(r"(?:[^()]|\([^()]*\))*", x.text)[0]
    words = re.findall(r"true|false|-?(?:inf|nan|[\d.]+(?:e[+-]?\d+)?)", text)
    if dtype.kind == "c":
        parts = np.array([float(word) for word in words]).reshape(-1, 2)
        return parts.astype(f"f{dtype.itemsize // 2}").view(dtype).reshape(shape)
    convert = {"b": ("true", "1").__contains__, "i": int, "u": int}.get(dtype.kind, float)
    return np.array([convert(word) for word in words]).astype(dtype).reshape(shape)


def _layout(shape):
    """(dtype, dimensions, dimensions in physical order) of one array."""
    kind, dims, minor_to_major = shape
    if kind not in _HLO_TYPES:
        raise NotImplementedError(f"HLO type {kind}")
    dims = tuple(int(d) for d in dims.split(",") if d)
    order = [int(d) for d in minor_to_major.split(",") if d][::-1] or list(range(len(dims)))
    return np.dtype(_HLO_TYPES[kind]), dims, order


def run(program: Program, *arguments, choices: Choices = _USUAL) -> Run:
    """Execute a compiled program on the CPU.

    Raises NotImplementedError for what is left to a library or not modelled, EmulationError for
    what a kernel must not do.
    """
    arguments = [np.asarray(x) for x in jax.tree.leaves(arguments)]
    devices = [
        _Executor(
            program,
            [x[p[i]] for x, p in zip(arguments, program.arguments, strict=True)],
            i,
            choices,
        )
        for i in range(len(program.results[0]))
    ]
    steps = [device.execute(program.entry) for device in devices]
    while any(waiting := [next(step, None) for step in steps]):
        if len({x and x.name for x in waiting}) > 1:
            raise EmulationError(f"devices wait for each other: {waiting}")
        _exchange(waiting[0], devices)
    results = [device.results() for device in devices]
    whole = [
        _whole(shape, parts, xs)
        for shape, parts, xs in zip(
            program.shapes, program.results, zip(*results, strict=True), strict=True
        )
    ]
    inexact = set().union(*(device.inexact for device in devices))
    return Run(jax.tree.unflatten(program.structure, whole), inexact)


def _whole(shape, parts, values) -> np.ndarray:
    """An array of the parts that devices have; those who have the same part have the same bits."""
    result = np.empty(shape, values[0].dtype)
    for part, x in zip(parts, values, strict=True):
        result[part] = x
    for i, (part, x) in enumerate(zip(parts, values, strict=True)):
        if result[part].tobytes() != x.tobytes():
            raise EmulationError(f"device {i} has other bits than another one")
    return result


def _is_of_all(text: str, n: int) -> bool:
    """Whether the groups of a collective operation are one, of all devices."""
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", text):
        sizes = dict(axis.split("=") for axis in found[1].split(","))
        return math.prod(int(sizes[axis]) for axis in found[2].split(",")) == n
    return re.search(rf"replica_groups=(\[1,{n}\]<=|\{{\{{[\d,]*\}}\}})", text) is not None


def _exchange(x: Instruction, devices: list[_Executor]) -> None:
    """A collective operation of all devices."""
    n, program = len(devices), devices[0].program
    results = program.arrays(x.name)[-len(x.operands) :]
    if not _is_of_all(x.text, n):
        raise NotImplementedError(f"HLO {x.opcode} {x.name} of some devices: {x.text}")
    for operand, result, shape in zip(x.operands, results, x.shapes[-len(results) :], strict=True):
        kind, dims, layout = shape
        if x.opcode.startswith("all-reduce"):
            opcode = program.computations[re.search(r"to_apply=(%[\w.\-]+)", x.text)[1]][-1].opcode
            values = [device.read(operand, shape) for device in devices]
            if opcode == "add" and not all(is_whole(value).all() for value in values):
                devices[0].inexact.add(x.name)
            parts = [functools.reduce(_REDUCTIONS[opcode], values)] * n
        else:
            axis = int(re.search(r"dimensions=\{(\d+)\}", x.text)[1])
            sizes = [int(d) for d in dims.split(",")]
            sizes[axis] //= n if x.opcode.startswith("all-gather") else 1
            values = [
                device.read(operand, (kind, ",".join(map(str, sizes)), layout))
                for device in devices
            ]
            if x.opcode.startswith("all-gather"):
                parts = [np.concatenate(values, axis)] * n
            else:
                split = [np.split(value, n, axis) for value in values]
                parts = [np.concatenate([s[i] for s in split], axis) for i in range(n)]
        for device, part in zip(devices, parts, strict=True):
            device.write(result, part, shape)


# --- the command --------------------------------------------------------------------------

#: The kernels of ``primitives/gpu/contractions.py`` whose algorithm is a chain of these.
CHAINS = re.compile(r"(tiles|thin)(__\d+)?")


def problems(target: str, case, execute: bool) -> list[str]:
    """What is wrong with a case on a target; nothing if all is well."""
    program = compile_for(target, case.program(), *case.arguments)
    found = findings(program)
    if execute:
        expected = conformance.compute(case, jax.devices("cpu")[0])
        found += differences(program, case.arguments, expected)
    return found


def findings(program: Program) -> list[str]:
    """What is wrong with the instructions of a program."""
    found = [
        f"{x.kernel}: [{x.rule}] {x.instruction}"
        for x in lint(program.ptx)
        if not (CHAINS.fullmatch(x.kernel) and x.instruction.startswith("fma.rn.f32 "))
    ]
    found = [*found[:5], f"and {len(found) - 5} more"] if len(found) > 6 else found
    found += [f"left to a library: {name}" for name in sorted(program.library_calls)]
    return found + [f"left to XLA's choice: {name}" for name in sorted(program.choices)]


def differences(program: Program, arguments, expected, choices: Choices = _USUAL) -> list[str]:
    """What is wrong with the results of a program."""
    result = run(program, *arguments, choices=choices)
    found = [f"inexact: {op}" for op in sorted(result.inexact)]
    return [*found, *filter(None, [conformance.first_difference(result.results, expected)])]


# --- both backends ------------------------------------------------------------------------

#: The kernels that products have by each.
BACKENDS = {"triton": re.compile(r"tiles(__\d)?"), "ptx": re.compile(r"tiles__\d{3,}")}


def _products() -> dict[str, tuple[Any, ...]]:
    """Functions and arguments: every layout, sizes that are no multiples, batches, windows."""

    def product(*numbers):
        return lambda x, y: lax.dot_general(x, y, numbers)

    def gradients(x, w):
        out, pullback = jax.vjp(lambda x, w: lax.conv(x, w, (2, 1), "SAME"), x, w)
        return pullback(out)

    def spread(*shapes):
        return [vectors.spread(shape, 2 * i) for i, shape in enumerate(shapes)]

    none = ((), ())
    return {
        "NN": (product(((1,), (0,)), none), *spread((67, 41), (41, 19))),
        "TN": (product(((0,), (0,)), none), *spread((41, 67), (41, 19))),
        "NT": (product(((1,), (1,)), none), *spread((67, 41), (19, 41))),
        "TT": (product(((0,), (1,)), none), *spread((41, 67), (19, 41))),
        "large": (product(((1,), (0,)), none), *spread((700, 9), (9, 3000))),
        "batch": (product(((2,), (1,)), ((0,), (0,))), *spread((3, 5, 33), (3, 33, 7))),
        "batch inside": (product(((0,), (2,)), ((1,), (0,))), *spread((33, 3, 5), (3, 7, 33))),
        "vector": (product(((1,), (0,)), none), *spread((300, 21), (21,))),
        "special values": (
            product(((1,), (0,)), none),
            *map(vectors.with_specials, spread((17, 40), (40, 18))),
        ),
        "convolution": (gradients, *spread((2, 5, 9, 9), (7, 5, 3, 3))),
    }


def problems_of_backend(target: str, backend: str, name: str) -> list[str]:
    """The same of a product of :func:`_products`, by one of the backends of the kernels."""
    os.environ["REPJAX_GPU_BACKEND"] = backend
    function, *arguments = _products()[name]
    program = compile_for(target, repjax.reproducible(function), *arguments)
    expected = conformance.compute(vectors.Case(name, function, arguments), jax.devices("cpu")[0])
    found = findings(program)
    if not any(map(BACKENDS[backend].fullmatch, program.kernels)):
        found.append(f"no kernel of {backend}: {[*program.kernels]}")
    for kernel in {*program.kernels} if backend == "ptx" else ():
        if BACKENDS[backend].fullmatch(kernel):
            found += _refused_by_ptxas(target, program.kernels[kernel])
    return found + differences(program, arguments, expected)


def ptxas() -> str | None:
    """The path of the compiler of PTX."""
    found = importlib.util.find_spec("nvidia")
    folders = [pathlib.Path(p) for p in (found.submodule_search_locations if found else [])]
    paths = [str(path) for folder in folders for path in folder.glob("*/bin/ptxas")]
    return shutil.which("ptxas") or next(iter(paths), None)


def _refused_by_ptxas(target: str, ptx: str) -> list[str]:
    """XLA does not look at PTX that it is given; nor may a register be spilled."""
    with tempfile.TemporaryDirectory(prefix="gpu_offline_") as folder:
        source = pathlib.Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [ptxas(), "-v", "-arch", target, str(source), "-o", f"{source}.cubin"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill", result.stderr)]
    return [] if result.returncode == 0 and spills == [0, 0] else [f"ptxas: {result.stderr}"]


# --- large products -----------------------------------------------------------------------

#: The largest tile, of 128 x 128 outputs, is for products that make so many of them.
THREADS = (256, 1, 1)
SHARED = 1 << 15  # bytes, at least


def known(program: Program, *arguments, choices: Choices) -> tuple[Run, list[np.ndarray]]:
    """What is computed, and which elements do not depend on what was left out.

    Nothing that has been computed depends on what lay in the memory before.
    """
    other = choices._replace(fill=~choices.fill & 0xFF, races=False)
    result, second = (run(program, *arguments, choices=x) for x in (choices, other))
    pairs = zip(*(jax.tree.leaves(x.results) for x in (result, second)), strict=True)
    words = [[x.view(f"u{x.dtype.itemsize}") for x in pair] for pair in pairs]
    return result, [x == y for x, y in words]


def large_products() -> Iterator[vectors.Case]:
    """Of which a GPU is full; their matrices are 2,048 or a little less or more."""

    def product(i, j):
        return lambda x, y: lax.dot_general(x, y, (((i,), (j,)), ((), ())))

    def case(name, order, function, *shapes):
        arguments = tuple(vectors.spread(shape, 200 + 2 * i) for i, shape in enumerate(shapes))
        return vectors.Case(f"{order} {name}", function, arguments, {"contraction": order})

    n, k = 2048, 320
    for order in ("sequential", "order_independent"):
        yield case("NN", order, product(1, 0), (n, k), (k, n))
        yield case("TN", order, product(0, 0), (k, n), (k, n))
        yield case("NT", order, product(1, 1), (n, k), (n, k))
        yield case("odd sizes", order, product(1, 0), (n - 1, 333), (333, n + 1))
    yield case("all of 2,048", "sequential", product(1, 0), (n, n), (n, n))


def problems_of_large(target: str, case: vectors.Case) -> list[str]:
    """The same of a large product, of whose tiles the first, the last and two others are run."""
    program = compile_for(target, case.program(), *case.arguments)
    found = findings(program)
    # Except the product that counts infinities, which is in a branch.
    names = [x.name for x in program.computations[program.entry]]
    launches = [x for name in names for x in program.launches.get(name, [])]
    own = {(x.grid, x.block, x.shared) for x in launches if OWN.fullmatch(x.kernel)}
    if len(own) != 1 or any(block != THREADS or shared < SHARED for _, block, shared in own):
        return [*found, f"expected kernels of one grid with {THREADS} threads, received {own}"]
    (((tiles, *_), *_),) = own
    blocks = [0, tiles // 5, tiles // 2, tiles - 1]
    result, (is_known,) = known(program, *case.arguments, choices=Choices(blocks=blocks))
    expected = conformance.compute(case, jax.devices("cpu")[0])
    if is_known.sum() <= 3 * is_known.size // tiles:  # the last tile may be a narrow one
        found.append(f"only {is_known.sum()} outputs are known")
    found += [f"inexact: {op}" for op in sorted(result.inexact)]
    of_tiles = np.where(is_known, result.results, expected)
    return [*found, *filter(None, [conformance.first_difference(of_tiles, expected)])]


# --- races --------------------------------------------------------------------------------

#: Cases whose programs have all kernels of ``primitives/gpu``, and most of their exchanges.
RACES = (
    "dot_general sequential, transposed",
    "dot_general order_independent, transposed",
    "conv_general_dilated sequential, gradients",
    "reduce_sum sequential",
    "cumsum, cumprod sequential",
    "softmax",
    "rows, layer norm",
    "rows of 16500",
    "rows, masked softmax",
)


def without_sign(x):
    """Sums of rows, of which none needs guards (``primitives/gpu/rows.py``)."""
    root = jax.numpy.sqrt(jax.numpy.abs(x))
    return [f(x).sum(1) for f in (jax.numpy.abs, jax.numpy.exp, jax.numpy.square)] + [root.sum(1)]


def racing() -> Iterator[tuple[vectors.Case, int]]:
    """Cases, and the number of tiles that keep a GPU busy; with 1, tiles are as large as can be."""
    hard = conformance.hard_arrays(conformance.load()["hard_inputs"])
    for case in vectors.cases(hard, small=True):
        if case.name.startswith(RACES):
            yield case, contractions._PROGRAMS
    for case in large_products():
        order, name = case.name.split(" ", 1)
        if name in ("NN", "odd sizes"):  # of the others XLA makes these
            # Tiles of 128 x 128 outputs, of as many terms as pass by in three steps and a part.
            terms = 230 if order == "order_independent" else 100
            sizes = {320: terms - terms % 4, 333: terms + 1, 2048: 128, 2047: 127, 2049: 129}
            arguments = tuple(
                np.ascontiguousarray(x[tuple(slice(sizes[n]) for n in x.shape)])
                for x in case.arguments
            )
            yield case._replace(name=f"tile, {case.name}", arguments=arguments), 1
    x = vectors.spread((1 << 14, 3), 210)
    yield vectors.Case("thin", lambda x: jax.numpy.einsum("ij,ij->i", x, x), (x,)), 1
    # Near zero, where sums of what has a sign would need guards.
    x = np.ldexp(vectors.values((3, 70), 212), -124).astype(np.float32)
    yield vectors.Case("rows, sums without a sign", without_sign, (x,)), 1
    x = vectors.spread((2100, 33), 211)
    yield vectors.Case("columns", lambda x: x.sum(0), (x,)), 1


def problems_of_races(target: str, case: vectors.Case, tiles: int) -> tuple[list[str], int, int]:
    """What is wrong with a case if warps run in random orders.

    And controls: how many synchronizations of our kernels there are, and how many of them, if one
    alone is missing, are missed.  Triton has some that others spare: not those of a whole kind.
    """
    programs, contractions._PROGRAMS = contractions._PROGRAMS, tiles
    large, sums._LARGE = sums._LARGE, 0
    try:
        program = compile_for(target, case.program(), *case.arguments)
    finally:
        contractions._PROGRAMS, sums._LARGE = programs, large
    expected = conformance.compute(case, jax.devices("cpu")[0])
    choices = Choices(order=np.random.default_rng(len(case.name)), controls={})
    found = differences(program, case.arguments, expected, choices)
    ones = {key: error for key, error in choices.controls.items() if key[1][:1].isdigit()}
    found += [
        f"{key}: not missed" for key, error in choices.controls.items() - ones.items() if not error
    ]
    return found, len(ones), sum(map(bool, ones.values()))


def problems_of_words(target: str, name: str) -> list[str]:
    """The same of contractions of integers of 64 bits, which ``jax_enable_x64`` is on for.

    And of a sum of digits that leaves 32, in which matrix units may saturate.
    """
    bits = vectors.words(3 * 70, 0).view(np.int64).reshape(3, 70)
    if name == "product":
        program, arguments = lax.dot, (bits, bits.T.copy())
    elif name == "long":
        program = functools.partial(lax.dot, preferred_element_type=np.int32)
        ones = np.full((1, (1 << 17) + 40), -128, np.int8)
        arguments = ones, ones.T.copy()
    else:
        program = functools.partial(lax.conv, window_strides=(1, 2), padding="SAME")
        arguments = bits[:, :66].reshape(1, 3, 6, 11), bits[:, -18:].reshape(6, 3, 1, 3)
    with jax.enable_x64(True):
        compiled = compile_for(target, repjax.reproducible(program), *arguments)
        expected = repjax.reproducible(program)(*arguments)
    return findings(compiled) + differences(compiled, arguments, expected)


# --- several devices ----------------------------------------------------------------------

DEVICES = 4


def problems_of_devices(target: str, name: str) -> list[str]:
    """The same of ``networks.block_gradients`` on devices, of which each has a part of ``x``.

    ``name`` is an order of contractions, or ``map``, for a mean of what each device computes.
    """
    x, w = vectors.values((2 * DEVICES, 4, 8), 0), vectors.values((8, 8), 1)
    if name == "map":

        def local(x, w):
            return jax.tree.map(lambda y: lax.pmean(y, "x"), block_gradients(x, w))

        specs = {"in_specs": (jax.P("x"), jax.P()), "out_specs": jax.P(), "check_vma": False}
        mesh = mesh_of(target, DEVICES)
        function = repjax.reproducible(jax.shard_map(local, mesh=mesh, **specs))
        parts = [repjax.reproducible(block_gradients)(part, w) for part in np.split(x, DEVICES)]
        expected = jax.tree.map(
            lambda *ys: repjax.lax.div(
                repjax.lax.reduce_sum(np.stack(ys), (0,)), np.float32(DEVICES)
            ),
            *parts,
        )
    else:
        function = repjax.reproducible(block_gradients, contraction=name)
        expected = function(x, w)
    program = compile_for(target, function, x, w, devices=DEVICES, specs=[jax.P("x"), jax.P()])
    found = findings(program)
    found += [] if any(kernel.startswith("rows") for kernel in program.kernels) else ["no kernels"]
    return found + differences(program, (x, w), expected)


def controls() -> Iterator[tuple[Any, ...]]:
    """Programs of plain JAX that are to be caught, and whose bits they would have to have.

    Name, program, the other one, arguments, and on which devices if these are several.
    """

    def fused(x, y, z, out):
        """What a compiler that contracts makes of a product and a sum."""
        (out[...],) = triton.elementwise_inline_asm(
            "fma.rn.f32 $0, $1, $2, $3;",
            args=[x[...], y[...], z[...]],
            constraints="=f,f,f,f",
            pack=1,
            result_shape_dtypes=[jax.ShapeDtypeStruct(x.shape, x.dtype)],
        )

    def contracted(x, y, z):
        parameters = triton.CompilerParams()
        return pl.pallas_call(fused, out_shape=x, compiler_params=parameters)(x, y, z)

    def whole_rows(x, out):
        """Sums of rows in Triton's order."""
        out[...] = jax.numpy.sum(x[...], 1)

    def reduced(x):
        shape = jax.ShapeDtypeStruct(x.shape[:1], x.dtype)
        return pl.pallas_call(whole_rows, out_shape=shape, compiler_params=triton.CompilerParams())(
            x
        )

    x, y, z = (vectors.values((128,), seed) for seed in range(3))
    square = vectors.values((128, 128), 3)
    ones = {"window_strides": (1, 1), "padding": "SAME"}
    yield "exp", jax.numpy.exp, jax.numpy.exp, (x,)
    yield "division", lax.div, lax.div, (x, y)
    yield "square root", lax.sqrt, lax.sqrt, (np.abs(x),)
    yield "product and sum", contracted, lambda x, y, z: x * y + z, (x, y, z)
    index = np.arange(128, dtype=np.int32) % 7
    yield "scatter-add", *[lambda x, i, y: jax.numpy.asarray(x).at[i].add(y)] * 2, (x, index, y)
    yield "matrix product", lax.dot, lax.dot, (square, square)
    images = square.reshape(2, 8, 32, 32)
    yield "convolution", *[functools.partial(lax.conv, **ones)] * 2, (images, images[:, :, :3, :3])
    of_bytes = functools.partial(lax.dot, preferred_element_type=np.int32)
    yield "product of int8", of_bytes, of_bytes, (square.view(np.int8), square.view(np.int8).T)
    yield "order of a sum", jax.numpy.sum, jax.numpy.sum, (vectors.spread((5000,), 4),)
    of_rows = functools.partial(repjax.lax.reduce_sum, axes=(1,))
    yield "order of Triton's sum", reduced, of_rows, (vectors.spread((16, 512), 5),)
    split = {"devices": DEVICES, "specs": [jax.P("x")]}
    yield "sum over devices", *[jax.numpy.sum] * 2, (vectors.spread((64,), 6),), split


def check_control(target: str, function, on_cpu, arguments, split=None) -> dict[str, Any]:
    """What is found in a program: rules, libraries, and what a run says."""
    program = compile_for(target, function, *arguments, **(split or {}))
    found = {
        "rules": sorted({x.rule for x in lint(program.ptx)}) if program.ptx else [],
        "libraries": sorted(program.library_calls),
        "choices": sorted(program.choices),
    }
    try:
        result = run(program, *arguments)
    except NotImplementedError as error:
        return found | {"run": f"refused: {error}"}
    if result.inexact:
        return found | {"run": f"inexact: {sorted(result.inexact)}"}
    expected = np.asarray(on_cpu(*arguments))  # not jitted: a CPU too may contract
    return found | {"run": conformance.first_difference(result.results, expected)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=[*TARGETS])
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose names start so")
    parser.add_argument("--run", action="store_true", help="run them on the CPU, and compare")
    parser.add_argument("--training", action="store_true", help="also compile the training")
    parser.add_argument("--controls", action="store_true", help="what must be caught, instead")
    parser.add_argument("--large", action="store_true", help="large products, instead")
    parser.add_argument("--races", action="store_true", help="races and controls, instead")
    parser.add_argument("--devices", action="store_true", help="programs on several, instead")
    parser.add_argument("--backends", action="store_true", help="products by each, instead")
    parser.add_argument("--words", action="store_true", help="integers of 64 bits, instead")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("I", "OF"))
    options = parser.parse_args()
    # Deviceless: the plugin is to register where there is no GPU, and nothing is to run on one.
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    jax.config.update("jax_platforms", "cpu")
    hard = conformance.hard_arrays(conformance.load()["hard_inputs"])
    cases = [*vectors.cases(hard, small=True)]
    if options.training:
        cases += vectors.training(steps=2, batch=4)
    chosen = [case for case in cases if case.name.startswith(tuple(options.only))]
    part, parts = options.part
    bad = 0
    for target in options.targets:
        if options.controls:
            for name, *control in controls():
                found = {"control": name, **check_control(target, *control)}
                print(json.dumps({"target": target, **found}), flush=True)
            continue
        names = [case.name for case in chosen[part::parts]]
        checks = [
            functools.partial(
                problems, target, case, options.run and not case.name.startswith("training")
            )
            for case in chosen[part::parts]
        ]
        if options.devices:
            names = ["sequential", "order_independent", "map"]
            checks = [functools.partial(problems_of_devices, target, name) for name in names]
        if options.backends:
            pairs = [(backend, name) for backend in BACKENDS for name in _products()]
            names = [", ".join(pair) for pair in pairs]
            checks = [functools.partial(problems_of_backend, target, *pair) for pair in pairs]
        if options.large:
            products = [
                case for case in large_products() if case.name.startswith(tuple(options.only))
            ]
            names = [case.name for case in products]
            checks = [functools.partial(problems_of_large, target, case) for case in products]
        if options.races:
            pairs = [pair for pair in racing() if pair[0].name.startswith(tuple(options.only))]
            names = [case.name for case, _ in pairs]
            checks = [functools.partial(problems_of_races, target, *pair) for pair in pairs]
        if options.words:
            names = ["product", "convolution", "long"]
            checks = [functools.partial(problems_of_words, target, name) for name in names]
        for name, check in zip(names, checks, strict=True):
            start = time.perf_counter()
            try:
                found = check()
                found, *counts = found if options.races else (found,)
            except (NotImplementedError, EmulationError) as error:
                notes = "; ".join(getattr(error, "__notes__", []))
                found, counts = [f"{type(error).__name__}: {error} {notes}"], []
            bad += bool(found)
            seconds = round(time.perf_counter() - start, 1)
            row = {"target": target, "case": name, "problems": found, "seconds": seconds}
            if options.races:
                row |= zip(("synchronizations", "missed"), counts, strict=False)
            print(json.dumps(row), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
