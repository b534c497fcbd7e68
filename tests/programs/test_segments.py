"""Explicit functions in plain programs: fused as the decorator's, with the bits of unfused ones.

The negative control of each comparison is :func:`unfused`, in which the pass does nothing: it calls
other kernels, and none for what is elementwise.
"""

from __future__ import annotations

import collections
import contextlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from flax import linen
from jax import export, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import repjax.lax as rl
import repjax.nn
import repjax.numpy
from helpers.bits import SPECIALS, assert_same_bits, normal, patterns
from helpers.scripts import on_eight_devices
from repjax import config, segments
from repjax.models import LeNet5
from repjax.primitives.cpu import library

X, Y = normal((40, 64)), normal((40, 64), 1)
needs_kernels = pytest.mark.skipif(
    jax.default_backend() != "cpu" or not library.available(), reason="there is no kernel"
)


def unfused(monkeypatch, function, *args):
    """The results of a program without the pass, and the kernels that it calls."""
    with monkeypatch.context() as patch:
        patch.setattr(segments, "fused", lambda jaxpr: jaxpr)
        return compiled(function, *args)


def compiled(function, *args):
    # Another function, so that JAX compiles it again.
    program = jax.jit(lambda *args: function(*args)).lower(*args).compile()
    return program(*args), kernels(program)


def kernels(program) -> collections.Counter:
    return collections.Counter(re.findall(r'custom_call_target="(repjax\w+)"', program.as_text()))


# --- programs -----------------------------------------------------------------------------


def chain(x, y):
    inner = rl.exp(rl.mul(rl.mul(x, x), np.float32(-0.5)))
    top = rl.tanh(rl.add(inner, rl.mul(x, y)))
    return rl.div(top, rl.add(rl.abs(y), np.float32(1)))


def stock_chain(x, y):
    return lax.tanh(lax.exp(x * x * np.float32(-0.5)) + x * y) / (abs(y) + np.float32(1))


def with_plain(x, y):
    """Segments with plain operations between them, and after them."""
    z = chain(x, y) * 2
    shown = rl.exp(rl.sub(x, y))
    return chain(z, shown) + 1, shown, jax.nn.relu(rl.mul(shown, z)).T


def layer_norm(layers):
    return lambda x: layers.LayerNorm(use_bias=False, use_scale=False).apply({}, x)


def total(function):
    return lambda *args: repjax.numpy.sum(function(*args))


def scanned(x, y):
    def step(carry, y):
        carry = chain(carry, y)
        return carry, rl.exp(rl.mul(carry, y))

    return lax.scan(step, x[0], y)


def counted(x, y):
    def step(state):
        return state[0] + 1, chain(state[1], y)

    def is_on(state):
        return rl.add(rl.exp(state[1][0, 0]), 1.0) > state[0]

    return lax.while_loop(is_on, step, (0, x))


def chosen(x, y):
    return lax.cond(x[0, 0] > y[0, 0], chain, lambda x, y: chain(chain(y, x), x), x, y)


@jax.custom_jvp
def custom(x, y):
    return chain(x, y)


@custom.defjvp
def _(primals, tangents):
    return chain(*primals), chain(*tangents)


def remembered(x, y):
    return jax.checkpoint(lambda x, y: rl.mul(chain(x, y), rl.exp(x)))(x, y)


def product(x, y):
    z = rl.dot(rl.exp(x), rl.transpose(y, (1, 0)) if hasattr(rl, "transpose") else y.T)
    return rl.tanh(rl.mul(z, np.float32(0.125)))


def twice(x, y):
    return jax.jit(chain)(jax.jit(chain)(x, y), y)


def gradient(function):
    return jax.grad(total(function), (0, 1))


PROGRAMS = {
    "chain": chain,
    "with plain operations": with_plain,
    "product": product,
    "gradients": gradient(chain),
    "gradients of a product": gradient(product),
    "gradients with plain operations": gradient(lambda x, y: with_plain(x, y)[0]),
    "vmap": jax.vmap(chain),
    "vmap of gradients": jax.vmap(gradient(chain)),
    "scan": scanned,
    "gradients of a scan": gradient(lambda x, y: scanned(x, y)[1]),
    "while": counted,
    "cond": chosen,
    "gradients of a cond": gradient(chosen),
    "remat": remembered,
    "gradients of remat": gradient(remembered),
    "custom_jvp": custom,
    "jvp": lambda x, y: jax.jvp(custom, (x, y), (y, x)),
    "nested jit": twice,
}


@needs_kernels
@pytest.mark.parametrize("name", PROGRAMS)
def test_bits(name, monkeypatch):
    function = PROGRAMS[name]
    results, calls = compiled(function, X, Y)
    expected, others = unfused(monkeypatch, function, X, Y)
    assert_same_bits(results, expected, name)
    assert calls != others
    assert calls


@needs_kernels
@pytest.mark.parametrize(
    ("explicit", "stock", "args"),
    [
        (chain, stock_chain, (X, Y)),
        (repjax.nn.softmax, linen.softmax, (X,)),
        (layer_norm(repjax.nn), layer_norm(linen), (X,)),
    ],
    ids=["chain", "softmax", "layer norm"],
)
def test_as_the_decorator(explicit, stock, args, monkeypatch):
    decorated = repjax.reproducible(stock)
    results, calls = compiled(explicit, *args)
    assert_same_bits(results, decorated(*args))
    assert calls == kernels(decorated.lower(*args).compile())
    assert calls != unfused(monkeypatch, explicit, *args)[1]


@needs_kernels
@pytest.mark.parametrize("of_gradients", [False, True])
def test_network(of_gradients, monkeypatch):
    def program(layers, mean):
        apply = LeNet5(layers=layers).apply
        if not of_gradients:
            return apply
        return jax.value_and_grad(lambda params, images: mean(apply(params, images)))

    images = normal((4, 32, 32, 1))
    params = jax.jit(LeNet5(layers=linen).init)(jax.random.key(0), images)
    explicit = program(repjax.nn, repjax.numpy.mean)
    results, calls = compiled(explicit, params, images)
    expected, others = unfused(monkeypatch, explicit, params, images)
    assert_same_bits(results, expected)
    decorated = repjax.reproducible(program(linen, jax.numpy.mean))
    assert_same_bits(results, decorated(params, images))
    assert calls["repjax_elementwise"] > others["repjax_elementwise"]


# --- values that are not canonical ----------------------------------------------------------


def test_values_that_are_not_canonical(monkeypatch):
    """Subnormal numbers, -0 and NaNs with payloads, from outside and from plain operations."""
    x = np.concatenate([SPECIALS, patterns(2000)])
    y = np.concatenate([SPECIALS[::-1], patterns(2000, 1)])

    def program(x, y):
        plain = lax.bitcast_convert_type(lax.bitcast_convert_type(x, np.int32) ^ 1, np.float32)
        shown = rl.add(rl.sqrt(x), rl.neg(y))
        bits = lax.bitcast_convert_type(shown, np.int32)
        moved = lax.select(rl.mul(x, y) > shown, shown, rl.mul(x, y)).reshape(2, -1)
        halves = rl.convert_element_type(x, jax.numpy.bfloat16)
        halves = rl.bitcast_convert_type(halves, np.float16)  # some of which are subnormal
        ended = rl.add(halves, halves)
        return bits, moved, rl.mul(plain, rl.exp(shown)), rl.max(plain, y), halves, ended, shown * 1

    results, _ = compiled(program, x, y)
    assert_same_bits(results, unfused(monkeypatch, program, x, y)[0])
    nans = np.asarray(results[2])[np.isnan(results[2])]
    assert set(nans.view(np.uint32)) == {0x7FC00000}


def test_literals_and_results_that_are_one(monkeypatch):
    def program(x):
        y = rl.exp(x)
        zero = lax.select(y > 1, y, jax.numpy.full_like(y, -0.0))
        return y, y, rl.add(np.float32(1e-40), x), rl.div(np.float32(1), zero), rl.abs(1.0), x

    results, _ = compiled(program, X)
    assert_same_bits(results, unfused(monkeypatch, program, X)[0])


# --- other ways to run ------------------------------------------------------------------------


def test_eager_and_donated_and_exported():
    expected = jax.jit(chain)(X, Y)
    assert_same_bits(chain(X, Y), expected, "eager")
    donated = jax.jit(lambda x, y: chain(x, y), donate_argnums=0)
    assert_same_bits(donated(jax.numpy.array(X), Y), expected, "donated")
    for platforms in (["cpu"], ["cpu", "cuda"]):
        exported = export.export(jax.jit(chain), platforms=platforms)(X, Y)
        assert "custom_call @repjax" not in exported.mlir_module()
        assert_same_bits(exported.call(X, Y), expected, "exported")


def test_sizes_that_are_not_known():
    shape = export.symbolic_shape("n, 64")
    unknown = jax.ShapeDtypeStruct(shape, np.float32)
    exported = export.export(jax.jit(with_plain))(unknown, unknown)
    assert_same_bits(exported.call(X, Y), jax.jit(with_plain)(X, Y))


def test_effects_keep_their_order(capfd):
    @jax.jit
    def program(x):
        jax.debug.print("first {}", rl.exp(rl.mul(x, x)), ordered=True)
        jax.debug.print("second {}", x, ordered=True)
        return rl.exp(rl.add(x, x))

    jax.block_until_ready(program(np.float32(0)))
    jax.effects_barrier()
    assert capfd.readouterr().out.split() == ["first", "1.0", "second", "0.0"]


# --- what is not touched ----------------------------------------------------------------------


def test_plain_programs_are_the_same_objects():
    def plain(x, y):
        return jax.jit(stock_chain)(x, y), scan_of_plain(x)

    def scan_of_plain(x):
        return lax.scan(lambda c, x: (c + x, c), x[0], x)

    jaxpr = jax.make_jaxpr(plain)(X, Y)
    assert segments.fused(jaxpr) is jaxpr
    assert segments.fused(jaxpr.jaxpr) is jaxpr.jaxpr
    other = jax.make_jaxpr(chain)(X, Y)
    assert segments.fused(other) is not other
    assert segments.fused(other) is segments.fused(other)


_LOWERED = """
import jax, numpy as np
f = lambda x: jax.lax.scan(lambda c, y: (jax.numpy.tanh(c * y), c @ c), x, x)[0].sum()
if {imported}:
    import repjax.lax
    repjax.lax.exp(np.ones(3, np.float32))
    from repjax import config
    from repjax.primitives.core.jax_internals import pxla
    assert pxla._discharge_refs_jaxpr is config._discharge
print(jax.jit(jax.value_and_grad(f)).lower(np.ones((3, 3, 3), np.float32)).as_text())
"""


def test_plain_programs_are_lowered_as_without_repjax():
    def run(imported):
        command = [sys.executable, "-c", _LOWERED.format(imported=imported)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert run(False) == run(True) != ""


def test_the_decorator_and_the_switch_are_not_fused_again(monkeypatch):
    jaxpr = jax.make_jaxpr(repjax.reproducible(stock_chain))(X, Y)
    (inner,) = (e.params["jaxpr"] for e in jaxpr.eqns)
    assert segments.fused(inner) is inner
    monkeypatch.setattr(config.segments, "fused", pytest.fail)
    with repjax.enabled():
        jax.jit(lambda x, y: chain(x, y))(X, Y)


# --- devices ------------------------------------------------------------------------------------


GRADIENTS = ("gradients", "gradients with plain operations", "gradients of remat")


def digests_over_devices() -> dict[str, bool]:
    """For each program over eight devices, whether it has the bits of one device."""
    cases = {
        "jit": (with_plain, jax.jit(with_plain)(X, Y)),
        **{name: (PROGRAMS[name], jax.jit(PROGRAMS[name])(X, Y)) for name in GRADIENTS},
        "shard_map": (None, jax.jit(chain)(X, Y)),
    }
    same = {}
    for kind in jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit:
        mesh = jax.make_mesh((8,), ("i",), axis_types=(kind,))
        x, y = (jax.device_put(a, NamedSharding(mesh, P("i"))) for a in (X, Y))
        mapped = jax.shard_map(chain, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
        for name, (program, expected) in cases.items():
            for is_set in (False, True):
                with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
                    found = compiled(program or mapped, x, y)[0]
                key = f"{name}, {kind.name}, {is_set=}"
                same[key] = _digest(found) == _digest(expected)
        changed = compiled(with_plain, x, -y)[0]
        same[f"control, {kind.name}"] = _digest(changed) != _digest(cases["jit"][1])
    return same


def _digest(values) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(values)]


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="devices are made of the CPU")
def test_over_devices():
    program = (
        "import json, pathlib; from helpers.scripts import load; "
        f"print(json.dumps(load(pathlib.Path({__file__!r})).digests_over_devices()))"
    )
    found = on_eight_devices("-c", program)
    assert found
    assert [name for name, is_same in found.items() if not is_same] == []
