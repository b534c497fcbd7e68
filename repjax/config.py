"""The global switch and its options, as options of ``jax.config``.

==========================  ==============================================================
``repjax_enable``           whether every program that JAX compiles is made reproducible
``repjax_accumulation``     the default order of sums: ``"pairwise"``, ``"sequential"``,
                            ``"order_independent"`` or ``"exact"``
``repjax_contraction``      that of matrix products and convolutions: ``"sequential"``,
                            ``"order_independent"`` or ``"exact"``
==========================  ==============================================================

Set them with ``jax.config.update(name, value)`` for the process, or for a block and the
current thread with :func:`enabled`; before Python starts, by ``REPJAX_ENABLE=1`` and the like.

**How it works.**  The state is a JAX user context, which is part of the key of every
tracing and compilation cache: toggling never serves a stale program.  One hook rewrites
the final jaxpr, after autodiff, on its way to lowering, where JAX has just turned
references into values (``jax._src.interpreters.pxla._discharge_refs_jaxpr``).  The hook is
private, so enabling it checks with canaries that it is alive, and refuses otherwise.  While the
switch is off, the same hook fuses what explicit functions have bound (:mod:`repjax.segments`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax.extend.core import Primitive
from jax.extend.core import primitives as stock
from jax.interpreters import ad, mlir

from repjax import cotangents, environment, rewrite, segments
from repjax.primitives.core.jax_internals import pxla, random_core, trace_state_clean
from repjax.primitives.core.tables import (
    PREFIX,
    Accumulation,
    Contraction,
    RefusedError,
    check_accumulation,
    check_contraction,
    check_orders,
    default_accumulation,
    default_contraction,
    orders,
)
from repjax.primitives.operations.arithmetic import FORMATS
from repjax.primitives.operations.elementary import DERIVATIVES
from repjax.primitives.operations.linalg import derivatives

#: Part of the key of JAX's caches.
_enabled = jax.make_user_context(False)
_lock = threading.RLock()


def is_enabled() -> bool:
    return _enabled.value


class State(NamedTuple):
    """What the options are on a thread."""

    enabled: bool
    accumulation: str
    contraction: str


def state() -> State:
    return State(is_enabled(), default_accumulation.value, default_contraction.value)


def _check_changeable(name: str, received, current) -> None:
    """Refuse another state inside a function that JAX is tracing.

    A traced program is rewritten when it is lowered, or if it is run operation by operation
    (``jax.grad`` without ``jax.jit``), its gradients are computed after the block: it would be in
    part of one state and in part of the other.
    """
    if received != current and not trace_state_clean():
        raise RuntimeError(
            f"{name}: expected to be set outside of functions that JAX is tracing (jit, grad, "
            f"vmap, scan, ...), where it is {current!r}, received {received!r} inside one; set it "
            "around the outermost call, or use @repjax.reproducible inside"
        )


@contextlib.contextmanager
def enabled(
    value: bool = True,
    *,
    accumulation: Accumulation | None = None,
    contraction: Contraction | None = None,
) -> Iterator[None]:
    """Within the block, and on this thread, everything JAX compiles is reproducible.

    ``with repjax.enabled(False):`` switches a global ``repjax_enable`` off for the block.

    Raises:
      RuntimeError: if this version of JAX does not let the switch work (canaries), or the state
        would change inside a function that JAX is tracing.
    """
    _check_bool("enabled", value)
    check_orders(accumulation, contraction)
    current = state()
    wanted = State(value, accumulation or current.accumulation, contraction or current.contraction)
    _check_changeable("repjax.enabled", wanted, current)
    if value and trace_state_clean():
        install()
    with _enabled(value), orders(accumulation, contraction):
        yield


@contextlib.contextmanager
def tracing(accumulation: str | None = None, contraction: str | None = None) -> Iterator[None]:
    """Within the block, traced derivatives are the contract's; see :func:`_override_derivative`.

    What is computed there and then (``jax.ensure_compile_time_eval``) is reproducible too.
    """
    pxla._discharge_refs_jaxpr = _discharge
    with _enabled(True), orders(accumulation, contraction):
        yield


def _check_bool(name: str, value) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}: expected True or False, received {value!r}")
    return value


class _Option:
    """A holder for ``jax.config.add_option``, by its reader and its writer."""

    def __init__(self, read, write):
        self._read, self._write = read, write

    @property
    def value(self):
        return self._read()

    def _set(self, value) -> None:
        with _lock:
            self._write(value)


def _add_option(name: str, kind: type, text: str, read, write) -> None:
    option = _Option(read, write)
    jax.config.add_option(name, option, kind, [], {"help": text})
    setattr(type(jax.config), name, property(lambda _: option.value))


def _set_enabled(value) -> None:
    _check_bool("repjax_enable", value)
    _check_changeable("repjax_enable", value, is_enabled())
    if value and trace_state_clean():
        install()
    _enabled.set_global(value)


def _set_order(name: str, context, check, value) -> None:
    _check_changeable(name, check(value), context.value)
    context.set_global(value)


_add_option(
    "repjax_enable",
    bool,
    "Make every program that JAX compiles bit-reproducible.",
    is_enabled,
    _set_enabled,
)
_add_option(
    "repjax_accumulation",
    str,
    "The default order of sums: pairwise, sequential, order_independent or exact.",
    lambda: default_accumulation.value,
    lambda value: _set_order(
        "repjax_accumulation", default_accumulation, check_accumulation, value
    ),
)
_add_option(
    "repjax_contraction",
    str,
    "The default order of products: sequential, order_independent or exact.",
    lambda: default_contraction.value,
    lambda value: _set_order("repjax_contraction", default_contraction, check_contraction, value),
)


def read_environment() -> None:
    """Set the options from ``REPJAX_ENABLE`` (0 or 1), ``REPJAX_ACCUMULATION``, ``_CONTRACTION``.

    As JAX does with its own when it is imported.  ``REPJAX_ENABLE=1`` starts JAX's backends, since
    the hook is tried there and then.

    Raises:
      ValueError: one of them has no such value.
    """
    for name in ("accumulation", "contraction"):
        if value := os.environ.get(f"REPJAX_{name.upper()}"):
            jax.config.update(f"repjax_{name}", value)
    value = os.environ.get("REPJAX_ENABLE", "")
    if value not in ("", "0", "1"):
        raise ValueError(f"REPJAX_ENABLE: expected 0 or 1, received {value!r}")
    if value == "1":
        jax.config.update("repjax_enable", True)


# --- the hook -------------------------------------------------------------------------

_stock_discharge = pxla._discharge_refs_jaxpr
_canary_p = Primitive("canary_without_a_rule")
_canary_p.def_abstract_eval(lambda x: x)
_canary_p.def_impl(lambda x: jax.jit(_canary_p.bind)(x))
mlir.register_lowering(_canary_p, lambda ctx, x: [x])


#: Called with each program that is compiled while they are here, before it is rewritten.
observers: list[Callable[[Any], None]] = []


def _discharge(*args):
    jaxpr, *rest = _stock_discharge(*args)
    for observer in observers:
        observer(jaxpr)
    jaxpr = rewrite.rewrite(jaxpr) if is_enabled() else segments.fused(jaxpr)
    return (jaxpr, *rest)


def install() -> None:
    """Install the hook, once, and prove that it is alive.

    Raises:
      RuntimeError: if a canary gets through, or the process computes in another way
        (:mod:`repjax.environment`).
    """
    environment.check()
    with _lock:
        if pxla._discharge_refs_jaxpr is _discharge and jax.stages.Compiled.__call__ is _call:
            return
        pxla._discharge_refs_jaxpr = _discharge
        jax.stages.Compiled.__call__ = _call
    with _enabled(True):
        x = jax.numpy.float32(1)
        canaries = {
            "eager": lambda: _canary_p.bind(x),
            "jit": lambda: jax.jit(lambda x: _canary_p.bind(x) + 1)(x),
            "nested jit": lambda: jax.jit(lambda x: jax.jit(_canary_p.bind)(x) + 1)(x),
        }
        for name, canary in canaries.items():
            try:
                canary()
            except RefusedError:
                continue
            pxla._discharge_refs_jaxpr = _stock_discharge
            jax.stages.Compiled.__call__ = _stock_call
            raise RuntimeError(
                f"repjax_enable: expected jax {jax.__version__} to lower every program through "
                f"repjax, received an unchecked one ({name}); use @repjax.reproducible, which "
                "needs no hook, or a version of jax that repjax is tested with (see the README)"
            )


# --- what was traced before --------------------------------------------------------------

#: In which state programs were traced (``jax.jit(f).trace(x)``); its derivatives are of that one.
_traced: weakref.WeakKeyDictionary[jax.stages.Traced, State | None] = weakref.WeakKeyDictionary()


def _mark_traced() -> None:
    """Refuse to lower or call a traced program in another state than that it was traced in."""
    cls = jax.stages.Traced
    stock = {name: getattr(cls, name) for name in ("__init__", "lower", "__call__")}

    def state_or_none():
        return state() if is_enabled() else None  # nothing depends on the orders then

    @functools.wraps(stock["__init__"])
    def init(traced, *args, **kwargs):
        stock["__init__"](traced, *args, **kwargs)
        _traced[traced] = state_or_none()

    def checked(name):
        @functools.wraps(stock[name])
        def method(traced, *args, **kwargs):
            before, now = _traced.get(traced), state_or_none()
            if before != now:
                raise RuntimeError(
                    "repjax: expected a traced program to be lowered and called as it was traced, "
                    f"with {before or 'repjax_enable off'}, received {now or 'repjax_enable off'}; "
                    "trace it again"
                )
            return stock[name](traced, *args, **kwargs)

        return method

    cls.__init__, cls.lower, cls.__call__ = init, checked("lower"), checked("__call__")


_mark_traced()

# --- what was compiled before ------------------------------------------------------------

_stock_call, _stock_compile = jax.stages.Compiled.__call__, jax.stages.Lowered.compile
#: Programs that are repjax's, or have been warned of.
_known: weakref.WeakSet[jax.stages.Compiled] = weakref.WeakSet()
#: A float array in HLO text, and the mark of a primitive of repjax.
_FLOATS = re.compile(r"\b(f16|bf16|f32|f64)\[")


@functools.wraps(_stock_compile)
def _compile(lowered, *args, **kwargs):
    """``Lowered.compile``; remembers programs with bodies of repjax, whose names XLA forgets."""
    compiled = _stock_compile(lowered, *args, **kwargs)
    module = lowered.compiler_ir("stablehlo")
    functions = () if module is None else module.body  # None: of a backend that has another form
    names = [f.attributes["sym_name"].value for f in functions if "sym_name" in f.attributes]
    if any(name.startswith(PREFIX) for name in names):
        _known.add(compiled)
    return compiled


jax.stages.Lowered.compile = _compile


def _call(compiled, *args, **kwargs):
    """``Compiled.__call__``; warns, once, of a program without repjax where the switch is on."""
    if is_enabled() and compiled not in _known:
        _known.add(compiled)
        text = compiled.as_text() or ""
        if _FLOATS.search(text) and PREFIX not in text:
            warnings.warn(
                "repjax_enable is on, but this program was compiled while it was off: its bits "
                "are those of plain JAX; lower and compile it again",
                stacklevel=2,
            )
    return _stock_call(compiled, *args, **kwargs)


# --- derivatives that differ between versions of JAX ------------------------------------


def _contract_is_active(x) -> bool:
    return is_enabled() and jax.typeof(x).dtype in FORMATS


def _override_derivative(primitive, contract_jvp) -> None:
    """Make JAX differentiate a stock primitive into the contract's graph.

    Programs are rewritten after autodiff, so where versions of JAX differentiate a function
    into different graphs, the bits of its gradient would depend on the version.  While repjax
    is active, the contract's graph is traced in all of them; otherwise JAX's own.
    """
    stock_jvp = ad.primitive_jvps[primitive]

    def jvp(primals, tangents, **params):
        if not _contract_is_active(primals[0]):
            return stock_jvp(primals, tangents, **params)
        result = primitive.bind(*primals, **params)
        if type(tangents[0]) is ad.Zero:
            return result, ad.Zero(jax.typeof(result).to_tangent_aval())
        return result, contract_jvp(tangents, result, *primals)

    ad.primitive_jvps[primitive] = jvp


for _primitive, _jvp in DERIVATIVES.items():
    _override_derivative(_primitive, _jvp)


def _override_factorizations() -> None:
    """The same for ``cholesky`` and ``eigh``."""
    cholesky, eigh = (ad.primitive_jvps[p] for p in (stock.cholesky_p, stock.eigh_p))

    def cholesky_jvp(primals, tangents, **params):
        if _contract_is_active(primals[0]):
            tangents = [derivatives.symmetric_by_lower_triangle(tangents[0])]
        return cholesky(primals, tangents, **params)

    def eigh_jvp(primals, tangents, **params):
        (v, w), stock_tangents = eigh(primals, tangents, **params)
        if not _contract_is_active(primals[0]):
            return (v, w), stock_tangents
        return (v, w), derivatives.eigh(tangents[0], v, w)

    ad.primitive_jvps[stock.cholesky_p] = cholesky_jvp
    ad.primitive_jvps[stock.eigh_p] = eigh_jvp


_override_factorizations()


def _keep_value(primitive) -> None:
    """Make the value that JAX computes along with a derivative the one that it has without.

    JAX differentiates these primitives through other algorithms.  The derivative stays JAX's.
    """
    stock_jvp = ad.primitive_jvps[primitive]

    def jvp(primals, tangents, **params):
        result, tangent = stock_jvp(primals, tangents, **params)
        if _contract_is_active(primals[0]):
            result = primitive.bind(*primals, **params)
        return result, tangent

    ad.primitive_jvps[primitive] = jvp


for _primitive in (stock.reduce_prod_p, stock.cumprod_p, stock.scatter_p):
    _keep_value(_primitive)

cotangents.add_at_once(is_enabled)

# --- samplers ---------------------------------------------------------------------------


def _end_binomial() -> None:
    """Make ``jax.random.binomial`` end for a probability of exactly 0 or 1.

    JAX counts the geometric steps ``ceil(log(u) / log1p(-p))`` that fit into the trials.  For
    p = 0 its quotient is inf, by a division by -0, which a canonical program does not have:
    the loop would go on for ever.  While repjax is active, such elements are not in it.
    """
    stock_inversion = random_core._binomial_inversion

    def inversion(key, count, probability, *args):
        if not _contract_is_active(probability):
            return stock_inversion(key, count, probability, *args)
        never = probability == 0
        count = jax.numpy.where(never, -1, count)
        probability = jax.numpy.where(never, 0.5, probability)
        return jax.numpy.where(never, 0, stock_inversion(key, count, probability, *args))

    random_core._binomial_inversion = inversion


_end_binomial()
