"""Weakly typed float64, which Python numbers are where ``jax_enable_x64`` is on.

A program in float32 is not to change with that option.  Without it a Python number has the type
float32, with it float64, weakly: ``b1 ** count`` of an optimizer, a learning rate, a bound of
``jax.random.uniform``.  So a weakly typed float64 is a float32 number, and so is what operations
make of such numbers and of no others that are float64.  In the interpreter these are float32
arrays, though the types of their variables say float64, and no rule knows of it.

Numbers that stand in the program, and what becomes float64 of another type, are both
(:class:`Undecided`): which one an operation takes depends on the others that it takes.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import primitives as stock

from repjax.primitives.core.tables import CALLS, HOLDING, PRIMITIVES, TURN_X64_OFF, RefusedError
from repjax.primitives.core.values import canonical_number, is_complex

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)

#: What may be done to a number that stands in the program without deciding which one it is.
_MOVING = {
    *("broadcast_in_dim", "convert_element_type", "copy", "copy_p", "expand_dims", "reshape"),
    *("squeeze", "stop_gradient", "transpose"),
}


#: And what such numbers may be put together by; NumPy rounds as the rules do.
_EXACT = {"add": np.add, "sub": np.subtract, "neg": np.negative}


class Undecided(abc.ABC):
    """What has the type float64, and may be a float64 array or a float32 one."""

    @abc.abstractmethod
    def array(self, dtype):
        """The array in this format, canonical."""


@dataclasses.dataclass(frozen=True)
class Constant(Undecided):
    """An array of one number, which stands in the program."""

    values: dict[np.dtype, np.ndarray]
    shape: tuple[int, ...] = ()

    @classmethod
    def of(cls, function, *numbers) -> Constant:
        """What a function makes of numbers, or of constants, in either format."""

        def value(dtype):
            given = [x.values[dtype] if isinstance(x, cls) else x for x in numbers]
            with np.errstate(all="ignore"):
                return canonical_number(function(*given), dtype)

        return cls({dtype: value(dtype) for dtype in (_FLOAT32, _FLOAT64)})

    def array(self, dtype):
        number = self.values[dtype]
        return lax.full(self.shape, number) if self.shape else number


@dataclasses.dataclass(frozen=True)
class Converted(Undecided):
    """What was converted from another type."""

    operand: Any

    def array(self, dtype):
        is_same = jax.typeof(self.operand).dtype == dtype
        return self.operand if is_same else _convert(self.operand, dtype)


def _convert(x, dtype):
    return PRIMITIVES["convert_element_type"].bind(x, new_dtype=dtype)


def is_float64(aval) -> bool:
    return getattr(aval, "dtype", None) == _FLOAT64


def _is_weak(aval) -> bool:
    return is_float64(aval) and getattr(aval, "weak_type", False)


def is_narrow(x, aval) -> bool:
    """Whether what has the type float64 is a float32 number here."""
    return is_float64(aval) and not isinstance(x, Undecided) and jax.typeof(x).dtype == _FLOAT32


def enter(x, aval):
    """The operand of a program of this type as the interpreter has it."""
    if isinstance(x, Undecided) or not _is_weak(aval) or is_narrow(x, aval):
        return x
    return _convert(x, _FLOAT32)


def hold(x, aval):
    """A value of this type as an array: what loops and branches carry."""
    if isinstance(x, Undecided):
        return x.array(_FLOAT32 if _is_weak(aval) else _FLOAT64)
    return x


def leave(x, aval):
    """The result of a program of this type.

    Raises:
      RefusedError: it would seem to have the precision of float64.
    """
    x = hold(x, aval)
    if not is_narrow(x, aval):
        return x
    if not _is_weak(aval):
        raise RefusedError(
            "expected no result of type float64 that is computed from Python numbers, which are "
            f"float32 here, received {aval.str_short()}; convert it with .astype('float32') before "
            f"it is returned, {TURN_X64_OFF}"
        )
    return _convert(x, _FLOAT64)


def widened(x, aval):
    """Anything as an array of its type, for what is never run."""
    if is_narrow(x, aval):
        return stock.convert_element_type_p.bind(
            x, new_dtype=_FLOAT64, weak_type=_is_weak(aval), sharding=None
        )
    return x.array(_FLOAT64) if isinstance(x, Undecided) else x


def undecided(equation, operands) -> Undecided | None:
    """The result of an equation that leaves it open what it is, if it does."""
    name, result = equation.primitive.name, equation.outvars[0].aval if equation.outvars else None
    if not operands or not is_float64(result):
        return None
    if all(isinstance(x, Constant) for x in operands):
        if name in _MOVING:
            return Constant(operands[0].values, result.shape)
        return Constant.of(_EXACT[name], *operands) if name in _EXACT and not result.shape else None
    is_other = not (is_float64(equation.invars[0].aval) or is_complex(equation.invars[0].aval))
    if name == "convert_element_type" and is_other and not _is_weak(result):
        return Converted(*operands)
    return None


def decided(equation, operands):
    """The operands of an equation as arrays that its rule can take, and its params.

    Raises:
      RefusedError: some are float64 and others are computed from Python numbers.
    """
    name, params = equation.primitive.name, equation.params
    avals = [v.aval for v in equation.invars]
    if name in CALLS or not any(map(is_float64, (*avals, *(v.aval for v in equation.outvars)))):
        return operands, params
    if name in HOLDING:
        return [hold(*pair) for pair in zip(operands, avals, strict=True)], params
    pairs = [(x, aval) for x, aval in zip(operands, avals, strict=True) if is_float64(aval)]
    narrow = any(is_narrow(*pair) for pair in pairs)
    weak = any(_is_weak(aval) for aval in (*avals, *(v.aval for v in equation.outvars)))
    if not narrow and not weak:
        return [hold(*pair) for pair in zip(operands, avals, strict=True)], params
    if any(not isinstance(x, Undecided) and not is_narrow(x, aval) for x, aval in pairs):
        raise RefusedError(
            f"{name} expected operands of one type, received float64 and numbers computed from "
            "Python numbers, which are float32 here; convert the float64 ones with "
            f".astype('float32'), {TURN_X64_OFF}"
        )
    params = {k: _FLOAT32 if _names_float64(v) else v for k, v in params.items()}
    return [x.array(_FLOAT32) if isinstance(x, Undecided) else x for x in operands], params


def _names_float64(param) -> bool:
    return isinstance(param, (np.dtype, type)) and param in (_FLOAT64, np.float64)
