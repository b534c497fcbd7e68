"""A GPU of the PTX manual's description: parses PTX, and runs a kernel on the CPU, bit for bit.

Every register is a NumPy array with one word for each thread of the grid.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from happens_before import Accesses, EmulationError, Threads

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


def synchronizations(kernel: Kernel) -> dict[str, list[int]]:
    """The instructions that only make others wait, or see what others did, by their kind."""
    kinds: dict[str, list[int]] = {}
    for i, step in enumerate(kernel.code):
        name = ".".join(step.op)
        found = re.match(r"bar(rier)?\b|fence\.proxy|wgmma\.(fence|wait)|cp\.async\.wait", name)
        if found:
            kinds.setdefault(found[0], []).append(i)
    return kinds


def without(kernel: Kernel, steps: list[int]) -> Kernel:
    """The kernel, of which some instructions do nothing."""
    code = [*kernel.code]
    for i in steps:
        code[i] = Step("", False, ["nop"], [], f"without {code[i].text}")
    return kernel._replace(code=code)


# --- a machine ----------------------------------------------------------------------------


class Launch(NamedTuple):
    """One kernel launch, or another action of XLA's runtime."""

    kind: str
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int  # bytes of dynamic shared memory


_TYPES = {
    "pred": np.dtype(bool),
    "f16": np.dtype("f2"),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
}
_FLOATS = ("f16", "bf16", "f32", "f64")
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
_NOTHING = {"nop", "griddepcontrol", "membar", "nanosleep", "prefetch"}
_JUMPS = {"bra", "ret", "exit", "bar", "barrier"}
_ARITHMETIC = {"add", "addc", "sub", "subc", "mul", "mad", "madc", "fma", "div", "rem", "rcp"}
_ARITHMETIC |= {"sqrt", "neg", "abs", "min", "max", "copysign"}


CONSTANTS = 1 << 14  # bytes for those of a kernel
_PAGE = 64


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
    """A GPU's NaN; the payloads of float64 are not modelled."""
    if x.dtype == "f8":
        return x
    word = _WORD[x.dtype.itemsize]
    nan = word(np.iinfo(word).max >> 1).view(x.dtype)
    return np.where(np.isnan(x), nan, x).astype(x.dtype)


_OF_HALVES = ("neg", "abs", "min", "max")


def _half(op: list[str], *v):
    """What is exact in f16 and bf16; the sign of a NaN is an ordinary bit to neg and abs."""
    if op[0] in ("neg", "abs"):
        sign, word = np.uint16(0x8000), v[0].view(np.uint16)
        return (word ^ sign if op[0] == "neg" else word & ~sign).view(v[0].dtype)
    r = _float([*op[:-1], "f32"], *(x.astype(np.float32) for x in v))
    return _canonical_nan(r.astype(v[0].dtype))


def is_whole(x):
    return (np.rint(x) == x) | np.isnan(x)


def _exact(operands, results):
    """Where float64 operands are integers and the results small ones; or infinite or NaN."""
    small = [~(np.abs(x) >= 2.0**53) | ~np.isfinite(x) for x in results]
    return functools.reduce(np.logical_and, [*map(is_whole, operands), *small])


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


def _convert(op, x, low=None):
    """cvt between integers and floats; of two to a pair of halves."""
    to, source = op[-2:]
    if low is not None and to in ("f16x2", "bf16x2"):
        pair = [_convert([*op[:-2], to[:-2], source], y).view(np.uint16) for y in (x, low)]
        return pair[0].astype(np.uint32) << np.uint32(16) | pair[1]
    target = _dtype(to).type
    is_float = source in _FLOATS
    # NumPy rounds to bfloat16 twice, but from float32.
    twice = to == "bf16" and source not in ("bf16", "f16", "f32", "u8", "s8", "u16", "s16")
    if {"rz", "rm", "rp", "ftz", "relu"} & {*op} or (not is_float and "sat" in op) or twice:
        raise NotImplementedError(".".join(op))
    if not is_float:
        return x.astype(target)
    x = x.astype(np.float32) if source in ("f16", "bf16") else x
    r = next((_TO_INTEGRAL[p] for p in op if p in _TO_INTEGRAL), lambda x: x)(x)
    if to in _FLOATS:
        return _canonical_nan((np.clip(r, 0, 1) if "sat" in op else r).astype(target))
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


class _Groups:
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


class Machine:
    """One kernel launch; every register is an array with one word for each thread of the grid.

    The threads at the lowest instruction go first, so that those that diverge meet again.  With
    ``order``, some warps run ahead of the others of their block, as far as the next barrier.
    Asynchronous copies and products take effect when they are waited for, which is as late as they
    can, and whoever touches their operands until then is refused, as are races
    (:mod:`happens_before`).
    Where the PTX manual leaves bits open (approximations, contractions), something plausible is
    computed.  ``opcodes`` are those of the instructions that were executed, ``inexact`` those
    whose results depend on an order or a rounding that is not fixed.
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
        races=True,
    ):
        """``arguments``: the places in ``memory``, bytes, as pairs of start and size.

        ``only`` are the numbers of the blocks to run, if not all, ``order`` a generator of random
        numbers, ``races`` says whether to look for them.
        """
        grid, block = ((*sizes, 1, 1)[:3] for sizes in (launch.grid, launch.block))
        self.kernel, self.registers, self.order = kernel, {}, order
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
        self.copies, self.products = _Groups(self.n), _Groups(self.n)
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
                yield _dtype(kind).itemsize

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
        return value.astype(_WORD[dtype.itemsize], copy=False).view(dtype)

    def _refuse_pending(self, x: str) -> None:
        if self.pending and x in self.pending and (self.pending[x] & self.mask).any():
            raise EmulationError(f"{x} is used before the product that sets it was waited for")

    def _word(self, register: str):
        kinds = self.kernel.registers
        kind = kinds.get(register) or kinds.get(re.sub(r"\d+$", "", register))
        if kind is None:
            raise NotImplementedError(f"operand {register}")
        return np.bool_ if kind == "pred" else _WORD[_dtype(kind).itemsize]

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
        return self.memory[space].view(_WORD[size])[index // size]

    def store(self, space: str, address, value, m) -> None:
        size = value.dtype.itemsize
        index = self._index(self.writable, space, address, size, m)
        if space not in self.accesses:
            self.memory[space].view(_WORD[size])[index[m] // size] = value[m].view(_WORD[size])
        else:
            at, thread, value = self._to_write(space, index, value, m)
            self.accesses[space].start_write(at, thread, self._cells(space)[at] != value)
            self._write(space, at, thread, value)

    def _cells(self, space: str):
        return self.memory[space].view(_WORD[self.grain[space]])

    def _to_write(self, space: str, index, value, m):
        """The words, who writes each, and what."""
        value = np.ascontiguousarray(value[m]).view(_WORD[self.grain[space]])
        return *self._words(space, index, value.nbytes // max(1, m.sum()), m), value

    def _write(self, space: str, at, thread, value) -> None:
        cells = self._cells(space)
        cells[at] = value
        self.accesses[space].end_write(at, thread, cells[at] != value)

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

    def _require_warps(self, m, what: str) -> None:
        """That the live threads of each warp of ``m`` are all among them."""
        alive = m | (self.pc < len(self.kernel.code))
        if (m != alive)[np.isin(self.threads.warp, self.threads.warp[m])].any():
            raise EmulationError(f"{what} by threads of a warp that are not together")

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
        unordered = np.isnan(x) | np.isnan(y) if kind in _FLOATS else np.zeros(self.n, bool)
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
        elif kind in ("f16", "bf16") and op[0] in _OF_HALVES:
            self.put(a[0], _half(op, *values), m)
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
                whole = is_whole(left).all((1, 2)) & is_whole(right).all((1, 2))
                if not (whole[warp] & _exact([start], [result]))[m].all():
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
        registers = _members(a[0])
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
