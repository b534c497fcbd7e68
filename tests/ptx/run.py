"""Run a compiled program on the CPU: its devices, and what they exchange."""

from __future__ import annotations

import functools
import math
import re
from typing import Any, NamedTuple

import jax
import numpy as np

from ptx.arithmetic import is_whole
from ptx.executor import USUAL, Choices, Executor
from ptx.program import Instruction, Program
from ptx.races import EmulationError

_REDUCTIONS = {"add": np.add, "and": np.bitwise_and, "maximum": np.maximum}


class Run(NamedTuple):
    """What a program computed."""

    results: Any
    inexact: set[str]  # opcodes whose bits are not fixed


def run(program: Program, *arguments, choices: Choices = USUAL) -> Run:
    """Execute a compiled program on the CPU.

    Raises NotImplementedError for what is left to a library or not modelled, EmulationError for
    what a kernel must not do.
    """
    arguments = [np.asarray(x) for x in jax.tree.leaves(arguments)]
    devices = [
        Executor(
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


def _exchange(x: Instruction, devices: list[Executor]) -> None:
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
