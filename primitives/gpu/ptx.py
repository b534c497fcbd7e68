"""The second backend of the kernels: PTX of our own, which XLA calls as it stands.

For a jax without Pallas' Triton backend, and for GPUs that Pallas does not know.  It has the one
kernel without which everything would wait, that of ``sequential`` products and convolutions: XLA
has no fused multiply-add, and its code for the bodies is a hundred times slower.

A block of threads computes a tile of outputs, each thread some of them, one accumulator for each.
Tiles of both operands go through shared memory, of which there are two of each: while one is
multiplied, the next is fetched.  What bits depend on is one chain of ``fma.rn.f32`` for an output,
k ascending; tiles are chosen by shape and change none.  Padding terms with zeros is no step.

The driver compiles the PTX when a program is loaded, for any GPU of capability 8.0 or newer.
"""

from __future__ import annotations

import collections
import math
import zlib
from collections.abc import Iterable
from typing import NamedTuple

import jax
import numpy as np

from repjax.primitives.core.sizes import merged
from repjax.primitives.operations.products.problems import Problem


class Tile(NamedTuple):
    """Outputs of a block along m and n, outputs of a thread, and terms at a time: powers of two."""

    m: int
    n: int
    of_thread: tuple[int, int]
    terms: int

    @property
    def threads(self) -> int:
        return self.m // self.of_thread[0] * (self.n // self.of_thread[1])


#: The larger a tile is, the more often is an operand used once it is in shared memory, and the more
#: outputs a thread has, the more often once it is in registers: here 6 loads are for 128 FMAs.
TILES = (
    Tile(128, 128, (16, 8), 8),
    Tile(64, 64, (4, 4), 16),
    Tile(32, 32, (2, 2), 32),
    Tile(16, 16, (1, 1), 32),
)
#: For rows or columns of one or two outputs, as those of depthwise convolutions.
THIN = (Tile(256, 1, (1, 1), 16), Tile(1, 256, (1, 1), 16))
#: With offsets of 64 bits the first tile has too few registers.
WIDE = (Tile(128, 128, (8, 8), 8), *TILES[1:])
# Blocks that keep any GPU busy.
_BLOCKS = 256
_THIN = 3


def choose(g: int, m: int, n: int, wide: bool = False) -> Tile:
    """The largest tile of which there are enough for a GPU, or the smallest."""
    if min(m, n) < _THIN:
        return THIN[0] if n <= m else THIN[1]
    enough = [t for t in (WIDE if wide else TILES) if g * -(-m // t.m) * -(-n // t.n) >= _BLOCKS]
    return (enough or TILES[-1:])[0]


def product(lhs, rhs, shape, problem: Problem, *, start=None, into=None):
    """The problem's part of the array of ``shape``, in a new one or in ``into``.

    ``start``, if it is given, has for each element of g and of n the value that chains begin with.
    """
    g, m, n, _ = problem.sizes
    wide = max(lhs.size, rhs.size, math.prod(shape)) > 1 << 30
    tile = choose(g, m, n, wide)
    operands = [x for x in (lhs, rhs, start, into) if x is not None]
    names = ["lhs", "rhs", *["start"] * (start is not None), *["into"] * (into is not None), "out"]
    name, ptx = kernel(problem, tile, names, wide)
    result = [jax.ShapeDtypeStruct(shape, np.float32)]
    aliases = {} if into is None else {len(operands) - 1: 0}
    call = jax.ffi.ffi_call("__gpu$xla.gpu.ptx", result, input_output_aliases=aliases)
    sizes = {f"{what}_{axis}": np.int32(1) for what in ("grid", "block") for axis in "xyz"}
    sizes |= {"grid_x": np.int32(blocks(problem, tile)), "block_x": np.int32(tile.threads)}
    attributes = {"name": name, "kernel_type": "ptx", "kernel_data": ptx}
    return call(*operands, **attributes, **sizes, shared_mem_bytes=np.int32(0))[0]


def blocks(problem: Problem, tile: Tile) -> int:
    g, m, n, _ = problem.sizes
    return g * -(-m // tile.m) * -(-n // tile.n)


def kernel(problem: Problem, tile: Tile, names: Iterable[str], wide: bool) -> tuple[str, str]:
    """The name and the PTX of a kernel of these parameters, ``wide`` with offsets of 64 bits.

    The name is that of the kernel's own text, since a program may have several.
    """
    writer = _Writer(wide)
    _write(writer, problem, tile, list(names))
    body = "\n".join([*writer.declarations(), *writer.lines])
    name = f"tiles__{zlib.crc32(body.encode())}"
    parameters = ", ".join(f".param .u64 {n}" for n in names)
    head = f".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry {name}({parameters})"
    return name, f"{head}\n.maxntid {tile.threads}, 1, 1\n{{\n{body}\nret;\n}}\n"


class _Writer:
    """Writes instructions, each with a register of its own; offsets have 64 bits if ``wide``."""

    def __init__(self, wide: bool):
        self.lines: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.index = "u64" if wide else "u32"

    def declarations(self) -> list[str]:
        return [f".reg .{kind} %{kind}_<{n}>;" for kind, n in sorted(self.counts.items())]

    def new(self, kind: str) -> str:
        self.counts[kind] += 1
        return f"%{kind}_{self.counts[kind] - 1}"

    def say(self, text: str) -> None:
        self.lines.append(f"{text};")

    def do(self, op: str, *operands) -> str:
        """The new register with the result of ``op``, whose last part is the type of all."""
        result = self.new(op.split(".")[-1])
        self.say(f"{op} {', '.join(map(str, (result, *operands)))}")
        return result

    def of_index(self, op: str, *operands) -> str:
        """The same in the type of offsets."""
        return self.do(f"{op}.{self.index}", *operands)

    def as_index(self, x: str) -> str:
        """A u32 in the type of offsets."""
        return x if self.index == "u32" else self.widened(x)

    def widened(self, x: str) -> str:
        result = self.new("u64")
        self.say(f"cvt.u64.u32 {result}, {x}")
        return result

    def holds(self, compare: str, kind: str, x: str, y) -> str:
        result = self.new("pred")
        self.say(f"setp.{compare}.{kind} {result}, {x}, {y}")
        return result

    def both(self, *predicates: str | None) -> str | None:
        """Where all hold that there are; None if always."""
        there = [p for p in predicates if p is not None]
        while len(there) > 1:
            there[:2] = [self.do("and.pred", *there[:2])]
        return there[0] if there else None

    def address(self, pointer: str, offset: str) -> str:
        wide = offset if self.index == "u64" else self.widened(offset)
        return self.do("add.u64", pointer, wide)

    def offset(self, index: str, axes: Iterable[tuple[int, int]], total: str) -> str:
        """``total`` and the offset in bytes of the flat index of axes, of sizes and strides."""
        axes = merged(axes)
        for position, (size, stride) in reversed([*enumerate(axes)]):
            digit = index
            if position:
                index, digit = self.of_index("div", index, size), self.of_index("rem", index, size)
            if stride:
                total = self.of_index("mad.lo", digit, 4 * stride, total)
        return total


class _Side:
    """An operand: how the threads of a block fetch a tile of it, and what each of them reads."""

    def __init__(self, w: _Writer, rows: int, own: int, tile: Tile, of_row: float, of_term: float):
        self.w, self.rows, self.own, self.tile = w, rows, own, tile
        count = rows * tile.terms
        self.count = max(1, count // tile.threads)
        self.vector = min(own, 4)
        # Rows of shared memory are shifted, so that threads that write neighbours meet no bank.
        self.pitch = rows + self.vector
        self.bytes = 4 * self.pitch * tile.terms
        # Neighbouring threads fetch neighbours in memory.
        self.fastest_is_k = of_term < of_row

    def prepare(self, thread: str, place: str, size: int, start: str, axes, pointer, first) -> None:
        """Before the loop: the positions that this thread fetches.

        Rows behind the last are the last again: what is computed of them is not stored.
        """
        w, tile = self.w, self.tile
        self.pointer = pointer
        self.active = None
        if self.rows * tile.terms < tile.threads:
            self.active = w.holds("lt", "u32", thread, self.rows * tile.terms)
        fastest = tile.terms if self.fastest_is_k else self.rows
        low = w.do("and.b32", thread, fastest - 1)
        high = w.do("shr.u32", thread, fastest.bit_length() - 1)
        step = tile.threads // fastest
        many = [w.do("add.u32", high, i * step) for i in range(self.count)]
        rows, terms = (many, [low]) if self.fastest_is_k else ([low], many)
        self.terms = [w.as_index(k) for k in terms]
        self.bases = []
        for row in rows:
            at = w.of_index("min", w.of_index("add", w.as_index(row), start), size - 1)
            self.bases.append(w.offset(at, axes, first))
        self.writes = []
        for i in range(self.count):
            row, k = rows[i % len(rows)], terms[i % len(terms)]
            at = w.do("mad.lo.u32", k, self.pitch, row)
            self.writes.append(w.do("mad.lo.u32", at, 4, place))
        self.values = [w.new("f32") for _ in range(self.count)]

    def fetch(self, first_term: str, k: int, axes) -> None:
        """The next tile, from memory to registers; zeros behind the last term."""
        w, offsets, there = self.w, [], []
        for term in self.terms:
            at = w.of_index("add", term, first_term)
            whole = k > 0 and k % self.tile.terms == 0
            inside = None if whole else w.holds("lt", w.index, at, k)
            there.append(w.both(inside, self.active))
            offsets.append(w.offset(at, axes, self._zero()))
        for i, value in enumerate(self.values):
            total = w.of_index("add", self.bases[i % len(self.bases)], offsets[i % len(offsets)])
            guard = there[i % len(there)]
            address = w.address(self.pointer, total)
            if guard:
                w.say(f"mov.f32 {value}, 0f00000000")
            w.say(f"{f'@{guard} ' if guard else ''}ld.global.f32 {value}, [{address}]")

    def _zero(self) -> str:
        zero = self.w.new(self.w.index)
        self.w.say(f"mov.{self.w.index} {zero}, 0")
        return zero

    def keep(self, buffer: str) -> None:
        """From registers to shared memory."""
        guard = f"@{self.active} " if self.active else ""
        for value, place in zip(self.values, self.writes, strict=True):
            at = self.w.do("add.u32", place, buffer)
            self.w.say(f"{guard}st.shared.f32 [{at}], {value}")

    def positions(self) -> list[int]:
        """Offsets of the outputs of the first thread; neighbours read neighbouring vectors."""
        group = self.rows // (self.own // self.vector)
        return [group * (i // self.vector) + i % self.vector for i in range(self.own)]

    def read(self, place: str, term: int) -> list[str]:
        """What a thread multiplies, from shared memory."""
        found, v = [], self.vector
        for position in self.positions()[::v]:
            registers = [self.w.new("f32") for _ in range(v)]
            at = f"[{place}+{4 * (term * self.pitch + position)}]"
            if v == 1:
                self.w.say(f"ld.shared.f32 {registers[0]}, {at}")
            else:
                self.w.say(f"ld.shared.v{v}.f32 {{{', '.join(registers)}}}, {at}")
            found += registers
        return found


def _axes(problem: Problem, array: str, dimensions: str) -> list[tuple[int, int]]:
    return [(a.size, getattr(a, array)) for d in dimensions for a in getattr(problem, d)]


def _stride(axes) -> float:
    """The stride of the innermost axis."""
    axes = merged(axes)
    return axes[-1][1] if axes else math.inf


def _write(w: _Writer, problem: Problem, tile: Tile, names: list[str]) -> None:
    _, m, n, k = problem.sizes
    of_m, of_n = -(-m // tile.m), -(-n // tile.n)
    own = tile.of_thread
    lhs, rhs = (
        _Side(w, size, own[i], tile, *(_stride(_axes(problem, array, x)) for x in (d, "k")))
        for i, (size, array, d) in enumerate(((tile.m, "lhs", "m"), (tile.n, "rhs", "n")))
    )
    pointers = {}
    for name in names:
        pointers[name] = w.new("u64")
        w.say(f"ld.param.u64 {pointers[name]}, [{name}]")
        w.say(f"cvta.to.global.u64 {pointers[name]}, {pointers[name]}")
    # The block's tile, and the thread's place in it.
    thread, block, shared = (w.new("u32") for _ in range(3))
    w.say(f"mov.u32 {thread}, %tid.x")
    w.say(f"mov.u32 {block}, %ctaid.x")
    w.say(f".shared .align 16 .b8 operands[{2 * (lhs.bytes + rhs.bytes)}]")
    w.say(f"mov.u32 {shared}, operands")
    columns = tile.n // own[1]
    row = w.do("mul.lo.u32", w.do("shr.u32", thread, columns.bit_length() - 1), lhs.vector)
    column = w.do("mul.lo.u32", w.do("and.b32", thread, columns - 1), rhs.vector)
    band, tile_n = w.do("div.u32", block, of_n), w.do("rem.u32", block, of_n)
    group, tile_m = w.do("div.u32", band, of_m), w.do("rem.u32", band, of_m)
    first_m = w.of_index("mul.lo", w.as_index(tile_m), tile.m)
    first_n = w.of_index("mul.lo", w.as_index(tile_n), tile.n)
    group = w.as_index(group)
    firsts = {}
    for array, offset in zip(("lhs", "rhs", "out"), problem.offsets, strict=True):
        firsts[array] = w.new(w.index)
        w.say(f"mov.{w.index} {firsts[array]}, {4 * offset}")
        firsts[array] = w.offset(group, _axes(problem, array, "g"), firsts[array])
    of_rhs = w.do("add.u32", shared, 2 * lhs.bytes)
    for side, place, size, first, array, d in (
        (lhs, shared, m, first_m, "lhs", "m"),
        (rhs, of_rhs, n, first_n, "rhs", "n"),
    ):
        axes = _axes(problem, array, d)
        side.prepare(thread, place, size, first, axes, pointers[array], firsts[array])
    outputs = _Outputs(w, problem, (row, column), (first_m, first_n), (lhs, rhs))
    sums = outputs.starts(pointers.get("start"), group)

    # Two tiles of each operand: one is multiplied, the other one is fetched.
    step, first_term, read_from, write_to = (w.new(t) for t in ("u32", w.index, "u32", "u32"))
    for register, kind in ((step, "u32"), (first_term, w.index), (write_to, "u32")):
        w.say(f"mov.{kind} {register}, 0")

    def fetch():
        for side, array in ((lhs, "lhs"), (rhs, "rhs")):
            side.fetch(first_term, k, _axes(problem, array, "k"))

    def keep():
        other = w.do("mul.lo.u32", write_to, lhs.bytes), w.do("mul.lo.u32", write_to, rhs.bytes)
        lhs.keep(other[0])
        rhs.keep(other[1])
        w.say("bar.sync 0")

    fetch()
    keep()
    w.lines.append("$LOOP:")
    w.say(f"mov.u32 {read_from}, {write_to}")
    w.say(f"add.u32 {step}, {step}, 1")
    w.say(f"add.{w.index} {first_term}, {first_term}, {tile.terms}")
    more = w.holds("lt", "u32", step, -(-k // tile.terms))
    w.say(f"@!{more} bra $MULTIPLY")
    fetch()
    w.lines.append("$MULTIPLY:")
    places = []
    for side, at, place in ((lhs, row, shared), (rhs, column, of_rhs)):
        of_buffer = w.do("mad.lo.u32", read_from, side.bytes, place)
        places.append(w.do("mad.lo.u32", at, 4, of_buffer))
    for term in range(tile.terms):
        left, right = lhs.read(places[0], term), rhs.read(places[1], term)
        for i, x in enumerate(left):
            for j, y in enumerate(right):
                w.say(f"fma.rn.f32 {sums[i][j]}, {x}, {y}, {sums[i][j]}")
    w.say(f"@!{more} bra $STORE")
    w.say(f"xor.b32 {write_to}, {write_to}, 1")
    keep()
    w.say("bra $LOOP")
    w.lines.append("$STORE:")
    outputs.store(pointers["out"], firsts["out"], sums)


class _Outputs:
    """The outputs of a thread: which they are, what their chains begin with, where they go."""

    def __init__(self, w: _Writer, problem: Problem, own, firsts, sides):
        self.w, self.problem = w, problem
        self.at, self.inside = [], []
        sizes = problem.sizes[1:3]
        for position, first, side, size in zip(own, firsts, sides, sizes, strict=True):
            start = w.of_index("add", first, w.as_index(position))
            at = [w.of_index("add", start, i) for i in side.positions()]
            whole = size % side.rows == 0
            self.inside.append([None if whole else w.holds("lt", w.index, i, size) for i in at])
            self.at.append(at if whole else [w.of_index("min", i, size - 1) for i in at])

    def starts(self, pointer: str | None, group: str) -> list[list[str]]:
        """The accumulators."""
        w, n = self.w, self.problem.sizes[2]
        values = ["0f00000000"] * len(self.at[1])
        if pointer is not None:
            before = w.of_index("mul.lo", group, 4 * n)
            values = []
            for column in self.at[1]:
                address = w.address(pointer, w.of_index("mad.lo", column, 4, before))
                values.append(w.new("f32"))
                w.say(f"ld.global.f32 {values[-1]}, [{address}]")
        return [[self._copy(value) for value in values] for _ in self.at[0]]

    def _copy(self, value: str) -> str:
        result = self.w.new("f32")
        self.w.say(f"mov.f32 {result}, {value}")
        return result

    def store(self, pointer: str, first: str, sums) -> None:
        """Zero where a result is at most the smallest normal number (``canonical.guard``)."""
        w, zero = self.w, self.w.new(self.w.index)
        w.say(f"mov.{w.index} {zero}, 0")
        columns = [w.offset(j, _axes(self.problem, "out", "n"), zero) for j in self.at[1]]
        for i, in_rows, row in zip(self.at[0], self.inside[0], sums, strict=True):
            base = w.offset(i, _axes(self.problem, "out", "m"), first)
            for offset, in_columns, value in zip(columns, self.inside[1], row, strict=True):
                bits = w.new("b32")
                w.say(f"mov.b32 {bits}, {value}")
                is_zero = w.holds("le", "u32", w.do("and.b32", bits, 0x7FFFFFFF), 0x00800000)
                bits = w.do("selp.b32", 0, bits, is_zero)
                guard = w.both(in_rows, in_columns)
                address = w.address(pointer, w.of_index("add", base, offset))
                w.say(f"{f'@{guard} ' if guard else ''}st.global.b32 [{address}], {bits}")
