"""Fourier transforms by the C++ kernel."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from repjax.primitives.operations import fourier

#: How a transform is done, for the kernel.
_NOTHING, _MATRIX, _PARTS, _CONVOLUTION = range(4)
#: Numbers behind all roots, since the kernel reads whole vectors.
_BEHIND = 64


class _Plan:
    """How the kernel is to transform, and all roots of unity that it needs.

    A stage is its kind, its length n, the p and m that it is made of, the places of its roots, and
    the stages in it.
    """

    def __init__(self):
        self.numbers: list[int] = []
        self._arrays: list[np.ndarray] = []
        self._places: dict[tuple, list[int]] = {}
        self._end = 0

    def add(self, n: int, sign: int) -> None:
        p = fourier.part(n)
        if n == 1:
            self._stage(_NOTHING, n, 1, 1)
        elif p == n:
            self._stage(_MATRIX, n, n, 1, self._matrix(n, sign))
        elif p > 1:
            m = n // p
            turns = self._roots(("turns", n, sign), lambda: fourier.twiddles(p, m, sign))
            self._stage(_PARTS, n, p, m, self._matrix(p, sign), *turns)
            self.add(m, sign)
        else:
            chirp = self._roots(("chirp", n, sign), lambda: fourier.chirp_of(n, sign))
            around = self._roots(("around", n, sign), lambda: fourier.around_of(n, sign))
            size = len(fourier.around_of(n, sign)[0])
            self._stage(_CONVOLUTION, n, 1, size, *chirp, *around)
            self.add(size, -1)
            self.add(size, 1)

    def _stage(self, *numbers: int) -> None:
        self.numbers += numbers

    def _matrix(self, n: int, sign: int) -> int:
        (place,) = self._roots(("matrix", n, sign), lambda: [fourier.matrix(n, sign)])
        return place

    def _roots(self, key, make) -> list[int]:
        """The places of arrays."""
        if key not in self._places:
            self._places[key] = []
            for array in make():
                self._places[key].append(self._end)
                self._arrays.append(np.ravel(array))
                self._end += array.size
        return self._places[key]

    def roots(self) -> np.ndarray:
        return np.concatenate([*self._arrays, np.zeros(_BEHIND, np.float32)])


def transform(x, *, fft_type, fft_lengths, contraction, raw):
    """``fourier.program`` by the kernel, which makes what it reads canonical."""
    del contraction, raw
    kind = lax.FftType(fft_type)
    params = {"fft_type": kind, "fft_lengths": fft_lengths}
    result = jax.eval_shape(lambda x: lax.fft(x, **params), x)
    sign = -1 if kind in (lax.FftType.FFT, lax.FftType.RFFT) else 1
    plan = _Plan()
    for n in reversed(fft_lengths):
        plan.add(n, sign)
    call = jax.ffi.ffi_call("repjax_fourier", jax.ShapeDtypeStruct(result.shape, result.dtype))
    return call(
        x,
        plan.roots(),
        kind=np.int64(int(kind)),
        axes=np.int64(len(fft_lengths)),
        plan=np.asarray(plan.numbers, np.int64),
    )
