"""Pooling against the NumPy reference and against stock JAX, bit for bit."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from jax import lax

import repjax
from repjax.primitives.operations.reductions import window
from repjax.verify import reference

# Shape, window, strides, padding; and base and window dilation where there are any.
WINDOWS = {
    "1d": ((17,), (4,), (4,), ((0, 0),)),
    "overlapping": ((17,), (4,), (3,), ((3, 2),)),
    "2x2": ((2, 3, 6, 8), (1, 1, 2, 2), (1, 1, 2, 2), ((0, 0),) * 4),
    "channels last": ((2, 7, 8, 3), (1, 2, 3, 1), (1, 2, 3, 1), ((0, 0),) * 4),
    "3x3, strides 2": ((2, 9, 7), (1, 3, 3), (1, 2, 2), ((0, 0), (1, 1), (0, 1))),
    "3x3, strides 1": ((6, 7), (3, 3), (1, 1), ((1, 1), (1, 1))),
    "gaps": ((3, 13, 9), (1, 2, 3), (2, 3, 4), ((0, 0), (0, 1), (2, 0))),
    "wide": ((2, 11), (1, 9), (1, 2), ((0, 0), (4, 5))),
    "large": ((2, 12, 13), (1, 9, 10), (1, 1, 2), ((0, 0), (2, 3), (0, 1))),
    "large, many overlaps": ((14, 15), (9, 10), (1, 1), ((4, 4), (5, 4))),
    "everything": ((3, 9, 10), (1, 9, 10), (1, 1, 1), ((0, 0),) * 3),
    "negative padding": ((3, 13, 10), (1, 3, 2), (1, 3, 1), ((0, 0), (-1, -1), (-2, 3))),
    "only padding": ((5,), (2,), (2,), ((4, 4),)),
    "window dilation": (
        (2, 11, 9),
        (1, 3, 2),
        (1, 2, 1),
        ((0, 0), (1, 2), (0, 0)),
        None,
        (1, 2, 3),
    ),
    "base dilation": ((2, 6, 5), (1, 3, 2), (1, 2, 2), ((0, 0), (1, 2), (0, -1)), (1, 2, 3), None),
    "both dilations": ((5, 6), (3, 2), (1, 2), ((1, 2), (0, 1)), (2, 3), (2, 2)),
    "scalar": ((), (), (), ()),
    "no window fits": ((2, 3), (1, 5), (1, 1), ((0, 0), (0, 0))),
    "no elements": ((3, 0), (1, 2), (1, 1), ((0, 0), (0, 0))),
    "only padding, no elements": ((0,), (2,), (1,), ((2, 1),)),
    "one window, no elements": ((0,), (3,), (1,), ((2, 1),)),
}
REDUCTIONS = {
    "max": (window.reduce_window_max_body, reference.windows.reduce_window_max, -np.inf, lax.max),
    "min": (window.reduce_window_min_body, reference.windows.reduce_window_min, np.inf, lax.min),
    "sum": (window.reduce_window_sum_body, reference.windows.reduce_window_sum, 0.0, lax.add),
}


def _normal(rng, shape):
    return rng.standard_normal(shape).astype(np.float32)


def _ties(rng, shape):
    return rng.integers(-2, 3, shape).astype(np.float32)


def _tiny(rng, shape):
    """Sums that fall below the smallest normal number."""
    return (rng.integers(8, 16, shape) * rng.choice([-1, 1], shape) * 2.0**-129).astype(np.float32)


def _special(rng, shape):
    values = np.float32([np.inf, -np.inf, np.nan, 0, 1, -1, 2.0**-126, 3e38])
    return rng.choice(values, shape, p=[0.05, 0.3, 0.05, 0.1, 0.2, 0.1, 0.1, 0.1])


DATA = {f.__name__[1:]: f for f in (_normal, _ties, _tiny, _special)}


def _parameters(case, dilations=True):
    _, window_dimensions, strides, padding, *rest = WINDOWS[case]
    parameters = {
        "window_dimensions": window_dimensions,
        "window_strides": strides,
        "padding": padding,
    }
    if dilations:
        ones = (1,) * len(window_dimensions)
        base, inner = rest or (None, None)
        parameters |= {"base_dilation": base or ones, "window_dilation": inner or ones}
    return parameters


def _compiled(body, parameters):
    """The compiled body, as a function of NumPy arrays."""

    @jax.jit
    def traced(*operands):
        with jax.enable_x64(True):
            return body(*operands, **parameters)

    return lambda *operands: np.asarray(traced(*operands))


def assert_same_bits(actual, expected):
    np.testing.assert_array_equal(reference.values.bits(actual), reference.values.bits(expected))


@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reduce_window(reduction, case):
    body, expected, identity, stock = REDUCTIONS[reduction]
    shape, parameters = WINDOWS[case][0], _parameters(case)
    rng = np.random.default_rng(0)
    compiled = _compiled(body, parameters)
    for data in DATA.values():
        x = data(rng, shape)
        assert_same_bits(compiled(x), expected(x, **parameters))
    x = _ties(rng, shape)
    stock = lax.reduce_window(x, np.float32(identity), stock, *parameters.values())
    np.testing.assert_array_equal(compiled(x), stock)


@pytest.mark.parametrize("select_prim", [lax.ge_p, lax.le_p], ids=str)
@pytest.mark.parametrize("case", WINDOWS)
def test_select_and_gather_add(case, select_prim):
    shape, parameters = WINDOWS[case][0], _parameters(case)
    rng = np.random.default_rng(1)
    compiled = _compiled(
        functools.partial(window.select_and_gather_add_body, select_prim=select_prim), parameters
    )
    largest = select_prim is lax.ge_p
    for data in DATA.values():
        x, tangents = data(rng, shape), _normal(rng, shape)
        expected = reference.windows.select_and_gather_add(
            tangents, x, largest=largest, **parameters
        )
        assert_same_bits(compiled(tangents, x), expected)


UNDILATED = [case for case in WINDOWS if len(WINDOWS[case]) == 4]


@pytest.mark.parametrize("select_prim", [lax.ge_p, lax.le_p], ids=str)
@pytest.mark.parametrize("case", UNDILATED)
def test_select_and_scatter_add(case, select_prim):
    shape, parameters = WINDOWS[case][0], _parameters(case, dilations=False)
    rng = np.random.default_rng(2)
    compiled = _compiled(
        functools.partial(window.select_and_scatter_add_body, select_prim=select_prim), parameters
    )
    largest = select_prim is lax.ge_p
    outputs = reference.windows.window_outputs(shape, *_parameters(case).values())
    for data in DATA.values():
        for sources in DATA.values():
            x, source = data(rng, shape), sources(rng, outputs)
            expected = reference.windows.select_and_scatter_add(
                source, x, largest=largest, **parameters
            )
            assert_same_bits(compiled(source, x), expected)


@pytest.mark.parametrize("case", ["2x2", "3x3, strides 2", "overlapping", "wide", "large"])
@pytest.mark.parametrize("largest", [True, False])
def test_derivatives_of_pooling_are_those_of_stock_jax(case, largest):
    """Where all is exact and nothing is equal, except to padding: the same tangents."""
    shape, parameters = WINDOWS[case][0], _parameters(case)
    rng = np.random.default_rng(3)
    x = rng.permutation(np.prod(shape)).reshape(shape).astype(np.float32)
    reduce, identity = (lax.max, -np.inf) if largest else (lax.min, np.inf)

    def pool(x):
        return lax.reduce_window(x, np.float32(identity), reduce, *parameters.values())

    tangents = _ties(rng, shape)
    out, expected = jax.jvp(pool, (x,), (tangents,))
    selection = {"select_prim": lax.ge_p if largest else lax.le_p}
    gathered = _compiled(window.select_and_gather_add_body, parameters | selection)(tangents, x)
    np.testing.assert_array_equal(gathered, expected)

    cotangents = _ties(rng, out.shape)
    (expected,) = jax.vjp(pool, x)[1](cotangents)
    parameters = _parameters(case, dilations=False)
    scattered = _compiled(window.select_and_scatter_add_body, parameters | selection)(cotangents, x)
    np.testing.assert_array_equal(scattered, expected)


def test_first_of_equals_is_selected():
    x = np.float32([1, 3, 3, 2, np.nan, 5, np.nan, 0, -np.inf, -np.inf])
    tangents = np.arange(10, dtype=np.float32)
    parameters = {
        "select_prim": lax.ge_p,
        "window_dimensions": (4,),
        "window_strides": (2,),
        "padding": ((0, 2),),
    }
    ones = {"base_dilation": (1,), "window_dilation": (1,)}
    gathered = _compiled(window.select_and_gather_add_body, parameters | ones)(tangents, x)
    np.testing.assert_array_equal(gathered, [1, 4, 4, 6, 8])
    source = np.float32([10, 20, 40, 80, 160])
    scattered = _compiled(window.select_and_scatter_add_body, parameters)(source, x)
    np.testing.assert_array_equal(scattered, [0, 10, 0, 0, 60, 0, 80, 0, 160, 0])


def test_tangents_of_operands_whose_positions_are_no_int32_are_refused():
    """Nothing so large is in memory: types are enough.  Gradients take positions in windows."""

    def pool(x):
        return lax.reduce_window(x, -np.inf, lax.max, (1, 2), (1, 2), "VALID")

    def gradient(x):
        return jax.grad(lambda x: repjax.lax.reduce_sum(pool(x), (0, 1)))(x)

    def tangent(x):
        return jax.jvp(pool, (x,), (x,))[1]

    for rows in (1 << 30, (1 << 30) + 1):
        x = jax.ShapeDtypeStruct((rows, 2), np.float32)
        for function in gradient, tangent:
            program = repjax.reproducible(function)
            if function is tangent and rows > 1 << 30:
                with pytest.raises(repjax.RefusedError, match=r"up to 2\*\*31 elements"):
                    program.lower(x)
            else:
                program.lower(x)


def _descending_scatter(source, operand, **parameters):
    """The contributions of overlapping windows in the other order."""
    flipped = {**parameters, "padding": tuple(p[::-1] for p in parameters["padding"])}
    out = reference.windows.select_and_scatter_add(np.flip(source), np.flip(operand), **flipped)
    return np.flip(out)


def test_mistakes_are_noticed():
    rng = np.random.default_rng(4)
    x = _normal(rng, (9, 11))
    parameters = {"window_dimensions": (5, 5), "window_strides": (1, 1), "padding": ((2, 2),) * 2}
    outputs = {**parameters, "base_dilation": (1, 1), "window_dilation": (1, 1)}
    total = _compiled(window.reduce_window_sum_body, outputs)(x)
    stock = lax.reduce_window(x, np.float32(0), lax.add, (5, 5), (1, 1), ((2, 2),) * 2)
    assert (reference.values.bits(total) != reference.values.bits(np.asarray(stock))).any()

    source = _normal(rng, (9, 11))
    scatter = functools.partial(window.select_and_scatter_add_body, select_prim=lax.ge_p)
    actual = _compiled(scatter, parameters)(source, x)
    assert_same_bits(
        actual, reference.windows.select_and_scatter_add(source, x, largest=True, **parameters)
    )
    wrong = _descending_scatter(source, x, largest=True, **parameters)
    np.testing.assert_allclose(actual, wrong, rtol=1e-4)
    assert (reference.values.bits(actual) != reference.values.bits(wrong)).any()


def test_vmap_is_a_loop():
    rng = np.random.default_rng(5)
    x, source = _normal(rng, (3, 8, 9)), _normal(rng, (3, 4, 4))
    parameters = {
        "window_dimensions": (3, 3),
        "window_strides": (2, 2),
        "padding": ((0, 1), (0, 0)),
    }
    scatter = functools.partial(
        window.select_and_scatter_add_body, select_prim=lax.ge_p, **parameters
    )
    total = functools.partial(
        window.reduce_window_sum_body,
        base_dilation=(1, 1),
        window_dilation=(1, 1),
        **parameters,
    )
    for body, operands in ((scatter, (source, x)), (total, (x,))):
        mapped = _compiled(jax.vmap(body), {})(*operands)
        one = _compiled(body, {})
        assert_same_bits(mapped, np.stack([one(*row) for row in zip(*operands, strict=True)]))


def test_large_windows_stay_small_programs():
    """A window of 784 positions is not unrolled."""
    parameters = {
        "window_dimensions": (1, 28, 28),
        "window_strides": (1, 2, 2),
        "padding": ((0, 0), (13, 14), (14, 13)),
    }
    ones = {"base_dilation": (1, 1, 1), "window_dilation": (1, 1, 1)}
    x, source = np.zeros((2, 28, 28), np.float32), np.zeros((2, 14, 14), np.float32)
    with jax.enable_x64(True):
        for body, operands, extra in (
            (window.reduce_window_sum_body, (x,), ones),
            (window.select_and_scatter_add_body, (source, x), {"select_prim": lax.ge_p}),
        ):
            jaxpr = jax.make_jaxpr(functools.partial(body, **parameters, **extra))(*operands)
            assert len(str(jaxpr).splitlines()) < 300
