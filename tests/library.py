"""A call of every function of JAX's libraries of array functions.

    python tests/library.py     write docs/coverage.md

``CALLS`` maps a name such as ``jnp.linalg.norm`` to a function of two float32 matrices ``x`` and
``y``; functions that compute nothing on arrays are in ``NO_PROGRAMS``.  ``REFUSED`` says which of
the calls repjax refuses; tests/programs/test_library.py compares all this with what happens.
"""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Callable
from types import ModuleType

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np

LIBRARIES: dict[str, ModuleType] = {
    "jnp": jnp,
    "jnp.linalg": jnp.linalg,
    "jnp.fft": jnp.fft,
    "jax.nn": jax.nn,
    "jax.scipy.special": special,
    "jax.scipy.linalg": jax.scipy.linalg,
    "jax.scipy.signal": jax.scipy.signal,
    "jax.scipy.stats.norm": jax.scipy.stats.norm,
    "jax.ops": jax.ops,
}


def functions(library: str) -> list[str]:
    """The names of the public functions of a library; types are none."""
    module = LIBRARIES[library]
    public = (name for name in dir(module) if not name.startswith("_"))
    return [
        f"{library}.{name}"
        for name in public
        if callable(getattr(module, name)) and not isinstance(getattr(module, name), type)
    ]


def function(name: str) -> Callable:
    library, _, attribute = name.rpartition(".")
    return getattr(LIBRARIES[library], attribute)


X = np.float32([[0.125, 0.7, 0.3], [0.55, 0.2, 0.85], [0.45, 0.95, 0.6]])
Y = np.float32([[0.9, 0.15, 0.35], [0.4, 0.65, 0.75], [0.05, 0.25, 0.5]])
N = np.int32([[3, 1, 2], [0, 5, 4], [2, 2, 1]])
B = np.array([[True, False, True], [False, True, True], [False, False, True]])
INDEX = np.int32([2, 0, 1])

#: Functions of x alone, of x and y, and of integers, by library.
OF_ONE = {
    "jnp": """
        abs absolute acos all amax amin angle any arccos arcsin arcsinh arctan arctanh argmax
        argmin argsort around asin asinh astype atan atanh atleast_1d atleast_2d atleast_3d
        average cbrt ceil conj conjugate copy corrcoef cos cosh count_nonzero cov cumprod cumsum
        deg2rad degrees diag diagflat diagonal diff ediff1d empty_like exp exp2 expm1 fabs flip
        fliplr flipud floor frexp gradient i0 imag iscomplex isfinite isinf isnan isneginf
        isposinf isreal log log10 log1p log2 logical_not matrix_transpose max mean median min
        minmax modf nan_to_num nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian
        nanmin nanprod nanstd nansum nanvar ndim negative ones_like positive prod ptp rad2deg
        radians ravel real reciprocal rint roll round rot90 shape sign signbit sin sinc sinh
        size sort sort_complex spacing sqrt square squeeze std sum tan tanh trace transpose tril
        triu trunc unwrap var zeros_like unstack""",
    "jnp.linalg": """
        cond det diagonal inv matrix_norm matrix_rank matrix_transpose norm pinv qr slogdet svd
        svdvals trace vector_norm eig eigh eigvals eigvalsh""",
    "jnp.fft": """
        fft fft2 fftn fftshift hfft ifft ifft2 ifftn ifftshift ihfft irfft irfft2 irfftn rfft
        rfft2 rfftn""",
    "jax.nn": """
        celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu
        log_sigmoid log_softmax logmeanexp logsumexp mish relu relu6 selu sigmoid silu soft_sign
        softmax softplus sparse_plus sparse_sigmoid squareplus standardize swish tanh""",
    "jax.scipy.special": """
        dawsn digamma entr erf erfc erfcinv erfcx erfinv exp1 expi expit factorial fresnel gamma
        gammaln gammasgn i0 i0e i1 i1e log_ndtr log_softmax loggamma logit logsumexp ndtr ndtri
        sici softmax spence wofz""",
    "jax.scipy.linalg": "det expm inv lu lu_factor qr svd eigh hessenberg schur sqrtm funm polar",
    "jax.scipy.signal": "detrend",
    "jax.scipy.stats.norm": "cdf logcdf logpdf logsf pdf sf ppf isf",
}
OF_TWO = {
    "jnp": """
        add allclose append arctan2 array_equal array_equiv atan2 copysign cross divide divmod
        dot equal float_power floor_divide fmax fmin fmod greater greater_equal heaviside hypot
        inner isclose kron less less_equal logaddexp logaddexp2 logical_and logical_or
        logical_xor matmul maximum minimum mod multiply nextafter not_equal outer pow power
        remainder subtract tensordot true_divide vdot vecdot trapezoid""",
    "jnp.linalg": "cross matmul solve tensordot vecdot",
    "jax.scipy.special": """
        beta betaln boxcox boxcox1p gammainc gammaincc kl_div rel_entr xlog1py xlogy""",
    "jax.scipy.linalg": "solve",
    "jax.scipy.signal": "convolve correlate convolve2d correlate2d fftconvolve",
}
OF_INTEGERS = {
    "jnp": """
        bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor gcd lcm
        left_shift right_shift""",
}
OF_INTEGER = {"jnp": "bitwise_count bitwise_invert bitwise_not invert"}


def _definite(x):
    return x @ x.T + 2 * np.eye(3, dtype=np.float32)


OTHERS: dict[str, Callable] = {
    "jnp.acosh": lambda x, y: jnp.acosh(1 + x),
    "jnp.apply_along_axis": lambda x, y: jnp.apply_along_axis(jnp.sum, 0, x),
    "jnp.apply_over_axes": lambda x, y: jnp.apply_over_axes(jnp.sum, x, [0, 1]),
    "jnp.arange": lambda x, y: x + jnp.arange(0.0, 0.9, 0.3),
    "jnp.arccosh": lambda x, y: jnp.arccosh(1 + x),
    "jnp.argpartition": lambda x, y: jnp.argpartition(x, 1),
    "jnp.argwhere": lambda x, y: jnp.argwhere(x > y, size=4),
    "jnp.array": lambda x, y: jnp.array([x, y]),
    "jnp.array_split": lambda x, y: jnp.array_split(x, 2),
    "jnp.asarray": lambda x, y: jnp.asarray(x, np.float16),
    "jnp.astype": lambda x, y: jnp.astype(x, np.int32),
    "jnp.bartlett": lambda x, y: x * jnp.bartlett(3),
    "jnp.bincount": lambda x, y: jnp.bincount(N.ravel(), x.ravel(), length=6),
    "jnp.blackman": lambda x, y: x * jnp.blackman(3),
    "jnp.block": lambda x, y: jnp.block([[x, y], [y, x]]),
    "jnp.broadcast_arrays": lambda x, y: jnp.broadcast_arrays(x, y[0]),
    "jnp.broadcast_to": lambda x, y: jnp.broadcast_to(x, (2, 3, 3)),
    "jnp.choose": lambda x, y: jnp.choose(INDEX, [x, y, x + y], mode="clip"),
    "jnp.clip": lambda x, y: jnp.clip(x, 0.2, y),
    "jnp.column_stack": lambda x, y: jnp.column_stack([x, y]),
    "jnp.compress": lambda x, y: jnp.compress(INDEX > 0, x, axis=0, size=2),
    "jnp.concat": lambda x, y: jnp.concat([x, y]),
    "jnp.concatenate": lambda x, y: jnp.concatenate([x, y], 1),
    "jnp.convolve": lambda x, y: jnp.convolve(x[0], y[0]),
    "jnp.correlate": lambda x, y: jnp.correlate(x[0], y[0]),
    "jnp.cumulative_prod": lambda x, y: jnp.cumulative_prod(x, axis=0),
    "jnp.cumulative_sum": lambda x, y: jnp.cumulative_sum(x, axis=0),
    "jnp.delete": lambda x, y: jnp.delete(x, 1, 0),
    "jnp.diag_indices": lambda x, y: x[jnp.diag_indices(3)],
    "jnp.diag_indices_from": lambda x, y: x[jnp.diag_indices_from(x)],
    "jnp.digitize": lambda x, y: jnp.digitize(x, jnp.sort(y[0])),
    "jnp.dsplit": lambda x, y: jnp.dsplit(x[..., None], 1),
    "jnp.dstack": lambda x, y: jnp.dstack([x, y]),
    "jnp.einsum": lambda x, y: jnp.einsum("ij,kj->ik", x, y),
    "jnp.empty": lambda x, y: x + jnp.empty(3),
    "jnp.expand_dims": lambda x, y: jnp.expand_dims(x, 1),
    "jnp.extract": lambda x, y: jnp.extract(x > y, x, size=3),
    "jnp.eye": lambda x, y: x + jnp.eye(3),
    "jnp.fill_diagonal": lambda x, y: jnp.fill_diagonal(x, 3, inplace=False),
    "jnp.flatnonzero": lambda x, y: jnp.flatnonzero(x > y, size=4),
    "jnp.frexp": lambda x, y: jnp.frexp(x),
    "jnp.fromfunction": lambda x, y: x + jnp.fromfunction(lambda i, j: i * j, (3, 3), dtype=float),
    "jnp.full": lambda x, y: jnp.full((2, 2), x[0, 0]),
    "jnp.full_like": lambda x, y: jnp.full_like(x, y[0, 0]),
    "jnp.geomspace": lambda x, y: jnp.geomspace(x[0], y[0] + 1, 4),
    "jnp.hamming": lambda x, y: x * jnp.hamming(3),
    "jnp.hanning": lambda x, y: x * jnp.hanning(3),
    "jnp.histogram": lambda x, y: jnp.histogram(x, 3),
    "jnp.histogram2d": lambda x, y: jnp.histogram2d(x.ravel(), y.ravel(), 2),
    "jnp.histogram_bin_edges": lambda x, y: jnp.histogram_bin_edges(x, 3),
    "jnp.histogramdd": lambda x, y: jnp.histogramdd(x, 2),
    "jnp.hsplit": lambda x, y: jnp.hsplit(x, 3),
    "jnp.hstack": lambda x, y: jnp.hstack([x, y]),
    "jnp.identity": lambda x, y: x * jnp.identity(3),
    "jnp.indices": lambda x, y: x * jnp.indices((3, 3)),
    "jnp.insert": lambda x, y: jnp.insert(x, 1, y[0], 0),
    "jnp.interp": lambda x, y: jnp.interp(x, jnp.sort(y[0]), y[1]),
    "jnp.intersect1d": lambda x, y: jnp.intersect1d(x, x[:2], size=6, fill_value=0),
    "jnp.isin": lambda x, y: jnp.isin(x, x[:2]),
    "jnp.ix_": lambda x, y: x[jnp.ix_(INDEX, INDEX)],
    "jnp.kaiser": lambda x, y: x * jnp.kaiser(3, 2.0),
    "jnp.ldexp": lambda x, y: jnp.ldexp(x, N),
    "jnp.lexsort": lambda x, y: jnp.lexsort([x, y]),
    "jnp.linspace": lambda x, y: jnp.linspace(x[0], y[0], 4),
    "jnp.logspace": lambda x, y: jnp.logspace(x[0], y[0], 4),
    "jnp.mask_indices": lambda x, y: x[jnp.mask_indices(3, jnp.triu, size=6)],
    "jnp.matvec": lambda x, y: jnp.matvec(x, y[0]),
    "jnp.meshgrid": lambda x, y: jnp.meshgrid(x[0], y[0]),
    "jnp.moveaxis": lambda x, y: jnp.moveaxis(x, 0, 1),
    "jnp.nanpercentile": lambda x, y: jnp.nanpercentile(x, 30),
    "jnp.nanquantile": lambda x, y: jnp.nanquantile(x, 0.3),
    "jnp.nonzero": lambda x, y: jnp.nonzero(x > y, size=4),
    "jnp.ones": lambda x, y: x + jnp.ones(3),
    "jnp.packbits": lambda x, y: jnp.packbits(x > y),
    "jnp.pad": lambda x, y: jnp.pad(x, 1, "reflect"),
    "jnp.partition": lambda x, y: jnp.partition(x, 1),
    "jnp.percentile": lambda x, y: jnp.percentile(x, 30),
    "jnp.piecewise": lambda x, y: jnp.piecewise(x, [x > y], [jnp.sin, 0.0]),
    "jnp.place": lambda x, y: jnp.place(x, x > y, y.ravel(), inplace=False),
    "jnp.poly": lambda x, y: jnp.poly(x[0]),
    "jnp.polyadd": lambda x, y: jnp.polyadd(x[0], y[0, :2]),
    "jnp.polyder": lambda x, y: jnp.polyder(x[0]),
    "jnp.polydiv": lambda x, y: jnp.polydiv(x[0], y[0, :2]),
    "jnp.polyfit": lambda x, y: jnp.polyfit(x[0], y[0], 1),
    "jnp.polyint": lambda x, y: jnp.polyint(x[0]),
    "jnp.polymul": lambda x, y: jnp.polymul(x[0], y[0, :2]),
    "jnp.polysub": lambda x, y: jnp.polysub(x[0], y[0, :2]),
    "jnp.polyval": lambda x, y: jnp.polyval(x[0], y),
    "jnp.put": lambda x, y: jnp.put(x, INDEX, y[0], inplace=False),
    "jnp.put_along_axis": lambda x, y: jnp.put_along_axis(
        x, INDEX[None], y[:1], axis=0, inplace=False
    ),
    "jnp.quantile": lambda x, y: jnp.quantile(x, 0.3),
    "jnp.ravel_multi_index": lambda x, y: (
        x * jnp.ravel_multi_index((N % 3, N % 3), (3, 3), mode="clip")
    ),
    "jnp.repeat": lambda x, y: jnp.repeat(x, 2, 1),
    "jnp.reshape": lambda x, y: jnp.reshape(x, (9, 1)),
    "jnp.resize": lambda x, y: jnp.resize(x, (2, 5)),
    "jnp.roll": lambda x, y: jnp.roll(x, 1),
    "jnp.rollaxis": lambda x, y: jnp.rollaxis(x, 1),
    "jnp.roots": lambda x, y: jnp.roots(x[0], strip_zeros=False),
    "jnp.searchsorted": lambda x, y: jnp.searchsorted(jnp.sort(x[0]), y),
    "jnp.select": lambda x, y: jnp.select([x > y, x > 0.5], [x, y]),
    "jnp.setdiff1d": lambda x, y: jnp.setdiff1d(x, x[:1], size=6),
    "jnp.setxor1d": lambda x, y: jnp.setxor1d(x, x[:1], size=6),
    "jnp.split": lambda x, y: jnp.split(x, 3),
    "jnp.stack": lambda x, y: jnp.stack([x, y]),
    "jnp.swapaxes": lambda x, y: jnp.swapaxes(x, 0, 1),
    "jnp.take": lambda x, y: jnp.take(x, INDEX, 0),
    "jnp.take_along_axis": lambda x, y: jnp.take_along_axis(x, N % 3, 0),
    "jnp.tile": lambda x, y: jnp.tile(x, 2),
    "jnp.top_k": lambda x, y: jnp.top_k(x, 2),
    "jnp.tri": lambda x, y: x * jnp.tri(3),
    "jnp.tril_indices": lambda x, y: x[jnp.tril_indices(3)],
    "jnp.tril_indices_from": lambda x, y: x[jnp.tril_indices_from(x)],
    "jnp.triu_indices": lambda x, y: x[jnp.triu_indices(3)],
    "jnp.triu_indices_from": lambda x, y: x[jnp.triu_indices_from(x)],
    "jnp.union1d": lambda x, y: jnp.union1d(x, x[:1], size=9),
    "jnp.unique": lambda x, y: jnp.unique(x, size=9, return_inverse=True, return_counts=True),
    "jnp.unique_all": lambda x, y: tuple(jnp.unique_all(x, size=9)),
    "jnp.unique_counts": lambda x, y: tuple(jnp.unique_counts(x, size=9)),
    "jnp.unique_inverse": lambda x, y: tuple(jnp.unique_inverse(x, size=9)),
    "jnp.unique_values": lambda x, y: jnp.unique_values(x, size=9),
    "jnp.unpackbits": lambda x, y: jnp.unpackbits(N.astype(np.uint8)) * x[0, 0],
    "jnp.unravel_index": lambda x, y: x[jnp.unravel_index(N, (3, 3))],
    "jnp.vander": lambda x, y: jnp.vander(x[0]),
    "jnp.vecmat": lambda x, y: jnp.vecmat(y[0], x),
    "jnp.vectorize": lambda x, y: jnp.vectorize(jnp.add)(x, y),
    "jnp.vsplit": lambda x, y: jnp.vsplit(x, 3),
    "jnp.vstack": lambda x, y: jnp.vstack([x, y]),
    "jnp.where": lambda x, y: jnp.where(x > y, x, y),
    "jnp.zeros": lambda x, y: x + jnp.zeros(3),
    "jnp.linalg.cholesky": lambda x, y: jnp.linalg.cholesky(_definite(x)),
    "jnp.linalg.lstsq": lambda x, y: jnp.linalg.lstsq(x, y),
    "jnp.linalg.matrix_power": lambda x, y: jnp.linalg.matrix_power(x, 5),
    "jnp.linalg.multi_dot": lambda x, y: jnp.linalg.multi_dot([x, y, x]),
    "jnp.linalg.tensorinv": lambda x, y: jnp.linalg.tensorinv(x, 1),
    "jnp.linalg.tensorsolve": lambda x, y: jnp.linalg.tensorsolve(x, y[0]),
    "jnp.fft.fftfreq": lambda x, y: x + jnp.fft.fftfreq(3),
    "jnp.fft.rfftfreq": lambda x, y: x[:, :2] + jnp.fft.rfftfreq(3),
    "jax.nn.dot_product_attention": lambda x, y: jax.nn.dot_product_attention(
        x[:, None, None], y[:, None, None], y[:, None, None]
    ),
    "jax.nn.glu": lambda x, y: jax.nn.glu(x[:2], 0),
    "jax.nn.log1mexp": lambda x, y: jax.nn.log1mexp(x),
    "jax.nn.one_hot": lambda x, y: x[:, :, None] * jax.nn.one_hot(N, 6),
    "jax.nn.scaled_matmul": lambda x, y: jax.nn.scaled_matmul(
        *(jnp.tile(a, (1, 1, 32))[None, 0] for a in (x, y)), *(jnp.ones((1, 3, 3)),) * 2
    ),
    "jax.scipy.special.bernoulli": lambda x, y: x[0, 0] * special.bernoulli(3),
    "jax.scipy.special.bessel_jn": lambda x, y: special.bessel_jn(x, v=2),
    "jax.scipy.special.betainc": lambda x, y: special.betainc(x, y, y),
    "jax.scipy.special.comb": lambda x, y: special.comb(4 + x, 2 * y),
    "jax.scipy.special.expn": lambda x, y: special.expn(N[0], x),
    "jax.scipy.special.hyp1f1": lambda x, y: special.hyp1f1(x, y, x),
    "jax.scipy.special.hyp2f1": lambda x, y: special.hyp2f1(x, y, x, y / 2),
    "jax.scipy.special.multigammaln": lambda x, y: special.multigammaln(2 + x, 2),
    "jax.scipy.special.owens_t": lambda x, y: special.owens_t(x, y),
    "jax.scipy.special.poch": lambda x, y: special.poch(x, y),
    "jax.scipy.special.polygamma": lambda x, y: special.polygamma(1, x),
    "jax.scipy.special.sph_harm_y": lambda x, y: special.sph_harm_y(
        INDEX, INDEX, x[0], y[0], n_max=2
    ),
    "jax.scipy.special.zeta": lambda x, y: special.zeta(1 + x, y),
    "jax.scipy.linalg.block_diag": lambda x, y: jax.scipy.linalg.block_diag(x, y),
    "jax.scipy.linalg.cho_factor": lambda x, y: jax.scipy.linalg.cho_factor(_definite(x))[0],
    "jax.scipy.linalg.cho_solve": lambda x, y: jax.scipy.linalg.cho_solve((x, True), y),
    "jax.scipy.linalg.cholesky": lambda x, y: jax.scipy.linalg.cholesky(_definite(x)),
    "jax.scipy.linalg.eigh_tridiagonal": lambda x, y: jax.scipy.linalg.eigh_tridiagonal(
        x[0], y[0, :2], eigvals_only=True
    ),
    "jax.scipy.linalg.expm_frechet": lambda x, y: jax.scipy.linalg.expm_frechet(x, y),
    "jax.scipy.linalg.hilbert": lambda x, y: x * jax.scipy.linalg.hilbert(3),
    "jax.scipy.linalg.lu_solve": lambda x, y: jax.scipy.linalg.lu_solve((x, INDEX), y),
    "jax.scipy.linalg.pascal": lambda x, y: x * jax.scipy.linalg.pascal(3),
    "jax.scipy.linalg.rsf2csf": lambda x, y: jax.scipy.linalg.rsf2csf(x, y),
    "jax.scipy.linalg.solve_sylvester": lambda x, y: jax.scipy.linalg.solve_sylvester(x, y, x),
    "jax.scipy.linalg.solve_triangular": lambda x, y: jax.scipy.linalg.solve_triangular(x, y),
    "jax.scipy.linalg.toeplitz": lambda x, y: jax.scipy.linalg.toeplitz(x[0], y[0]),
    "jax.scipy.linalg.funm": lambda x, y: jax.scipy.linalg.funm(x, jnp.sin),
    "jax.scipy.signal.csd": lambda x, y: jax.scipy.signal.csd(x[0], y[0], nperseg=3),
    "jax.scipy.signal.istft": lambda x, y: jax.scipy.signal.istft(x, nperseg=4),
    "jax.scipy.signal.stft": lambda x, y: jax.scipy.signal.stft(x[0], nperseg=2),
    "jax.scipy.signal.welch": lambda x, y: jax.scipy.signal.welch(x[0], nperseg=2),
    "jax.ops.segment_max": lambda x, y: jax.ops.segment_max(x, INDEX, 3),
    "jax.ops.segment_min": lambda x, y: jax.ops.segment_min(x, INDEX, 3),
    "jax.ops.segment_prod": lambda x, y: jax.ops.segment_prod(x, INDEX, 3),
    "jax.ops.segment_sum": lambda x, y: jax.ops.segment_sum(x, INDEX, 3),
    "jnp.permute_dims": lambda x, y: jnp.permute_dims(x, (1, 0)),
    "jnp.linalg.outer": lambda x, y: jnp.linalg.outer(x[0], y[0]),
    "jax.scipy.linalg.circulant": lambda x, y: jax.scipy.linalg.circulant(x[0]),
    "jax.scipy.linalg.companion": lambda x, y: jax.scipy.linalg.companion(x[0]),
    "jax.scipy.linalg.convolution_matrix": lambda x, y: jax.scipy.linalg.convolution_matrix(
        x[0], 3
    ),
    "jax.scipy.linalg.dft": lambda x, y: x * jax.scipy.linalg.dft(3),
    "jax.scipy.linalg.fiedler": lambda x, y: jax.scipy.linalg.fiedler(x[0]),
    "jax.scipy.linalg.fiedler_companion": lambda x, y: jax.scipy.linalg.fiedler_companion(x[0]),
    "jax.scipy.linalg.hadamard": lambda x, y: x[:2, :2] * jax.scipy.linalg.hadamard(2),
    "jax.scipy.linalg.hankel": lambda x, y: jax.scipy.linalg.hankel(x[0], y[0]),
    "jax.scipy.linalg.helmert": lambda x, y: x[:2] * jax.scipy.linalg.helmert(3),
    "jax.scipy.linalg.invhilbert": lambda x, y: x * jax.scipy.linalg.invhilbert(3),
    "jax.scipy.linalg.invpascal": lambda x, y: x * jax.scipy.linalg.invpascal(3),
    "jax.scipy.linalg.leslie": lambda x, y: jax.scipy.linalg.leslie(x[0], y[0, :2]),
    "jax.scipy.linalg.qr_multiply": lambda x, y: jax.scipy.linalg.qr_multiply(x, y),
}

CALLS: dict[str, Callable] = {}
for _table, _arguments in (
    (OF_ONE, lambda x, y: (x,)),
    (OF_TWO, lambda x, y: (x, y)),
    (OF_INTEGERS, lambda x, y: (N, (x * 4).astype(np.int32))),
    (OF_INTEGER, lambda x, y: ((x * 4).astype(np.int32),)),
):
    for _library, _names in _table.items():
        for _name in _names.split():

            def _call(x, y, name=f"{_library}.{_name}", arguments=_arguments):
                return function(name)(*arguments(x, y))

            CALLS[f"{_library}.{_name}"] = _call
CALLS = dict(sorted((CALLS | OTHERS).items()))

#: About types, text, files and settings.
_NO_PROGRAMS = """
    array_repr array_str broadcast_shapes can_cast einsum_path from_dlpack frombuffer fromfile
    fromiter frompyfunc fromstring get_printoptions iscomplexobj isdtype isrealobj isscalar
    issubdtype iterable load printoptions promote_types result_type save savez set_printoptions
    trim_zeros"""
NO_PROGRAMS = {
    *(f"jnp.{name}" for name in _NO_PROGRAMS.split()),
    "jax.nn.get_scaled_dot_general_config",
    "jax.nn.scaled_dot_general",
}

#: Refused, by the operation that is.
REFUSED = {
    "jax.scipy.linalg.funm": "eig, schur",
    "jax.scipy.linalg.hessenberg": "hessenberg",
    "jax.scipy.linalg.rsf2csf": "eig",
    "jax.scipy.linalg.schur": "schur",
    "jax.scipy.linalg.solve_sylvester": "eig, schur",
    "jax.scipy.linalg.sqrtm": "schur",
    "jnp.linalg.eig": "eig",
    "jnp.linalg.eigvals": "eig",
    "jnp.roots": "eig",
}

#: Versions of JAX state other graphs for these: docs/numerics.md, section 12.
REWRITTEN = {
    "jax.scipy.linalg.det",
    "jax.scipy.special.betainc",
    "jax.scipy.special.erfcx",
    "jax.scipy.special.expn",
    "jax.scipy.special.kl_div",
    "jax.scipy.special.ndtri",
    "jax.scipy.special.rel_entr",
    "jax.scipy.stats.norm.isf",
    "jax.scipy.stats.norm.ppf",
    "jnp.hypot",
    "jnp.linalg.det",
    "jnp.linspace",
    "jnp.log2",
    "jnp.logspace",
    "jnp.sinc",
}


PAGE = pathlib.Path(__file__).parent.parent / "docs" / "coverage.md"

_PAGE = """# Coverage: functions of JAX's libraries

Which functions of `jax.numpy` and its relatives repjax covers, each tried with one typical call on
float32 matrices (`tests/library.py`). `tests/programs/test_library.py` compares this page with what
happens in every supported version of JAX; the page is written by `python tests/library.py`.

What is covered are [primitives](primitives.md), so that these lists are not all there is: any
function made of covered primitives works. A function listed here as covered may still refuse other
arguments, such as complex128 or float64.

## Refused

{refused_count} functions, by the operation without a reproducible form.

{refused}

## Rewritten by JAX

These functions are covered. They are composite functions ([numerics.md, section
12](numerics.md#12-composite-functions)) that versions of JAX from 0.10.2 to 0.12.0 state as
different graphs, so that their bits follow the version of JAX:

{rewritten}

## Covered

{covered_count} functions. New functions are only there in new versions of JAX.
{covered}"""


def page() -> str:
    """The text of docs/coverage.md."""
    covered = [name for name in CALLS if name not in REFUSED]
    rows = ["| function | because of |", "|---|---|"]
    rows += [f"| `{name}` | {cause} |" for name, cause in sorted(REFUSED.items())]
    sections = []
    for library in LIBRARIES:
        names = [n.rpartition(".")[2] for n in covered if n.rpartition(".")[0] == library]
        sections.append(textwrap.fill(f"**`{library}`** ({len(names)}): {_list(names)}", 100))
    return _PAGE.format(
        refused_count=len(REFUSED),
        refused="\n".join(rows),
        rewritten=textwrap.fill(_list(sorted(REWRITTEN)) + ".", 100),
        covered_count=len(covered),
        covered="".join(f"\n{section}\n" for section in sections),
    )


def _list(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page())
