"""What is wrong with a program on a GPU: instructions, what is left to others, other bits."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import lax

import repjax
from helpers.networks import block_gradients
from ptx.assembler import refused_by_ptxas
from ptx.compile import compile_for
from ptx.executor import USUAL, Choices
from ptx.lint import lint
from ptx.program import GEMMS, OWN, Program
from ptx.run import Run, run
from ptx.targets import mesh_of
from repjax.verify import conformance, vectors

#: The kernels of ``primitives/gpu/products.py`` whose algorithm is a chain of these.
CHAINS = re.compile(r"(tiles|thin)(__\d+)?")
#: ``canonical.flush`` as an instruction: what it adds is +0.
FLUSH = re.compile(r"add\.rn\.ftz\.f32 \S+, \S+, 0f00000000")
#: What XLA's kernels make products of float64 matrices of.
OF_FLOAT64 = re.compile(r"mma\.sync\.\S+\.f64\.f64\.f64\.f64 |fma\.rn\.f64 ")


def problems(target: str, case, execute: bool) -> list[str]:
    """What is wrong with a case on a target; nothing if all is well."""
    # Float64 sums of products in the order `exact` may be computed in any way: their error has a
    # bound, and only what is right in spite of it leaves.
    in_any_way = case.orders.get("contraction") == "exact"
    expected = conformance.compute(case, jax.devices("cpu")[0]) if execute else None
    found = []
    for options in FLOAT64_PRODUCTS.values() if in_any_way else [{}]:
        program = compile_for(target, case.program(), *case.arguments, options=options)
        found += findings(program, in_any_way)
        if execute:
            choices = drawn(len(case.name)) if in_any_way else USUAL
            found += differences(program, case.arguments, expected, choices)
    return found


#: What computes products of float64 matrices, of which an autotuner chooses; and options of XLA.
FLOAT64_PRODUCTS: dict[str, dict[str, Any]] = {
    "XLA": {},
    "library": {"xla_gpu_enable_triton_gemm": False},
}


def drawn(seed: int) -> Choices:
    """That their sums are added in a drawn order."""
    return Choices(sums=np.random.default_rng(seed))


def findings(program: Program, in_any_way: bool = False) -> list[str]:
    """What is wrong with the instructions of a program.

    With ``in_any_way`` its products of float64 matrices may be those of XLA or of libraries.
    """
    found = [
        f"{x.kernel}: [{x.rule}] {x.instruction}"
        for x in lint(program.ptx)
        if not (CHAINS.fullmatch(x.kernel) and x.instruction.startswith("fma.rn.f32 "))
        and not FLUSH.fullmatch(x.instruction)
        and not (in_any_way and x.kernel.startswith("gemm_") and OF_FLOAT64.match(x.instruction))
    ]
    found = [*found[:5], f"and {len(found) - 5} more"] if len(found) > 6 else found
    libraries = program.library_calls - (GEMMS if in_any_way else set())
    found += [f"left to a library: {name}" for name in sorted(libraries)]
    allowed = ("dot ", "__cublas$") if in_any_way else ()
    choices = {x for x in program.choices if not x.startswith(allowed)}
    return found + [f"left to XLA's choice: {name}" for name in sorted(choices)]


def differences(program: Program, arguments, expected, choices: Choices = USUAL) -> list[str]:
    """What is wrong with the results of a program."""
    result = run(program, *arguments, choices=choices)
    found = [f"inexact: {op}" for op in sorted(result.inexact)]
    return [*found, *filter(None, [conformance.first_difference(result.results, expected)])]


# --- both backends ------------------------------------------------------------------------

#: The kernels that products have by each.
BACKENDS = {"triton": re.compile(r"tiles(__\d)?"), "ptx": re.compile(r"tiles__\d{3,}")}


def product_cases() -> dict[str, tuple[Any, ...]]:
    """Functions and arguments: every layout, sizes that are no multiples, batches, windows."""

    def product(*numbers):
        return lambda x, y: lax.dot_general(x, y, numbers)

    def gradients(x, w):
        out, pullback = jax.vjp(lambda x, w: lax.conv(x, w, (2, 1), "SAME"), x, w)
        return pullback(out)

    def spread(*shapes):
        return [vectors.spread(shape, 2 * i) for i, shape in enumerate(shapes)]

    none = ((), ())
    return {
        "NN": (product(((1,), (0,)), none), *spread((67, 41), (41, 19))),
        "TN": (product(((0,), (0,)), none), *spread((41, 67), (41, 19))),
        "NT": (product(((1,), (1,)), none), *spread((67, 41), (19, 41))),
        "TT": (product(((0,), (1,)), none), *spread((41, 67), (19, 41))),
        "large": (product(((1,), (0,)), none), *spread((700, 9), (9, 3000))),
        "batch": (product(((2,), (1,)), ((0,), (0,))), *spread((3, 5, 33), (3, 33, 7))),
        "batch inside": (product(((0,), (2,)), ((1,), (0,))), *spread((33, 3, 5), (3, 7, 33))),
        "vector": (product(((1,), (0,)), none), *spread((300, 21), (21,))),
        "special values": (
            product(((1,), (0,)), none),
            *map(vectors.with_specials, spread((17, 40), (40, 18))),
        ),
        "convolution": (gradients, *spread((2, 5, 9, 9), (7, 5, 3, 3))),
    }


def problems_of_backend(target: str, backend: str, name: str) -> list[str]:
    """The same of a product of :func:`product_cases`, by one of the backends of the kernels."""
    os.environ["REPJAX_GPU_BACKEND"] = backend
    function, *arguments = product_cases()[name]
    program = compile_for(target, repjax.reproducible(function), *arguments)
    expected = conformance.compute(vectors.Case(name, function, arguments), jax.devices("cpu")[0])
    found = findings(program)
    if not any(map(BACKENDS[backend].fullmatch, program.kernels)):
        found.append(f"no kernel of {backend}: {[*program.kernels]}")
    for kernel in {*program.kernels} if backend == "ptx" else ():
        if BACKENDS[backend].fullmatch(kernel):
            found += refused_by_ptxas(target, program.kernels[kernel])
    return found + differences(program, arguments, expected)


# --- large products -----------------------------------------------------------------------

#: Of tiles of 128 x 128 outputs, of digits and where the left operand has its outputs last and
#: there are very many; and of those of 64 x 64.
THREADS, FEWER_THREADS = (256, 1, 1), (128, 1, 1)
SHARED = 1 << 15  # bytes, at least


def known(program: Program, *arguments, choices: Choices) -> tuple[Run, list[np.ndarray]]:
    """What is computed, and which elements do not depend on what was left out.

    Nothing that has been computed depends on what lay in the memory before.
    """
    other = choices._replace(fill=~choices.fill & 0xFF, races=False)
    result, second = (run(program, *arguments, choices=x) for x in (choices, other))
    pairs = zip(*(jax.tree.leaves(x.results) for x in (result, second)), strict=True)
    words = [[x.view(f"u{x.dtype.itemsize}") for x in pair] for pair in pairs]
    return result, [x == y for x, y in words]


def large_products() -> Iterator[vectors.Case]:
    """Of which a GPU is full; their matrices are 2,048 or a little less or more."""

    def product(i, j):
        return lambda x, y: lax.dot_general(x, y, (((i,), (j,)), ((), ())))

    def case(name, order, function, *shapes):
        arguments = tuple(vectors.spread(shape, 200 + 2 * i) for i, shape in enumerate(shapes))
        return vectors.Case(f"{order} {name}", function, arguments, {"contraction": order})

    n, k = 2048, 320
    for order in ("sequential", "order_independent"):
        yield case("NN", order, product(1, 0), (n, k), (k, n))
        m = 2 * n if order == "sequential" else n
        yield case("TN", order, product(0, 0), (k, m), (k, m))
        yield case("NT", order, product(1, 1), (n, k), (n, k))
        yield case("odd sizes", order, product(1, 0), (n - 1, 333), (333, n + 1))
    yield case("all of 2,048", "sequential", product(1, 0), (n, n), (n, n))


def problems_of_large(target: str, case: vectors.Case) -> list[str]:
    """The same of a large product, of whose tiles the first, the last and two others are run."""
    program = compile_for(target, case.program(), *case.arguments)
    found = findings(program)
    # Except the product that counts infinities, which is in a branch.
    names = [x.name for x in program.computations[program.entry]]
    launches = [x for name in names for x in program.launches.get(name, [])]
    own = {(x.grid, x.block, x.shared) for x in launches if OWN.fullmatch(x.kernel)}
    is_largest = case.name.startswith(("order_independent", "sequential TN"))
    threads = THREADS if is_largest else FEWER_THREADS
    if len(own) != 1 or any(block != threads or shared < SHARED for _, block, shared in own):
        return [*found, f"expected kernels of one grid with {threads} threads, received {own}"]
    (((tiles, *_), *_),) = own
    blocks = [0, tiles // 5, tiles // 2, tiles - 1]
    result, (is_known,) = known(program, *case.arguments, choices=Choices(blocks=blocks))
    expected = conformance.compute(case, jax.devices("cpu")[0])
    if is_known.sum() <= 3 * is_known.size // tiles:  # the last tile may be a narrow one
        found.append(f"only {is_known.sum()} outputs are known")
    found += [f"inexact: {op}" for op in sorted(result.inexact)]
    of_tiles = np.where(is_known, result.results, expected)
    return [*found, *filter(None, [conformance.first_difference(of_tiles, expected)])]


# --- integers of 64 bits ------------------------------------------------------------------


def problems_of_words(target: str, name: str) -> list[str]:
    """The same of contractions of integers of 64 bits, which ``jax_enable_x64`` is on for.

    And of a sum of digits that leaves 32, in which matrix units may saturate.
    """
    bits = vectors.words(3 * 70, 0).view(np.int64).reshape(3, 70)
    if name == "product":
        program, arguments = lax.dot, (bits, bits.T.copy())
    elif name == "long":
        program = functools.partial(lax.dot, preferred_element_type=np.int32)
        ones = np.full((1, (1 << 17) + 40), -128, np.int8)
        arguments = ones, ones.T.copy()
    else:
        program = functools.partial(lax.conv, window_strides=(1, 2), padding="SAME")
        arguments = bits[:, :66].reshape(1, 3, 6, 11), bits[:, -18:].reshape(6, 3, 1, 3)
    with jax.enable_x64(True):
        compiled = compile_for(target, repjax.reproducible(program), *arguments)
        expected = repjax.reproducible(program)(*arguments)
    return findings(compiled) + differences(compiled, arguments, expected)


# --- several devices ----------------------------------------------------------------------

DEVICES = 4


def problems_of_devices(target: str, name: str) -> list[str]:
    """The same of ``networks.block_gradients`` on devices, of which each has a part of ``x``.

    ``name`` is an order of contractions, or ``map``, for a mean of what each device computes.
    """
    x, w = vectors.values((2 * DEVICES, 4, 8), 0), vectors.values((8, 8), 1)
    if name == "map":

        def local(x, w):
            return jax.tree.map(lambda y: lax.pmean(y, "x"), block_gradients(x, w))

        specs = {"in_specs": (jax.P("x"), jax.P()), "out_specs": jax.P(), "check_vma": False}
        mesh = mesh_of(target, DEVICES)
        function = repjax.reproducible(jax.shard_map(local, mesh=mesh, **specs))
        parts = [repjax.reproducible(block_gradients)(part, w) for part in np.split(x, DEVICES)]
        expected = jax.tree.map(
            lambda *ys: repjax.lax.div(
                repjax.lax.reduce_sum(np.stack(ys), (0,)), np.float32(DEVICES)
            ),
            *parts,
        )
    else:
        function = repjax.reproducible(block_gradients, contraction=name)
        expected = function(x, w)
    program = compile_for(target, function, x, w, devices=DEVICES, specs=[jax.P("x"), jax.P()])
    found = findings(program)
    found += [] if any(kernel.startswith("rows") for kernel in program.kernels) else ["no kernels"]
    return found + differences(program, (x, w), expected)
