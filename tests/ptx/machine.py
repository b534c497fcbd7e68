"""A GPU of the PTX manual's description: runs a kernel on the CPU, bit for bit."""

from __future__ import annotations

import operator

import numpy as np

from ptx.arithmetic import (
    APPROXIMATE,
    FLOATS,
    LOGIC,
    OF_HALVES,
    PURE,
    WORD,
    are_exact,
    are_float32,
    dtype_of,
    of_floats,
    of_halves,
    of_integers,
)
from ptx.matrix_units import MatrixUnits
from ptx.races import EmulationError
from ptx.state import members

_COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal}
_COMPARE |= {"gt": np.greater, "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal}
_COMPARE |= {"hi": np.greater, "hs": np.greater_equal}


_ATOMIC = {"add": operator.add, "exch": lambda x, y: y, **LOGIC, "max": max, "min": min}
_NOTHING = {"nop", "griddepcontrol", "membar", "nanosleep", "prefetch"}
_JUMPS = {"bra", "ret", "exit", "bar", "barrier"}
_ARITHMETIC = {"add", "addc", "sub", "subc", "mul", "mad", "madc", "fma", "div", "rem", "rcp"}
_ARITHMETIC |= {"sqrt", "neg", "abs", "min", "max", "copysign"}


class Machine(MatrixUnits):
    """One kernel launch; every register is an array with one word for each thread of the grid.

    The threads at the lowest instruction go first, so that those that diverge meet again.  With
    ``order``, some warps run ahead of the others of their block, as far as the next barrier; with
    ``sums``, float64 matrix units add in orders that it draws.
    Asynchronous copies and products take effect when they are waited for, which is as late as they
    can, and whoever touches their operands until then is refused, as are races
    (:mod:`ptx.races`).
    Where the PTX manual leaves bits open (approximations, contractions), something plausible is
    computed.  ``opcodes`` are those of the instructions that were executed, ``inexact`` those
    whose results depend on an order or a rounding that is not fixed.
    """

    def run(self, most: int = 2_000_000) -> None:
        """Execute to the end."""
        code, pc = self.kernel.code, self.pc
        waiting, steps, threads = np.zeros(self.n, bool), 0, str(self.per_block)
        ends = {*self.kernel.labels.values(), len(code)}
        turn, warps = np.zeros(self.n, bool), self.threads.warp[-1] + 1
        while (active := (pc < len(code)) & ~waiting).any():
            if self.order is not None:
                if not (active & turn).any():
                    turn = self.order.random(warps)[self.threads.warp] < 0.5
                    turn = turn if (active & turn).any() else active
                active &= turn
            at = int(pc[active].min())
            here = active & (pc == at)
            self.everyone = here if here.all() else None
            try:
                while True:  # as far as others may join, or go elsewhere
                    guard, negated, op, operands, text = code[at]
                    steps, at = steps + 1, at + 1
                    if steps > most:
                        raise EmulationError(f"more than {most} steps")
                    mask = here & (self.get(guard, "pred") ^ negated) if guard else here
                    if op[0] in _JUMPS or at in ends:
                        break
                    if mask.any():
                        self.step(op, operands, mask)
                pc[here] = at
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
                error.add_note(f"in {self.kernel.name}, instruction {at - 1}: {text}")
                raise
            if waiting.any():  # release the blocks all of whose live threads have arrived
                arrived = (waiting | (pc >= len(code))).reshape(-1, self.per_block).all(1)
                released = waiting & np.repeat(arrived, self.per_block)
                self.threads.pass_barrier(released)
                waiting &= ~released

    def step(self, op: list[str], a: list[str], m) -> None:
        """One instruction for the threads ``m``."""
        name = op[0]
        self.opcodes.add(".".join(op))
        self.mask = m
        if name in _ARITHMETIC or name in APPROXIMATE:
            self._arithmetic(op, a, m)
        elif name in PURE:
            function, others = PURE[name]
            kinds = [op[-1], *(kind or op[-1] for kind in others)] + [op[-1]] * len(a)
            self.put(a[0], function(op, *map(self.get, a[1:], kinds)), m)
        elif hasattr(self, f"_{name}"):
            getattr(self, f"_{name}")(op, a, m)
        elif name not in _NOTHING:
            raise NotImplementedError(f"PTX instruction {'.'.join(op)}")

    # Memory.

    def _ld(self, op, a, m):
        kind, space, size = op[-1], self._space(op), dtype_of(op[-1]).itemsize
        if space == "param":
            self.put(a[0], np.full(self.n, np.uint64(self.params[a[1].strip("[] ")])), m)
            return
        address = self._place(a[1])
        for i, register in enumerate(members(a[0])):
            value = self.load(space, address + i * size, size, m).view(dtype_of(kind))
            self.put(register, value, m)

    def _st(self, op, a, m):
        space, address = self._space(op), self._place(a[0])
        for i, register in enumerate(members(a[1])):
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
        index = self._index(self.writable, space, address, size, m)
        if space in self.accesses:
            self.accesses[space].update(*self._words(space, index, size, m))
        index = index // size
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
        """cp.async: copies, in groups that each thread commits and waits for."""
        if op[1] != "async" or "bulk" in op or "mbarrier" in op:
            raise NotImplementedError(".".join(op))
        if op[2] in ("commit_group", "wait_all"):
            self.copies.commit(m)
        if op[2] in ("wait_group", "wait_all"):
            for copy in self.copies.wait(m, int(a[0], 0) if a else 0):
                self._finish_copy(*copy)
        if len(a) > 1:
            size = int(a[2], 0)
            count = self.get(a[3], "u32") if len(a) > 3 else np.full(self.n, size)
            target, source = self._place(a[0]), self._place(a[1])
            for i in range(0, size, 4):
                wanted = m & (count > i)
                value = self.load("global", source + i, 4, wanted)
                index = self._index(self.writable, "shared", target + i, 4, m)
                value = np.where(wanted, value, np.uint32(0))
                if accesses := self.accesses.get("shared"):
                    at, thread, data = self._to_write("shared", index, value, m)
                    accesses.start_write(at, thread, self._cells("shared")[at] != data)
                    accesses.arriving[at] = True
                self.copies.add(m, index, value)

    def _finish_copy(self, m, index, value) -> None:
        if "shared" not in self.accesses:
            self.memory["shared"].view(np.uint32)[index[m] // 4] = value[m]
            return
        at, thread, value = self._to_write("shared", index, value, m)
        self.accesses["shared"].arriving[at] = False
        self._write("shared", at, thread, value)

    # Other instructions.

    def _bar(self, op, a, m):
        """bar.warp.sync; the others are a matter of :meth:`run`."""
        self._require_warps(m, ".".join(op))
        self.threads.pass_warp_barrier(m)

    _barrier = _bar

    def _fence(self, op, a, m):
        if op[1:3] == ["proxy", "async"] and "shared" in self.accesses:
            self.accesses["shared"].fence_writes(m)

    def _mov(self, op, a, m):
        """Also packs {a, b} into a register, and unpacks one."""
        size, parts = dtype_of(op[-1]).itemsize, members(a["{" in a[1]])
        if a[0][0] == "{":
            words = self.get(a[1], op[-1]).view(WORD[size // len(parts)]).reshape(self.n, -1)
            for i, register in enumerate(parts):
                self.put(register, words[:, i], m)
        elif a[1][0] == "{":
            words = [self.get(x, f"u{8 * size // len(parts)}") for x in parts]
            self.put(a[0], np.stack(words, axis=1).view(WORD[size])[:, 0], m)
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
        unordered = np.isnan(x) | np.isnan(y) if kind in FLOATS else np.zeros(self.n, bool)
        if name in ("num", "nan"):
            holds = unordered ^ (name == "num")
        elif name in _COMPARE:
            holds = _COMPARE[name](x, y) & ~unordered
        else:  # equ, neu, ltu and so on hold for unordered operands
            holds = _COMPARE[name[:-1]](x, y) | unordered
        results = [holds, ~holds]
        if len(a) > 3:
            other = self.get(a[3].lstrip("!"), "pred") ^ a[3].startswith("!")
            results = [LOGIC[op[2]](r, other) for r in results]
        for register, r in zip(a[0].split("|"), results, strict=False):
            self.put(register, r, m)

    def _arithmetic(self, op, a, m):
        kind = op[-1]
        kinds = [kind, kind, f"u{2 * int(kind[1:])}" if "wide" in op else kind]
        values = list(map(self.get, a[1:], kinds))
        if kind in ("f32", "f64"):
            result = of_floats(op, *values)
            if op[0] in ("fma", "mad") and kind == "f64":
                product = values[0] * values[1]
                is_right = are_exact(values, [product, result])
                is_right |= are_float32(values[0]) & are_float32(values[1])  # an exact product
                if not is_right[m].all():
                    self.inexact.add(".".join(op))
            self.put(a[0], result, m)
        elif kind in ("f16", "bf16") and op[0] in OF_HALVES:
            self.put(a[0], of_halves(op, *values), m)
        elif kind[0] in "sub" and kind[1:] in ("16", "32", "64") and "sat" not in op:
            carry = self.carry if op[0] in ("addc", "subc", "madc") else np.zeros(self.n, bool)
            r, carry = of_integers(op, carry, *values)
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
        function = {"add": np.add, "min": np.minimum, "max": np.maximum, **LOGIC}[op[2]]
        members = self.get(a[2], "u32")[m]
        if op[-1] not in ("s32", "u32", "b32") or not (members == 0xFFFFFFFF).all():
            raise NotImplementedError(".".join(op))
        self._require_warps(m, "redux")
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
