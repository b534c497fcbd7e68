"""Compile functions for GPUs, and read what XLA dumps of it."""

from __future__ import annotations

import functools
import pathlib
import re
import tempfile
from typing import Any

import jax

from ptx.program import Instruction, Program
from ptx.state import Launch
from ptx.targets import mesh_of

_SHAPE = re.compile(r"(\w+)\[([\d,]*)\](?:\{([\d,]*)[^}]*\})?")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_LAUNCH = re.compile(
    r"(\S+) grid: \[([\d, ]+)\] threads: \[([\d, ]+)\] +shared_memory: (\d+)", re.MULTILINE
)
_ENTRY = re.compile(r"\.entry\s+([\w$.]+)")
_OPERAND = re.compile(r"%([\w.\-]+)((?:#\d+)*)")


def compile_for(
    target: str, function, *arguments, devices: int = 1, specs=None, options=None
) -> Program:
    """Compile a function of arrays for one of :data:`TARGETS`.

    ``specs`` is how each argument is split over the devices, whose axis is ``x``, ``options`` those
    of XLA.
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
                    **(options or {}),
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
    computations, entry = computations_of(dumped("gpu_after_optimizations.txt"))
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


def computations_of(hlo: str):
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
