"""Objects of Flax NNX: a function of them as a function of trees of arrays.

NNX's modules, optimizers, metrics, random streams and variables are updated in place, whereas JAX
hands a function copies.  :class:`Split` therefore does what ``nnx.jit`` does.  The objects among
the arguments are split into a description of their graph, which is static, and their arrays.  The
function of trees merges them, calls the function of objects, and splits what the objects have
become along with the result.  This is then written back to the objects that were given: new values
and variables, other attributes, references that are shared.

What repjax uses of NNX in order to do so stands here.  NNX is not imported here: where it has not
been imported there are no objects.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, overload

import jax

from repjax.primitives.core.jax_internals import trace_state_clean
from repjax.tracebacks import boundary

_flatten_one_level = jax.tree_util.default_registry.flatten_one_level
#: Types of values that are leaves, which every call meets again.
_LEAVES: set[type] = set()


def loaded() -> Any:
    """The module ``flax.nnx``; None where it has not been imported: there are no objects then."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None or getattr(nnx.__spec__, "_initializing", False):
        return None
    return nnx


def find(tree: Any) -> Any:
    """An object of NNX in a tree, which JAX could not flatten, as it may hold itself; or None.

    A variable in an ``nnx.State`` is none: a state is a tree of values like any other.
    """
    nnx = loaded()
    return None if nnx is None else _find(nnx, (tree,))


def _find(nnx: Any, children: Iterable[Any]) -> Any:
    for x in children:
        kind = type(x)
        if kind in _LEAVES:
            continue
        if kind is dict:
            found = _find(nnx, x.values())
        elif kind is tuple or kind is list:
            found = _find(nnx, x)
        elif isinstance(x, (nnx.Pytree, nnx.Variable)):
            return x
        elif isinstance(x, (nnx.State, nnx.statelib.FlatState)):
            continue
        elif (parts := _flatten_one_level(x)) is None:
            _LEAVES.add(kind)
            continue
        else:
            found = _find(nnx, parts[0])
        if found is not None:
            return found
    return None


class _Held(NamedTuple):
    """The value of a reference (``jax.new_ref``), in place of the reference."""

    value: Any


def _hold(tree: Any) -> tuple[Any, list[Any]]:
    """The tree with the values of its references, and the references."""
    references = []

    def hold(x):
        if not isinstance(x, jax.Ref):
            return x
        references.append(x)
        return _Held(x[...])

    return jax.tree.map(hold, tree), references


def _release(tree: Any) -> tuple[Any, list[Any]]:
    """The tree with new references in place of the values of others, and the references."""
    references = []

    def release(x):
        if not isinstance(x, _Held):
            return x
        references.append(jax.new_ref(x.value))
        return references[-1]

    return jax.tree.map(release, tree, is_leaf=lambda x: isinstance(x, _Held)), references


def _split(context, path, prefix, x):
    return loaded().NodeStates.from_split(*context.flatten(x, with_paths=False))


def _refuse_hijax(trees: Any) -> None:
    nnx = loaded()
    for node in jax.tree.leaves(trees, is_leaf=lambda x: isinstance(x, nnx.NodeStates)):
        for part in node.graphdef.nodes if isinstance(node, nnx.NodeStates) else ():
            if isinstance(part, nnx.graphlib.VariableDef) and part.metadata.get("hijax"):
                raise TypeError(
                    "repjax: expected variables of Flax NNX that can be split, received a "
                    f"{part.type.__name__} that was made with hijax=True; make it without, or with "
                    "ref=True"
                )


def _merge(context, path, prefix, node):
    return context.unflatten(node.graphdef, *node.states)


def graphs(trees: Any) -> list[Any]:
    """The descriptions of the objects that have been split in trees."""
    nnx = loaded()
    nodes = jax.tree.leaves(trees, is_leaf=lambda x: isinstance(x, nnx.NodeStates))
    return [x.graphdef.with_no_outer_index() for x in nodes if isinstance(x, nnx.NodeStates)]


def check_level(tree: Any) -> None:
    """Raise, as Flax does, for objects that were made outside of what JAX is tracing.

    They cannot be written to; and Flax finds out after it has begun to.
    """
    loaded().to_tree(tree, prefix=True, split_fn=lambda *_: None, check_aliasing=True)


class Split:
    """A function of objects of NNX, split into a function of trees and what is done around it."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function

        @functools.wraps(function)
        def of_trees(*trees, **named):
            return self._of_trees(trees, named)

        self.of_trees = of_trees

    def _of_trees(self, trees, named):
        """What the arguments have become, where they are objects; the result; references."""
        nnx = loaded()
        _refuse_hijax((trees, named))
        (trees, named), references = _release((trees, named))
        args, kwargs = nnx.from_tree((trees, named), merge_fn=_merge, is_inner=True, ctxtag=self)
        result = self._function(*args, **kwargs)

        def is_object(x):
            return isinstance(x, nnx.Variable) or nnx.graphlib.is_graph_node(x)

        objects = jax.tree.map(
            lambda x: x if is_object(x) else None, (args, kwargs), is_leaf=is_object
        )
        changed = nnx.to_tree((objects, result), split_fn=_split, ctxtag=self)
        _refuse_hijax(changed)
        return *changed, [x[...] for x in references]

    def split(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The trees of arguments, for :attr:`of_trees`, and the references among them."""
        return _hold(loaded().to_tree((args, kwargs), split_fn=_split, ctxtag=self))

    def call(self, transformed: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result of ``transformed``, which was made of :attr:`of_trees`, on objects."""
        if not trace_state_clean():
            check_level((args, kwargs))
        with self.context():
            (trees, named), references = self.split(args, kwargs)
            *changed, values = transformed(*trees, **named)
            for reference, value in zip(references, values, strict=True):
                reference[...] = value
            return self.merge(changed)

    def context(self) -> Any:
        """Within it, objects that are split are those that are merged."""
        return loaded().update_context(self)

    def merge(self, changed: Any) -> Any:
        """The result, with what the objects have become written back to them."""
        _, result = loaded().from_tree(tuple(changed), merge_fn=_merge, is_inner=False, ctxtag=self)
        return result


class _Stage:
    """A stage of a function of objects on its way to the machine, used as JAX's own stages are.

    It takes objects where JAX's takes the trees; everything else is that of JAX.
    """

    def __init__(self, stage: Any, split: Split):
        self._stage, self._split = stage, split

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def lower(self, **options: Any) -> _Stage:
        return _Stage(self._stage.lower(**options), self._split)

    def compile(self, *args: Any, **options: Any) -> _Stage:
        return _Stage(self._stage.compile(*args, **options), self._split)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._split.call(self._stage, args, kwargs)


def _static_arguments(fn: Callable[..., Any], options: dict[str, Any]) -> tuple[list, list]:
    """The numbers and names of the arguments that ``jax.jit`` takes to be static."""
    numbers, names = options.get("static_argnums"), options.get("static_argnames")
    numbers = [numbers] if isinstance(numbers, int) else numbers
    names = [names] if isinstance(names, str) else names
    if (numbers is None) != (names is None):
        parameters = list(inspect.signature(fn).parameters)
        if names is None:
            names = [parameters[i] for i in numbers if i < len(parameters)]
        else:
            numbers = [i for i, name in enumerate(parameters) if name in names]
    return list(numbers or ()), list(names or ())


def _check_static(fn: Callable[..., Any], options: dict[str, Any], args: Any, kwargs: Any) -> None:
    numbers, names = _static_arguments(fn, options)
    static = {f"args[{i}]": args[i] for i in numbers if -len(args) <= i < len(args)}
    static |= {f"kwargs[{name!r}]": kwargs[name] for name in names if name in kwargs}
    for place, value in static.items():
        if (x := find(value)) is not None:
            raise TypeError(
                f"repjax.reproducible({getattr(fn, '__name__', fn)}): expected an nnx object not "
                f"to be a static argument, received {place} of type {type(x).__name__}, whose "
                "updates would be lost; leave it out of static_argnums and static_argnames"
            )


class _ObjectsReturned(Exception):
    """A function of arrays turned out to return objects."""


P = ParamSpec("P")
R = TypeVar("R", covariant=True)
Q = ParamSpec("Q")
S = TypeVar("S")


class Jitted(Generic[P, R]):
    """A function of arrays, or of objects of NNX, by one that compiles functions of arrays.

    It is used as what ``jax.jit`` returns.  It is taken for one of arrays until it is given objects
    or returns some.  (A class, since what wraps a function takes over the attributes that it has.)

    Args:
      fn: the function.
      compiled: called with a function of trees of arrays and options of ``jax.jit``; it returns
        what ``jax.jit`` does.
      options: those of ``jax.jit``, for ``fn``.
    """

    def __init__(
        self,
        fn: Callable[P, R],
        compiled: Callable[[Callable[..., Any], dict[str, Any]], Any],
        options: dict[str, Any],
    ):
        @functools.wraps(fn)
        def of_arrays(*args, **kwargs):
            result = fn(*args, **kwargs)
            if find(result) is not None:
                raise _ObjectsReturned
            return result

        functools.update_wrapper(self, fn, updated=())  # not what another of this class has
        self._fn, self._compiled, self._options = fn, compiled, options
        self._of_arrays = compiled(of_arrays, options)
        self._split = Split(fn)
        self._returns_objects = False

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Jitted[P, R]: ...

    @overload
    def __get__(
        self: Jitted[Concatenate[S, Q], R], instance: S, owner: type | None = None
    ) -> Callable[Q, R]: ...

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    @functools.cached_property
    def _of_trees(self) -> Any:
        of_result = self._options.get("out_shardings")
        shardings = {} if of_result is None else {"out_shardings": (None, of_result, None)}
        return self._compiled(self._split.of_trees, {**self._options, **shardings})

    def _either(self, of_arrays, of_objects, args, kwargs) -> Any:
        if not self._returns_objects and find((args, kwargs)) is None:
            try:
                return of_arrays(*args, **kwargs)
            except _ObjectsReturned:
                self._returns_objects = True
        _check_static(self._fn, self._options, args, kwargs)
        return of_objects(args, kwargs)

    @boundary
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._either(self._of_arrays, self._on_objects, args, kwargs)

    def _on_objects(self, args, kwargs):
        return self._split.call(self._of_trees, args, kwargs)

    @boundary
    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The lowered function for arguments, as of ``jax.jit``."""
        return self._stage("lower", args, kwargs)

    @boundary
    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """The traced function for arguments, as of ``jax.jit``."""
        return self._stage("trace", args, kwargs)

    def _stage(self, name, args, kwargs):
        def of_objects(args, kwargs):
            with self._split.context():
                (trees, named), _ = self._split.split(args, kwargs)
                return _Stage(getattr(self._of_trees, name)(*trees, **named), self._split)

        return self._either(getattr(self._of_arrays, name), of_objects, args, kwargs)

    @boundary
    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes and types of the result, as of ``jax.jit``; objects stay what they are."""

        def of_objects(args, kwargs):
            return self._split.call(self._of_trees.eval_shape, *loaded().clone((args, kwargs)))

        return self._either(self._of_arrays.eval_shape, of_objects, args, kwargs)

    def clear_cache(self) -> None:
        """Forget what has been compiled."""
        self._of_arrays.clear_cache()
        self._of_trees.clear_cache()
