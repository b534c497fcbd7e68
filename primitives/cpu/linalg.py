"""Linear algebra by the C++ kernels, for matrices that are not empty, on one device."""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax import lax

from repjax.primitives.operations.linalg import eigen, factorizations, tridiagonal
from repjax.primitives.operations.linalg.matrices import flat, like


def _not_empty(kernel, body):
    """The kernel, or the body where a matrix has no elements."""

    def of_elements(*operands, **params):
        return (kernel if all(x.size for x in operands) else body)(*operands, **params)

    return of_elements


def _substitute(a, b, lower: bool, unit_diagonal: bool):
    """An upper triangle turned by half a turn is a lower one."""
    if not lower:
        a, b = lax.rev(a, (1, 2)), lax.rev(b, (1,))
    result = jax.ShapeDtypeStruct(b.shape, b.dtype)
    call = jax.ffi.ffi_call("repjax_triangular_solve", result, input_output_aliases={1: 0})
    x = call(a, b, unit=np.int64(unit_diagonal))
    return x if lower else lax.rev(x, (1,))


def _cholesky(a):
    matrices = flat(a)
    result = jax.ShapeDtypeStruct(matrices.shape, a.dtype)
    call = jax.ffi.ffi_call("repjax_cholesky", result, input_output_aliases={0: 0})
    return like(call(matrices), a.shape[:-2])


def _lu(a):
    leading, matrices = a.shape[:-2], flat(a)
    batch, m, n = matrices.shape
    results = [
        jax.ShapeDtypeStruct(matrices.shape, a.dtype),
        jax.ShapeDtypeStruct((batch, min(m, n)), np.int32),
        jax.ShapeDtypeStruct((batch, m), np.int32),
    ]
    call = jax.ffi.ffi_call("repjax_lu", results, input_output_aliases={0: 0})
    return [like(x, leading) for x in call(matrices)]


def _geqrf(a):
    leading, matrices = a.shape[:-2], flat(a)
    shapes = matrices.shape, (len(matrices), min(matrices.shape[1:]))
    results = [jax.ShapeDtypeStruct(shape, a.dtype) for shape in shapes]
    call = jax.ffi.ffi_call("repjax_qr", results, input_output_aliases={0: 0})
    return [like(x, leading) for x in call(matrices)]


def _householder_product(a, taus):
    matrices = flat(a)
    result = jax.ShapeDtypeStruct(matrices.shape, a.dtype)
    call = jax.ffi.ffi_call("repjax_householder_product", result)
    return like(call(matrices, flat(taus, 1)), a.shape[:-2])


def _orthogonalize(x, length: int, tolerance: float):
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call("repjax_orthogonalize", result, input_output_aliases={0: 0})
    return call(
        x, length=np.int64(length), tolerance=np.float64(tolerance), sweeps=np.int64(eigen.SWEEPS)
    )


def _tridiagonalize(a):
    vectors = jax.ShapeDtypeStruct(a.shape[:2], a.dtype)
    results = [vectors, vectors, jax.ShapeDtypeStruct(a.shape, a.dtype), vectors]
    return jax.ffi.ffi_call("repjax_tridiagonalize", results, input_output_aliases={0: 2})(a)


def _reflect(rows, reflectors, factors):
    result = jax.ShapeDtypeStruct(rows.shape, rows.dtype)
    call = jax.ffi.ffi_call("repjax_reflect_rows", result, input_output_aliases={0: 0})
    return call(rows, reflectors, factors)


def _multiply(x, y):
    result = jax.ShapeDtypeStruct((*x.shape[:3], y.shape[3]), x.dtype)
    return jax.ffi.ffi_call("repjax_multiply_doubles", result)(x, y)


def _merge(poles, z, rho, count, order):
    shapes = poles.shape, (*poles.shape, poles.shape[1])
    results = [jax.ShapeDtypeStruct(shape, poles.dtype) for shape in shapes]
    found, steps = np.float64(tridiagonal.FOUND), np.int64(tridiagonal.STEPS)
    return jax.ffi.ffi_call("repjax_merge", results)(
        poles, z, rho, count, order, found=found, steps=steps
    )


_steps = tridiagonal.Steps(_orthogonalize, _tridiagonalize, _merge, _multiply, _reflect)
_solve = functools.partial(factorizations.triangular_solve, substitute=_substitute)
_qr = functools.partial(factorizations.qr, factorize=_geqrf, multiply=_householder_product)
_eigh = functools.partial(eigen.eigh, steps=_steps)
_svd = functools.partial(eigen.svd, steps=_steps, factorize=_qr)

triangular_solve = _not_empty(_solve, factorizations.triangular_solve)
cholesky = _not_empty(_cholesky, factorizations.cholesky)
lu = _not_empty(_lu, factorizations.lu)
geqrf = _not_empty(_geqrf, factorizations.geqrf)
householder_product = _not_empty(_householder_product, factorizations.householder_product)
qr = _not_empty(_qr, factorizations.qr)
eigh, svd = _not_empty(_eigh, eigen.eigh), _not_empty(_svd, eigen.svd)
