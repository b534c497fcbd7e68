"""Instructions that move and multiply matrices, which the lanes of a warp hold together."""

from __future__ import annotations

import re

import numpy as np

from ptx.arithmetic import are_exact, are_float32, drawn_sum, is_whole
from ptx.races import EmulationError
from ptx.state import State, members


class MatrixUnits(State):
    """Exact ones, of integers and of float64 that hold integers; or float64 in drawn orders."""

    def _ldmatrix(self, op, a, m):
        """8x8 tiles of 16-bit elements; 8 lanes give the addresses of a tile's rows."""
        if op[-1] != "b16":
            raise NotImplementedError(".".join(op))
        loads = op[0] == "ldmatrix"
        address = self._place(a[loads])
        for i, register in enumerate(members(a[not loads])):
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

    def _mma(self, op, a, m):
        """Of integers, which are exact in any order; float64 must hold integers below 2**53.

        Unless the order of their sums is drawn: then float32 numbers, whose products are exact.
        """
        d, *operands = (members(x) for x in a)
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
            row, column = group + 8 * (i // 2), 2 * four + i % 2
            result = start + product[warp, row, column]
            if kind == "f64" and self.sums is not None:
                factors = left[warp, row], right[warp, :, column]
                if not all(are_float32(x)[m].all() for x in factors):
                    self.inexact.add(".".join(op))
                result = drawn_sum([start, *np.multiply(*factors).T], self.sums)
            elif kind == "f64":
                whole = is_whole(left).all((1, 2)) & is_whole(right).all((1, 2))
                if not (whole[warp] & are_exact([start], [result]))[m].all():
                    self.inexact.add(".".join(op))
            else:
                limits = (-(2**31), 2**31 - 1)
                result = np.clip(result, *limits) if "satfinite" in op else result
                result = result.astype(np.int64).astype(np.int32)
            self.put(target, result, m)

    def _wgmma(self, op, a, m):
        """Of int8 matrices in shared memory: warps start products, in groups, and wait for them."""
        if op[1] == "fence":
            self.unfenced = {x: threads & ~m for x, threads in self.unfenced.items()}
        elif op[1] == "commit_group":
            self.products.commit(m)
        elif op[1] == "wait_group":
            for product in self.products.wait(m, int(a[0], 0)):
                self._finish_product(*product)
            self.pending = {}
            for threads, _, registers, *_ in self.products.begun:
                for x in registers:
                    self.pending[x] = self.pending.get(x, False) | threads
        else:
            self._start_product(op, a, m)

    def _start_product(self, op, a, m):
        shape = re.fullmatch(r"m64n(\d+)k32", op[4])
        if op[1:4] != ["mma_async", "sync", "aligned"] or op[5:] != ["s32", "s8", "s8"]:
            shape = None
        if shape is None or len(a) != 4 or "{" in a[1]:
            raise NotImplementedError(".".join(op))
        self._require_warps(m, "wgmma")
        registers = members(a[0])
        for x in registers:
            if x in self.unfenced and (self.unfenced[x] & m).any():
                raise EmulationError(f"no wgmma.fence between a write to {x} and a product")
            self.pending[x] = self.pending.get(x, False) | m
        # The four warps of a group have 16 rows each of the matrix on the left.
        row = self.special["%warpid"][m][::32] % 4 * 16
        descriptors = [self.get(x, "u64")[m].reshape(-1, 32) for x in a[1:3]]
        if any((x != x[:, :1]).any() for x in descriptors):
            raise EmulationError("the lanes of a warp describe several matrices")
        left, right = (x[:, 0] for x in descriptors)
        start = np.broadcast_to(self.base["shared"], (self.n,))[m][::32, None, None]
        left = start + _matrix(left, row[:, None] + np.arange(16))
        right = start + _matrix(right, np.arange(int(shape[1]))[None])
        keeps = self.get(a[3], "pred")
        first = np.flatnonzero(m)[::32]
        self._note_product("start_async_read", first, left, right)
        self.products.add(m, registers, first, left, right, keeps)

    def _note_product(self, action: str, first, *matrices) -> None:
        """That each warp, from its ``first`` thread to its last, reads its matrices."""
        parts = [x.reshape(len(first), -1) for x in matrices]
        at = np.concatenate(parts, axis=1)
        if (at < 0).any() or (at >= len(self.memory["shared"])).any():
            raise EmulationError("a matrix lies outside of shared memory")
        if accesses := self.accesses.get("shared"):
            at = at[:, :: self.grain["shared"]] // self.grain["shared"]
            for lane in (0, 31):
                getattr(accesses, action)(at.ravel(), np.repeat(first + lane, at.shape[1]))

    def _finish_product(self, m, registers, first, left, right, keeps):
        own = m[first]  # the warps of a group may wait one after the other
        first, left, right = first[own], left[own], right[own]
        self._note_product("end_async_read", first, left, right)
        left, right = (
            self.memory["shared"].view(np.int8)[x].astype(np.float32) for x in (left, right)
        )
        product = (left @ right.transpose(0, 2, 1)).astype(np.int32)  # exact, of so few terms
        warp, lane = np.repeat(np.arange(len(first)), 32), self.lane[m]
        for i, x in enumerate(registers):
            row, column = lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2
            register = self.registers.get(x, np.zeros(self.n, np.uint32)).copy()
            start = np.where(keeps[m], register[m].view(np.int32), 0)
            register[m] = (start + product[warp, row, column]).astype(np.int32).view(np.uint32)
            self.registers[x] = register


def _matrix(descriptor, rows):
    """Where the 32 bytes of each row of a matrix lie, which wgmma is told by a descriptor.

    In tiles of 8 rows of 16, 32, 64 or 128 bytes, of the wider ones with 16 bytes permuted.
    """
    bits = [(descriptor >> np.uint64(first)).astype(np.int64) & 0x3FFF for first in (0, 16, 32)]
    start, beside, below = (x[:, None, None] << 4 for x in bits)
    if (descriptor >> np.uint64(49) & np.uint64(7)).any():
        raise NotImplementedError("wgmma of matrices that start within a pattern")
    width = np.array([16, 128, 64, 32])[(descriptor >> np.uint64(62)).astype(np.int64)]
    width = width[:, None, None]
    rows, byte = rows[:, :, None], np.arange(32)
    column = np.where(width == 16, byte // 16 * beside + byte % 16, byte)
    at = start + rows // 8 * below + rows % 8 * width + column
    return at ^ (at >> 3 & (width - 16))
