"""Programs that must be caught, and programs whose races must be missed if a barrier is."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

import repjax
from ptx.checks import DEVICES, FLOAT64_PRODUCTS, differences, drawn, findings, large_products
from ptx.compile import compile_for
from ptx.executor import Choices
from ptx.lint import lint
from ptx.races import EmulationError
from ptx.run import run
from repjax.primitives.gpu import products, sums
from repjax.primitives.operations.products import exact
from repjax.verify import conformance, vectors

# --- races --------------------------------------------------------------------------------

#: Cases whose programs have all kernels of ``primitives/gpu``, and most of their exchanges.
RACES = (
    "dot_general sequential, transposed",
    "dot_general order_independent, transposed",
    "conv_general_dilated sequential, gradients",
    "reduce_sum sequential",
    "cumsum, cumprod sequential",
    "softmax",
    "rows, layer norm",
    "rows of 16500",
    "rows, masked softmax",
)


def without_sign(x):
    """Sums of rows, of which none needs guards (``primitives/gpu/rows.py``)."""
    root = jax.numpy.sqrt(jax.numpy.abs(x))
    return [f(x).sum(1) for f in (jax.numpy.abs, jax.numpy.exp, jax.numpy.square)] + [root.sum(1)]


def racing() -> Iterator[tuple[vectors.Case, int]]:
    """Cases, and the number of tiles that keep a GPU busy; with 1, tiles are as large as can be."""
    hard = conformance.hard_arrays(conformance.load()["hard_inputs"])
    for case in vectors.cases(hard, small=True):
        if case.name.startswith(RACES):
            yield case, products._PROGRAMS
    for case in large_products():
        order, name = case.name.split(" ", 1)
        if name in ("NN", "odd sizes") or case.name == "sequential TN":  # XLA makes these of others
            # Tiles as large as can be, of as many terms as pass by in three steps and a part.
            terms = 230 if order == "order_independent" else 100
            sizes = {
                320: terms - terms % 4,
                333: terms + 1,
                2048: 128,
                4096: 128,
                2047: 127,
                2049: 129,
            }
            arguments = tuple(
                np.ascontiguousarray(x[tuple(slice(sizes[n]) for n in x.shape)])
                for x in case.arguments
            )
            yield case._replace(name=f"tile, {case.name}", arguments=arguments), 1
    x = vectors.spread((1 << 14, 3), 210)
    yield vectors.Case("thin", lambda x: jax.numpy.einsum("ij,ij->i", x, x), (x,)), 1
    # Near zero, where sums of what has a sign would need guards.
    x = np.ldexp(vectors.values((3, 70), 212), -124).astype(np.float32)
    yield vectors.Case("rows, sums without a sign", without_sign, (x,)), 1
    x = vectors.spread((2100, 33), 211)
    yield vectors.Case("columns", lambda x: x.sum(0), (x,)), 1


def problems_of_races(target: str, case: vectors.Case, tiles: int) -> tuple[list[str], int, int]:
    """What is wrong with a case if warps run in random orders.

    And controls: how many synchronizations of our kernels there are, and how many of them, if one
    alone is missing, are missed.  Triton has some that others spare: not those of a whole kind.
    """
    changed = {(products, "_PROGRAMS"): tiles, (products, "_LONG"): 1, (sums, "_LARGE"): 0}
    if tiles == 1:
        changed[products, "_MANY_PROGRAMS"] = 1
    before = {key: getattr(*key) for key in changed}
    try:
        for key, value in changed.items():
            setattr(*key, value)
        program = compile_for(target, case.program(), *case.arguments)
    finally:
        for key, value in before.items():
            setattr(*key, value)
    expected = conformance.compute(case, jax.devices("cpu")[0])
    choices = Choices(order=np.random.default_rng(len(case.name)), controls={})
    found = differences(program, case.arguments, expected, choices)
    ones = {key: error for key, error in choices.controls.items() if key[1][:1].isdigit()}
    found += [
        f"{key}: not missed" for key, error in choices.controls.items() - ones.items() if not error
    ]
    return found, len(ones), sum(map(bool, ones.values()))


# --- products of float64 ------------------------------------------------------------------


def problems_of_float64(target: str, by: str) -> list[str]:
    """What is wrong with exact products whose float64 sums are all uncertain, in drawn orders.

    And a control: without the bound of their error the bits must be others.
    """
    large, small = (vectors.values((8, 9), seed) for seed in (220, 221))
    large = large * np.float32(2.0**28)
    x = np.hstack([large, small, -large])
    large, small = (vectors.values((9, 8), seed) for seed in (222, 223))
    y = np.vstack([large, small, large])
    case = vectors.Case("cancelling", lambda x, y: x @ y, (x, y), {"contraction": "exact"})
    expected = conformance.compute(case, jax.devices("cpu")[0])

    def results(*seeds):
        program = compile_for(target, case.program(), x, y, options=FLOAT64_PRODUCTS[by])
        found = findings(program, in_any_way=True)
        return found, [differences(program, (x, y), expected, drawn(seed)) for seed in seeds]

    found, of_draws = results(0, 1)
    for of_draw in of_draws:
        found += of_draw
    bound, exact.error_bound = exact.error_bound, lambda terms: np.float64(0)
    try:
        _, of_draws = results(0, 1)
    finally:
        exact.error_bound = bound
    if not all(of_draws):
        found.append(f"without a bound, expected other bits, received {of_draws}")
    return found


# --- plain JAX ----------------------------------------------------------------------------


def controls() -> Iterator[tuple[Any, ...]]:
    """Programs of plain JAX that are to be caught, and whose bits they would have to have.

    Name, program, the other one, arguments, and on which devices if these are several.
    """

    def fused(x, y, z, out):
        """What a compiler that contracts makes of a product and a sum."""
        (out[...],) = triton.elementwise_inline_asm(
            "fma.rn.f32 $0, $1, $2, $3;",
            args=[x[...], y[...], z[...]],
            constraints="=f,f,f,f",
            pack=1,
            result_shape_dtypes=[jax.ShapeDtypeStruct(x.shape, x.dtype)],
        )

    def contracted(x, y, z):
        parameters = triton.CompilerParams()
        return pl.pallas_call(fused, out_shape=x, compiler_params=parameters)(x, y, z)

    def whole_rows(x, out):
        """Sums of rows in Triton's order."""
        out[...] = jax.numpy.sum(x[...], 1)

    def reduced(x):
        shape = jax.ShapeDtypeStruct(x.shape[:1], x.dtype)
        return pl.pallas_call(whole_rows, out_shape=shape, compiler_params=triton.CompilerParams())(
            x
        )

    x, y, z = (vectors.values((128,), seed) for seed in range(3))
    square = vectors.values((128, 128), 3)
    ones = {"window_strides": (1, 1), "padding": "SAME"}
    yield "exp", jax.numpy.exp, jax.numpy.exp, (x,)
    yield "division", lax.div, lax.div, (x, y)
    yield "square root", lax.sqrt, lax.sqrt, (np.abs(x),)
    yield "product and sum", contracted, lambda x, y, z: x * y + z, (x, y, z)
    index = np.arange(128, dtype=np.int32) % 7
    yield "scatter-add", *[lambda x, i, y: jax.numpy.asarray(x).at[i].add(y)] * 2, (x, index, y)
    yield "matrix product", lax.dot, lax.dot, (square, square)
    images = square.reshape(2, 8, 32, 32)
    yield "convolution", *[functools.partial(lax.conv, **ones)] * 2, (images, images[:, :, :3, :3])
    of_bytes = functools.partial(lax.dot, preferred_element_type=np.int32)
    yield "product of int8", of_bytes, of_bytes, (square.view(np.int8), square.view(np.int8).T)
    yield "order of a sum", jax.numpy.sum, jax.numpy.sum, (vectors.spread((5000,), 4),)
    of_rows = functools.partial(repjax.lax.reduce_sum, axes=(1,))
    yield "order of Triton's sum", reduced, of_rows, (vectors.spread((16, 512), 5),)
    split = {"devices": DEVICES, "specs": [jax.P("x")]}
    yield "sum over devices", *[jax.numpy.sum] * 2, (vectors.spread((64,), 6),), split


def check_control(target: str, function, on_cpu, arguments, split=None) -> dict[str, Any]:
    """What is found in a program: rules, libraries, and what a run says."""
    program = compile_for(target, function, *arguments, **(split or {}))
    found = {
        "rules": sorted({x.rule for x in lint(program.ptx)}) if program.ptx else [],
        "libraries": sorted(program.library_calls),
        "choices": sorted(program.choices),
    }
    try:
        result = run(program, *arguments)
    except (EmulationError, NotImplementedError) as error:
        return found | {"run": f"refused: {error}"}
    if result.inexact:
        return found | {"run": f"inexact: {sorted(result.inexact)}"}
    expected = np.asarray(on_cpu(*arguments))  # not jitted: a CPU too may contract
    return found | {"run": conformance.first_difference(result.results, expected)}
