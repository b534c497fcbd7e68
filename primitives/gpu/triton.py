"""The backend of the kernels, Pallas Triton: the only module that knows it.

What a kernel sees is here: arrays in memory as flat references, tiles of 2**n elements, loads and
stores at computed offsets, and the two operations whose bits depend on the compiler.

``interpret=True`` runs a kernel on the CPU, by XLA, where these two are replaced by the emulated
step of :mod:`repjax.primitives.operations.products.sequential`: to test all the rest without a GPU.
"""

from __future__ import annotations

import warnings

import jax
import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.core.sizes import is_power_of_two
from repjax.primitives.gpu.devices import local_capability
from repjax.primitives.operations.products.sequential import fma_step

#: Why this version of JAX has no such backend, which is deprecated since 0.11; "" if it has.
MISSING = ""
try:
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    program_id = pallas.program_id
except (ImportError, AttributeError) as error:
    MISSING = str(error)


def index_type(*sizes: int):
    """The type of offsets into arrays of these sizes."""
    # Pallas takes offsets of 32 bits up to the same limit.
    return np.int64 if max(sizes) > 1 << 30 else np.int32


def positions(block, size: int, index):
    """Those of the elements of a block of a power of two, in the integer type ``index``."""
    return block.astype(index) * index(size) + lax.iota(index, size)


def load(ref, offsets, inside=None):
    """The elements at ``offsets``, +0 where ``inside`` is False."""
    _check(offsets)
    if inside is None:
        return triton.load(ref.at[offsets])
    return triton.load(ref.at[offsets], mask=inside, other=np.zeros((), ref.dtype)[()])


def store(ref, offsets, tile, inside, interpret: bool):
    """The elements of ``tile`` where ``inside`` is True or None, to memory."""
    _check(offsets)
    if interpret and inside is not None:
        # It writes what was there where ``inside`` is False, even over what others write; behind
        # the array it writes nothing.
        offsets = lax.select(inside, offsets, lax.full_like(offsets, ref.shape[0]))
        inside = None
    triton.store(ref.at[offsets], tile, mask=inside)


def _check(tile) -> None:
    """Triton's restriction, which interpreted kernels would not have."""
    assert all(is_power_of_two(size) for size in tile.shape), tile.shape


def compute_capability() -> int | None:
    """That of the GPU that is compiled for, 80 for 8.0; None where Pallas cannot tell it."""
    if hasattr(triton, "get_gpu_info"):
        try:
            return triton.get_gpu_info().compute_capability
        except (ValueError, RuntimeError):
            return None
    capability = local_capability()
    return 90 if capability is None else capability  # what Pallas of jax 0.10 compiles for then


def call(
    kernel,
    shape,
    grid: int,
    operands,
    *,
    warps: int,
    stages: int = 3,
    into=None,
    dtype=np.float32,
    interpret=False,
):
    """The array of ``shape`` that ``grid`` programs of ``kernel(*operands, out)`` fill.

    ``into`` is an array of that shape to be overwritten, of which the kernel writes a part.
    """
    result = jax.ShapeDtypeStruct(shape, dtype)
    (out,) = call_all(
        kernel,
        [result],
        grid,
        operands,
        warps=warps,
        stages=stages,
        into=into,
        interpret=interpret,
    )
    return out


def call_all(
    kernel, results, grid: int, operands, *, warps: int, stages=3, into=None, interpret=False
):
    """:func:`call` of ``kernel(*operands, *results)``; an array for each of ``results``."""
    # Every lowering warns, from jax 0.11 on.
    warnings.filterwarnings("ignore", "The Pallas Triton backend", DeprecationWarning)
    flat = [lax.reshape(x, (x.size,)) for x in operands]
    aliases = {}
    if into is not None:
        aliases = {len(flat): 0}
        flat.append(lax.reshape(into, (into.size,)))

    def flat_kernel(*refs):
        kernel(*refs[: len(operands)], *refs[len(flat) :])

    arrays = pallas.pallas_call(
        flat_kernel,
        out_shape=[jax.ShapeDtypeStruct((x.size,), x.dtype) for x in results],
        grid=(grid,),
        input_output_aliases=aliases,
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=stages),
        interpret=interpret,
        name=kernel.__name__,
    )(*flat)
    return [lax.reshape(x, result.shape) for x, result in zip(arrays, results, strict=True)]


# --- rows -------------------------------------------------------------------------------

#: Operations of float32 that PTX rounds correctly; Triton's own are approximations.
ROUNDED = {"div": "div.rn.f32 $0, $1, $2;", "sqrt": "sqrt.rn.f32 $0, $1;"}
#: Subnormal operands and results become zeros of their sign, and -0 + 0 is +0.
_FLUSH = "add.rn.ftz.f32 $0, $1, 0f00000000;"


def rounded(name: str, *tiles):
    """The quotient of two tiles of float32, or a root, to nearest even, with gradual underflow."""
    return _instruction(ROUNDED[name], tiles)


def flush(x, interpret: bool):
    """``canonical.flush`` of a tile, which makes another NaN of a NaN."""
    if x.dtype != np.float32 or interpret:
        return canonical.flush(x)
    return _instruction(_FLUSH, (x,))


def guard(x, interpret: bool):
    """``canonical.guard`` of a tile; comparisons of a GPU take subnormals as they are."""
    if x.dtype != np.float32 or interpret:
        return canonical.guard(x)
    tiny = lax.full_like(x, np.finfo(np.float32).tiny)
    return lax.select(lax.le(lax.abs(x), tiny), lax.full_like(x, 0), x)


def canonicalize(x, interpret: bool):
    """``canonical.canonicalize`` of a tile: additions make 0x7fffffff of any NaN."""
    if x.dtype != np.float32 or interpret:
        return canonical.canonicalize(x)
    i = canonical.bits(flush(x, interpret))
    return canonical.from_bits(lax.min(i, lax.full_like(i, canonical.format_of(x).nan)), x.dtype)


def _instruction(text: str, tiles):
    """One of PTX, for each element of tiles of float32."""
    (out,) = triton.elementwise_inline_asm(
        text,
        args=[*tiles],
        constraints=",".join(["=f", *("f" for _ in tiles)]),
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(tiles[0].shape, np.float32)],
    )
    return out


def halves(x):
    """``x[:, :h] + x[:, h:]`` of a tile of rows: one addition for each element of the result.

    A reduction of two elements, because Triton has no slices.  It adds more of them in an order
    of its own.
    """
    half = x.shape[1] // 2
    return lax.reduce_sum(lax.reshape(x, (x.shape[0], 2, half)), (1,))


# --- sums of products, in an accumulator of binary32 with gradual underflow -------------


def accumulator(shape, interpret: bool):
    """Zeros."""
    return lax.full(shape, 0, np.float64 if interpret else np.float32)


def result(sums):
    """An accumulator as canonical float32."""
    return canonical.to_float32(sums) if sums.dtype == np.float64 else canonical.guard(sums)


def fma(a, b, sums):
    """The fused multiply-add of tiles of one shape."""
    if sums.dtype == np.float64:
        return fma_step(canonical.to_float64(a), canonical.to_float64(b), sums)
    return _instruction("fma.rn.f32 $0, $1, $2, $3;", (a, b, sums))


def dot_fma(a, b, sums):
    """``sums[i, j] = fma(a[i, k], b[k, j], sums[i, j])`` for all k, ascending.

    Triton makes of a float32 product in full precision one chain of ``fma.rn.f32`` for each
    element, and the addition of ``sums`` its first operand.  Neither is documented: it is what
    the PTX says, of every supported version (docs/architecture.md).
    """
    if sums.dtype != np.float64:
        return sums + lax.dot_general(
            a, b, (((1,), (0,)), ((), ())), precision=lax.Precision.HIGHEST
        )

    def step(k, sums):
        x = lax.dynamic_slice_in_dim(a, k, 1, 1)
        y = lax.dynamic_slice_in_dim(b, k, 1, 0)
        return fma(*(lax.broadcast_in_dim(z, sums.shape, (0, 1)) for z in (x, y)), sums)

    return lax.fori_loop(np.int32(0), np.int32(a.shape[1]), step, sums)


def dot_integers(a, b, sums):
    """``sums + a @ b`` of int8 tiles with at least 32 terms; all sums in int32 must fit into it.

    Triton makes one instruction of the product and the sum in int32, which on A100 saturates
    (``mma.sync.satfinite``).  In int64 the product is one by itself, and then added.

    With 16, which XLA gives Triton for int8 products of its own, the terms are counted twice
    (jax 0.11.2): one more reason not to leave them to it.
    """
    assert a.shape[1] >= 32, a.shape
    numbers = (((1,), (0,)), ((), ()))
    product = lax.dot_general(
        a, b, numbers, precision=lax.Precision.DEFAULT, preferred_element_type=np.int32
    )
    return sums + lax.convert_element_type(product, sums.dtype)
