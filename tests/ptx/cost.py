"""What programs cost a GPU: launches, bytes, registers, instructions."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

import repjax
from ptx.assembler import resources
from ptx.compile import compile_for
from ptx.program import OWN, Instruction, Program
from ptx.state import Launch

# --- programs -----------------------------------------------------------------------------


def _floats(*shapes) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]


def _layer_norm(x, scale, bias):
    mean = x.mean(1, keepdims=True)
    variance = jax.numpy.square(x - mean).mean(1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + np.float32(1e-5)) * scale + bias


def _loss(x, labels):
    return -jax.numpy.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1).mean()


def programs() -> dict[str, tuple[Callable, list[Any]]]:
    """Functions and the shapes of their arguments."""
    n = 4096
    reproducible = repjax.reproducible
    any_order = functools.partial(reproducible, contraction="order_independent")
    highest = functools.partial(lax.dot, precision=lax.Precision.HIGHEST)
    int32 = [jax.ShapeDtypeStruct((n, n), np.int32)] * 2
    found = {
        "product, order_independent": (any_order(lax.dot), _floats((n, n), (n, n))),
        "product, order_independent, highest": (any_order(highest), _floats((n, n), (n, n))),
        "product of int32": (reproducible(lax.dot), int32),
        "product, sequential": (reproducible(lax.dot), _floats((n, n), (n, n))),
        "convolution, order_independent": (
            any_order(functools.partial(lax.conv, window_strides=(1, 1), padding="SAME")),
            _floats((64, 128, 28, 28), (128, 128, 3, 3)),
        ),
    }
    for rows, columns in ((8192, 4096), (65536, 64), (16384, 16384)):
        sums = functools.partial(jax.numpy.sum, axis=0)
        found[f"sums of columns, {rows} x {columns}"] = (
            reproducible(sums),
            _floats((rows, columns)),
        )

    def gradients(x, scale, bias, g):
        return jax.vjp(_layer_norm, x, scale, bias)[1](g)

    for rows, columns in ((8192, 1024), (8192, 8192), (16384, 16384)):
        size = f"{rows} x {columns}"
        shapes = _floats((rows, columns), (columns,), (columns,))
        labels = jax.ShapeDtypeStruct((rows,), np.int32)
        found[f"rows, layer norm, {size}"] = reproducible(_layer_norm), shapes
        of_norm = reproducible(gradients), [*shapes, shapes[0]]
        found[f"rows, layer norm, gradients, {size}"] = of_norm
        found[f"rows, softmax, {size}"] = reproducible(jax.nn.softmax), shapes[:1]
        of_loss = reproducible(jax.grad(_loss)), [shapes[0], labels]
        found[f"rows, cross-entropy, gradient, {size}"] = of_loss
    return found


# --- their launches -----------------------------------------------------------------------


class Step(NamedTuple):
    """An instruction that launches kernels or copies."""

    instruction: Instruction
    launches: list[Launch]
    times: int


#: What holds others, which are listed too.
_HOLDERS = {"kAsyncStart", "kAsyncDone", "kConditional", "kSequential", "kWhile"}


def steps(program: Program, computation: str = "", times: int = 1) -> Iterator[Step]:
    """What one call executes; of branches that with the fewest, which is the usual one."""
    for x in program.computations[computation or program.entry]:
        inner = functools.partial(re.search, string=x.text)
        if x.opcode == "conditional":
            branches = re.findall(r"(?:true_computation|false_computation)=(%[\w.\-]+)", x.text)
            if listed := inner(r"branch_computations=\{([^}]*)\}"):
                branches = listed[1].split(", ")
            yield from min((list(steps(program, b, times)) for b in branches), key=len)
        elif x.opcode == "while":
            count = int(inner(r'"known_trip_count":\{"n":"(\d+)"')[1])
            yield from steps(program, inner(r"body=(%[\w.\-]+)")[1], times * count)
        elif x.opcode == "call":
            yield from steps(program, inner(r"to_apply=(%[\w.\-]+)")[1], times)
        elif x.opcode == "async-start":
            yield from steps(program, inner(r"calls=(%[\w.\-]+)")[1], times)
        else:
            launches = [y for y in program.launches.get(x.name, []) if y.kind not in _HOLDERS]
            if launches:
                yield Step(x, launches, times)


def bytes_of(program: Program, x: Instruction) -> int:
    """Of the operands and the results, each array once."""
    names = (*x.operands, *program.arrays(x.name))
    return sum(size for *_, size in {program.slices[name] for name in names})


def costs(target: str, name: str) -> Iterator[dict[str, Any]]:
    """Of a program, and of each of its launches."""
    function, arguments = programs()[name]
    program = compile_for(target, function, *arguments)
    total = {"program": name, "launches": 0, "MB": 0.0}
    most = dict.fromkeys(("registers", "spilled", "instructions"), 0)  # of a kernel
    rows = []
    for x, launches, times in steps(program):
        size = times * bytes_of(program, x) / 1e6
        total["launches"] += times * len(launches)
        total["MB"] += size
        row = {"launches": times * len(launches), "MB": round(size, 1)}
        for launch in launches:
            row["kernel"] = launch.kernel or launch.kind
            if launch.kernel in program.kernels:
                ptx = program.kernels[launch.kernel]
                row |= {"blocks": launch.grid[0], "threads": launch.block[0]}
                row |= {"shared": launch.shared, **resources(ptx, target)[launch.kernel]}
                most = {what: max(n, row.get(what, 0)) for what, n in most.items()}
        row["own"] = bool(OWN.fullmatch(row["kernel"]))
        rows.append(row)
    yield {**total, "MB": round(total["MB"], 1), **most}
    yield from rows
