"""One device that executes a compiled program, in memory that is laid out as XLA laid it out."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ptx.arithmetic import are_float32, drawn_sum
from ptx.layout import constant, layout, physical
from ptx.lint import rules_of
from ptx.machine import Machine
from ptx.parse import parse, synchronizations, without
from ptx.program import GEMMS, OWN, Instruction, Program
from ptx.races import EmulationError
from ptx.state import CONSTANTS

_MOVES_NOTHING = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy-done"}
COLLECTIVES = ("all-gather", "all-to-all", "all-reduce")
_MOVES_NOTHING |= {f"{name}-done" for name in COLLECTIVES}
# What says where a slice lies.
_SCALAR = {"add": np.add, "subtract": np.subtract, "select": np.where}


class Choices(NamedTuple):
    """What a device may do in this way or another, and what is left out.

    Attributes:
      order: generates the order of warps, instead of one step by all after the other.
      sums: draws the order of the sums of products of float64 matrices, which matrix units and
        libraries do not tell.  Without, these are only for integers, or not at all.
      blocks: of our kernels, those that are run; or all.
      fill: the bytes of memory before anything is written.
      races: whether to look for them, where some blocks are run in their kernels alone.
      controls: if given, what is found without each synchronization of our kernels, and without
        all of a kind, by kernel.
    """

    order: np.random.Generator | None = None
    sums: np.random.Generator | None = None
    blocks: Sequence[int] | None = None
    fill: int = 0xA5
    races: bool = True
    controls: dict[tuple[str, str], str] | None = None


USUAL = Choices()


class Executor:
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
                    self.write(x.name, constant(x), x.shapes[0])
        for x in program.computations[program.entry]:
            if x.opcode == "parameter":
                self.write(x.name, arguments[int(x.text.split(")")[0])], x.shapes[0])

    def bytes_of(self, name: str):
        allocation, offset, size = self.program.slices[name]
        start = self.start[allocation] + offset
        return self.memory[start : start + size]

    def write(self, name, value, shape):
        dtype, dims, order = layout(shape)
        if (value.dtype, value.shape) != (dtype, dims):
            raise TypeError(f"{name}: expected {dtype}{dims}, received {value.dtype}{value.shape}")
        data = physical(value, order).view(np.uint8)
        self.bytes_of(name)[: data.size] = data

    def read(self, name, shape):
        dtype, dims, order = layout(shape)
        data = self.bytes_of(name)[: math.prod(dims) * dtype.itemsize].copy()
        return data.view(dtype).reshape([dims[i] for i in order]).transpose(np.argsort(order))

    def results(self) -> list[np.ndarray]:
        root = self.program.computations[self.program.entry][-1]
        names = self.program.arrays(root.name)
        return [self.read(name, shape) for name, shape in zip(names, root.shapes, strict=True)]

    def execute(self, computation: str) -> Iterator[Instruction]:
        """Yields where devices exchange values, and goes on when they have (:mod:`ptx.run`)."""
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
            elif self._kinds(x) and self._kinds(x) <= GEMMS and self.choices.sums is not None:
                self._multiply(x, self.choices.sums)
            elif x.opcode == "fusion" and self._kinds(x) == {"kCopy"}:
                self._slice(x)
            elif x.opcode == "partition-id":
                self.write(x.name, np.uint32(self.device), x.shapes[0])
            else:
                raise NotImplementedError(f"HLO {x.opcode} {x.name} {self._kinds(x)}")

    def _multiply(self, x: Instruction, draws: np.random.Generator) -> None:
        """A library's product of float64 matrices, which hold float32 numbers."""
        start = x.text.index("backend_config=") + len("backend_config=")
        config = json.JSONDecoder().raw_decode(x.text, start)[0]["gemm_backend_config"]
        plain = {"alpha_real": 1, "alpha_imag": 0, "beta": 0, "epilogue": "DEFAULT"}
        if plain != {name: config[name] for name in plain} or x.shapes[0][0] != "f64":
            raise NotImplementedError(f"HLO {x.opcode} {x.name} by a library: {x.text}")
        numbers = config["dot_dimension_numbers"]
        factors = []  # terms, batch, rows or columns
        for side, name in zip(("lhs", "rhs"), x.operands, strict=True):
            value = self.read(name, self._shape_of(name))
            kinds = (numbers[f"{side}_{kind}_dimensions"] for kind in ("contracting", "batch"))
            terms, batch = (list(map(int, dims)) for dims in kinds)
            rest = [d for d in range(value.ndim) if d not in terms + batch]
            sizes = [math.prod(value.shape[d] for d in dims) for dims in (terms, batch, rest)]
            factors.append(value.transpose(terms + batch + rest).reshape(sizes))
        if not all(are_float32(value).all() for value in factors):
            self.inexact.add(x.name)
        left, right = factors
        with np.errstate(all="ignore"):
            result = drawn_sum(left[:, :, :, None] * right[:, :, None], draws)
        _, dims, _ = layout(x.shapes[0])
        self.write(self.program.arrays(x.name)[0], result.reshape(dims), x.shapes[0])

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

    def _shape_of(self, operand: str):
        """That of an array, or of one of several that an instruction has."""
        name, _, index = operand.partition(" {")
        return self._named(name).shapes[int(index.rstrip("}") or 0)]

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
            dtype, dims, order = layout(y.shapes[0])
            operands = [values[operand] for operand in y.operands]
            if y.opcode == "parameter":
                value = self.read(x.operands[int(y.text.split(")")[0])], y.shapes[0])
            elif y.opcode == "constant":
                value = constant(y)
            elif y.opcode in _SCALAR:
                value = _SCALAR[y.opcode](*operands)
            elif y.opcode == "copy":  # in another layout
                (value,) = operands
            elif y.opcode == "compare" and "direction=LT" in y.text:
                value = np.less(*operands)
            elif y.opcode == "bitcast":
                whole = physical(operands[0], layout(self._shape(inner, y.operands[0]))[2])
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
        words = ("byte_offset", "byte_stride", "loop_index")
        found = [re.search(rf'"{word}":"(-?\d+)"', x.text) for word in words]
        if not all(found):
            raise NotImplementedError(f"HLO {x.opcode} {x.name} without a place: {x.text}")
        offset, stride, loop = (int(x[1]) for x in found)
        runtime = offset + stride * self.rounds[-1 - loop]
        *_, order = layout(shape)
        flat = np.ravel_multi_index([starts[i] for i in order], [array.shape[i] for i in order])
        if runtime != flat * array.itemsize:
            raise EmulationError(f"{x.name} starts at {flat * array.itemsize}, not {runtime}")

    def _shape(self, instructions, name: str):
        return next(x.shapes[0] for x in instructions if x.name == name)

    def _collective(self, x: Instruction) -> Instruction | None:
        """The instruction as a collective, which it may start, if it is one."""
        if x.opcode == "async-start":
            inner = self.program.computations[re.search(r"calls=(%[\w.\-]+)", x.text)[1]][-1]
            if inner.opcode in COLLECTIVES:
                x = x._replace(opcode=inner.opcode, text=inner.text)
        return x if x.opcode.removesuffix("-start") in COLLECTIVES else None

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
        options["sums"] = self.choices.sums
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
