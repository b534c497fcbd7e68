"""Options of JAX and of XLA that could reach into reproducible programs, and do not."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import re
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import assert_same_bits, normal, same_bits
from repjax import environment
from repjax.primitives.gpu import triton
from repjax.primitives.operations.products import sequential

ANY_ORDER = {"accumulation": "order_independent", "contraction": "order_independent"}
ORDERS = {"default": {}, "order_independent": ANY_ORDER}

# --- jax_default_matmul_precision ---------------------------------------------------------

#: All that the option takes, whatever platform has them.
PRECISIONS = jax.config.meta["jax_default_matmul_precision"][2]["enum_values"]
#: Which are lax.Precision.HIGHEST: the ones that order-independent products know.
FINER = ("highest", "float32")
SHAPES = ((6, 40), (40, 5))
A, B = (normal(shape, seed=i) for i, shape in enumerate(SHAPES))
WIDE = np.where(A > 2, np.float32(np.inf), A)


def products(a, b, wide):
    """Products, a convolution and a transform, of floats, of integers and of what is not finite."""
    i, j = (lax.round(x * 1000).astype(jnp.int32) for x in (a, b))
    image, kernel = a.reshape(1, 2, 5, 24), b.reshape(4, 2, 5, 5)
    return {
        "float32": a @ b,
        "gradients": jax.grad(lambda a, b: jnp.sum((a @ b) ** 2), (0, 1))(a, b),
        "not finite": wide @ b,
        "float16": a.astype(jnp.float16) @ b.astype(jnp.float16),
        "bfloat16": a.astype(jnp.bfloat16) @ b.astype(jnp.bfloat16),
        "integers": i @ j,
        "bytes": lax.dot(i.astype(jnp.int8), j.astype(jnp.int8), preferred_element_type=jnp.int32),
        "convolution": lax.conv(image, kernel, (1, 1), "SAME"),
        "of integers": lax.conv(i.reshape(image.shape), j.reshape(kernel.shape), (1, 1), "SAME"),
        "transform": jnp.fft.rfft(a).real,
        "ragged": lax.ragged_dot(a, jnp.stack([b, 2 * b]), jnp.array([2, 4])),
    }


def _programs(order):
    def explicit(a, b, wide):
        dot = functools.partial(repjax.lax.dot, contraction=ORDERS[order].get("contraction"))
        gradients = jax.grad(lambda a, b: repjax.lax.mul(dot(a, b), dot(a, b)).sum(), (0, 1))(a, b)
        return dot(a, b), dot(wide, b), gradients

    def switch(*arrays):
        with repjax.enabled(**ORDERS[order]):
            return jax.jit(lambda *arrays: products(*arrays))(*arrays)

    decorated = repjax.reproducible(lambda *arrays: products(*arrays), **ORDERS[order])
    return {"decorator": decorated, "switch": switch, "explicit": explicit}


def _computed(order, way, precision):
    with jax.default_matmul_precision(precision):
        return _programs(order)[way](A, B, WIDE)


_expected = functools.cache(_computed)


@functools.cache
def _lowered(order, precision):
    """The program for CPU and CUDA without kernels, as text."""
    with jax.default_matmul_precision(precision):
        program = _programs(order)["decorator"]
        exported = jax.export.export(program, platforms=["cpu", "cuda"])(A, B, WIDE)
    return re.sub(r"loc\(.*?\)|#loc.*", "", exported.mlir_module())


@pytest.mark.parametrize(
    ("order", "precision"),
    [*(("order_independent", p) for p in PRECISIONS), *(("default", p) for p in PRECISIONS[::4])],
)
def test_the_precision_changes_no_program_but_by_the_stated_grid(order, precision):
    """No inner product of repjax has the user's precision, and no product of integers."""
    text = _lowered(order, precision)
    assert text.count("dot_general") > 1
    assert text == _lowered(order, "highest" if precision in FINER else None)


@pytest.mark.parametrize("way", ["decorator", "switch", "explicit"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("precision", ["BF16_BF16_F32", "TF32_TF32_F32", "float32"])
def test_the_precision_changes_no_bits(precision, order, way):
    expected = _expected(order, way, "highest" if precision in FINER else None)
    assert_same_bits(_computed(order, way, precision), expected)


def test_tiles_of_integers_state_their_precision():
    a = jnp.ones((32, 32), jnp.int8)
    for precision in (None, "BF16_BF16_F32", "TF32_TF32_F32"):
        with jax.default_matmul_precision(precision):
            text = str(jax.make_jaxpr(triton.dot_integers)(a, a, jnp.ones((32, 32), jnp.int32)))
        assert "precision=(Precision.DEFAULT, Precision.DEFAULT)" in text


def test_the_precision_reaches_stock_products():
    """Negative control: it changes products of integers too."""
    i, j = (np.round(x * 1000).astype(np.int32) for x in (A, B))
    with jax.default_matmul_precision("BF16_BF16_F32"):
        plain = jax.jit(jnp.dot)(i, j)
        ours = repjax.reproducible(jnp.dot)(i, j)
    assert_same_bits(ours, i @ j)
    assert not same_bits(plain, i @ j)
    default, finer = (_expected("order_independent", "decorator", p) for p in (None, "highest"))
    assert not same_bits(default["float32"], finer["float32"])


# --- other options of JAX -----------------------------------------------------------------

#: Inputs of a program, as docs/numerics.md says: with another value it may be another one.
INPUTS = {
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_disable_jit",
    "jax_enable_x64",
    "jax_high_dynamic_range_gumbel",
    "jax_numpy_dtype_promotion",
    "jax_random_seed_offset",
    "jax_softmax_custom_jvp",
    "jax_threefry_partitionable",
}
#: With these JAX traces or runs nothing, or not this program, or repjax refuses it.
WITHOUT_RESULTS = {
    "jax_check_tracer_leaks",
    "jax_error_checking_behavior_divide",
    "jax_error_checking_behavior_nan",
    "jax_no_execution",
    "jax_no_tracing",
    "jax_scan3",
}
#: Parts of the names of options of the process: its files, devices, messages and networks.
OF_THE_PROCESS = (
    *("backend", "cache", "collectives", "cross_host", "dcn", "distributed", "dump", "export"),
    *("frames", "garbage", "guard", "jax2tf", "leaked", "log", "mock", "mosaic", "mtls", "num_cpu"),
    *("pallas", "pgle", "pjrt", "platform", "preemption", "profil", "proxy", "recoverability"),
    *("serialization", "share_binary", "timeout", "topology", "traceback", "transfer", "visible"),
)


def _values(name: str) -> list:
    """Other values of an option, where they are known."""
    kind, _, keywords = jax.config.meta[name]
    now = jax.config._read(name)
    if kind is bool:
        return [x for x in (False, True) if x is not now]
    if kind in ("enum", "enum_class"):
        return [x for x in keywords.get("enum_values", keywords.get("enum_class")) if x != now]
    return []


@pytest.mark.parametrize("name", ["nan", "divide"])
def test_checks_for_errors_are_named_where_they_are_refused(name):
    expected = "jax_error_checking_behavior_nan and _divide"
    option = f"jax_error_checking_behavior_{name}"
    with _set(option, "raise"), pytest.raises(TypeError, match=expected):
        repjax.reproducible(lambda x: x / x)(np.float32([1, 2]))


TRIED = [
    (name, value)
    for name in sorted(jax.config.meta)
    if name not in INPUTS | WITHOUT_RESULTS and not any(part in name for part in OF_THE_PROCESS)
    for value in _values(name)
]


def everything(a, b):
    def loss(a, b):
        def step(c, _):
            return jax.nn.softmax(jnp.tanh(c @ b) @ b.T), c.sum()

        c, sums = lax.scan(step, a, None, 2)
        return jnp.mean(c * sums[0]) + jax.nn.logsumexp(c)

    keys = jax.random.key(1), jax.random.key(2)
    return (
        jax.value_and_grad(loss, (0, 1))(a, b),
        (jax.nn.gelu(a) * jax.nn.sigmoid(a), jax.scipy.special.erfinv(jnp.tanh(a))),
        (jnp.cumsum(a, 1), jnp.sort(a), a.at[jnp.arange(3) % 2].add(1.0)),
        (jax.random.normal(keys[0], (3,)), jax.random.gumbel(keys[1], (3,))),
    )


def _results():
    def order_independent(a, b):
        return jax.grad(lambda a, b: jnp.tanh(a @ b).sum(), (0, 1))(a, b)

    return (
        repjax.reproducible(lambda *xs: everything(*xs))(A, B),
        repjax.reproducible(order_independent, **ANY_ORDER)(A, B),
    )


_default_results = functools.cache(_results)


@contextlib.contextmanager
def _set(name, value):
    before = jax.config._read(name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


_executables = {}


def _compile_once(backend, computation, devices, options, *args, **kwargs):
    """The same program is not compiled again with the same options of the compiler."""
    key = computation.operation.get_asm(), options.SerializeAsString()
    if key not in _executables:
        _executables[key] = _stock_compile(backend, computation, devices, options, *args, **kwargs)
    return _executables[key]


_stock_compile = environment._stock_compile


@pytest.mark.filterwarnings("ignore")  # of options that JAX would rather not have set
@pytest.mark.parametrize(("name", "value"), TRIED)
def test_other_options_change_no_bits(name, value, monkeypatch):
    monkeypatch.setattr(environment, "_stock_compile", _compile_once)
    expected = _default_results()
    with _set(name, value):
        assert_same_bits(_results(), expected, f"{name}={value}")


@pytest.mark.parametrize("name", ["jax_softmax_custom_jvp", "jax_threefry_partitionable"])
def test_an_input_changes_bits(name):
    """Negative control."""
    expected = _default_results()
    with _set(name, not jax.config._read(name)):
        results = _results()
    with pytest.raises(AssertionError):
        assert_same_bits(results, expected)


# --- flags of XLA -------------------------------------------------------------------------

#: Whether a program is made reproducible, and how; each compiles a new one.
WAYS = {
    "decorator": lambda: repjax.reproducible(lambda x: jnp.tanh(x) * x)(A),
    "explicit": lambda: jax.jit(lambda x: repjax.lax.tanh(x))(A),
    "option": lambda: jax.config.update("repjax_enable", True),
    "block": lambda: repjax.enabled().__enter__(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("flag", environment.HARMFUL)
def test_harmful_flags_are_refused(flag, way, monkeypatch, tmp_path):
    file = tmp_path / "flags"
    file.write_text(f"--{flag}=true")
    for flags in (f"--{flag}", f"--xla_cpu_max_isa=AVX --{flag}=true", f"--{flag}=1", str(file)):
        monkeypatch.setenv("XLA_FLAGS", flags)
        with pytest.raises(RuntimeError, match=f"XLA_FLAGS: expected {flag}=false, received"):
            WAYS[way]()
    assert jax.config.repjax_enable is False
    for flags in (f"--{flag}=true --{flag}=false", f"--{flag}=0", f"--{flag}_else=true"):
        monkeypatch.setenv("XLA_FLAGS", flags)
        environment.check()


def test_flags_that_are_removed_later_are_refused():
    code = "import os, repjax; os.environ['XLA_FLAGS'] = ''; repjax.enabled().__enter__()"
    result = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "XLA_FLAGS": "--xla_cpu_enable_fast_math=true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "RuntimeError: XLA_FLAGS: expected xla_cpu_enable_fast_math=false" in result.stderr


def test_conformance_refuses_harmful_flags():
    result = subprocess.run(
        [sys.executable, "-P", "-m", "repjax", "conformance", "--only", "exp"],
        env={**os.environ, "XLA_FLAGS": "--xla_gpu_ftz=true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("error: XLA_FLAGS: expected xla_gpu_ftz=false")


def test_emulated_float64_products_of_gpus_are_refused(monkeypatch):
    monkeypatch.setenv("REPJAX_GPU_BACKEND", "off")  # nobody knows for which GPU
    compiled = []
    monkeypatch.setattr(environment, "_stock_compile", lambda *_: compiled.append(1))
    options = types.SimpleNamespace(env_option_overrides=())

    def compile_for(platform, program):
        lowered = jax.jit(program).trace(np.float32(1)).lower(lowering_platforms=(platform,))
        backend = types.SimpleNamespace(platform=platform)
        environment._compile(backend, lowered.compiler_ir("stablehlo"), None, options)

    for value in ("", "0"):
        monkeypatch.setenv(environment.EMULATION, value)
        compile_for("cuda", repjax.lax.exp)
    monkeypatch.setenv(environment.EMULATION, "1")
    compile_for("cuda", lambda x: lax.add(x, x))  # nothing of ours
    compile_for("cpu", repjax.lax.exp)
    assert len(compiled) == 4
    with pytest.raises(RuntimeError, match=f"expected {environment.EMULATION}=0, received '1'"):
        compile_for("cuda", repjax.lax.exp)


FAST = {"xla_cpu_enable_fast_math": True}


def test_harmful_options_of_one_program_are_refused():
    def tanh(x):
        return jnp.tanh(x) * x

    ours = repjax.reproducible(tanh)
    expected = ours(A)
    programs = {
        "of the decorator": lambda: repjax.reproducible(tanh, compiler_options=FAST)(A),
        "around it": lambda: jax.jit(lambda x: ours(x), compiler_options=FAST)(A),
        "ahead of time": lambda: ours.lower(A).compile(compiler_options=FAST),
        "explicit": lambda: jax.jit(lambda x: repjax.lax.tanh(x), compiler_options=FAST)(A),
        "switch": lambda: jax.jit(lambda x: tanh(x), compiler_options=FAST)(A),
    }
    for name, program in programs.items():
        with (
            repjax.enabled(name == "switch"),
            pytest.raises(RuntimeError, match="compiler_options: expected xla_cpu_enable_fast_m"),
        ):
            program()
    jax.jit(tanh, compiler_options=FAST)(A)  # plain JAX has what it asks for
    harmless = {"xla_cpu_enable_fast_math": False}
    assert_same_bits(jax.jit(lambda x: ours(x), compiler_options=harmless)(A), expected)


def _chain(options):
    """The body of a product, which is what XLA compiles where there is no kernel."""

    @functools.partial(jax.jit, compiler_options=options)
    def dot(a, b):
        return sequential.dot_general_body(a, b, dimension_numbers=(((1,), (0,)), ((), ())))

    with jax.enable_x64(True):
        return dot(A, B)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a flag for CPUs")
def test_the_harm_is_real():
    """Negative control: unchecked, the flag changes products that XLA computes."""
    assert_same_bits(_chain({}), repjax.lax.dot(A, B))
    assert not same_bits(_chain(FAST), repjax.lax.dot(A, B))


#: Some of those that docs/numerics.md lists as tried.
HARMLESS = {
    "xla_allow_excess_precision": False,
    "xla_backend_optimization_level": 0,
    "xla_cpu_enable_fast_min_max": True,
    "xla_cpu_prefer_vector_width": 512,
    "xla_llvm_disable_expensive_passes": True,
}


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="flags for CPUs")
@pytest.mark.parametrize("flag", HARMLESS)
def test_other_flags_change_no_bits(flag):
    options = {flag: HARMLESS[flag]}

    def operations(x, y):
        special = jnp.maximum(x / y, jnp.where(x > 1, jnp.nan, y)), x * y + x, (x + y) - y
        return special, jax.nn.softmax(x), jnp.sqrt(jnp.abs(x)) * 3.7 / 1.3, x.sum(), jnp.sort(x)

    expected = repjax.reproducible(operations)(A, 1 / A)
    program = repjax.reproducible(lambda *xs: operations(*xs), compiler_options=options)
    assert_same_bits(program(A, 1 / A), expected)
    assert_same_bits(_chain(options), _chain({}))


# --- the processor ------------------------------------------------------------------------

IS_X86 = platform.machine() == "x86_64" and sys.platform == "linux"
MODES = {"downward": 0x400, "upward": 0x800, "towards zero": 0xC00}


@pytest.mark.skipif(not IS_X86, reason="the numbers of rounding modes are those of x86-64")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
def test_another_rounding_mode_is_refused(mode, way):
    libm = ctypes.CDLL("libm.so.6")
    try:
        assert libm.fesetround(MODES[mode]) == 0
        with pytest.raises(RuntimeError, match="expected the processor to round to nearest"):
            WAYS[way]()
    finally:
        libm.fesetround(0)
    environment.check()


SUBNORMAL = """
import ctypes, sys
libm, state = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)()
libm.fegetenv(state)
state[7] |= int(sys.argv[1], 16)  # MXCSR
libm.fesetenv(state)
import jax, jax.numpy as jnp, numpy as np, repjax
x = np.random.default_rng(0).normal(size=(8, 400)).astype(np.float32) * np.float32(2**-64)
x[:, 0] = np.uint32(1).view(np.float32)
f = lambda x: (x @ x.T, x * x[0] * np.float32(2**24), jnp.exp(x), x.sum(1), jnp.sort(x), x / x[1])
libm.fegetenv(state)
print(hex(state[7] & 0x8040), repjax.digest(repjax.reproducible(f)(x)))
"""


@pytest.mark.skipif(not IS_X86, reason="the bits are those of x86-64")
@pytest.mark.parametrize("kernel", ["", "off"])
def test_flushing_of_subnormal_numbers_does_not_matter(kernel):
    """As a library may switch it on that was compiled with -ffast-math."""
    results = [
        subprocess.run(
            [sys.executable, "-P", "-c", SUBNORMAL, mxcsr],
            env={**os.environ, "REPJAX_NATIVE": kernel},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for mxcsr in ("0", "8040")
    ]
    assert [flags for flags, _ in results] == ["0x0", "0x8040"]
    assert results[0][1] == results[1][1]
