"""repjax.reproducible: what it refuses, what it keeps, what it makes canonical."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive
from jax.interpreters import mlir

import repjax
from helpers.bits import SPECIALS, assert_same_bits, canonical, normal, patterns, same_bits
from repjax.explicit import explicit
from repjax.primitives.cpu import library

X = normal((4, 4))

# --- refusals ---------------------------------------------------------------------------


def _callback(x):
    return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def _rbg(x):
    return x + jax.random.uniform(jax.random.key(0, impl="rbg"), x.shape)


# What is used, and what the message says of it.
REFUSED = {
    "platform": (
        lambda x: lax.platform_dependent(x, cuda=jnp.sin, rocm=jnp.cos),
        "platform_dependent expected a default or a branch for cpu",
    ),
    "complex": (
        lambda x: jnp.sqrt(x * 1j).imag,
        "sqrt on complex numbers has no reproducible form; use pairs of real arrays",
    ),
    "rbg": (_rbg, "rng_bit_generator has no reproducible form; draw with threefry"),
    "callback": (_callback, "pure_callback has no reproducible form; compute it in JAX"),
    "eigenvalues": (
        lambda x: jnp.abs(jnp.linalg.eigvals(x)),
        "eig has no reproducible form; factor with",
    ),
    "hessenberg": (lambda x: lax.linalg.hessenberg(x)[0], "hessenberg has no reproducible form"),
    "approximate top_k": (
        lambda x: lax.approx_max_k(x, 1)[0],
        "approx_top_k has no reproducible form; use jax.lax.top_k",
    ),
    "scatter": (lambda x: x.at[0].apply(jnp.sin), "x.at[i].set(f(x[i]))"),
}
each_refused = pytest.mark.parametrize("name", REFUSED)


def _line(function):
    """File and line of a function of one line, or of its first statement."""
    code = function.__code__
    lines = sorted({line for *_, line in code.co_lines() if line})
    return f"{code.co_filename}:{lines[-1] if code.co_name != '<lambda>' else lines[0]}"


@each_refused
def test_refusals_name_the_operation_and_the_line(name):
    function, text = REFUSED[name]
    with pytest.raises(repjax.RefusedError) as caught:
        repjax.reproducible(function)(X)
    message = str(caught.value)
    assert text in message
    assert _line(function) in message
    with repjax.enabled(), pytest.raises(repjax.RefusedError, match=re.escape(text)):
        jax.jit(function)(X)


@each_refused
def test_eager_operations_are_refused_too(name):
    function, _ = REFUSED[name]
    with repjax.enabled(), pytest.raises(repjax.RefusedError) as caught:
        function(jnp.asarray(X))
    assert __file__ in str(caught.value)


def test_float64_is_refused():
    with jax.enable_x64(True):
        x = X.astype(np.float64)
        with pytest.raises(
            repjax.RefusedError, match=r"div expected .* received float64"
        ) as caught:
            repjax.reproducible(lambda x: x / 3)(x)
        assert "or turn jax_enable_x64 off" in str(caught.value)
        with pytest.raises(repjax.RefusedError, match=r"sin expected .* received float64"):
            repjax.reproducible(lambda x: jnp.sin(x.astype(np.float64)))(X)


def test_float32_under_x64_is_the_same():
    def f(x):
        return jnp.tanh(x) @ x + x.mean()

    expected = repjax.reproducible(f)(X)
    with jax.enable_x64(True):
        assert_same_bits(repjax.reproducible(f)(X), expected)


def test_all_refusals_are_listed_at_once():
    def f(x):
        y = jnp.sqrt(jnp.fft.rfft(x)).real
        y = jnp.exp(x[:, :3]) * y
        y = y + lax.approx_max_k(y, 3)[0]
        return lax.linalg.hessenberg(y[:3])

    with pytest.raises(repjax.RefusedError) as caught:
        repjax.reproducible(f)(X)
    lines = str(caught.value).splitlines()
    first = f.__code__.co_firstlineno
    listed = [line for line in lines if line.startswith("  ")]
    for offset, text in (1, "sqrt on complex numbers"), (3, "approx_top_k"), (4, "hessenberg"):
        place = f"{__file__}:{first + offset}"
        assert any(place in line and text in line for line in listed), (place, text)
    assert not any(f"{__file__}:{first + 2}" in line for line in listed)  # exp is fine
    assert f"refuses {len(listed)} operation(s)" in lines[0]
    assert "docs/numerics.md" in lines[-1]


def _bad(x):
    return lax.approx_max_k(x, x.shape[-1])[0] + x


def _custom_vjp(f):
    g = jax.custom_vjp(f)
    g.defvjp(lambda x: (f(x), x), lambda x, ct: (ct,))
    return g


def _custom_vjp_backward(f):
    g = jax.custom_vjp(lambda x: x)
    g.defvjp(lambda x: (x, x), lambda x, ct: (f(ct),))
    return lambda x: jax.vjp(g, x)[1](x)[0]


def _custom_jvp(f):
    g = jax.custom_jvp(f)
    g.defjvp(lambda x, t: (f(x[0]), t[0]))
    return g


CONTAINERS = {
    "nothing": lambda f: f,
    "jit": jax.jit,
    "nested jit": lambda f: jax.jit(lambda x: jax.jit(f)(x) + 1),
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, 2)[0],
    "fori_loop": lambda f: lambda x: lax.fori_loop(0, 2, lambda _, c: f(c), x),
    "while": lambda f: (
        lambda x: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, f(c[1])), (0, x))[1]
    ),
    "while condition": lambda f: (
        lambda x: lax.while_loop(
            lambda c: (c[0] < 2) & (f(c[1]).sum() < 1e9), lambda c: (c[0] + 1, c[1] + 1), (0, x)
        )[1]
    ),
    "cond": lambda f: lambda x: lax.cond(x[0, 0] > 0, f, lambda x: x, x),
    "switch": lambda f: lambda x: lax.switch(1, [lambda x: x, lambda x: -x, f], x),
    "map": lambda f: lambda x: lax.map(f, x),
    "vmap": jax.vmap,
    "remat": jax.checkpoint,
    "remat and grad": lambda f: jax.value_and_grad(lambda x: jax.checkpoint(f)(x).sum()),
    "custom_jvp": _custom_jvp,
    "custom_vjp": _custom_vjp,
    "custom_vjp backward": _custom_vjp_backward,
    "all of them": lambda f: (
        lambda x: lax.scan(
            lambda c, _: (lax.cond(c.sum() > 0, jax.checkpoint(jax.jit(f)), lambda x: x, c), None),
            x,
            None,
            3,
        )[0]
    ),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_refusals_inside_other_operations(name):
    function = CONTAINERS[name](_bad)
    # JAX gives the operations of a backward function the line where the forward one is used.
    place = f"{__file__}:" if name == "custom_vjp backward" else _line(_bad)
    for run in repjax.reproducible(function), jax.jit(function):
        with repjax.enabled(), pytest.raises(repjax.RefusedError) as caught:
            run(X)
        assert place in str(caught.value)
        assert "approx_top_k has no reproducible form" in str(caught.value)


@pytest.mark.parametrize("name", CONTAINERS)
def test_constants_of_rewritten_programs_inside_other_operations(name):
    """A Fourier transform is a product with constants, which the stock program does not have."""

    def by(transform):
        return lambda x: transform(x.reshape(*x.shape[:-1], 2, 2)).reshape(x.shape)

    cosines = np.array([[1, 1], [1, -1]], np.float32)
    transforms = by(lambda x: jnp.fft.fft(x).real), by(lambda x: x @ cosines)
    function, expected = map(CONTAINERS[name], transforms)
    assert_same_bits(repjax.reproducible(function)(X), repjax.reproducible(expected)(X))


def test_what_nobody_uses_is_not_refused():
    def function(x):
        return jax.jit(lambda x: (_bad(x), x + 1))(x)[1]

    for run in repjax.reproducible(function), jax.jit(function):
        with repjax.enabled():
            assert_same_bits(run(X), X + 1)


@pytest.mark.parametrize("name", CONTAINERS)
def test_contents_of_other_operations_are_rewritten(name):
    """The same containers around something allowed give the bits of doing without them."""

    def good(x):
        return jnp.tanh(x * 0.7 + 0.1) / 3

    function = CONTAINERS[name](good)
    with repjax.enabled():
        eager = function(jnp.asarray(X))
    assert_same_bits(repjax.reproducible(function)(X), eager)


def test_nothing_runs_when_something_is_refused():
    calls = []

    def f(x):
        x = jax.pure_callback(
            lambda x: calls.append(x) or x, jax.ShapeDtypeStruct(x.shape, x.dtype), x
        )
        return lax.approx_max_k(x, 4)[0]

    for run in repjax.reproducible(f), jax.jit(repjax.reproducible(f)):
        with pytest.raises(repjax.RefusedError):
            run(X)
    with repjax.enabled(), pytest.raises(repjax.RefusedError):
        jax.jit(f)(X)
    assert calls == []


def test_refusal_is_not_remembered():
    """The same function runs once it is no longer refused."""
    f = jax.jit(lambda x: lax.approx_max_k(x, 4)[0])
    with repjax.enabled(), pytest.raises(repjax.RefusedError):
        f(X)
    stock = f(np.abs(X))
    assert np.isfinite(stock).all()


# --- what is passed through, expanded or chosen ------------------------------------------


def test_the_same_branch_is_taken_on_every_platform():
    """The default; on the platform of these tests, JAX takes the branch for cpu."""
    cpu, default, other = (lambda x, n=n: x + n for n in (1, 2, 3))
    run = repjax.reproducible(lambda x: lax.platform_dependent(x, cpu=cpu, default=default))
    assert_same_bits(run(X), X + np.float32(2))
    run = repjax.reproducible(lambda x: lax.platform_dependent(x, cuda=other, cpu=cpu))
    assert_same_bits(run(X), X + np.float32(1))
    with repjax.enabled():
        eager = lax.platform_dependent(jnp.asarray(X), cpu=cpu, default=default)
    assert_same_bits(eager, X + np.float32(2), "eager")


def test_debugging_shows_values_and_changes_none(capfd):
    seen = []

    def f(x):
        jax.debug.callback(lambda x: seen.append(np.asarray(x)), x)
        jax.debug.print("sum {}", x.sum())
        return x * 2

    assert_same_bits(repjax.reproducible(f)(X), X * 2)
    with repjax.enabled():
        assert_same_bits(jax.jit(f)(X), X * 2)
    jax.effects_barrier()
    assert len(seen) == 2
    assert_same_bits(seen[0], X)
    assert capfd.readouterr().out.count("sum ") == 2


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="jax 0.12 brought lax.polynomial")
def test_polynomial_is_horners_rule():
    coefficients = [0.3, -1.7, 0.9, 2.1]
    value = np.full_like(X, np.float32(coefficients[-1]))
    for c in coefficients[-2::-1]:
        value = canonical(canonical(value * X) + np.float32(c))
    run = repjax.reproducible(lambda x: lax.polynomial(x, coefficients))
    assert_same_bits(run(X), value)


def test_masks_and_integers_are_converted_in_contractions():
    mask, count = X > 0, np.arange(4, dtype=np.int32)
    numbers = (((0,), (0,)), ((), ()))
    for other in mask, count:
        run = repjax.reproducible(
            lambda a, x: lax.dot_general(a, x, numbers, preferred_element_type=np.float32)
        )
        want = repjax.reproducible(lambda a, x: lax.dot_general(a, x, numbers))
        assert_same_bits(run(other, X), want(other.astype(np.float32), X))


def test_functions_that_newer_versions_make_primitives():
    """einsum, searchsorted and others; and names and composites."""
    a = np.sort(X[0])

    def f(x):
        y = jax.lax.composite(lambda x: jnp.einsum("ij,kj->ik", x, x), "repjax.test")(x)
        return checkpoint_name(y, "y"), jnp.searchsorted(a, x)

    want = repjax.reproducible(lambda x: x @ x.T)(X), np.searchsorted(a, X).astype(np.int32)
    assert_same_bits(repjax.reproducible(f)(X), want)


def _primitive_of_a_library(function, multiple_results=False):
    """As other libraries make them: a function, whose lowering is JAX's for all platforms."""
    primitive = Primitive("of_a_library")
    primitive.multiple_results = multiple_results
    primitive.def_impl(function)
    primitive.def_abstract_eval(
        lambda *avals, **params: jax.tree.map(
            lambda x: jax.core.ShapedArray(x.shape, x.dtype),
            jax.eval_shape(functools.partial(function, **params), *avals),
        )
    )
    lowering = mlir.lower_fun(function, multiple_results=multiple_results)
    mlir.register_lowering(primitive, lowering)
    return primitive


def test_primitives_of_other_libraries_are_their_functions():
    def several(x, *, power):
        return [jnp.sum(jnp.exp(x), 0), x**power, lax.population_count(lax.iota(np.int32, 3))]

    one = _primitive_of_a_library(lambda x: jax.nn.softmax(x @ x))
    more = _primitive_of_a_library(several, multiple_results=True)
    want = repjax.reproducible(lambda x: (jax.nn.softmax(x @ x), *several(x, power=3)))(X)

    def function(x):
        return one.bind(x), *more.bind(x, power=3)

    assert_same_bits(repjax.reproducible(function)(X), want)
    with repjax.enabled():
        assert_same_bits(jax.jit(function)(X), want)
        assert_same_bits(list(function(jnp.asarray(X))), list(want))
    with pytest.raises(repjax.RefusedError, match="of_a_library inside an explicit repjax fun"):
        repjax.explicit.explicit(function)(X)


def test_refusals_inside_primitives_of_other_libraries():
    primitive = _primitive_of_a_library(lambda x: jnp.sort(lax.approx_max_k(x, 2)[0]))
    with pytest.raises(repjax.RefusedError, match="approx_top_k has no reproducible form"):
        repjax.reproducible(primitive.bind)(X)


# --- constants that are computed while tracing -----------------------------------------------


def test_what_is_computed_while_tracing_is_reproducible():
    """By ``jax.ensure_compile_time_eval``: with the switch, and inside a decorated function."""

    def staged(x):
        return x * jnp.exp(X) + jax.nn.softmax(jnp.asarray(X)) @ X

    def evaluated(x):
        with jax.ensure_compile_time_eval():
            factor, term = jnp.exp(jnp.asarray(X)), jax.nn.softmax(jnp.asarray(X)) @ X
        assert not isinstance(term, jax.core.Tracer)
        return x * factor + term

    want = repjax.reproducible(staged)(X)
    assert_same_bits(repjax.reproducible(evaluated)(X), want)
    with repjax.enabled():
        assert_same_bits(jax.jit(evaluated)(X), want)
        assert_same_bits(evaluated(jnp.asarray(X)), want)
        with jax.ensure_compile_time_eval():
            assert_same_bits(staged(jnp.asarray(X)), want)
            assert_same_bits(jax.jit(staged)(X), want)
    with jax.ensure_compile_time_eval():
        assert_same_bits(repjax.reproducible(staged)(X), want)
        assert_same_bits(repjax.lax.exp(X), repjax.reproducible(jnp.exp)(X))
    orders = [
        np.asarray(repjax.reproducible(accumulation=order)(lambda x: _sum_while_tracing() + x)(X))
        for order in ("pairwise", "sequential")
    ]
    assert not same_bits(*orders)
    for order, result in zip(("pairwise", "sequential"), orders, strict=True):
        run = repjax.reproducible(accumulation=order)(lambda x: jnp.sum(LONG) + x)
        assert_same_bits(result, run(X), order)


LONG = normal((1000,), 7)


def _sum_while_tracing():
    with jax.ensure_compile_time_eval():
        return jnp.sum(LONG)


# --- derivatives --------------------------------------------------------------------------

DERIVATIVES = {
    "grad": jax.grad,
    "value_and_grad": jax.value_and_grad,
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "hessian": jax.hessian,
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    "vjp": lambda f: lambda x: jax.vjp(f, x),
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(x[None])[0]),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_differentiating_the_result_raises_with_the_remedy(name):
    f = repjax.reproducible(lambda x: jnp.tanh(x).sum())
    remedy = re.escape("repjax.reproducible(jax.grad(f)) instead of")
    with pytest.raises(TypeError, match=remedy):
        DERIVATIVES[name](f)(X)


def test_parts_that_are_not_differentiated_may_be_reproducible():
    scale = repjax.reproducible(lambda x: x.max())
    gradient = jax.grad(lambda x: (x / lax.stop_gradient(scale(lax.stop_gradient(x)))).sum())
    assert np.isfinite(gradient(X)).all()


# --- calling conventions --------------------------------------------------------------------


def _double(x):
    return x + x


def test_it_is_a_decorator_with_and_without_arguments():
    @repjax.reproducible
    def f(x):
        """The documentation of f."""
        return _double(x)

    @repjax.reproducible(accumulation="sequential")
    def g(x):
        return _double(x)

    assert (f.__name__, f.__doc__) == ("f", "The documentation of f.")
    for run in f, g:
        assert_same_bits(run(X), X + X)


def test_static_arguments():
    @functools.partial(repjax.reproducible, static_argnums=1, static_argnames="kind")
    def f(x, n, kind="sum"):
        assert isinstance(n, int)
        assert isinstance(kind, str)
        return getattr(jnp, kind)(x) if n else x

    assert_same_bits(f(X, 0), X)
    assert_same_bits(f(X, 1, kind="max"), X.max())


def test_donated_arguments():
    f = repjax.reproducible(lambda x, y: (x + 1) * y, donate_argnums=0)
    x = jnp.asarray(X)
    assert_same_bits(f(x, X), canonical((X + np.float32(1)) * X))
    assert x.is_deleted()


def test_trees_keywords_none_and_other_types():
    @repjax.reproducible
    def f(tree, *, scale=None, mask, key):
        flat = {k: v * 2 for k, v in tree["a"].items()}
        nothing = () if scale is None else scale
        return {"a": flat, "n": None, "key": jax.random.fold_in(key, 1)}, [mask, ~mask], nothing

    key, mask = jax.random.key(3), np.array([True, False])
    tree = {"a": {"x": X, "i": np.arange(3, dtype=np.int32), "u": np.uint8([1, 2])}}
    out = f(tree, mask=mask, key=key)
    expected = {"x": X * 2, "i": np.int32([0, 2, 4]), "u": np.uint8([2, 4])}
    with repjax.enabled():
        folded = jax.random.fold_in(key, 1)
    assert_same_bits(out, ({"a": expected, "n": None, "key": folded}, [mask, ~mask], ()))
    assert f(tree, scale=None, mask=mask, key=key)[2] == ()
    assert_same_bits(f(tree, scale=np.int32(7), mask=mask, key=key)[2], np.int32(7))


def test_integers_are_untouched():
    i = patterns(1000, 1, np.int32)
    f = repjax.reproducible(lambda i, u: (i // 7, i % 5, u * 3, i << 2, jnp.sort(i), u.sum()))
    u = i.view(np.uint32)
    stock = jax.jit(lambda i, u: (i // 7, i % 5, u * 3, i << 2, jnp.sort(i), u.sum()))
    assert_same_bits(f(i, u), stock(i, u))


def _wrapped(x, info):
    """Integers as those of a type, two's complement."""
    return (np.asarray(x, np.int64) - info.min) % (int(info.max) - info.min + 1) + info.min


def _quotient(x, y):
    towards_zero = np.sign(x) * np.sign(y) * (np.abs(x) // np.maximum(np.abs(y), 1))
    return np.where(y == 0, -1, towards_zero)


#: Of integers, as JAX has them and as they are in Python.
ON_INTEGERS = {
    "add": (lax.add, np.add),
    "sub": (lax.sub, np.subtract),
    "mul": (lax.mul, np.multiply),
    "div": (lax.div, _quotient),
    "rem": (lax.rem, lambda x, y: np.where(y == 0, x, x - y * _quotient(x, y))),
    "and": (lax.bitwise_and, np.bitwise_and),
    "max": (lax.max, np.maximum),
    "neg": (lambda x, y: lax.neg(x), lambda x, y: -x),
    "of x twice": (lambda x, y: lax.div(x, x), lambda x, y: _quotient(x, x)),
}
TO_OTHERS = {
    "eq": (lax.eq, np.equal),
    "lt": (lax.lt, np.less),
    "int8": (lambda x, y: x.astype("int8"), lambda x, y: x.astype("int8")),
    "uint8": (lambda x, y: x.astype("uint8"), lambda x, y: x.astype("uint8")),
    "int32": (lambda x, y: x.astype("int32"), lambda x, y: x.astype("int32")),
    "float32": (lambda x, y: x.astype("float32"), lambda x, y: x.astype("float32")),
    "max of all": (lambda x, y: x.max(), lambda x, y: x.max()),
    "sorted": (lambda x, y: jnp.sort(x), lambda x, y: np.sort(x)),
}


@pytest.mark.parametrize("name", ["int2", "uint2", "int4", "uint4", "int8", "uint32"])
def test_each_two_operations_on_integers(name):
    """XLA takes x / x for 1 where x is 0, in some versions, and does not cut off what is more than
    4 bits before it converts to 8: with and without an operation before."""
    info = jnp.iinfo(name)
    some = {0, 1, 2, 3, 7, info.max, info.max // 3, info.min, info.min // 2, -1, -2}
    few = range(info.min, info.max + 1) if info.bits < 8 else some
    numbers = np.array(sorted(n for n in few if info.min <= n <= info.max), np.int64)
    x, y = (a.ravel() for a in np.meshgrid(numbers, numbers))

    def program(x, y):
        firsts = {first: f(x, y) for first, (f, _) in ON_INTEGERS.items()}
        both = ON_INTEGERS | TO_OTHERS
        return {
            first: [[f(r, y), f(y, r)] for f, _ in both.values()] for first, r in firsts.items()
        }

    expected = {}
    for first, (_, f) in ON_INTEGERS.items():
        r = _wrapped(f(x, y), info)
        same = [[_wrapped(g(*p), info) for p in ((r, y), (y, r))] for _, g in ON_INTEGERS.values()]
        expected[first] = same + [[g(r, y), g(y, r)] for _, g in TO_OTHERS.values()]
    results = repjax.reproducible(program)(*(jnp.asarray(a).astype(name) for a in (x, y)))
    assert_same_bits(
        *(jax.tree.map(lambda a: np.asarray(a).astype(np.float64), t) for t in (results, expected))
    )


@pytest.mark.parametrize("count", [lax.population_count, lax.clz])
def test_bits_of_narrow_integers_are_not_counted(count):
    with pytest.raises(repjax.RefusedError, match=r"expected integers of 8 bits or more.*int4"):
        repjax.reproducible(lambda x: count(x.astype("int4")))(np.arange(4))


@pytest.mark.parametrize("name", ["int2", "uint2", "int4", "uint4"])
def test_narrow_integers(name):
    """Compared with what they are as integers of 32 bits: plain JAX does not sort them right."""
    narrow, info = getattr(jnp, name), jnp.iinfo(name)
    least, most = int(info.min), int(info.max)
    numbers = np.arange(least, most + 1, dtype=np.int32)
    x = np.stack([np.random.default_rng(k).permutation(numbers) for k in range(3)])
    floats = np.float32([-np.inf, -9, -8.9, -2.5, -0.7, 0, 0.9, 1.5, 2.9, 7.6, 8, 99, np.inf])
    floats = np.append(floats, np.float32(np.nan))

    def program(x, floats):
        x = x.astype(narrow)
        halves = [floats.astype(half) for half in ("float16", "bfloat16")]
        return {
            "converted": [f.astype(narrow) for f in (floats, *halves)],
            "mean": x.astype("float32").mean(1),
            "sum": x + x[0],
            "product": lax.dot(x, x.T, preferred_element_type=np.int32),
            "of floats": lax.dot(x, x.T, preferred_element_type=np.float32),
            "set": x.at[:, np.array([0, 1, 0])].set(x[:, 1:4]),
            "added": jnp.zeros(16).at[x[0].astype("int32")].add(1.5),
            "sorted": [jnp.sort(x), jnp.argsort(x), *lax.top_k(x, 2)],
            "extrema": [x.max(1), lax.cummin(x), jnp.argmax(x, 1), jnp.argmin(x, 0)],
        }

    order, product = np.argsort(x), x @ x.T
    expected = {
        "converted": [np.clip(np.trunc(np.nan_to_num(floats)), least, most) + 0] * 3,
        "mean": np.full(3, numbers.mean(), np.float32),
        "sum": (x + x[0] - least) % len(numbers) + least,
        "product": product,
        "of floats": product,
        "set": np.concatenate([x[:, 3:4], x[:, 2:3], x[:, 2:]], 1),
        "added": np.bincount(x[0] % 16, minlength=16) * 1.5,
        "sorted": [np.sort(x), order, np.sort(x)[:, :-3:-1], order[:, :-3:-1]],
        "extrema": [x.max(1), np.minimum.accumulate(x), x.argmax(1), x.argmin(0)],
    }
    results = repjax.reproducible(program)(x, floats)
    types = jax.tree.map(lambda v: v.dtype, jax.eval_shape(program, x, floats))
    assert jax.tree.map(lambda v: v.dtype, results) == types
    results, expected = (
        jax.tree.map(lambda v: np.asarray(v).astype(np.float32), t) for t in (results, expected)
    )
    assert_same_bits(results, expected)


AVALS = {
    "float": (lambda x: x * 2, 1.5),
    "int": (lambda x: x * 2, 3),
    "int to float": (lambda x: x / 2, 3),
    "bool": (lambda x: x, True),
    "array and scalar": (lambda x: x * 2.0 + 1, X),
    "constant": (lambda x: 3.0, X),
    "weak constant": (lambda x: jnp.where(x > 0, 1.0, 0.0), X),
    "float32": (lambda x: x + np.float32(1), np.float32(1)),
    "float16": (lambda x: x.astype("float16"), X),
    "bfloat16": (lambda x: x.astype("bfloat16"), X),
    "int8": (lambda x: x.astype("int8"), X),
    "comparison": (lambda x: x > 0, X),
    "position": (lambda x: jnp.argmax(x, 0), X),
    "count": (lambda x: (x > 0).sum(), X),
    "unit": (lambda x: jnp.zeros((0, 3)), X),
    "weak carry": (lambda x: lax.fori_loop(0, 3, lambda i, c: c * 2.0, x), 1.0),
    "weak branches": (lambda x: lax.cond(x > 0, lambda x: x * 2, lambda x: x, x), 1.0),
    "weak scan": (lambda x: lax.scan(lambda c, _: (c + 1, c), 0.0, None, 3), X),
}


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.float32])
@pytest.mark.parametrize(
    "of",
    [lax.digamma, lax.bessel_i1e, lambda x: lax.polygamma(jnp.zeros_like(x), x)],
    ids=["digamma", "bessel_i1e", "polygamma"],
)
def test_long_loops_end_to_be_compiled(of, dtype):
    """LLVM of JAX 0.12 took hours for them in formats of 16 bits."""

    def program(x):
        a = lax.acos(of(x))
        return jnp.tanh(a) * a

    x = np.linspace(0.1, 3, 16).astype(dtype)
    compiled = repjax.reproducible(program)(x)
    with repjax.enabled():
        assert_same_bits(compiled, program(jnp.asarray(x)))


@pytest.mark.parametrize("name", AVALS)
def test_types_are_those_of_jit(name):
    function, x = AVALS[name]
    # Not by running the stock function: below AVX, XLA fails to compile float16.
    stock, shapes = (jax.eval_shape(run(function), x) for run in (jax.jit, repjax.reproducible))
    assert shapes == stock
    results = repjax.reproducible(function)(x)
    kinds = [
        jax.tree.map(lambda y: (y.dtype, y.shape, y.weak_type), tree) for tree in (results, stock)
    ]
    assert kinds[0] == kinds[1]


def test_errors_of_the_function_are_its_own():
    def f(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        repjax.reproducible(f)(X)


def _branch(params, flag):
    return params["w"] if flag > 0 else params["w"] * 2


def _number(x, *, y):
    return x * float(y["scale"][1])


def _leak(x, seen=()):
    seen = []
    jax.jit(lambda x: seen.append(x * 2))(x)
    return seen[0]


def _grow(x):
    return lax.scan(lambda carry, x: (jnp.concatenate([carry, carry]), x), x, x)


#: Functions that cannot be traced, and their arguments, of which JAX names one or the function.
UNTRACEABLE = {
    "bool": (_branch, ({"w": X}, jnp.float32(1)), {}, "argument flag"),
    "keyword": (_number, (X,), {"y": {"scale": (2.0, jnp.float32(1))}}, r"argument y\['scale'\]"),
    "rest": (lambda x, *rest: X[rest[1]], (X, 1, jnp.int32(1)), {}, r"argument rest\[1\]"),
    "partial": (functools.partial(_branch, flag=jnp.int32(1)), ({"w": X},), {}, "_branch"),
    "array": (np.asarray, (X,), {}, "__array__"),
    "shape": (lambda x, n: jnp.zeros(n) + x[0], (X, jnp.int32(3)), {}, "argument n"),
    "mask": (lambda x, mask: x[mask], (X, X > 0), {}, "must be concrete"),
    "leak": (_leak, (X,), {}, "leaked"),
    "carry": (_grow, (X,), {}, "carry"),
    "shapes": (lambda x, y: x @ y, (X, X[0, :3]), {}, "contracting dimensions"),
    "result": (lambda x: {"loss": object()}, (X,), {}, r"output component \['loss'\]"),
    "call": (lambda x: x, (X,), {"z": X}, "unexpected keyword argument 'z'"),
}


@pytest.mark.parametrize("way", [repjax.reproducible, explicit])
@pytest.mark.parametrize("name", UNTRACEABLE)
def test_errors_name_the_function_and_its_arguments_as_jax_does(name, way):
    function, args, kwargs, text = UNTRACEABLE[name]
    with pytest.raises(Exception, match=text) as stock:
        jax.jit(function)(*args, **kwargs)
    with pytest.raises(stock.type, match=text) as caught:
        way(function)(*args, **kwargs)
    if name == "partial" and jax.__version_info__ < (0, 11):
        return  # which does not look through a partial function that is wrapped
    # What was seen on the way, frames and numbers of objects, is not the function's.
    first, second = (re.sub(r"0x\w+|(?s:-{9}.*-{9})", "", str(e.value)) for e in (stock, caught))
    assert first == second


def test_arguments_that_are_no_arrays_keep_their_places():
    """What is static is taken out of the trees that JAX sees, wherever it is."""

    def f(x, *rest, scale, **others):
        return {"x": x["a"] * scale, "rest": rest[0][1] + rest[1], "z": others["z"]}

    args = ({"a": X, "b": None, "c": "text"}, (None, X, 2.0), 3)
    results = explicit(f)(*args, z=X[0], scale=2, y=None)
    assert_same_bits(results["x"], canonical(X * np.float32(2)))
    assert_same_bits(results["rest"], canonical(X + np.float32(3)))
    assert_same_bits(results["z"], X[0])


def test_wrong_accumulation():
    for wrong in ("kahan", None.__class__, 3):
        with pytest.raises(ValueError, match=r"expected one of pairwise, sequential, .*; received"):
            repjax.reproducible(_double, accumulation=wrong)


# --- canonical values at the boundary -----------------------------------------------------

# Of the floats in data movement, comparison and selection only these values are left.
MOVED = {
    "identity": lambda x: x,
    "reverse": lambda x: x[::-1][::-1],
    "where": lambda x: jnp.where(jnp.ones(x.shape, bool), x, 0),
    "reshape": lambda x: x.reshape(-1, 2).ravel(),
    "concatenate": lambda x: jnp.concatenate([x[:5], x[5:]]),
    "loop": lambda x: lax.fori_loop(0, 2, lambda i, x: x[::-1], x),
    "cond": lambda x: lax.cond(x.size > 3, lambda x: x, lambda x: x[::-1], x),
}


@pytest.mark.parametrize("name", MOVED)
def test_inputs_and_outputs_are_canonical(name):
    x = np.concatenate([SPECIALS, patterns(1000)])
    assert_same_bits(repjax.reproducible(MOVED[name])(x), canonical(x))
    with repjax.enabled():
        assert_same_bits(jax.jit(MOVED[name])(x), canonical(x), "switch")


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_other_formats_are_canonical_too(dtype):
    x = patterns(3000, 2, dtype)
    assert_same_bits(repjax.reproducible(lambda x: x[::-1])(x), canonical(x)[::-1])


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_closed_over_constants_are_canonical(kind):
    constant = kind(SPECIALS)

    def f(x):
        def body(carry, _):
            return carry, constant

        stacked = lax.scan(body, x, None, 2)[1]
        branch = lax.cond(x[0] > 0, lambda: constant, lambda: constant[::-1])
        return constant, jax.jit(lambda: constant)(), stacked, branch

    expected = canonical(SPECIALS)
    expected = (expected, expected, np.stack([expected] * 2), expected)
    assert_same_bits(repjax.reproducible(f)(np.ones(1, np.float32)), expected)
    with repjax.enabled():
        assert_same_bits(jax.jit(f)(np.ones(1, np.float32)), expected, "switch")


#: Arrays that XLA knows when it compiles, each in a program of its own.
CONSTANTS = {
    "captured": lambda: jnp.asarray(normal((2, 3, 2))),
    "captured integers": lambda: jnp.asarray(np.arange(12).reshape(2, 3, 2)).astype(np.float32),
    "captured halves": lambda: jnp.asarray(normal((2, 3, 2)).astype(np.float16)).astype(np.float32),
    "scattered": lambda: jnp.zeros((2, 3, 2)).at[0, 1].set(1.0),
    "of a loop": lambda: lax.fori_loop(
        0, 1, lambda i, c: c.at[i, 1].set(2.0), jnp.zeros((2, 3, 2))
    ),
}


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_have_the_bits_of_arguments(name, kernels, monkeypatch):
    """XLA takes the bits of a transposed constant in another order when it compiles."""
    if not kernels:
        monkeypatch.setattr(library, "in_use", lambda: (None, "switched off by a test"))
    x = normal((2, 2, 3), 1)

    def program(constant, x):
        t = constant.transpose(2, 0, 1)
        half = (t.astype(np.float16) - 1) * x.astype(np.float16)
        scattered = x.at[:, :, jnp.zeros(3, np.int32)].add(t, mode="drop")
        return t - 1 + x, 1 - t + x, t * 1.5 * x, jax.nn.softmax(t, 1) * x, half, scattered

    value = repjax.reproducible(CONSTANTS[name])()
    expected = repjax.reproducible(program)(value, x)
    actual = repjax.reproducible(lambda x: program(CONSTANTS[name](), x))(x)
    assert_same_bits(actual, expected)


def test_literals_are_canonical():
    def f(x):
        literals = [1e-40, -1e-40, -0.0, np.float32(-0.0), 2.0**-126, np.nan, -np.inf]
        return [jnp.where(x, literal, np.float32(1)) for literal in literals]

    expected = [canonical(np.float32(v)) for v in (0, 0, 0, 0, 2.0**-126, np.nan, -np.inf)]
    assert_same_bits(repjax.reproducible(f)(np.True_), expected)


def test_results_that_are_literals_or_inputs_or_repeated():
    f = repjax.reproducible(lambda x: (x, x, np.float32(-0.0), 1e-40, 3, x + 0))
    out = f(np.float32(-0.0))
    zero = np.float32(0)
    assert_same_bits(out, (zero, zero, zero, zero, np.int32(3), zero))


def test_what_looks_at_bits_sees_canonical_values():
    x = np.concatenate([SPECIALS, patterns(500, 5)])
    f = repjax.reproducible(
        lambda x, i: (
            lax.bitcast_convert_type(x, np.int32),
            lax.bitcast_convert_type(i, np.float32),
            jnp.signbit(x),
            lax.bitcast_convert_type(x * np.float32(-0.0), np.int32),
        )
    )
    seen = canonical(x)
    with np.errstate(invalid="ignore"):
        product = canonical(seen * np.float32(0))
    expected = (seen.view(np.int32), seen, np.signbit(seen), product.view(np.int32))
    assert_same_bits(f(x, x.view(np.int32)), expected)


# --- inside other transformations -----------------------------------------------------------


def _row(x):
    return jnp.tanh(x / 3).sum() + x.var()


OUTSIDE = {
    "jit": lambda f: jax.jit(lambda x: jnp.stack([f(row) for row in x])),
    "vmap": jax.vmap,
    "jit of vmap": lambda f: jax.jit(jax.vmap(f)),
    "vmap of columns": lambda f: lambda x: jax.vmap(f, in_axes=1)(x.T),
    "scan": lambda f: lambda x: lax.scan(lambda c, row: (c, f(row)), 0, x)[1],
    "map": lambda f: lambda x: lax.map(f, x),
    "reproducible": lambda f: repjax.reproducible(jax.vmap(f)),
    "enabled": lambda f: repjax.enabled()(jax.vmap(f)),
    "enabled and eager": lambda f: repjax.enabled()(lambda x: jnp.stack([f(row) for row in x])),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_reproducible_functions_inside_transformations(name):
    f = repjax.reproducible(_row)
    expected = np.stack([f(row) for row in X])
    assert_same_bits(OUTSIDE[name](f)(X), expected)
    with repjax.enabled():
        assert_same_bits(OUTSIDE[name](_row)(jnp.asarray(X)), expected, "of the plain function")


def test_a_pass_over_nothing():
    assert repjax.reproducible(lambda: ())() == ()
    assert_same_bits(repjax.reproducible(lambda: jnp.float32(-0.0))(), np.float32(0))
    empty = np.zeros((0, 3), np.float32)
    assert_same_bits(repjax.reproducible(lambda x: jnp.tanh(x) + 1)(empty), empty)


@pytest.mark.parametrize("unroll", [0, True, 5, 7])
@pytest.mark.parametrize("reverse", [False, True])
def test_an_unrolled_scan_is_its_steps(unroll, reverse):
    """In whatever way they are compiled, and in derivatives, where the loop stays one."""

    def f(unroll, w, xs):
        def step(carry, x):
            total, count = carry
            y = jnp.tanh(x @ w + total)
            return (y, count + 1), (y * count, {"count": count, "input": x})

        init = jnp.zeros(3), 1
        (y, count), ys = lax.scan(step, init, xs, reverse=reverse, unroll=unroll)
        return (y.sum() * count + ys[0].sum()), (y, ys)

    def loss(unroll, w, xs):
        return f(unroll, w, xs)[0]

    w, xs = X[:3, :3], normal((5, 3), seed=1)
    batched = jax.vmap(f, (None, None, 1)), normal((5, 2, 3), seed=2)
    for function, x in ((f, xs), (jax.grad(loss, 1), xs), batched):
        expected = repjax.reproducible(functools.partial(function, 1))(w, x)
        results = repjax.reproducible(functools.partial(function, unroll))(w, x)
        jax.tree.map(assert_same_bits, results, expected)
        with repjax.enabled():
            jax.tree.map(assert_same_bits, function(unroll, w, x), expected)
    text = str(jax.make_jaxpr(repjax.reproducible(functools.partial(f, unroll)))(w, xs))
    assert "scan[" not in text
    assert "scan[" in str(jax.make_jaxpr(repjax.reproducible(functools.partial(f, 2)))(w, xs))


def test_no_updates_beside_an_unrolled_loop():
    """XLA forgot that the kernel's calls are typed, and refused to compile (program 7937 of
    tests/fuzz.py)."""

    def f(x, c):
        return lax.scan(lambda c, a: (c + a * c, a), c, x, unroll=2)[0]

    def with_nothing(x, c):
        return f(jnp.concatenate([x, lax.top_k(x, 0)[0]]), c)  # whose gradient scatters nothing

    x, c = np.float16([0.94, -1.4]), np.float16(-1.8)
    results = [repjax.reproducible(jax.value_and_grad(g, (0, 1)))(x, c) for g in (f, with_nothing)]
    jax.tree.map(assert_same_bits, *results)


def test_other_platforms_raise(monkeypatch):
    """In one sentence: there is no lowering but for CPU and CUDA, and no fallback."""
    monkeypatch.setenv("REPJAX_GPU_BACKEND", "off")  # nobody knows for which GPU
    traced = repjax.reproducible(lambda x: x * x + 1).trace(np.float32(1))
    traced.lower(lowering_platforms=("cuda",))
    with pytest.raises(NotImplementedError, match=r"or an NVIDIA GPU .*, received tpu; "):
        traced.lower(lowering_platforms=("tpu",))


def test_what_is_canonical_is_not_made_so_again():
    """By explicit functions, and where cotangents are added."""

    def loss(x):
        y = repjax.lax.mul(x, x)
        return (y * jnp.tanh(y) + y).sum()

    x = np.concatenate([SPECIALS, patterns(300, 1)])
    function = repjax.reproducible(jax.grad(loss))
    jaxpr = str(jax.make_jaxpr(function)(x))
    assert jaxpr.count("repjax_canonicalize") == 1  # the argument; the result leaves
    with repjax.enabled():
        assert_same_bits(jax.grad(loss)(x), function(x))
