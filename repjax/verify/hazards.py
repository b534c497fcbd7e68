"""What in a Python program may give other bits in another process or on another machine.

:func:`follows_hashes` reads source; :class:`Watch` notes calls while a program runs.  Both look
only at a user's own files.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib
import linecache
import math
import os
import pathlib
import random
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

#: Calls around an expression that do not depend on its order.
_WITHOUT_ORDER = {"sorted", "set", "frozenset", "len", "any", "all", "min", "max", "Counter"}
#: Calls that hand the order of their argument on.
_WITH_ORDER = {"list", "tuple", "enumerate", "zip", "map", "filter", "iter", "reversed", "join"}
#: What lists files in the order of the file system.
_LISTINGS = {
    "os": ("listdir", "scandir", "walk"),
    "glob": ("glob", "iglob"),
    "pathlib": ("Path.iterdir", "Path.glob", "Path.rglob"),
}
#: What gives results in the order in which threads or processes finish.
_RACES = {
    "concurrent.futures": ("as_completed",),
    "multiprocessing.pool": ("Pool.imap_unordered",),
}
#: Modules that draw entropy for what calls them.
_DRAWING = {"random", "secrets", "uuid"}
_UNSEEDED = "gives other numbers in every run; give a seed, or use repjax record"
#: NumPy's functions whose float results depend on its version, its BLAS or the instruction set.
_OF_NUMPY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "arcsin"),
    *("arccos", "arctan", "arctan2", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh"),
    *("power", "float_power", "cbrt", "hypot", "logaddexp", "sum", "mean", "std", "var", "average"),
    *("prod", "cumsum", "cumprod", "nansum", "nanmean", "nanstd", "nanvar", "dot", "matmul"),
    *("tensordot", "einsum", "inner", "vdot", "convolve", "correlate", "cov", "corrcoef"),
    *("linalg.norm", "linalg.inv", "linalg.solve", "linalg.svd", "linalg.eigh", "linalg.eig"),
    *("linalg.qr", "linalg.lstsq", "linalg.pinv", "linalg.det", "linalg.cholesky", "fft.fft"),
    *("fft.ifft", "fft.rfft", "fft.irfft", "fft.fft2", "fft.ifft2", "fft.fftn"),
)
#: Those of the module math: a sum of it is correctly rounded.
_OF_MATH = {
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "cbrt", "hypot", "dist"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "erf", "erfc", "gamma", "lgamma"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
}
#: The methods of NumPy's arrays.
_METHODS = {"sum", "mean", "std", "var", "prod", "cumsum", "cumprod", "dot"}


@dataclasses.dataclass(frozen=True, order=True)
class Remark:
    """One thing to look at.

    Attributes:
      place: ``file:line``, or empty for what concerns all of the program.
      kind: a word for it.
      text: what it is, and the remedy.
    """

    place: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.place or 'everywhere'}: {self.kind}: {self.text}"


@functools.cache
def is_users(file: str, folder: pathlib.Path) -> bool:
    """Whether a file is below the folder, and not of a library that is installed there."""
    if file.startswith("<"):
        return False
    path = pathlib.Path(file).resolve()
    return path.is_relative_to(folder) and not {"site-packages", "dist-packages"} & {*path.parts}


# --- sets -------------------------------------------------------------------------------


def follows_hashes(file: str) -> Iterator[Remark]:
    """Where a file's program iterates over a set, whose order is that of hashes, or takes a hash.

    Known are displays, comprehensions, ``set(...)``, operations on them, and names that are
    assigned nothing else in their scope.  Sets of numbers written out keep their order; a method
    ``__hash__`` is what hashes are for.
    """
    for scope in ast.walk(_parsed(file)):
        if not isinstance(scope, _SCOPES):
            continue
        names = _names_of_sets(scope)
        for node in _inside(scope):
            place = f"{file}:{getattr(node, 'lineno', 0)}"
            if _is_set(node, names) and _gives_its_order(node):
                text = "follows hashes, which PYTHONHASHSEED changes; use sorted(...)"
                yield Remark(place, "order of a set", text)
            is_hash = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "hash"
            if is_hash and getattr(scope, "name", "") != "__hash__":
                text = "hash: of strings, PYTHONHASHSEED changes it; use hashlib"
                yield Remark(place, "hash seed", text)


_SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@functools.cache
def _parsed(file: str) -> ast.Module:
    """The program of a file; each node knows the one that it is in."""
    tree = ast.parse("".join(linecache.getlines(file)), file)
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            child.parent = node
    return tree


def _inside(scope) -> Iterator[ast.AST]:
    """The nodes of a scope, without those of scopes in it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, _SCOPES):
            yield from _inside(child)


def _names_of_sets(scope) -> set[str]:
    assigned: dict[str, list[ast.AST]] = {}
    for node in _inside(scope):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr | ast.For):
            targets = [node.target]
        for target in targets:
            for name in ast.walk(target):
                if isinstance(name, ast.Name):
                    value = getattr(node, "value", node) if name is target else node
                    assigned.setdefault(name.id, []).append(value)
    found: set[str] = set()
    while more := {
        name
        for name, values in assigned.items()
        if name not in found and all(_is_set(x, found) for x in values)
    }:
        found |= more
    return found


def _is_set(node, names: set[str]) -> bool:
    if isinstance(node, ast.Set):
        return not all(
            isinstance(x, ast.Constant) and isinstance(x.value, int | float) for x in node.elts
        )
    if isinstance(node, ast.SetComp):
        return True
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Load) and node.id in names
    if isinstance(node, ast.BinOp) and isinstance(
        node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor
    ):
        return _is_set(node.left, names) or _is_set(node.right, names)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            is_operation = node.func.attr in ("union", "intersection", "difference", "copy")
            return is_operation and _is_set(node.func.value, names)
        return _called(node) in ("set", "frozenset")
    return False


def _called(node) -> str:
    function = node.func
    return getattr(function, "id", getattr(function, "attr", ""))


def _gives_its_order(node) -> bool:
    """Whether something goes through the elements, and what it makes of them has their order."""
    parent = node.parent
    if isinstance(parent, ast.For) and parent.iter is node:
        return True
    if isinstance(parent, ast.comprehension) and parent.iter is node:
        whole = parent.parent
        return not isinstance(whole, ast.SetComp) and not _without_order(whole)
    if isinstance(parent, ast.Starred):
        return not isinstance(parent.parent, ast.Set) and not _without_order(parent.parent)
    if isinstance(parent, ast.Call) and node in parent.args:
        return _called(parent) in _WITH_ORDER and not _without_order(parent)
    return False


def _without_order(node) -> bool:
    """Whether what an expression gives goes to a function that does not depend on its order."""
    parent = getattr(node, "parent", None)
    if isinstance(parent, ast.Call) and node in parent.args:
        name = _called(parent)
        return name in _WITHOUT_ORDER or (name in _WITH_ORDER and _without_order(parent))
    return False


# --- calls ------------------------------------------------------------------------------


class Watch:
    """Notes calls that a user's files make while the block runs; see :attr:`remarks`."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.remarks: dict[Remark, int] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Watch:
        for found, kind, text in (
            (_LISTINGS, "order of files", "is the file system's; use sorted(...)"),
            (_RACES, "order of completion", "is a race; use map, or wait in the order of tasks"),
        ):
            for module, names in found.items():
                for name in names:
                    self._wrap(importlib.import_module(module), name, self._noting(kind, text))
        for name in _OF_NUMPY:
            self._wrap(np, name, self._noting_floats)
        self._watch_entropy()
        before = sys.getprofile(), threading.getprofile()
        self._stack.callback(threading.setprofile, before[1])
        self._stack.callback(sys.setprofile, before[0])
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def _wrap(self, owner, path: str, wrap) -> None:
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        stock = getattr(owner, name, None)
        if stock is not None:
            setattr(owner, name, wrap(stock, path))
            self._stack.callback(setattr, owner, name, stock)

    def _user_frame(self):
        """The frame that called the wrapper, if it is of a user's file."""
        frame = sys._getframe(2)
        return frame if is_users(frame.f_code.co_filename, self.folder) else None

    def _note(self, frame, kind: str, text: str) -> None:
        remark = Remark(f"{frame.f_code.co_filename}:{frame.f_lineno}", kind, text)
        self.remarks[remark] = self.remarks.get(remark, 0) + 1

    def _noting(self, kind: str, text: str):
        def wrap(stock: Callable[..., Any], path: str) -> Callable[..., Any]:
            @functools.wraps(stock)
            def function(*args, **kwargs):
                frame = self._user_frame()
                if frame is not None and not _is_ordered(frame):
                    self._note(frame, kind, f"{path}: {text}")
                return stock(*args, **kwargs)

            return function

        return wrap

    def _watch_entropy(self) -> None:
        for owner, name, source in (
            (os, "urandom", "os.urandom"),
            (os, "getrandom", "os.getrandom"),
            (random, "_urandom", "random.SystemRandom"),
            (random, "Random.seed", "random.Random"),
            (uuid, "uuid1", "uuid.uuid1"),
            (np.random.bit_generator, "randbits", "numpy.random"),
        ):
            self._wrap(owner, name, self._noting_draws(source))
        # The modules' own generators, which are seeded when the modules are imported.
        for module, generator, get_state in (
            (random, random._inst, random.getstate),
            (np.random, np.random.mtrand._rand, np.random.get_state),
        ):
            used = _Generator(module.__name__, lambda get=get_state: repr(get()))
            for name in dir(module):
                is_its = getattr(getattr(module, name), "__self__", None) is generator
                if name == "seed" or (is_its and name not in ("getstate", "get_state")):
                    self._wrap(module, name, functools.partial(self._noting_uses, used))
            self._stack.callback(self._end, used)

    def _note_entropy(self, frame, source: str) -> None:
        """Note what a user's file draws, by itself or through a module of :data:`_DRAWING`."""
        while frame is not None and frame.f_globals.get("__name__") in _DRAWING:
            name = frame.f_code.co_qualname.removesuffix(".__init__")
            source = f"{frame.f_globals['__name__']}.{name}"
            frame = frame.f_back
        is_users_call = frame is not None and is_users(frame.f_code.co_filename, self.folder)
        if is_users_call and not _draws_in_vain(frame):
            self._note(frame, "entropy", f"{source}: {_UNSEEDED}")

    def _noting_draws(self, source: str):
        def wrap(stock: Callable[..., Any], path: str) -> Callable[..., Any]:
            @functools.wraps(stock)
            def function(*args, **kwargs):
                if path != "Random.seed" or not _is_seed(args[1:], kwargs):
                    self._note_entropy(sys._getframe(1), source)
                return stock(*args, **kwargs)

            return function

        return wrap

    def _noting_uses(self, used: _Generator, stock: Callable[..., Any], path: str):
        @functools.wraps(stock)
        def function(*args, **kwargs):
            if path in ("seed", "setstate", "set_state") and _is_seed(args, kwargs):
                used.is_seeded = True
            elif (path == "seed" or not used.is_seeded) and self._user_frame() is not None:
                used.is_noted = True
                self._note_entropy(sys._getframe(1), f"{used.name}.{path}")
            return stock(*args, **kwargs)

        return function

    def _end(self, used: _Generator) -> None:
        """Note that a generator was used, if it was and no user's file has said so."""
        if not (used.is_seeded or used.is_noted) and used.state() != used.first:
            text = f"{used.name}, in a library: {_UNSEEDED}"
            self.remarks.setdefault(Remark("", "entropy", text), 1)

    def _noting_floats(self, stock: Callable[..., Any], path: str) -> Any:
        return _Noted(stock, path, self)

    def _profile(self, frame, event: str, function) -> None:
        """Notes calls of functions in C that are no attributes, or are not to be replaced."""
        if event != "c_call" or not is_users(frame.f_code.co_filename, self.folder):
            return
        name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
        if name in _METHODS and isinstance(owner, np.ndarray):
            self.floats(frame, f"ndarray.{name}", owner)
        if name in _OF_MATH and owner is math:
            self.floats(frame, f"math.{name}", 0.0)

    def floats(self, frame, name: str, result) -> None:
        """Note a call that gives, or works on, floats."""
        if getattr(result, "dtype", np.dtype(type(result))).kind in "fc":
            self._note(
                frame,
                "floats outside of JAX",
                f"{name}: its bits depend on the version of its library and the instruction set; "
                "compute it in a reproducible function",
            )


class _Generator:
    """A module's own generator: whether it was seeded, or a remark made that it was not."""

    def __init__(self, name: str, state: Callable[[], str]):
        self.name, self.state, self.first = name, state, state()
        self.is_seeded = self.is_noted = False


def _is_seed(args, kwargs) -> bool:
    """Whether arguments of a function ``seed`` have a seed."""
    return any(x is not None for x in (*args[:1], *kwargs.values()))


class _Noted:
    """A function of NumPy that notes its calls, and is else what it was."""

    def __init__(self, stock, name: str, watch: Watch):
        self.__dict__.update(_stock=stock, _name=name, _watch=watch)

    __class__ = property(lambda self: type(self._stock))

    def __getattr__(self, name: str):
        return getattr(self._stock, name)

    def __call__(self, *args, **kwargs):
        result = self._stock(*args, **kwargs)
        frame = sys._getframe(1)
        if is_users(frame.f_code.co_filename, self._watch.folder):
            for x in result if isinstance(result, tuple) else (result,):
                if isinstance(x, np.ndarray | np.generic | float):
                    self._watch.floats(frame, f"np.{self._name}", x)
        return result


def _is_ordered(frame) -> bool:
    """Whether the call that a frame is at is inside of one that does not depend on its order."""
    node = _call_at(frame)
    return node is not None and (
        _without_order(node) or _in_a_comprehension(node) or _sorted_later(node)
    )


def _draws_in_vain(frame) -> bool:
    """Whether a frame is at ``RandomState(seed)``, which draws a seed before it takes its own."""
    node = _call_at(frame)
    if node is None or _called(node) != "RandomState":
        return False
    seeds = [*node.args, *(x.value for x in node.keywords)]
    return any(not isinstance(x, ast.Constant) or x.value is not None for x in seeds)


def _call_at(frame) -> ast.Call | None:
    """The call that a frame is at."""
    positions = [*frame.f_code.co_positions()]
    line, last, column, end = positions[frame.f_lasti // 2]
    for node in ast.walk(_parsed(frame.f_code.co_filename)):
        if isinstance(node, ast.Call):
            place = node.lineno, node.end_lineno, node.col_offset, node.end_col_offset
            if place == (line, last, column, end):
                return node
    return None


def _in_a_comprehension(node) -> bool:
    """Whether a comprehension goes through it, of which nothing has the order."""
    parent = getattr(node, "parent", None)
    if isinstance(parent, ast.comprehension) and parent.iter is node:
        whole = parent.parent
        return isinstance(whole, ast.SetComp) or _without_order(whole) or _sorted_later(whole)
    return False


def _sorted_later(node) -> bool:
    """Whether it gets a name that is sorted in the same scope."""
    parent = node.parent
    if not isinstance(parent, ast.Assign) or not isinstance(parent.targets[0], ast.Name):
        return False
    scope = parent
    while not isinstance(scope, _SCOPES):
        scope = scope.parent
    return any(_sorts(x, parent.targets[0].id) for x in _inside(scope))


def _sorts(node, name: str) -> bool:
    """Whether it is ``sorted(name)`` or ``name.sort()``."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        return node.func.attr == "sort" and getattr(node.func.value, "id", "") == name
    return _called(node) == "sorted" and getattr([*node.args, None][0], "id", "") == name
