"""Moves within rows, computed by the C++ kernel for groups, have the bits of their equations."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import SPECIALS, assert_same_bits, normal, patterns, same_bits
from helpers.instruction_sets import each_instruction_set
from helpers.kernels import without_kernel
from repjax.primitives.core.canonical import HALVES
from repjax.primitives.cpu import bytecode, library
from repjax.primitives.cpu import groups as kernel
from repjax.primitives.fusion import row_moves, rows
from repjax.primitives.fusion.row_moves import RowMove, Run, row_move

pytestmark = pytest.mark.skipif(
    not library.available(), reason=f"there is no kernel: {library.in_use()[1]}"
)

KERNEL = "custom_call @repjax_elementwise"
#: Short rows and long ones, of vectors and of odd lengths; the last takes several threads.
SHAPES = [(2, 3, 12), (5, 7, 20), (3, 40, 64), (4, 9, 244), (40, 90, 64)]


@pytest.fixture(autouse=True)
def _all_by_this_kernel(monkeypatch):
    monkeypatch.setattr(rows, "in_rows", lambda function, kernels, *xs: list(function(*xs)))
    monkeypatch.setattr(kernel, "_FEW", 0)


def array(shape, seed=1, dtype=np.float32):
    """Special and random bit patterns, and numbers of every day."""
    n = int(np.prod(shape))
    if dtype != np.float32:
        return patterns(n, seed, dtype).reshape(shape)
    parts = [SPECIALS, normal(n, seed), patterns(n, seed)]
    return np.random.default_rng(seed).permutation(np.concatenate(parts))[:n].reshape(shape)


def with_kernel(function, *args, calls=None):
    lowered = repjax.reproducible(lambda *xs: function(*xs)).lower(*args)
    text = lowered.as_text()
    assert text.count(KERNEL) == calls if calls is not None else KERNEL in text
    return lowered.compile()(*args)


def assert_same(function, *args, calls=None):
    expected = without_kernel(function, *args)
    for instruction_set in each_instruction_set():
        assert_same_bits(with_kernel(function, *args, calls=calls), expected, instruction_set)


# --- programs -------------------------------------------------------------------------------


def turned(x, cosine, sine):
    """Rotary embeddings, as in GPT-NeoX."""
    half = x.shape[-1] // 2
    return x * cosine + jnp.concatenate([-x[..., half:], x[..., :half]], -1) * sine


def turned_in_halves(x, cosine, sine):
    """Rotary embeddings, as in Llama."""
    a, b = jnp.split(x, 2, -1)
    c, s = (jnp.split(angles, 2, -1)[0] for angles in (cosine, sine))
    return jnp.concatenate([a * c - b * s, b * c + a * s], -1)


def gates(x, cosine, sine):
    """As of a recurrent cell; some of them are results."""
    i, f, g, o = jnp.split(x * cosine + sine, 4, -1)
    z = i * g + f
    return jnp.tanh(z) * o, z, o > 0


def padded(x, cosine, sine):
    y = jnp.square(x)
    zeros = [(0, 0)] * (x.ndim - 1)
    wider = jnp.pad(y[..., 3:9] * 2, [*zeros, (1, 4)], constant_values=np.float32(2.5))
    return wider + y[..., :11], y * cosine


def along_two_axes(x, cosine, sine):
    """Rows of one move are parts of the rows of another."""
    y = x + sine
    z = jnp.concatenate([y[..., :5], -y[..., 5:]], -1)
    return jnp.concatenate([z[:, 1:] * cosine[1:], z[:, :1]], 1) * 2


def slices_of_slices(x, cosine, sine):
    y = x * 3
    z = y[..., 1:11][..., 1:10]
    return jnp.concatenate([z, y[..., :10], z[..., 2:8]], -1) + 1


PROGRAMS = {
    function.__name__: function
    for function in (turned, turned_in_halves, gates, padded, along_two_axes, slices_of_slices)
}


def gradients(function):
    def squares(*args):
        return sum((y * y).sum() for y in jax.tree.leaves(function(*args)) if y.dtype != bool)

    return jax.grad(squares, (0, 1, 2))


def operands(shape, dtype=np.float32):
    angles = shape[1:2] + (1,) * (len(shape) - 3) + shape[2:]
    return array(shape, 1, dtype), array(angles, 2, dtype), array(angles, 3, dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, shape):
    assert_same(PROGRAMS[name], *operands(shape))


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name):
    assert_same(gradients(PROGRAMS[name]), *operands((3, 40, 64)))


@pytest.mark.parametrize("dtype", [*HALVES, np.int32], ids=lambda dtype: np.dtype(dtype).name)
def test_other_types(dtype):
    names = ["turned", "turned_in_halves", "along_two_axes", "slices_of_slices"]
    for name in names:
        assert_same(PROGRAMS[name], *operands((5, 7, 20), dtype))


def test_of_heads():
    """Of four axes, as in a transformer; one call, and no slice or joined array beside it."""
    args = array((2, 32, 4, 64)), array((32, 1, 64), 2), array((32, 1, 64), 3)
    for function in (turned, turned_in_halves):
        assert_same(function, *args, calls=1)
        text = repjax.reproducible(function).lower(*args).as_text()
        assert not any(f"stablehlo.{name}" in text for name in ("slice", "concatenate", "pad"))


@pytest.mark.parametrize("kind", ["vmap", "scan", "without jit", "mesh"])
def test_in_other_programs(kind):
    x, cosine, sine = operands((8, 40, 64))

    def function(x, cosine, sine):
        if kind == "vmap":
            return jax.vmap(turned, (0, None, None))(x, cosine, sine)
        if kind == "scan":
            return lax.scan(lambda c, x: (c, turned_in_halves(x, c, sine)), cosine, x)[1]
        return turned(x, cosine, sine)

    expected = without_kernel(function, x, cosine, sine)
    if kind == "mesh":
        mesh = jax.make_mesh((len(jax.devices()),), ("i",))
        x = jax.device_put(x, jax.NamedSharding(mesh, jax.P("i")))
    with jax.disable_jit(kind == "without jit"):
        assert_same_bits(repjax.reproducible(function)(x, cosine, sine), expected)


# --- plans ----------------------------------------------------------------------------------


def _moves(function, *args):
    jaxpr = row_moves.with_slices(jax.make_jaxpr(function)(*args).jaxpr)
    return [row_move(equation) for equation in jaxpr.eqns]


def test_moves_of_equations():
    x = array((6, 20))
    slices = _moves(lambda x: jnp.split(x, [8], 1), x)
    assert [move.runs for move in slices] == [
        (Run(0, 20, 8, 8, 0, 0),),
        (Run(0, 20, 12, 12, 8, 0),),
    ]
    (joined,) = _moves(lambda x: lax.concatenate([x, x], 1), x)
    assert joined.rows == 6
    assert joined.runs == (Run(0, 20, 40, 20, 0, 0), Run(1, 20, 40, 20, 0, 20))
    (padded,) = _moves(lambda x: lax.pad(x, np.float32(1), [(0, 0, 0), (0, 2, 0)]), x)
    assert padded.runs == (Run(0, 20, 22, 20, 0, 0), Run(1, 0, 22, 2, 0, 20))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, ::2],
        lambda x: x[1:, 1:],
        lambda x: x[:, :9],
        lambda x: x[:, :7],
        lambda x: lax.pad(x, np.float32(0), [(0, 0, 0), (0, 0, 1)]),
        lambda x: lax.pad(x, np.float32(0), [(0, 0, 0), (-1, 0, 0)]),
        lambda x: lax.concatenate([x] * 13, 1),
        lambda x: jnp.transpose(x),
    ],
    ids=["strides", "two axes", "few", "short", "between", "negative", "long", "transposed"],
)
def test_what_is_no_move_within_rows(function):
    assert _moves(function, array((6, 40))) == [None]


def test_rows_that_have_nothing_in_common():
    """Of 6 and of 4 rows; the arrays between them are in memory."""
    x = array((6, 20))

    def function(x):
        y = jnp.concatenate([x[:, 5:] * 2, x[:, :5]], 1) + 1
        z = y.reshape(4, 30) * 3
        return jnp.concatenate([z[:, 7:] + 1, z[:, :7]], 1) * 2

    assert_same(function, x)


@pytest.mark.parametrize("wrong", ["first", "at"])
def test_a_wrong_run_is_caught(monkeypatch, wrong):
    args = operands((40, 90, 64))  # large: slices of operands are moves, too
    expected = without_kernel(turned, *args)
    right = bytecode.Bytecode.move

    def move(self, found, values):
        runs = [
            dataclasses.replace(run, **{wrong: max(getattr(run, wrong) - 1, 0)})
            for run in found.runs
        ]
        return right(self, RowMove(found.rows, tuple(runs)), values)

    monkeypatch.setattr(bytecode.Bytecode, "move", move)
    assert not same_bits(with_kernel(turned, *args), expected)
