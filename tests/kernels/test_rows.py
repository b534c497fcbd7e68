"""Row groups: how they are found, and the bits of their kernel, interpreted on the CPU.

What Triton makes of the kernel is compiled and emulated by ``tests/gpu_offline.py``.
"""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import repjax
from helpers.bits import assert_same_bits, normal
from helpers.gpu import compiling_for, for_one_device  # noqa: F401  (a fixture)
from helpers.networks import NETWORKS, train
from helpers.rows import (
    LABELS,
    OF_HALVES,
    OPERATIONS,
    PARAMETERS,
    PROGRAMS,
    RANDOM,
    X,
    as_rows,
    cross_entropy,
    floats,
    gradient,
    layer_norm,
    operands_of,
    random_rows,
    row_groups,
)
from repjax.primitives import gpu
from repjax.primitives.core.canonical import HALVES
from repjax.primitives.cpu import library
from repjax.primitives.cpu.takes import CPU
from repjax.primitives.fusion import rows
from repjax.primitives.gpu import rows as kernel
from repjax.primitives.gpu import takes, triton
from repjax.primitives.operations.reductions import sums
from repjax.verify import vectors

LENGTHS = [2, 3, 7, 64, 100, 1000, 1024, 1025]


def interpreted(*operands, group):
    with jax.enable_x64(True):
        return kernel.evaluate(*operands, group=group, interpret=True)


def equations(*operands, group):
    return group.evaluate(*operands)


def evaluate(function, arguments, **orders):
    """Its results when it is reproducible; compiled quickly, which takes longer than to run it."""
    program = repjax.reproducible(lambda *xs: function(*xs), **orders).lower(*arguments)
    return program.compile({"xla_backend_optimization_level": 0})(*arguments)


class Found:
    """The row groups of a compiled program, and its results."""

    def __init__(self, function, arguments, run, **orders):
        self.groups: list[rows.Rows] = []

        def compute(*operands, group):
            self.groups.append(group)
            return run(*operands, group=group)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu, "expected", lambda: True)
            patch.setattr(rows, "_equations", compute)
            self.results = evaluate(function, arguments, **orders)

    @property
    def shapes(self):
        return [group.shape for group in self.groups]


def check(function, *arguments, shapes=None, run=interpreted, **orders) -> Found:
    """Its row groups, of these shapes, have the bits of the CPU's program by the kernel."""
    found = Found(function, arguments, run, **orders)
    assert_same_bits(found.results, evaluate(function, arguments, **orders))
    assert found.groups if shapes is None else found.shapes == shapes
    return found


# --- the kernel -----------------------------------------------------------------------------


def everything(x, scale, bias, column):
    """Sums, extrema and positions of rows, and what is computed of them."""
    largest, total = x.max(-1, keepdims=True), jnp.abs(x).sum(-1, keepdims=True)
    y = jnp.exp(x - largest) * scale + total / column
    z = jnp.where(y > x.min(-1, keepdims=True), y, bias)
    return (
        z,
        z.sum(-1),
        jnp.argmax(z, -1),
        jnp.log(jnp.argmin(z * z, -1).astype(x.dtype) + total[:, 0]),
    )


@pytest.mark.parametrize("n", LENGTHS)
def test_lengths(n):
    for count in (1, 3, 33) if n in (2, 100) else (3,):
        arrays = floats((count, n), n), floats((1, n), 1)[0], floats((1, n), 2)[0]
        column = floats((1, count), 3).reshape(count, 1)
        found = check(everything, *arrays, column)
        assert {*found.shapes} == {(count, n)}


def test_rows_of_one_element_are_no_program():
    check(everything, *(floats((5, 1), i) for i in range(1, 5)), shapes=[])


def test_a_sum_is_padded_to_the_next_power_of_two():
    """Against the definition: +0 behind the end, and halves."""
    x = floats((9, 77), 4)
    padded = np.asarray(repjax.reproducible(lambda x: jnp.pad(x, ((0, 0), (0, 51))))(x))
    while padded.shape[1] > 1:
        h = padded.shape[1] // 2
        padded = np.asarray(repjax.lax.add(padded[:, :h], padded[:, h:]))
    found = check(lambda x: x.sum(1), x, shapes=[(9, 77)])
    assert_same_bits(found.results, padded[:, 0])


def test_neighbours_in_pairs_are_noticed(monkeypatch):
    monkeypatch.setattr(triton, "halves", lambda x: x[:, ::2] + x[:, 1::2])
    with pytest.raises(AssertionError):
        check(lambda x: x.sum(1), floats((33, 64), 5))


def test_elements_behind_the_end_are_noticed(monkeypatch):
    reduction = kernel._reduction
    monkeypatch.setattr(kernel, "_reduction", lambda e, x, inside, end: reduction(e, x, None, end))
    with pytest.raises(AssertionError):
        check(lambda x: jnp.exp(x).sum(1), normal(35, 1).reshape(5, 7))


def test_sums_without_a_sign():
    """Which have no guards on GPUs: sums of what is zero or more, and of nothing else."""
    functions = (jnp.abs, jnp.exp, jnp.exp2, jnp.square, jax.nn.sigmoid, lambda x: jnp.sqrt(x))
    others = (jnp.sin, jnp.negative, lambda x: x, lambda x: jnp.exp(x) - 1)
    found = {}

    def noted(*operands, group):
        sums = [e.outvars[0] for e in group.eqns if e.primitive is sums_of_rows]
        found[f] = [x in kernel._without_sign(group) for x in sums]
        return interpreted(*operands, group=group)

    sums_of_rows = sums.reduce_sum_p
    for f in functions + others:
        check(lambda x: f(x).sum(1), floats((5, 12), 3), run=noted)  # noqa: B023
    assert found == {f: [f in functions] for f in functions + others}


@pytest.fixture
def in_passes(monkeypatch):
    """Rows of more than 32 elements do not fit into registers; tiles have 8."""
    for module in (takes, kernel):
        monkeypatch.setattr(module, "SHORT", 32)
    monkeypatch.setattr(takes, "MANY", 1)
    monkeypatch.setattr(kernel, "_TILE", 8)


# Around whole tiles, and with tiles in which there is nothing.
@pytest.mark.usefixtures("in_passes")
@pytest.mark.parametrize("n", [33, 64, 65, 96, 100, 127, 1000])
def test_lengths_in_passes(n):
    arrays = floats((5, n), n), floats((1, n), 1)[0], floats((1, n), 2)[0]
    column = floats((1, 5), 3).reshape(5, 1)
    check(lambda *xs: everything(*xs)[:2], *arrays, column, shapes=[(5, n)])


@pytest.mark.usefixtures("in_passes")
@pytest.mark.parametrize("dtype", HALVES, ids=["float16", "bfloat16"])
def test_halves_in_passes(dtype):
    x = floats((5, 100), 3, dtype)
    found = check(lambda x: (x.sum(1), x.min(1), jax.nn.softmax(x)), x)
    assert {*found.shapes} == {(5, 100)}


@pytest.mark.usefixtures("in_passes")
def test_an_ascending_order_of_tiles_is_noticed(monkeypatch):
    monkeypatch.setattr(kernel, "_order", lambda step, count: step)
    with pytest.raises(AssertionError):
        check(lambda x: x.sum(1), floats((33, 64), 5))


@pytest.mark.usefixtures("in_passes")
def test_a_tile_that_is_left_out_is_noticed(monkeypatch):
    part = kernel._Tile.part

    def other(tile, block, are_there):
        return part(tile, lax.max(block, np.int32(1)), are_there)

    monkeypatch.setattr(kernel._Tile, "part", other)
    with pytest.raises(AssertionError):
        check(lambda x: x.max(1), floats((33, 64), 5))


def test_offsets_of_64_bits(monkeypatch):
    monkeypatch.setattr(triton, "index_type", lambda *sizes: np.int64)
    x = repjax.reproducible(lambda x: x)(floats((9, 20), 1))
    (group,) = Found(jax.nn.softmax, (x,), equations).groups
    with jax.enable_x64(True):
        compute = functools.partial(kernel.evaluate, group=group, interpret=True)
        (actual,) = jax.jit(compute)(x)
    assert_same_bits(repjax.reproducible(lambda x: x)(actual), repjax.nn.softmax(x))


def test_all_operations_are_here():
    taken = takes.ELEMENTWISE | takes.EXACT | takes.EXACT_ON_INTEGERS
    assert {name for name, _ in OPERATIONS} == taken


@pytest.mark.parametrize("dtype", [np.float32, *HALVES], ids=["float32", "float16", "bfloat16"])
def test_operations(dtype):
    """Each is taken into a row group, where it has its bits."""
    for name, operation in OPERATIONS:
        if dtype == np.float32 or name in OF_HALVES:
            found = check(as_rows(operation), *operands_of(dtype))
            taken = {takes.name_of(e) for group in found.groups for e in group.eqns}
            assert name in taken, name


# --- what is found --------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    function, arguments, shapes = PROGRAMS[name]
    check(function, *arguments, shapes=shapes)


@pytest.mark.usefixtures("in_passes")
@pytest.mark.parametrize("name", [n for n, p in PROGRAMS.items() if max(p[2])[1] > 32])
def test_programs_in_passes(name):
    test_programs(name)


def test_what_is_in_memory_is_not_stored_again():
    """A layer norm keeps two numbers for each row, and computes the rest again for its gradient."""

    def block(p, x, w):
        return layer_norm(p, x) @ w

    found = check(gradient(block, (0, 1, 2)), PARAMETERS, X, floats((100, 5), 3))
    forward, *_ = found.groups
    full = [v for v in forward.outvars if v.aval.size == X.size]
    assert len(full) == 1 and len(found.groups) == 2


def test_an_array_is_not_stored_for_a_few_of_its_elements():
    """The logits of the labels, of logits that are widened for a cross-entropy."""

    def function(x, labels):
        return cross_entropy(x.astype(np.float32), labels)

    x = floats(X.shape, 1, jnp.bfloat16)
    (group, _) = check(jax.value_and_grad(function), x, LABELS).groups
    assert [v.aval.dtype for v in group.outvars if v.aval.size == X.size] == [x.dtype]


TAKEN_BY_NONE = {
    "few long rows": (lambda x: x.sum(1), (np.ones((2, takes.SHORT + 1), np.float32),), {}),
    "longest rows": (
        lambda x: x.sum(1),
        (np.ones((takes.MANY, takes.LONGEST + 1), np.float32),),
        {},
    ),
    "positions in long rows": (
        lambda x: x.argmax(1),
        (np.ones((takes.MANY, takes.SHORT + 1), np.float32),),
        {},
    ),
    "leading axis": (lambda x: x - x.sum(0), (X,), {}),
    "axes that are apart": (lambda x: x.sum((0, 2)), (X.reshape(2, 4, 100),), {}),
    "sequential": (lambda x: x.sum(1), (X,), {"accumulation": "sequential"}),
    "order_independent": (lambda x: x.sum(1), (X,), {"accumulation": "order_independent"}),
    "products": (lambda x: x.prod(1), (X,), {}),
    "integers": (lambda i: i.sum(1) + i.max(1), (LABELS[:, None] + LABELS,), {}),
    "no reduction": (lambda x: jnp.exp(x) + x, (X,), {}),
    "operations of other types": (
        lambda i, x: (i < lax.max(i, i + 1)).astype(np.float32) + x.sum(0),
        (LABELS.astype(np.uint32)[:, None] + np.zeros_like(X, np.uint32), X),
        {},
    ),
    "no elements": (lambda x: x.sum(1), (X[:0],), {}),
    "rows without elements": (lambda x: x.sum(1), (X[:, :0],), {}),
}


@pytest.mark.parametrize("name", TAKEN_BY_NONE)
def test_left_to_xla(name):
    function, arguments, orders = TAKEN_BY_NONE[name]
    check(function, *arguments, shapes=[], **orders)


def _names(function, *arguments):
    return set(vectors._names(jax.make_jaxpr(repjax.reproducible(function))(*arguments)))


def test_plans_are_made_for_the_platform(monkeypatch):
    assert not gpu.expected()
    if library.available():
        (found,) = row_groups(jax.make_jaxpr(repjax.reproducible(lambda x: jax.nn.softmax(x)))(X))
        assert found.kernels is CPU
    with compiling_for("NVIDIA H100"):
        assert gpu.expected()
    monkeypatch.setattr(gpu, "expected", lambda: True)
    names = _names(lambda x: jax.nn.softmax(x), X)
    assert "rows" in names and "groups" not in names
    # Compiled for a CPU all the same, it is its equations.
    program = repjax.reproducible(lambda x: jax.nn.softmax(x))
    assert_same_bits(program(X), repjax.nn.softmax(X))


# --- the plan -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed):
    """Some by the kernel: what is tested is which equations are put together, and their order."""
    found = Found(random_rows(seed), RANDOM, interpreted if seed < 6 else equations)
    assert_same_bits(found.results, evaluate(random_rows(seed), RANDOM))


def test_random_programs_have_row_groups(monkeypatch):
    sizes = []
    for seed in range(60):
        program = repjax.reproducible(random_rows(seed))
        with monkeypatch.context() as patch:
            patch.setattr(gpu, "expected", lambda: True)
            jaxpr = jax.make_jaxpr(lambda *a, f=program: f(*a))(*RANDOM)
        sizes += [len(p.steps()) for p in row_groups(jaxpr)]
    assert len(sizes) > 60 and max(sizes) > 10


def test_joining_regardless_of_what_waits_is_noticed(monkeypatch):
    """Without that, there are programs that wait for themselves."""
    nothing = property(lambda self: 0, lambda self, bits: None)
    monkeypatch.setattr(rows._Joined, "below", nothing, raising=False)
    with pytest.raises(AssertionError, match="wait for each other"):
        for seed in range(60):
            Found(random_rows(seed), RANDOM, equations)


def test_a_program_does_not_wait_for_itself():
    """What goes through an operation of another kind comes back to another program."""

    def function(x):
        y = x - x.max(1, keepdims=True)
        z = jnp.sort(y)
        return (y + z).sum(1), y + z, (y * y).sum(1)

    check(function, X, shapes=[(8, 100), (8, 100)])


def test_large_programs_are_divided(monkeypatch):
    monkeypatch.setattr(rows, "LARGEST", 8)

    def function(x):
        for _ in range(5):
            x = x - x.sum(1, keepdims=True) * np.float32(0.01) + 1
        return x

    found = check(function, X)
    assert len(found.groups) > 2
    assert all(len(p.steps()) <= 8 + rows.REPEATED for p in found.groups)


def test_control_flow_and_batches():
    def step(c, _):
        return jax.nn.softmax(c) + 1, c.sum(1)

    def function(x, count):
        x, sums = lax.scan(step, x, length=3)
        x = lax.while_loop(
            lambda s: s[1] < count, lambda s: (jax.nn.softmax(s[0]), s[1] + 1), (x, 0)
        )
        x = lax.cond(count > 2, lambda x: x - x.max(1, keepdims=True), lambda x: x, x[0])
        return jax.checkpoint(lambda x: jax.nn.log_softmax(x))(x), sums

    # JAX traces the bodies of loops more than once.
    found = check(function, X, 4)
    assert len(found.shapes) >= 4 and {*found.shapes} == {(8, 100)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "expected", lambda: True)
        program = repjax.reproducible(lambda x: jax.nn.softmax(x) * x[0])
        batched = jax.jit(jax.vmap(program))(X.reshape(2, 4, 100))
        assert "rows" in vectors._names(jax.make_jaxpr(jax.vmap(program))(X.reshape(2, 4, 100)))
        single = [program(x) for x in X.reshape(2, 4, 100)]
    assert_same_bits(batched, jnp.stack(single))


def test_order_of_effects(capfd):
    def function(x):
        y = jax.nn.softmax(x)
        jax.debug.print("first {}", y[0, 0], ordered=True)
        z = jnp.exp(y).sum(1)
        jax.debug.print("second {}", x[0, 0], ordered=True)
        x, _ = lax.scan(
            lambda c, _: (c, jax.debug.print("third {}", c[0, 0], ordered=True)), x, length=1
        )
        jax.debug.print("fourth {}", z[0], ordered=True)
        return x + z[:, None]

    Found(function, (X,), equations)
    jax.effects_barrier()
    words = [line.split()[0] for line in capfd.readouterr().out.splitlines()]
    assert words == ["first", "second", "third", "fourth"]


@pytest.mark.parametrize("name", [name for name in NETWORKS if "trans" in name or "norm" in name])
def test_networks(name):
    network = NETWORKS[name]()
    expected = train(repjax.reproducible, network)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "expected", lambda: True)
        patch.setattr(rows, "_equations", interpreted)
        actual = train(lambda f: repjax.reproducible(lambda *a: f(*a)), network)
    assert_same_bits(actual, expected)


# --- lowering -------------------------------------------------------------------------------

CALL = "__gpu$xla.gpu.triton"


def lowered(function, *arguments) -> int:
    """The number of kernels when it is lowered for CUDA."""
    with compiling_for("NVIDIA H100"):
        traced = jax.jit(lambda *xs: function(*xs)).trace(*arguments)
        return traced.lower(lowering_platforms=("cuda",)).as_text().count(CALL)


@pytest.mark.usefixtures("for_one_device")
@pytest.mark.parametrize("name", PROGRAMS)
def test_lowered_programs(name):
    function, arguments, shapes = PROGRAMS[name]
    products = {"attention": 2, "attention, gradients": 6}.get(name, 0)
    count = lowered(repjax.reproducible(lambda *xs: function(*xs)), *arguments)
    assert count == len(shapes) + products


@pytest.mark.usefixtures("for_one_device")
def test_what_layers_have_in_common_is_lowered_once(monkeypatch):
    made = []

    def evaluate(*operands, group, evaluate=kernel.evaluate):
        made.append(group)
        return evaluate(*operands, group=group)

    def network(x):
        for factor in (3, 3, 3, 3, 2):
            x = lax.sort(jax.nn.softmax(x * np.float32(factor)))
        return x

    monkeypatch.setattr(kernel, "evaluate", evaluate)
    assert lowered(repjax.reproducible(network), X) == 5
    # The first one makes its operand canonical.
    assert len(made) == len(set(made)) == 3


@pytest.mark.usefixtures("for_one_device")
def test_lowered_operations():
    """Triton has all that their bodies are made of."""
    for dtype in (np.float32, *HALVES):
        for name, operation in OPERATIONS:
            if dtype == np.float32 or name in OF_HALVES:
                function = repjax.reproducible(as_rows(operation))
                assert lowered(function, *operands_of(dtype)) > 0, (name, dtype)


@pytest.mark.usefixtures("for_one_device")
def test_explicit_sums():
    """Bound one by one, sums of rows have the kernel too."""
    assert lowered(lambda x: repjax.lax.reduce_sum(x, (1,)), X) == 1
    assert lowered(lambda x: repjax.lax.reduce_sum(x, (0,)), X) == 0


@pytest.mark.parametrize("axis", [1, 2])
def test_bits_of_explicit_sums(axis):
    x = repjax.reproducible(lambda x: x)(floats((5, 3, 70), 1))
    with jax.enable_x64(True):
        compute = functools.partial(kernel.pairwise, sums.add, axis=axis, interpret=True)
        (actual,) = jax.jit(compute)([x])
    actual, expected = (repjax.reproducible(lambda x: x)(a) for a in (actual, x))
    assert_same_bits(actual, repjax.reproducible(lambda x: x.sum(axis))(expected))


@pytest.mark.usefixtures("for_one_device")
def test_without_knowledge_of_the_gpu(monkeypatch):
    monkeypatch.setattr(triton, "compute_capability", lambda: None)
    gpu._warn.cache_clear()
    with pytest.warns(UserWarning, match="without its kernels"):
        assert lowered(repjax.reproducible(lambda x: jax.nn.softmax(x)), X) == 0


@pytest.mark.usefixtures("for_one_device")
def test_large_arrays_are_lowered():
    """Offsets of 64 bits."""
    x = jax.ShapeDtypeStruct((1 << 18, 1 << 13), np.float32)
    assert lowered(repjax.reproducible(lambda x: jax.nn.softmax(x)), x) == 1


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
@pytest.mark.parametrize("size", [1, 2])
def test_meshes(size, kind, monkeypatch):
    """Planned for, whatever types of values say of it."""
    mesh = jax.sharding.AbstractMesh((size,), ("i",), axis_types=(kind,))
    monkeypatch.setattr(gpu, "expected", lambda: True)
    with jax.sharding.use_abstract_mesh(mesh):
        x = jax.ShapeDtypeStruct((8, 100), np.float32, sharding=jax.NamedSharding(mesh, jax.P("i")))
        program = jax.make_jaxpr(repjax.reproducible(lambda x: jax.nn.softmax(x)))(x)
    assert len([*row_groups(program)]) == 1
