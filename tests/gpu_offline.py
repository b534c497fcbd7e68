"""Compile for GPUs that need not be there, lint the PTX, and run it on the CPU, bit for bit.

    python tests/gpu_offline.py [--targets sm_80 ...] [--only PREFIX ...] [--run] [--training]

For every case of ``repjax.verify.vectors``: XLA compiles it deviceless, :func:`lint` looks for
instructions whose bits are not fixed, and, with --run, :func:`run` executes the program and its
result is compared with the CPU's.  One JSON object for each; exits with 1 if anything was found.

What this does not show: that the program fits and runs on a device; freedom from races (threads
advance in lock step, copies take effect at once); what ptxas, which is trusted, or an autotuner on
the device makes of it.  XLA may choose another algorithm there for what is left to a library.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import operator
import os
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental import topologies
from jax.experimental.pallas import triton
from networks import block_gradients

import repjax
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


class Launch(NamedTuple):
    """One kernel launch, or another action of XLA's runtime."""

    kind: str
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int  # bytes of dynamic shared memory


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


_KINDS = {"kKernel", "kCustomKernel", "kCopy", "kMemzero", "kMemset32BitValue", "kSequential"}
# These hold others, which are listed too.
_KINDS |= {"kWhile", "kConditional", "kAsyncStart", "kAsyncDone", "kDynamicSliceFusion"}
# Data movement; the emulator checks that what is added so are integers.
_KINDS |= {"kAllGather", "kAllToAll", "kAllReduce"}
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
    is_mma = name in ("mma", "wgmma", "tcgen05", "wmma")
    holds = {
        "approx": "approx" in modifiers,
        "div-full": name == "div" and "full" in modifiers,
        "ftz": "ftz" in modifiers,
        "contract": name in ("add", "sub", "mul")
        and is_float
        and not {"rn", "rz", "rm", "rp"} & {*modifiers},
        "atomic": name in ("atom", "red", "multimem") and is_float,
        "cas": name == "atom" and "cas" in modifiers,
        "mma": is_mma and (is_float or name == "tcgen05"),
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


# --- PTX ----------------------------------------------------------------------------------


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


# --- a machine ----------------------------------------------------------------------------

_TYPES = {
    "pred": np.dtype(bool),
    "f16": np.dtype("f2"),
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
}
_TYPES |= {
    f"{letter}{bits}": np.dtype(f"{kind}{bits // 8}")
    for bits in (8, 16, 32, 64)
    for letter, kind in (("b", "u"), ("u", "u"), ("s", "i"))
}
_WORD = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_TO_INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal}
_COMPARE |= {"gt": np.greater, "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal}
_COMPARE |= {"hi": np.greater, "hs": np.greater_equal}
_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_APPROXIMATE = {"rsqrt": lambda x: 1 / np.sqrt(x), "ex2": np.exp2, "lg2": np.log2}
_APPROXIMATE |= {"sin": np.sin, "cos": np.cos, "tanh": np.tanh}
_ATOMIC = {"add": operator.add, "exch": lambda x, y: y, **_LOGIC, "max": max, "min": min}
_NOTHING = {"griddepcontrol", "membar", "fence", "nanosleep", "prefetch", "bar", "barrier"}
_ARITHMETIC = {"add", "addc", "sub", "subc", "mul", "mad", "madc", "fma", "div", "rem", "rcp"}
_ARITHMETIC |= {"sqrt", "neg", "abs", "min", "max", "copysign"}


CONSTANTS = 1 << 14  # bytes for those of a kernel


class EmulationError(RuntimeError):
    """A kernel did something invalid."""


def _members(operand: str) -> list[str]:
    """Of a vector operand ``{%r1, %r2}``, or a scalar one."""
    return re.findall(r"[^,\s{}]+", operand)


def _dtype(kind: str) -> np.dtype:
    if kind not in _TYPES:
        raise NotImplementedError(f"PTX type {kind}")
    return _TYPES[kind]


def _odd_sum(x, y):
    """x + y of float64, rounded to odd."""
    total = x + y
    back = total - x
    error = (x - (total - back)) + (y - back)
    bits = total.view(np.int64)
    odd = np.where((error > 0) == (total > 0), bits | 1, bits - 1 | 1)
    return np.where(np.isfinite(error) & (error != 0) & (bits & 1 == 0), odd, bits).view(np.float64)


def _towards_zero(x):
    """float64 to float32."""
    r = x.astype(np.float32)
    return np.where(np.abs(r) > np.abs(x), np.nextafter(r, np.float32(0)), r)


def fma(x, y, z):
    """Correctly rounded float32 ``x * y + z``: the sum of the exact product, rounded to odd."""
    x, y, z = (np.asarray(a, np.float64) for a in (x, y, z))
    return _odd_sum(x * y, z).astype(np.float32)


def _float(op: list[str], *v):
    """Arithmetic on f32 and f64, rounded to nearest."""
    name = op[0]
    if op == ["add", "rz", "f32"]:
        return _canonical_nan(_towards_zero(_odd_sum(*(x.astype(np.float64) for x in v))))
    if {"rz", "rm", "rp", "ftz", "xorsign"} & {*op}:
        raise NotImplementedError(".".join(op))
    if name in ("neg", "abs"):
        return -v[0] if name == "neg" else np.abs(v[0])
    if name == "copysign":
        return np.copysign(v[1], v[0])
    if name in ("min", "max"):
        r = getattr(np, name + "imum" if "NaN" in op else "f" + name)(*v)
        zero = v[0] + v[1] if name == "max" else -(-v[0] - v[1])  # -0 < +0
        r = np.where((v[0] == 0) & (v[1] == 0), zero, r)
    elif name in _APPROXIMATE:
        r = _APPROXIMATE[name](v[0].astype(np.float64)).astype(v[0].dtype)
    elif name in ("fma", "mad"):  # that of float64 is right for small integers, see _exact
        r = fma(*v) if op[-1] == "f32" else v[0] * v[1] + v[2]
    elif name == "rcp":
        r = v[0].dtype.type(1) / v[0]
    else:
        functions = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
        r = (functions | {"div": np.divide, "sqrt": np.sqrt})[name](*v)
    return _canonical_nan(np.clip(r, 0, 1) if "sat" in op else r)


def _canonical_nan(x):
    """A GPU's float32 NaN; the payloads of float64 are not modelled."""
    return np.where(np.isnan(x), np.uint32(0x7FFFFFFF).view("f4"), x) if x.dtype == "f4" else x


def _is_whole(x):
    return (np.rint(x) == x) | np.isnan(x)


def _exact(operands, results):
    """Where float64 operands are integers and the results small ones; or infinite or NaN."""
    small = [~(np.abs(x) >= 2.0**53) | ~np.isfinite(x) for x in results]
    return functools.reduce(np.logical_and, [*map(_is_whole, operands), *small])


def _integer(op: list[str], carry, x, y=None, z=None):
    """Two's complement arithmetic: the result and the carry."""
    name, bits = op[0], 8 * x.dtype.itemsize
    if name in ("neg", "abs"):
        return (-x if name == "neg" else np.abs(x)), carry
    if name in ("min", "max"):
        return getattr(np, name + "imum")(x, y), carry
    if name in ("div", "rem"):
        quotient = x // np.where(y == 0, y.dtype.type(1), y)  # rounds down; PTX truncates
        quotient += ((x != quotient * y) & ((x < 0) != (y < 0))).astype(y.dtype)
        return (quotient if name == "div" else x - quotient * y), carry
    if name in ("mul", "mad", "madc"):
        if "wide" in op:
            product = x.astype(f"{x.dtype.kind}{bits // 4}") * y
        elif "hi" in op:
            product = (x.astype(object) * y.astype(object) >> bits) & (2**bits - 1)
            product = product.astype(_WORD[bits // 8])
        else:
            product = x * y
        x, y = product, np.zeros_like(product) if z is None else z
    word = _WORD[x.dtype.itemsize]
    x, y, one = x.view(word), y.view(word), carry.astype(word)
    if name in ("sub", "subc"):
        return x - y - one, (x < y) | ((x == y) & carry)
    r = x + y + one
    return r, (r < x) | ((r == x) & carry)


def _shift(op, x, count):
    """Counts beyond the width give 0, or the sign."""
    last = 8 * x.dtype.itemsize - 1
    by = np.minimum(count, last).astype(x.dtype)
    r = x << by if op[0] == "shl" else x >> by
    return np.where((count > last) & (op[-1][0] != "s"), x.dtype.type(0), r)


def _funnel(op, low, high, count):
    count = count & 31 if "wrap" in op else np.minimum(count, 32)
    both, count = high.astype(np.uint64) << np.uint64(32) | low, count.astype(np.uint64)
    return (both << count) >> np.uint64(32) if "l" in op else both >> count


def _permute(op, x, y, selector):
    """prmt: four bytes of eight."""
    if op[1] != "b32":
        raise NotImplementedError(".".join(op))
    both, r = y.astype(np.uint64) << np.uint64(32) | x, np.zeros_like(x)
    for i in range(4):
        choice = selector >> np.uint32(4 * i)
        byte = (both >> (choice & 7).astype(np.uint64) * np.uint64(8)).astype(np.uint32) & 255
        sign = np.where(byte & 128, np.uint32(255), np.uint32(0))
        r |= np.where(choice & 8, sign, byte).astype(np.uint32) << np.uint32(8 * i)
    return r


def _extract(op, x, start, length):
    """bfe: a bit field, sign-extended for signed types."""
    kind = np.int64 if x.dtype.kind == "i" else np.uint64
    start, length = start & 255, length & 255
    r = _shift(op, x.astype(kind), start)
    unused = (64 - np.clip(length, 1, 64)).astype(kind)
    return np.where(length == 0, kind(0), r << unused >> unused)


def _convert(op, x):
    """cvt between integers and floats."""
    to, source = op[-2:]
    target = _dtype(to).type
    if {"rz", "rm", "rp", "ftz"} & {*op} or (source[0] != "f" and "sat" in op):
        raise NotImplementedError(".".join(op))
    if source[0] != "f":
        return x.astype(target)
    r = next((_TO_INTEGRAL[p] for p in op if p in _TO_INTEGRAL), lambda x: x)(x)
    if to[0] == "f":
        return _canonical_nan(np.clip(r, 0, 1).astype(target) if "sat" in op else r.astype(target))
    limits = np.iinfo(target)
    wide = source == "f64" or limits.bits == 64
    nan = 0 if not wide else limits.min if to[0] == "s" else limits.max - (limits.max >> 1)
    where = [np.isnan(r), r >= float(limits.max), r <= float(limits.min)]
    inside = np.where(np.any(where, axis=0), 0, r).astype(target)
    return np.select(where, [target(nan), target(limits.max), target(limits.min)], inside)


def _reverse(op, x):
    bits = 8 * x.dtype.itemsize
    r = np.zeros_like(x)
    for i in range(bits):
        r |= (x >> x.dtype.type(i) & x.dtype.type(1)) << x.dtype.type(bits - 1 - i)
    return r


#: The function of the opcode's parts and the operands, and their types after the first.
_PURE: dict[str, tuple[Callable[..., Any], tuple[str | None, ...]]] = {
    "not": (lambda op, x: ~x, ()),
    "popc": (lambda op, x: np.bitwise_count(x), ()),
    "clz": (lambda op, x: 8 * x.dtype.itemsize - np.frexp(x.astype(np.longdouble))[1], ()),
    "brev": (_reverse, ()),
    "shf": (_funnel, ()),
    "prmt": (_permute, ()),
    "cvt": (_convert, ()),
    "shl": (_shift, ("u32",)),
    "shr": (_shift, ("u32",)),
    "bfe": (_extract, ("u32", "u32")),
    "selp": (lambda op, x, y, choice: np.where(choice, x, y), (None, "pred")),
    "lop3": (lambda op, x, y, z, table: _lookup(x, y, z, int(table[0])), ()),
} | {name: (lambda op, x, y: _LOGIC[op[0]](x, y), ()) for name in _LOGIC}


def _lookup(x, y, z, table: int):
    """lop3: any function of three bits."""
    terms = [x if i & 4 else ~x for i in range(8)]
    terms = [t & (y if i & 2 else ~y) & (z if i & 1 else ~z) for i, t in enumerate(terms)]
    chosen = [t for i, t in enumerate(terms) if table >> i & 1]
    return functools.reduce(operator.or_, chosen, np.zeros_like(x))


class Machine:
    """One kernel launch; every register is an array with one word for each thread of the grid.

    The threads at the lowest instruction go first, so that those that diverge meet again.
    Where the PTX manual leaves bits open (approximations, contractions), something plausible is
    computed and the opcode noted in ``inexact``.
    """

    def __init__(self, kernel: Kernel, launch: Launch, memory, arguments):
        """``arguments``: the places in ``memory``, bytes, as pairs of start and size."""
        grid, block = ((*sizes, 1, 1)[:3] for sizes in (launch.grid, launch.block))
        self.kernel, self.inexact, self.registers = kernel, set(), {}
        self.per_block, blocks = math.prod(block), math.prod(grid)
        self.n = self.per_block * blocks
        block_id, thread = np.divmod(np.arange(self.n), self.per_block)
        self.lane = thread % 32
        self.warp_start = np.arange(self.n) - self.lane
        self.carry = np.zeros(self.n, bool)
        self.special = {"%laneid": self.lane, "%warpid": thread // 32}
        for name, sizes, flat in (("tid", block, thread), ("ctaid", grid, block_id)):
            for i, axis in enumerate("xyz"):
                self.special[f"%{name}.{axis}"] = flat // math.prod(sizes[:i]) % sizes[i]
                self.special[f"%n{name}.{axis}"] = np.full(self.n, sizes[i])
        self.valid = {"global": np.zeros(len(memory), bool)}
        self.readable = {"global": np.zeros(len(memory), bool)}
        for start, size in arguments:
            self.valid["global"][start : start + size] = True
            # A load may be hoisted above the check of its bounds; memory comes in such blocks.
            self.readable["global"][start : start + -(-size // 256) * 256] = True
        starts = [start for start, _ in arguments]
        if len(starts) > len(kernel.params):
            raise EmulationError(f"{kernel.name} takes {kernel.params}, received {arguments}")
        # A Triton kernel takes scratch memory too, of which none is used.
        starts += [0] * (len(kernel.params) - len(starts))
        self.params = dict(zip(kernel.params, starts, strict=True))
        self._allocate(memory, launch.shared, blocks, block_id)

    def _allocate(self, memory, dynamic: int, blocks: int, block_id) -> None:
        """Constants behind the memory; shared memory for each block, local for each thread."""
        # The memory ends in room for constants.
        used, self.address = {"global": len(memory) - CONSTANTS, "shared": 0, "local": 0}, {}
        for name, (space, align, size, data) in sorted(  # the dynamic shared array has size 0
            self.kernel.symbols.items(), key=lambda item: item[1][2] == 0
        ):
            start = -(-used[space] // align) * align
            self.address[name], used[space] = start, start + size
            if space == "global":
                place = slice(start, start + size)
                memory[place] = np.frombuffer(data.ljust(size, b"\0"), np.uint8)
                self.readable[space][place] = True
        padded = {space: -(-size // 256) * 256 for space, size in used.items()}
        padded["shared"] += -(-dynamic // 256) * 256
        self.base = {"global": 0, "shared": block_id * padded["shared"]}
        self.base["local"] = np.arange(self.n) * padded["local"]
        self.length = {**padded, "global": len(memory)}
        self.memory = {"global": memory}
        for space, count in (("shared", blocks), ("local", self.n)):
            self.memory[space] = np.full(count * padded[space], 0xA5, np.uint8)
            self.readable[space] = self.valid[space] = np.ones(count * padded[space], bool)

    def run(self, most: int = 2_000_000) -> None:
        """Execute to the end."""
        code, pc = self.kernel.code, np.zeros(self.n, np.int64)
        waiting, steps, threads = np.zeros(self.n, bool), 0, str(self.per_block)
        while (active := (pc < len(code)) & ~waiting).any():
            at = int(pc[active].min())
            guard, negated, op, operands, text = code[at]
            mask = here = active & (pc == at)
            pc[here] = at + 1
            steps += 1
            try:
                if steps > most:
                    raise EmulationError(f"more than {most} steps")
                if guard:
                    mask = here & (self.get(guard, "pred") ^ negated)
                if op[0] == "bra":
                    pc[mask] = self.kernel.labels[operands[0]]
                elif op[0] in ("ret", "exit"):
                    pc[mask] = len(code)
                elif op[0] in ("bar", "barrier") and op[1] != "warp":
                    if {"red", "arrive", "cluster"} & {*op} or operands[1:] not in ([], [threads]):
                        raise NotImplementedError("barrier for part of a block or a cluster")
                    waiting |= mask
                elif mask.any():
                    self.step(op, operands, mask)
            except Exception as error:
                error.add_note(f"in {self.kernel.name}, instruction {at}: {text}")
                raise
            if waiting.any():  # release the blocks all of whose live threads have arrived
                arrived = (waiting | (pc >= len(code))).reshape(-1, self.per_block).all(1)
                waiting &= ~np.repeat(arrived, self.per_block)

    def step(self, op: list[str], a: list[str], m) -> None:
        """One instruction for the threads ``m``."""
        name = op[0]
        if rules_of(".".join(op)) & {"approx", "div-full", "contract"}:
            self.inexact.add(".".join(op))
        if name in _ARITHMETIC or name in _APPROXIMATE:
            self._arithmetic(op, a, m)
        elif name in _PURE:
            function, others = _PURE[name]
            kinds = [op[-1], *(kind or op[-1] for kind in others)] + [op[-1]] * len(a)
            self.put(a[0], function(op, *map(self.get, a[1:], kinds)), m)
        elif hasattr(self, f"_{name}"):
            getattr(self, f"_{name}")(op, a, m)
        elif name not in _NOTHING:
            raise NotImplementedError(f"PTX instruction {'.'.join(op)}")

    def get(self, x: str, kind: str):
        """Operand ``x`` of a PTX type as an array over threads."""
        dtype = _dtype(kind)
        if x in self.special or x in self.registers:
            value = self.special[x] if x in self.special else self.registers[x]
        elif x in self.address:
            value = np.full(self.n, self.address[x])
        elif match := re.fullmatch(r"0[fFdD]([\da-fA-F]+)", x):
            value = np.full(self.n, int(match[1], 16), np.uint32 if x[1] in "fF" else np.uint64)
        elif re.fullmatch(r"-?(0x[\da-fA-F]+|\d+)U?", x):
            value = np.full(self.n, int(x.rstrip("U"), 0) & (2**64 - 1), np.uint64)
        else:
            value = np.zeros(self.n, self._word(x))
        if kind == "pred":
            return value.astype(bool)
        return value.astype(_WORD[dtype.itemsize], copy=False).view(dtype)

    def _word(self, register: str):
        kinds = self.kernel.registers
        kind = kinds.get(register) or kinds.get(re.sub(r"\d+$", "", register))
        if kind is None:
            raise NotImplementedError(f"operand {register}")
        return np.bool_ if kind == "pred" else _WORD[_dtype(kind).itemsize]

    def put(self, x: str, value, m) -> None:
        """Set a register where ``m``; signed values are sign-extended to its width."""
        if x != "_":
            word = self._word(x)
            value = value.view(word) if value.dtype.kind == "f" else value.astype(word, copy=False)
            self.registers[x] = np.where(m, value, self.registers.get(x, word(0)))

    # Memory.

    def _place(self, x: str):
        base, offset = re.fullmatch(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\w+))?\s*\]", x).groups()
        return self.get(base, "u64").astype(np.int64) + int(offset or "0", 0)

    def _index(self, allowed, space: str, address, size: int, m):
        index = np.where(m, address + self.base[space], 0)
        inside = (address >= 0) & (address + size <= self.length[space]) & (address % size == 0)
        bad = m & ~inside
        if not bad.any():
            bad = m & ~(allowed[space][index] & allowed[space][index + size - 1])
        if bad.any():
            raise EmulationError(f"{space} access of {size} bytes is misaligned or out of bounds")
        return index

    def load(self, space: str, address, size: int, m):
        index = self._index(self.readable, space, address, size, m)
        return self.memory[space].view(_WORD[size])[index // size]

    def store(self, space: str, address, value, m) -> None:
        size = value.dtype.itemsize
        index = self._index(self.valid, space, address, size, m)[m]
        self.memory[space].view(_WORD[size])[index // size] = value[m].view(_WORD[size])

    def _space(self, op: list[str]) -> str:
        parts = {part.split("::")[0] for part in op}
        return next((space for space in ("param", "shared", "local") if space in parts), "global")

    def _ld(self, op, a, m):
        kind, space, size = op[-1], self._space(op), _dtype(op[-1]).itemsize
        if space == "param":
            self.put(a[0], np.full(self.n, np.uint64(self.params[a[1].strip("[] ")])), m)
            return
        address = self._place(a[1])
        for i, register in enumerate(_members(a[0])):
            value = self.load(space, address + i * size, size, m).view(_dtype(kind))
            self.put(register, value, m)

    def _st(self, op, a, m):
        space, address = self._space(op), self._place(a[0])
        for i, register in enumerate(_members(a[1])):
            value = self.get(register, op[-1])
            self.store(space, address + i * value.dtype.itemsize, value, m)

    def _atom(self, op, a, m):
        """One thread after the other; of integers only, which commute."""
        has_result = op[0] == "atom"
        place, operand, *more = a[has_result:]
        kind, space = op[-1], self._space(op)
        function = next((p for p in op[1:-1] if p in _ATOMIC or p == "cas"), None)
        if kind[0] == "f" or function is None:
            raise NotImplementedError(".".join(op))
        values, address = self.get(operand, kind), self._place(place)
        others = self.get(more[0], kind) if more else values
        size = values.dtype.itemsize
        index = self._index(self.valid, space, address, size, m) // size
        cells, old = self.memory[space].view(values.dtype), values.copy()
        for thread in np.flatnonzero(m):
            at = index[thread]
            old[thread] = cells[at]
            if function == "cas":
                cells[at] = others[thread] if cells[at] == values[thread] else cells[at]
            else:
                cells[at] = _ATOMIC[function](cells[at], values[thread])
        if has_result:
            self.put(a[0], old, m)

    _red = _atom

    def _cp(self, op, a, m):
        """cp.async, done at once; waiting for it is then nothing."""
        if op[1] != "async" or "bulk" in op or "mbarrier" in op:
            raise NotImplementedError(".".join(op))
        if len(a) > 2:  # no commit_group, wait_group, wait_all
            size = int(a[2], 0)
            count = self.get(a[3], "u32") if len(a) > 3 else np.full(self.n, size)
            target, source = self._place(a[0]), self._place(a[1])
            for i in range(0, size, 4):
                wanted = m & (count > i)
                value = self.load("global", source + i, 4, wanted)
                self.store("shared", target + i, np.where(wanted, value, np.uint32(0)), m)

    def _ldmatrix(self, op, a, m):
        """8x8 tiles of 16-bit elements; 8 lanes give the addresses of a tile's rows."""
        if op[-1] != "b16":
            raise NotImplementedError(".".join(op))
        loads = op[0] == "ldmatrix"
        address = self._place(a[loads])
        for i, register in enumerate(_members(a[not loads])):
            word = np.zeros(self.n, np.uint32) if loads else self.get(register, "u32").copy()
            for half, part in enumerate(word.view(np.uint16).reshape(self.n, 2).T):
                row, column = self.lane // 4, 2 * (self.lane % 4) + half
                row, column = (column, row) if "trans" in op else (row, column)
                where = address[self.warp_start + 8 * i + row] + 2 * column
                if loads:
                    part[...] = self.load("shared", where, 2, m)
                else:
                    self.store("shared", where, part.copy(), m)
            if loads:
                self.put(register, word, m)

    _stmatrix = _ldmatrix

    # Other instructions.

    def _mov(self, op, a, m):
        """Also packs {a, b} into a register, and unpacks one."""
        size, parts = _dtype(op[-1]).itemsize, _members(a["{" in a[1]])
        if a[0][0] == "{":
            words = self.get(a[1], op[-1]).view(_WORD[size // len(parts)]).reshape(self.n, -1)
            for i, register in enumerate(parts):
                self.put(register, words[:, i], m)
        elif a[1][0] == "{":
            words = [self.get(x, f"u{8 * size // len(parts)}") for x in parts]
            self.put(a[0], np.stack(words, axis=1).view(_WORD[size])[:, 0], m)
        else:
            self.put(a[0], self.get(a[1], op[-1]), m)

    def _cvta(self, op, a, m):
        if self._space(op) != "global":  # has no generic form here
            raise NotImplementedError(".".join(op))
        self.put(a[0], self.get(a[1], "u64"), m)

    def _setp(self, op, a, m):
        """setp.compare[.bool].type p[|q], a, b[, [!]c]"""
        name, kind = op[1], op[-1]
        x, y = self.get(a[1], kind), self.get(a[2], kind)
        unordered = np.isnan(x) | np.isnan(y) if kind[0] == "f" else np.zeros(self.n, bool)
        if name in ("num", "nan"):
            holds = unordered ^ (name == "num")
        elif name in _COMPARE:
            holds = _COMPARE[name](x, y) & ~unordered
        else:  # equ, neu, ltu and so on hold for unordered operands
            holds = _COMPARE[name[:-1]](x, y) | unordered
        results = [holds, ~holds]
        if len(a) > 3:
            other = self.get(a[3].lstrip("!"), "pred") ^ a[3].startswith("!")
            results = [_LOGIC[op[2]](r, other) for r in results]
        for register, r in zip(a[0].split("|"), results, strict=False):
            self.put(register, r, m)

    def _arithmetic(self, op, a, m):
        kind = op[-1]
        kinds = [kind, kind, f"u{2 * int(kind[1:])}" if "wide" in op else kind]
        values = list(map(self.get, a[1:], kinds))
        if kind in ("f32", "f64"):
            result = _float(op, *values)
            double_fma = op[0] in ("fma", "mad") and kind == "f64"
            if double_fma and not _exact(values, [values[0] * values[1], result])[m].all():
                self.inexact.add(".".join(op))
            self.put(a[0], result, m)
        elif kind[0] in "sub" and kind[1:] in ("16", "32", "64") and "sat" not in op:
            carry = self.carry if op[0] in ("addc", "subc", "madc") else np.zeros(self.n, bool)
            r, carry = _integer(op, carry, *values)
            self.put(a[0], r, m)
            self.carry = np.where(m, carry, self.carry) if "cc" in op else self.carry
        else:
            raise NotImplementedError(".".join(op))

    def _shfl(self, op, a, m):
        value, lane = self.get(a[1], "u32"), self.lane
        b, c = (
            self.get(x, "u32").astype(np.int64) & mask
            for x, mask in zip(a[2:4], (31, -1), strict=True)
        )
        segment, clamp = c >> 8 & 31, c & 31
        last, first = (lane & segment) | (clamp & ~segment), lane & segment
        source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b}
        source = (source | {"idx": first | (b & ~segment & 31)})[op[2]]
        inside = source >= last if op[2] == "up" else source <= last
        source = np.minimum(self.warp_start + np.where(inside, source, lane), self.n - 1)
        for register, r in zip(a[0].split("|"), (value[source], inside), strict=False):
            self.put(register, r, m)

    def _redux(self, op, a, m):
        """Of integers, over whole warps."""
        function = {"add": np.add, "min": np.minimum, "max": np.maximum, **_LOGIC}[op[2]]
        warps, members = m.reshape(-1, 32), self.get(a[2], "u32")[m]
        if op[-1] not in ("s32", "u32", "b32") or not (members == 0xFFFFFFFF).all():
            raise NotImplementedError(".".join(op))
        if (warps.any(1) != warps.all(1)).any():
            raise EmulationError("redux by threads of a warp that are not together")
        values = self.get(a[1], op[-1]).reshape(-1, 32)
        self.put(a[0], np.repeat(function.reduce(values, axis=1, dtype=values.dtype), 32), m)

    def _vote(self, op, a, m):
        holds = self.get(a[1].lstrip("!"), "pred") ^ a[1].startswith("!")
        warps = np.zeros((-(-self.n // 32), 32), bool)
        warps.ravel()[: self.n] = holds & m
        ballot = (warps << np.arange(32)).sum(1, dtype=np.uint64).astype(np.uint32)
        taking = np.zeros_like(warps)
        taking.ravel()[: self.n] = m
        results = {"ballot": ballot, "any": warps.any(1), "all": (warps | ~taking).all(1)}
        self.put(a[0], np.repeat(results[op[2]], 32)[: self.n], m)

    def _mma(self, op, a, m):
        """Of integers, which are exact in any order; float64 must hold integers below 2**53."""
        d, *operands = (_members(x) for x in a)
        group, four = self.lane // 4, self.lane % 4
        shape = next(p for p in op if re.fullmatch(r"m\d+n\d+k\d+", p))
        size = tuple(map(int, re.findall(r"\d+", shape)))
        warps = self.n // 32
        warp = np.arange(self.n) // 32
        kind, per = ("f64", 1) if op[-1] == "f64" else ("s8", 4)
        known = [("f64", (8, 8, 4)), ("s8", (16, 8, 32)), ("s8", (16, 8, 16))]
        if (kind, size) not in known or (kind == "s8" and op[-4:] != ["s32", "s8", "s8", "s32"]):
            raise NotImplementedError(".".join(op))
        rows, columns, depth = size
        left, right = np.zeros((warps, rows, depth), "f8"), np.zeros((warps, depth, columns), "f8")
        word = "u64" if kind == "f64" else "u32"
        for matrix, registers in ((left, operands[0]), (right, operands[1])):
            for i, register in enumerate(registers):
                parts = self.get(register, word).view(np.float64 if per == 1 else np.int8)
                for j, part in enumerate(parts.reshape(self.n, per).T):
                    if matrix is left:  # registers alternate between halves of rows
                        at = group + 8 * (i % (rows // 8)), four * per + j + 16 * (i // (rows // 8))
                    else:
                        at = four * per + j + 16 * i, group
                    matrix[warp, *at] = part
        product = left @ right
        for i, (target, register) in enumerate(zip(d, operands[2], strict=True)):
            start = self.get(register, "f64" if kind == "f64" else "s32")
            result = start + product[warp, group + 8 * (i // 2), 2 * four + i % 2]
            if kind == "f64":
                whole = _is_whole(left).all((1, 2)) & _is_whole(right).all((1, 2))
                if not (whole[warp] & _exact([start], [result]))[m].all():
                    self.inexact.add(".".join(op))
            else:
                result = result.astype(np.int64).astype(np.int32)
            self.put(target, result, m)


# --- a program ----------------------------------------------------------------------------

_HLO_TYPES = {"pred": "bool", "bf16": "bfloat16"} | {
    f"{letter}{bits}": f"{kind}{bits}"
    for bits in (8, 16, 32, 64)
    for letter, kind in (("s", "int"), ("u", "uint"), ("f", "float"))
}
_MOVES_NOTHING = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy-done"}
_COLLECTIVES = ("all-gather", "all-to-all", "all-reduce")
_MOVES_NOTHING |= {f"{name}-done" for name in (*_COLLECTIVES, "async")}
_REDUCTIONS = {"add": np.add, "and": np.bitwise_and, "maximum": np.maximum}


class Run(NamedTuple):
    """What a program computed."""

    results: Any
    inexact: set[str]  # opcodes whose bits are not fixed


class _Executor:
    """A program in memory, laid out as XLA laid it out."""

    def __init__(self, program: Program, arguments, device: int):
        self.program, self.inexact, self.start, end = program, set(), {}, 256
        self.device = device
        for number, size in program.allocations.items():
            self.start[number], end = end, end + -(-size // 256) * 256 + 256
        self.memory = np.full(
            end + CONSTANTS, 0xA5, np.uint8
        )  # what is not written yet is no number
        for instructions in program.computations.values():
            for x in instructions:
                if x.opcode == "constant" and x.name in program.slices:
                    words = re.findall(
                        r"true|false|-?(?:inf|nan|[\d.]+(?:e[+-]?\d+)?)", x.text.split(")")[0]
                    )
                    dtype, shape, _ = _layout(x.shapes[0])
                    convert = {"b": "true".__eq__, "i": int, "u": int}.get(dtype.kind, float)
                    value = np.array([convert(w) for w in words]).astype(dtype).reshape(shape)
                    self.write(x.name, value, x.shapes[0])
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
        data = np.ascontiguousarray(value.transpose(order)).reshape(-1).view(np.uint8)
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
                while (yield from self.execute(condition)) or self.bytes_of(last)[0]:
                    yield from self.execute(body)
            elif x.opcode == "conditional":
                yield from self.execute(self._branch(x))
            elif x.opcode == "call":
                yield from self.execute(re.search(r"to_apply=(%[\w.\-]+)", x.text)[1])
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

    def _collective(self, x: Instruction) -> Instruction | None:
        """The instruction as a collective, which it may start, if it is one."""
        if x.opcode == "async-start":
            inner = self.program.computations[re.search(r"calls=(%[\w.\-]+)", x.text)[1]][-1]
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
        machine = Machine(kernel, launch, self.memory, places)
        with np.errstate(all="ignore"):
            machine.run()
        self.inexact |= machine.inexact


def _layout(shape):
    """(dtype, dimensions, dimensions in physical order) of one array."""
    kind, dims, minor_to_major = shape
    if kind not in _HLO_TYPES:
        raise NotImplementedError(f"HLO type {kind}")
    dims = tuple(int(d) for d in dims.split(",") if d)
    order = [int(d) for d in minor_to_major.split(",") if d][::-1] or list(range(len(dims)))
    return np.dtype(_HLO_TYPES[kind]), dims, order


def run(program: Program, *arguments) -> Run:
    """Execute a compiled program on the CPU.

    Raises NotImplementedError for what is left to a library or not modelled, EmulationError for
    what a kernel must not do.
    """
    arguments = [np.asarray(x) for x in jax.tree.leaves(arguments)]
    devices = [
        _Executor(program, [x[p[i]] for x, p in zip(arguments, program.arguments, strict=True)], i)
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
            if opcode == "add" and not all(_is_whole(value).all() for value in values):
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

#: Signs in float64, whose sums stay below 2**53: exact fused or not, and in any order.  The
#: emulator checks that they are integers.
_EXACT = r"mma\.sync\.\S*\.f64\.f64\.f64\.f64|fma\.rn\.f64"
#: The opcodes that algorithms ask for, by the start of a case's name; no others may be found.
ALLOWED = {
    "dot_general order_independent": _EXACT,
    "conv_general_dilated order_independent": _EXACT,
    "training of LeNet-5, order_independent": _EXACT,
}
#: The kernels of ``primitives/gpu/contractions.py`` whose algorithm is a chain of these.
CHAINS = re.compile(r"(tiles|thin)(__\d+)?")


def problems(target: str, case, execute: bool) -> list[str]:
    """What is wrong with a case on a target; nothing if all is well."""
    program = compile_for(target, case.program(), *case.arguments)
    found = findings(case.name, program)
    if execute:
        expected = conformance.compute(case, jax.devices("cpu")[0])
        found += differences(program, case.arguments, expected)
    return found


def findings(name: str, program: Program) -> list[str]:
    """What is wrong with the instructions of a program."""
    allowed = [opcodes for start, opcodes in ALLOWED.items() if name.startswith(start)]
    found = [
        f"{x.kernel}: [{x.rule}] {x.instruction}"
        for x in lint(program.ptx)
        if not any(re.match(f"({opcodes}) ", x.instruction) for opcodes in allowed)
        and not (CHAINS.fullmatch(x.kernel) and x.instruction.startswith("fma.rn.f32 "))
    ]
    found = [*found[:5], f"and {len(found) - 5} more"] if len(found) > 6 else found
    return found + [f"left to a library: {name}" for name in sorted(program.library_calls)]


def differences(program: Program, arguments, expected) -> list[str]:
    """What is wrong with the results of a program."""
    result = run(program, *arguments)
    found = [f"inexact: {op}" for op in sorted(result.inexact)]
    return [*found, *filter(None, [conformance.first_difference(result.results, expected)])]


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
    found = findings(f"dot_general {name}", program)
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
    yield "exp", jax.numpy.exp, jax.numpy.exp, (x,)
    yield "division", lax.div, lax.div, (x, y)
    yield "square root", lax.sqrt, lax.sqrt, (np.abs(x),)
    yield "product and sum", contracted, lambda x, y, z: x * y + z, (x, y, z)
    index = np.arange(128, dtype=np.int32) % 7
    yield "scatter-add", *[lambda x, i, y: jax.numpy.asarray(x).at[i].add(y)] * 2, (x, index, y)
    yield "matrix product", lax.dot, lax.dot, (square, square)
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
    parser.add_argument("--devices", action="store_true", help="programs on several, instead")
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
        for name, check in zip(names, checks, strict=True):
            start = time.perf_counter()
            try:
                found = check()
            except (NotImplementedError, EmulationError) as error:
                notes = "; ".join(getattr(error, "__notes__", []))
                found = [f"{type(error).__name__}: {error} {notes}"]
            bad += bool(found)
            seconds = round(time.perf_counter() - start, 1)
            row = {"target": target, "case": name, "problems": found, "seconds": seconds}
            print(json.dumps(row), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
