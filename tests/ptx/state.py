"""What a kernel launch has: threads, registers and memories, and who may touch them when."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ptx.arithmetic import WORD, dtype_of
from ptx.parse import Kernel
from ptx.races import Accesses, EmulationError, Threads


class Launch(NamedTuple):
    """One kernel launch, or another action of XLA's runtime."""

    kind: str
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int  # bytes of dynamic shared memory


CONSTANTS = 1 << 14  # bytes for those of a kernel
_PAGE = 64


def members(operand: str) -> list[str]:
    """Of a vector operand ``{%r1, %r2}``, or a scalar one."""
    return re.findall(r"[^,\s{}]+", operand)


class Groups:
    """What each thread has begun, in groups, and waits for in that order."""

    def __init__(self, n: int):
        self.committed = np.zeros(n, np.int64)  # groups
        self.begun: list[tuple[Any, ...]] = []  # the threads of each, their groups, and what it is

    def add(self, m, *what) -> None:
        self.begun.append((m.copy(), self.committed.copy(), *what))

    def commit(self, m) -> None:
        self.committed[m] += 1

    def wait(self, m, most: int) -> list[tuple[Any, ...]]:
        """What the threads ``m`` have to wait for, with its threads; ``most`` groups may go on."""
        ready, rest = [], []
        for threads, group, *what in self.begun:
            now = threads & m & (group < self.committed - most)
            if now.any():
                ready.append((now, *what))
                threads = threads & ~now
            if threads.any():
                rest.append((threads, group, *what))
        self.begun = rest
        return ready


class State:
    """The registers and the memories of one kernel launch.

    Every register is an array with one word for each thread of the grid.  Whoever touches what is
    being copied or multiplied is refused, as are races (:mod:`ptx.races`).
    """

    def __init__(
        self,
        kernel: Kernel,
        launch: Launch,
        memory,
        arguments,
        *,
        only=None,
        order=None,
        sums=None,
        races=True,
    ):
        """``arguments``: the places in ``memory``, bytes, as pairs of start and size.

        ``only`` are the numbers of the blocks to run, if not all, ``order`` and ``sums`` generators
        of random numbers, ``races`` says whether to look for races.
        """
        grid, block = ((*sizes, 1, 1)[:3] for sizes in (launch.grid, launch.block))
        self.kernel, self.registers, self.order, self.sums = kernel, {}, order, sums
        self.inexact, self.opcodes = set[str](), set[str]()
        self.mask: Any = None  # the threads of the instruction
        self.everyone: Any = None  # the same, if these are all
        chosen = np.arange(math.prod(grid)) if only is None else np.array(only)
        self.per_block, blocks = math.prod(block), len(chosen)
        self.n = self.per_block * blocks
        index, thread = np.divmod(np.arange(self.n), self.per_block)
        self.threads = Threads(blocks, self.per_block)
        block_id, self.lane = chosen[index], thread % 32
        self.warp_start = np.arange(self.n) - self.lane
        self.pc, self.carry = np.zeros(self.n, np.int64), np.zeros(self.n, bool)
        self.special = {"%laneid": self.lane, "%warpid": thread // 32}
        for name, sizes, flat in (("tid", block, thread), ("ctaid", grid, block_id)):
            for i, axis in enumerate("xyz"):
                self.special[f"%{name}.{axis}"] = flat // math.prod(sizes[:i]) % sizes[i]
                self.special[f"%n{name}.{axis}"] = np.full(self.n, sizes[i])
        self.is_multiplying = any(step.op[0] == "wgmma" for step in kernel.code)
        self.copies, self.products = Groups(self.n), Groups(self.n)
        self.pending: dict[str, Any] = {}  # registers that products will set, and of whom
        self.unfenced: dict[str, Any] = {}  # registers that a product may not use yet, and of whom
        # Of global memory, the bytes of each page that may be written, and read.
        self.writable, self.readable = (np.zeros(len(memory) // _PAGE, np.uint8) for _ in range(2))
        for start, size in arguments:
            if start % _PAGE:
                raise NotImplementedError(f"an argument at {start}, not a multiple of {_PAGE}")
            whole, rest = divmod(start + size, _PAGE)
            self.writable[start // _PAGE : whole] = _PAGE
            self.writable[whole : whole + (rest > 0)] = rest
            # A load may be hoisted above the check of its bounds; memory comes in such blocks.
            self.readable[start // _PAGE : (start + -(-size // 256) * 256) // _PAGE] = _PAGE
        starts = [start for start, _ in arguments]
        if len(starts) > len(kernel.params):
            raise EmulationError(f"{kernel.name} takes {kernel.params}, received {arguments}")
        # A Triton kernel takes scratch memory too, of which none is used.
        starts += [0] * (len(kernel.params) - len(starts))
        self.params = dict(zip(kernel.params, starts, strict=True))
        self._allocate(memory, launch.shared, blocks, index)
        self.grain, self.accesses = {}, {}
        for space in ("global", "shared") if races else ():
            self.grain[space] = grain = min([8, *self._sizes(space)])
            words = len(self.memory[space]) // grain
            self.accesses[space] = Accesses(space, words, self.threads, space == "shared")

    def _allocate(self, memory, dynamic: int, blocks: int, index) -> None:
        """Constants behind the memory; shared memory for each block, local for each thread."""
        # The memory ends in room for constants.
        used, self.address = {"global": len(memory) - CONSTANTS, "shared": 0, "local": 0}, {}
        for name, (space, align, size, data) in sorted(  # the dynamic shared array has size 0
            self.kernel.symbols.items(), key=lambda item: item[1][2] == 0
        ):
            start = -(-used[space] // align) * align
            self.address[name], used[space] = start, start + size
            if space == "global":
                memory[start : start + size] = np.frombuffer(data.ljust(size, b"\0"), np.uint8)
                self.readable[start // _PAGE : -(-(start + size) // _PAGE)] = _PAGE
        padded = {space: -(-size // 256) * 256 for space, size in used.items()}
        padded["shared"] += -(-dynamic // 256) * 256
        self.base = {"global": 0, "shared": index * padded["shared"]}
        self.base["local"] = np.arange(self.n) * padded["local"]
        self.length = {**padded, "global": len(memory)}
        self.memory = {"global": memory}
        for space, count in (("shared", blocks), ("local", self.n)):
            self.memory[space] = np.full(count * padded[space], 0xA5, np.uint8)

    def _sizes(self, space: str) -> Iterator[int]:
        """Of the accesses that the kernel makes, in bytes."""
        for step in self.kernel.code:
            name, kind = step.op[0], step.op[-1]
            if name in ("cp", "wgmma"):
                yield 4
            elif name in ("ldmatrix", "stmatrix"):
                yield 2
            elif name in ("ld", "st", "atom", "red") and self._space(step.op) == space:
                yield dtype_of(kind).itemsize

    # Registers.

    def get(self, x: str, kind: str):
        """Operand ``x`` of a PTX type as an array over threads."""
        dtype = dtype_of(kind)
        self._refuse_pending(x)
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
        return value.astype(WORD[dtype.itemsize], copy=False).view(dtype)

    def _refuse_pending(self, x: str) -> None:
        if self.pending and x in self.pending and (self.pending[x] & self.mask).any():
            raise EmulationError(f"{x} is used before the product that sets it was waited for")

    def _word(self, register: str):
        kinds = self.kernel.registers
        kind = kinds.get(register) or kinds.get(re.sub(r"\d+$", "", register))
        if kind is None:
            raise NotImplementedError(f"operand {register}")
        return np.bool_ if kind == "pred" else WORD[dtype_of(kind).itemsize]

    def put(self, x: str, value, m) -> None:
        """Set a register where ``m``; signed values are sign-extended to its width."""
        if x != "_":
            self._refuse_pending(x)
            if self.is_multiplying:
                self.unfenced[x] = self.unfenced.get(x, False) | m
            word = self._word(x)
            is_integer = value.dtype.kind in "iub"
            value = value.astype(word, copy=False) if is_integer else value.view(word)
            if m is not self.everyone:
                value = np.where(m, value, self.registers.get(x, word(0)))
            self.registers[x] = value

    # Memory.

    def _place(self, x: str):
        base, offset = re.fullmatch(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\w+))?\s*\]", x).groups()
        return self.get(base, "u64").astype(np.int64) + int(offset or "0", 0)

    def _index(self, allowed, space: str, address, size: int, m):
        """Where the threads ``m`` access a memory; of global memory, the ``allowed`` pages."""
        index = np.where(m, address + self.base[space], 0)
        bad = (address < 0) | (address + size > self.length[space]) | (address % size != 0)
        bad &= m
        if space == "global" and not bad.any():
            bad = m & (index % _PAGE + size > allowed[index // _PAGE])
        if bad.any():
            raise EmulationError(f"{space} access of {size} bytes is misaligned or out of bounds")
        return index

    def _words(self, space: str, index, size: int, m):
        """The words that the threads ``m`` access, and who accesses each."""
        grain, thread = self.grain[space], np.flatnonzero(m)
        at, count = index[m] // grain, size // grain
        if count > 1:
            at = (at[:, None] + np.arange(count)).ravel()
            thread = np.repeat(thread, count)
        return at, thread

    def load(self, space: str, address, size: int, m):
        index = self._index(self.readable, space, address, size, m)
        if space in self.accesses:
            self.accesses[space].read(*self._words(space, index, size, m))
        return self.memory[space].view(WORD[size])[index // size]

    def store(self, space: str, address, value, m) -> None:
        size = value.dtype.itemsize
        index = self._index(self.writable, space, address, size, m)
        if space not in self.accesses:
            self.memory[space].view(WORD[size])[index[m] // size] = value[m].view(WORD[size])
        else:
            at, thread, value = self._to_write(space, index, value, m)
            self.accesses[space].start_write(at, thread, self._cells(space)[at] != value)
            self._write(space, at, thread, value)

    def _cells(self, space: str):
        return self.memory[space].view(WORD[self.grain[space]])

    def _to_write(self, space: str, index, value, m):
        """The words, who writes each, and what."""
        value = np.ascontiguousarray(value[m]).view(WORD[self.grain[space]])
        return *self._words(space, index, value.nbytes // max(1, m.sum()), m), value

    def _write(self, space: str, at, thread, value) -> None:
        cells = self._cells(space)
        cells[at] = value
        self.accesses[space].end_write(at, thread, cells[at] != value)

    def _space(self, op: list[str]) -> str:
        parts = {part.split("::")[0] for part in op}
        return next((space for space in ("param", "shared", "local") if space in parts), "global")

    def _require_warps(self, m, what: str) -> None:
        """That the live threads of each warp of ``m`` are all among them."""
        alive = m | (self.pc < len(self.kernel.code))
        if (m != alive)[np.isin(self.threads.warp, self.threads.warp[m])].any():
            raise EmulationError(f"{what} by threads of a warp that are not together")
