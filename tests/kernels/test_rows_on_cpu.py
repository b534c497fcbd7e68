"""Row groups by the C++ kernel have the bits of their equations."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from jax import export, lax
from jax import numpy as jnp

import repjax
from helpers.bits import assert_same_bits, same_bits
from helpers.gpu import compiling_for, for_one_device  # noqa: F401  (a fixture)
from helpers.instruction_sets import each_instruction_set
from helpers.rows import (
    OF_HALVES,
    OPERATIONS,
    PROGRAMS,
    RANDOM,
    X,
    as_rows,
    floats,
    operands_of,
    random_rows,
    row_groups,
)
from repjax.primitives import kernels
from repjax.primitives.core.canonical import HALVES
from repjax.primitives.core.tables import PREFIX
from repjax.primitives.cpu import library, loops
from repjax.primitives.cpu import rows as rows_on_cpu
from repjax.primitives.cpu.takes import CPU
from repjax.primitives.fusion import few_terms, rows
from repjax.primitives.gpu import takes
from repjax.primitives.operations.elementary import table as elementary

pytestmark = pytest.mark.skipif(
    not library.available(), reason=f"there is no kernel: {library.in_use()[1]}"
)

KERNEL = "custom_call @repjax_rows"


def with_kernel(function, *args, calls: int | None = None):
    """The results, compiled with ``calls`` calls of the kernel, by default at least one."""
    lowered = repjax.reproducible(lambda *xs: function(*xs)).lower(*args)
    found = lowered.as_text().count(KERNEL)
    assert found == calls if calls is not None else found
    return lowered.compile({"xla_backend_optimization_level": 0})(*args)


def without_kernel(function, *args):
    """The results of the equations, by what is on CPU otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "in_rows", lambda function, kernels, *xs: list(function(*xs)))
        lowered = repjax.reproducible(lambda *xs: function(*xs)).lower(*args)
    assert KERNEL not in lowered.as_text()
    return lowered.compile({"xla_backend_optimization_level": 0})(*args)


def check(function, *args, calls: int | None = None):
    assert_same_bits(with_kernel(function, *args, calls=calls), without_kernel(function, *args))


# --- the kernel -----------------------------------------------------------------------------


def everything(x, scale, bias, column):
    """Sums and extrema of rows, and what is computed of them, in four passes."""
    largest, total = x.max(-1, keepdims=True), jnp.abs(x).sum(-1, keepdims=True)
    y = jnp.exp(x - largest) * scale + total / column
    z = jnp.where(y > x.min(-1, keepdims=True), y, bias)
    w = z - z.sum(-1, keepdims=True)
    return z, w > 0, w.max(-1), jnp.log(total + column)[:, 0]


def arrays(count: int, n: int):
    row = floats((1, n), 1)[0], floats((1, n), 2)[0]
    return floats((count, n), n), *row, floats((1, count), 3).reshape(count, 1)


# Around the sizes of vectors and of blocks (1,024), of rows that are taken together (8,192
# elements), and enough for several threads.
@pytest.mark.parametrize("n", [2, 3, 10, 16, 17, 100, 384, 1023, 1024, 1025, 2048, 9000])
def test_lengths(n, monkeypatch):
    monkeypatch.setattr(few_terms, "_TERMS", 1)
    for count in (2, 33, 9000 // n + 70):
        if count >= 16 or count * n < 1 << 16:
            expected = without_kernel(everything, *arrays(count, n))
            for name in each_instruction_set():
                actual = with_kernel(everything, *arrays(count, n), calls=1)
                assert_same_bits(actual, expected, f"{count} rows, {name}")


# In no row, in one of the first, of the others and in all; of 33 elements, vectors are not full.
@pytest.mark.parametrize("n", [33, 1024, 9000])
def test_operands_that_are_not_canonical_in_some_rows(n):
    """An operand of several passes stays where it is, where it is canonical."""

    def function(x):
        y = x - x.max(-1, keepdims=True)
        return y, jnp.exp(y) / jnp.exp(y).sum(-1, keepdims=True), y * x

    x = floats((41 + 9000 // n, n), 5)
    x = np.where(np.isnan(x) | (np.abs(x) < np.finfo(np.float32).tiny), np.float32(1), x)
    others = np.array([-0.0, 1e-40, -1e-45, np.nan], np.float32)
    others = np.append(others, np.array([0xFFC12345], np.uint32).view(np.float32))
    for where in ([], [0], [20], [len(x) - 1], range(len(x))):
        some = x.copy()
        for i, row in enumerate(where):
            some[row, i % n] = others[i % len(others)]
            some[row, -1] = others[(i + 1) % len(others)]
        expected = without_kernel(function, some)
        for name in each_instruction_set():
            assert_same_bits(with_kernel(function, some, calls=1), expected, name)


def test_large_results():
    """Which are in huge pages, and whose rows are fetched before they are taken."""
    x, cotangent = floats((1101, 1031), 6), floats((1101, 1031), 7)

    def function(x, cotangent):
        y, pull = jax.vjp(jax.nn.softmax, x)
        return y, *pull(cotangent)

    check(function, x, cotangent)


@pytest.mark.parametrize("dtype", HALVES, ids=["float16", "bfloat16"])
def test_halves(dtype):
    """Extrema, some of which are results; sums are of numbers that have been widened."""

    def function(x):
        largest = x.max(1, keepdims=True)
        y = (x - largest).astype(np.float32)
        z = (y / y.sum(1, keepdims=True)).astype(dtype)
        return largest, z, z.min(1), (x + z.min(1, keepdims=True)).max(1)

    for shape in ((33, 100), (9, 1030)):
        check(function, floats(shape, 3, dtype), calls=1)


@pytest.mark.parametrize("n", [3, 100, 1025, 9000])
def test_sums_in_any_order(n):
    """Those that are ``order_independent``, with infinities and NaNs in some rows."""
    arguments = arrays(40, n)
    arguments[0][3:5, 1] = np.inf, np.nan
    with repjax.enabled(accumulation="order_independent"):
        expected = without_kernel(everything, *arguments)
        for name in each_instruction_set():
            actual = with_kernel(everything, *arguments, calls=1)
            assert_same_bits(actual, expected, name)
    with pytest.raises(AssertionError):
        assert_same_bits(with_kernel(everything, *arguments), expected)


#: That XLA computes.
LEFT = ("nextafter", "rem", *elementary.names(in_cpp=False, in_rows=True))
LEFT_TO_XLA = {
    np.float32: {PREFIX + name for name in LEFT},
    HALVES[0]: {PREFIX + "exp"},  # of which float32 results that are rounded once more are others
    HALVES[1]: set(),
}


@pytest.mark.parametrize("dtype", [np.float32, *HALVES], ids=["float32", "float16", "bfloat16"])
def test_operations(dtype, monkeypatch):
    """Each that the kernel has is computed by it, where it has its bits."""
    groups = []
    compute = rows_on_cpu.evaluate

    def evaluate(*operands, group):
        groups.append(group)
        return compute(*operands, group=group)

    monkeypatch.setitem(kernels._ON_ONE_DEVICE, rows.rows_p, evaluate)
    names, taken = set(), set()
    for name, operation in OPERATIONS:
        if dtype == np.float32 or name in OF_HALVES:

            def function(*operands, operation=operation):
                results, sums = as_rows(operation)(*operands)
                return results, [total[:, None] + operands[0] for total in sums]

            check(function, *operands_of(dtype))
            names.add(name)
            taken |= {takes.name_of(e) for group in groups for e in group.eqns}
            groups.clear()
    assert names - taken == LEFT_TO_XLA[dtype]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    function, arguments, _ = PROGRAMS[name]
    check(function, *arguments)


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed):
    function = random_rows(seed)
    actual = repjax.reproducible(function).lower(*RANDOM)
    actual = actual.compile({"xla_backend_optimization_level": 0})(*RANDOM)
    assert_same_bits(actual, without_kernel(function, *RANDOM))


def test_random_programs_have_row_groups():
    found = 0
    for seed in range(60):
        found += repjax.reproducible(random_rows(seed)).lower(*RANDOM).as_text().count(KERNEL)
    assert found > 60


def test_positions():
    """Along the columns or the rows, or along axes that are a part of either."""

    def function(x, y):
        def one(shape, axis):
            i = lax.broadcasted_iota(np.int32, shape, axis).reshape(x.shape)
            return jnp.where(i == 3, x, 0.5) - x.max(1, keepdims=True)

        cases = [(x.shape, 0), (x.shape, 1), ((2, 4, 10, 6), 0), ((2, 4, 10, 6), 1)]
        cases += [((2, 4, 10, 6), 2), ((2, 4, 10, 6), 3), ((4, 120), 1), ((40, 12), 0), ((480,), 0)]
        results = [one(*case) for case in cases]
        last = y - jnp.where(lax.broadcasted_iota(np.int32, y.shape, 1) < 2, y, 0).sum(2)[..., None]
        return results, last, lax.iota(np.int32, 8) < x.max(1)

    check(function, floats((8, 60), 1), floats((2, 3, 5), 2))


def test_a_row_that_is_broadcast_and_reduced():
    def function(x, column):
        y = jnp.broadcast_to(x.max(1, keepdims=True) + column, x.shape)
        return x - y.sum(1, keepdims=True), y.min(1), jnp.broadcast_to(column, x.shape).sum(1)

    check(function, floats((8, 15), 1), floats((1, 8), 2).reshape(8, 1), calls=1)


# --- negative controls ----------------------------------------------------------------------

NUMBERS = np.random.default_rng(1).standard_normal((40, 300), np.float32)


def _differs() -> bool:
    arguments = NUMBERS, NUMBERS[0], NUMBERS[1], NUMBERS[:, :1]
    results = with_kernel(everything, *arguments), without_kernel(everything, *arguments)
    return not all(map(same_bits, *results))


def test_another_reduction_is_noticed(monkeypatch):
    assert not _differs()
    wrong = {name: 2 - i for name, i in rows_on_cpu._JOINS.items()}
    monkeypatch.setattr(rows_on_cpu, "_JOINS", wrong)
    assert _differs()


def test_memory_that_is_given_up_too_early_is_noticed(monkeypatch):
    new = rows_on_cpu._Encoder._new

    def first(self, kind):
        array, number = new(self, kind)
        return array, min(number, 0)

    monkeypatch.setattr(rows_on_cpu._Encoder, "_new", first)
    assert _differs()


def test_passes_in_another_order_are_noticed(monkeypatch):
    encode = rows_on_cpu._Encoder.encode

    def without_the_last_reduction(self):
        last = max(i for i, step in enumerate(self.steps) if step.kind == rows_on_cpu._REDUCTION)
        self.passes[self.steps[last].result] += 1
        return encode(self)

    monkeypatch.setattr(rows_on_cpu._Encoder, "encode", without_the_last_reduction)
    # Its result is not known yet where it is used, or what it is made of is no longer.
    with pytest.raises((AssertionError, KeyError)):
        assert not _differs()


# --- what is found, and where ---------------------------------------------------------------


def test_which_programs_have_the_kernel():
    many = np.ones((16, rows_on_cpu._LONGEST + 1), np.float32)
    for function, x, calls in [
        (jax.nn.softmax, X, 1),
        (lambda x: (x - x.mean(1, keepdims=True), x.max(1)), X, 1),
        (lambda x: (x.max(1), (x * 2).sum(1)), X, 0),
        (lambda x: ((y := x * 2).max(1), y.sum(1)), X, 1),
        # One reduction has a kernel of its own.
        (lambda x: x.sum(1), X, 0),
        (lambda x: jnp.exp(x * 2).sum(1), X, 0),
        (lambda x: jnp.log(jnp.exp(x * 2).sum(1)), X, 0),
        (jax.nn.softmax, X[:1], 1),
        # Threads would have nothing to do, or the caches not enough room.
        (jax.nn.softmax, np.ones((1, rows_on_cpu._LONGEST_ALONE + 1), np.float32), 0),
        (jax.nn.softmax, np.ones((2, 1 << 16), np.float32), 0),
        (jax.nn.softmax, many, 0),
        (lambda x: x - x.sum(0), X, 0),
        (lambda x: jax.nn.softmax(jnp.sin(x)), X, 1),
    ]:
        text = repjax.reproducible(lambda x, f=function: f(x)).lower(x).as_text()
        assert text.count(KERNEL) == calls, (function, x.shape)


def test_the_last_of_a_loop(monkeypatch):
    monkeypatch.setattr(loops, "_MOST_OF_WHILE", -1)  # the while is XLA's

    def function(x):
        def step(carry):
            i, x = carry
            return i + 1, x - x.max(1, keepdims=True) + x.sum(1, keepdims=True) * 0.1

        x = lax.while_loop(lambda carry: carry[0] < 3, step, (0, x))[1]
        return lax.scan(lambda c, _: (jax.nn.softmax(c), c.max(1)), x, length=3)

    check(function, NUMBERS)


def test_batches():
    def function(x, scale):
        return jax.nn.softmax(x) * scale, x.max(1)

    program = repjax.reproducible(function)
    x, scale = floats((3, 20, 30), 1), floats((1, 30), 2)[0]
    batched = jax.jit(jax.vmap(program, in_axes=(0, None)))
    assert KERNEL in batched.lower(x, scale).as_text()
    one_by_one = [program(a, scale) for a in x]
    assert_same_bits(batched(x, scale), jax.tree.map(lambda *xs: np.stack(xs), *one_by_one))


def test_export_and_several_devices_do_without():
    def function(x):
        return jax.nn.softmax(x) * 2

    exported = export.export(jax.jit(repjax.reproducible(function)))(X)
    assert KERNEL not in exported.mlir_module()
    assert_same_bits(exported.call(X), without_kernel(function, X))
    if len(jax.devices()) > 1:
        mesh = jax.make_mesh((2,), ("i",))
        sharded = jax.device_put(X, jax.NamedSharding(mesh, jax.P("i")))
        lowered = repjax.reproducible(lambda x: function(x)).lower(sharded)
        assert KERNEL not in lowered.as_text()
        assert_same_bits(lowered.compile()(sharded), without_kernel(function, X))


@pytest.mark.usefixtures("for_one_device")
def test_groups_found_for_another_platform():
    program = repjax.reproducible(lambda x: jax.nn.softmax(x))
    (found,) = row_groups(jax.make_jaxpr(lambda x: program(x))(X))
    assert found.kernels is CPU
    with compiling_for("NVIDIA H100"):
        (for_gpu,) = row_groups(jax.make_jaxpr(lambda x: program(x))(X))
        of_gpu = _compiled(for_gpu)
        assert "triton" in of_gpu and "stablehlo.maximum" not in of_gpu
        # Equations know the mesh that they were traced with; so the GPU's, with the CPU's kernels.
        of_cpu = _compiled(dataclasses.replace(for_gpu, kernels=CPU))
        assert KERNEL not in of_cpu and "stablehlo.maximum" in of_cpu


def _compiled(group):
    function = jax.jit(lambda *xs: rows.rows_p.bind(*xs, group=group))
    traced = function.trace(*(X,) * len(group.invars))
    return traced.lower(lowering_platforms=("cuda",)).as_text()
