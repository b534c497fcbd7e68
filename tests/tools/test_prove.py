"""``python -m repjax prove``: small proofs pass, broken algorithms are found, bits count."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import json
import pathlib
import subprocess
import sys

import gmpy2
import jax
import mpmath
import numpy as np
import pytest

import repjax
from helpers.paths import ROOT
from repjax.__main__ import main
from repjax.primitives.core import canonical
from repjax.primitives.cpu import bytecode as programs
from repjax.primitives.cpu import library
from repjax.primitives.operations.elementary import exp
from repjax.verify import oracle, prove

PROOFS = ROOT / "docs" / "proofs"
CERTIFICATES = sorted(PROOFS.glob("*.json"))
NAN, INF, TINY, ONE = 0x7FC00000, 0x7F800000, 0x00800000, 0x3F800000
#: Where log fails if it is not rounded to odd: close to a rounding boundary.
HARD_LOG = 0x41178FEB

EXACT = {
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
    "erf_inv": mpmath.erfinv,
    "exp10": lambda x: mpmath.mpf(10) ** x,
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "lgamma": lambda x: mpmath.log(abs(mpmath.gamma(x))),
    "log2": lambda x: mpmath.log(x, 2),
    "logistic": lambda x: 1 / (1 + mpmath.exp(-x)),
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "square": lambda x: x * x,
}


@pytest.fixture
def in_process(monkeypatch):
    """Proofs in a thread of this process, in blocks of 4,096 inputs."""

    @contextlib.contextmanager
    def workers(isa, processes):
        with concurrent.futures.ThreadPoolExecutor(processes) as pool:
            yield pool

    monkeypatch.setattr(prove, "workers", workers)
    monkeypatch.setattr(prove, "BLOCK", 4096)


@pytest.fixture
def recompiled():
    """Functions traced in the test are forgotten after it, and those before are not used."""

    def forget():
        prove.compiled.cache_clear()
        jax.clear_caches()

    forget()
    yield
    forget()


def command(*arguments, output):
    return main(["prove", *map(str, arguments), "--output", str(output)])


# --- the oracle -----------------------------------------------------------------------


def mpmath_bits(name, bits):
    """Correctly rounded, canonical results by mpmath where they are real and finite."""
    function = EXACT[name] if name in EXACT else getattr(mpmath, name)
    for x in bits.view(np.float32).tolist():
        try:
            with mpmath.workprec(400):
                y = function(mpmath.mpf(x))
        except (ValueError, ZeroDivisionError):
            yield None
            continue
        if not isinstance(y, mpmath.mpf) or not mpmath.isfinite(y):
            yield None
            continue
        with mpmath.workprec(24):
            y = +y
        y = float(min(max(y, -(2.0**200)), 2.0**200))
        with np.errstate(over="ignore"):
            yield 0 if abs(y) <= 2.0**-126 else int(np.float32(y).view(np.uint32))


@pytest.mark.parametrize("name", oracle.FUNCTIONS)
def test_oracle_agrees_with_mpmath(name):
    rng = np.random.default_rng(5)
    moderate = rng.integers(0x3C000000, ONE if name == "erf_inv" else 0x42000000, 40, np.uint32)
    small = rng.integers(TINY, 0x3C000000, 20, np.uint32)
    bits = np.concatenate([moderate, small, moderate[:10] | 0x80000000, small[:10] | 0x80000000])
    function = oracle.FUNCTIONS[name]
    by_filter = oracle.expected(function, bits).bits.tolist()
    by_mpfr = oracle._by_mpfr(function, bits.view(np.float32), oracle.FLOAT32)[0].tolist()
    assert by_filter == by_mpfr
    wanted = list(mpmath_bits(name, bits))
    assert sum(w is not None for w in wanted) >= 40 or name in ("acos", "asin", "atanh", "acosh")
    assert [w for w in wanted if w is not None] == [
        b for b, w in zip(by_mpfr, wanted, strict=True) if w is not None
    ]


def test_oracle_special_values():
    x = np.array([NAN, 0xFFC12345, 0x7F800001, 0x80000000, 1, 0x807FFFFF, INF, 0xFF800000])
    log = oracle.expected(oracle.FUNCTIONS["log"], x.astype(np.uint32)).bits.tolist()
    assert log == [NAN, NAN, NAN, 0xFF800000, 0xFF800000, 0xFF800000, INF, NAN]
    # 2**-126 is a canonical input, but not a canonical result of a rounding.
    x = np.array([TINY, TINY + 1], np.uint32)
    assert oracle.expected(oracle.FUNCTIONS["tanh"], x).bits.tolist() == [0, TINY + 1]


def test_oracle_rounds_ties_to_even():
    half = oracle.Function(lambda x: x + 2.0**-24, lambda x: x + gmpy2.exp2(-24))
    x = np.array([1, 1 + 2**-23], np.float32)
    found = oracle.expected(half, x.view(np.uint32))
    assert (found.bits.view(np.float32).tolist(), found.by_mpfr) == ([1, 1 + 2**-22], 2)


def test_oracle_refuses_to_guess():
    near_tie = oracle.Function(np.exp, lambda x: 1 + gmpy2.exp2(-24) + gmpy2.exp2(-2000) * x)
    with pytest.raises(ArithmeticError, match="expected 1024 bits"):
        oracle.rounded(near_tie, 1.0)


def test_audit_finds_an_inaccurate_reference():
    exact = oracle.FUNCTIONS["exp"].exact
    inaccurate = oracle.Function(lambda x: np.exp(x) * (1 + 2.0**-44), exact)
    bits = np.arange(ONE, ONE + 2**15, dtype=np.uint32)
    assert oracle.expected(oracle.FUNCTIONS["exp"], bits).audited == 2
    with pytest.raises(oracle.InaccurateReferenceError, match="use a better reference"):
        oracle.expected(inaccurate, bits)


# --- proofs ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", prove.available())
def test_samples_are_correctly_rounded(name):
    size = 2**16
    for walk in (prove.make_walk(sample=size), range(ONE - size // 2, ONE + size // 2)):
        found = prove.check_block(name, walk, size)
        assert (found["misrounded"], found["first"]) == (0, [])


def test_a_flipped_bit_of_a_coefficient_is_found(
    in_process, recompiled, monkeypatch, tmp_path, capsys
):
    first, *others = exp.COEFFICIENTS
    flipped = (np.float64(first).view(np.int64) ^ (1 << 28)).view(np.float64)
    monkeypatch.setattr(exp, "COEFFICIENTS", (float(flipped), *others))
    assert command("exp", "--range", 0x3E800000, 0x3E810000, output=tmp_path) == 1
    (path,) = tmp_path.glob("*.json")
    certificate = json.loads(path.read_text())
    assert certificate["misrounded"] >= 1
    output = capsys.readouterr().out
    for x in certificate["first_misrounded"]:
        bits = np.array([int(x["input"], 16)], np.uint32)
        wanted = oracle.expected(oracle.FUNCTIONS["exp"], bits).bits[0]
        assert int(x["expected"], 16) == wanted != int(x["received"], 16)
        assert f"exp({x['input']}): expected {x['expected']}, received {x['received']}" in output


def test_without_rounding_to_odd_the_hard_input_is_found(in_process, recompiled, monkeypatch):
    walk = prove.make_walk((HARD_LOG - 5000, HARD_LOG + 5000))
    assert prove.prove("log", walk)["misrounded"] == 0
    prove.compiled.cache_clear()
    jax.clear_caches()
    monkeypatch.setattr(canonical, "round_to_odd", lambda hi, lo: hi)
    found = prove.prove("log", walk)
    assert found["misrounded"] == 1
    assert found["first_misrounded"][0]["input"] == f"{HARD_LOG:#010x}"


class InterruptError(BaseException):
    pass


def test_resumed_proof_has_the_same_certificate(in_process, monkeypatch, tmp_path):
    walk, state = prove.make_walk((ONE, ONE + 20_000)), tmp_path / "state.json"
    whole = prove.prove("exp", walk)
    assert whole["inputs"]["count"] == 20_000 == sum(whole["settled"].values())

    def interrupt(done, misrounded):
        if done:
            raise InterruptError

    with pytest.raises(InterruptError):
        prove.prove("exp", walk, state=state, report=interrupt)
    assert list(json.loads(state.read_text())["blocks"]) == ["0"]
    checked = []

    def check(name, inputs, size, original=prove.check_block):
        checked.append(inputs.start - ONE)
        return original(name, inputs, size)

    monkeypatch.setattr(prove, "check_block", check)
    assert prove.prove("exp", walk, state=state, resume=True) == whole
    assert checked == [4096, 8192, 12288, 16384] and not state.exists()


def test_interrupted_command_goes_on_and_skips_what_is_finished(
    in_process, monkeypatch, tmp_path, capsys
):
    arguments = ["exp", "log", "--range", ONE, ONE + 9000, "--date", "today"]
    checked = []

    def check(name, inputs, size, original=prove.check_block):
        checked.append((name, inputs.start - ONE))
        if len(checked) == 5:
            raise KeyboardInterrupt
        return original(name, inputs, size)

    monkeypatch.setattr(prove, "check_block", check)
    assert command(*arguments, output=tmp_path) == 130
    assert "with --resume goes on" in capsys.readouterr().err
    assert command(*arguments, "--resume", output=tmp_path) == 0
    blocks = [0, 4096, 8192]
    assert checked[:3] == [("exp", i) for i in blocks]
    assert checked[3:] == [("log", i) for i in (0, 4096, 4096, 8192)]  # one was interrupted


@pytest.fixture
def asked(monkeypatch):
    """The inputs that the oracle was asked for."""
    starts = []

    def check(name, inputs, size, original=prove.check_block):
        starts.append(inputs.start)
        return original(name, inputs, size)

    monkeypatch.setattr(prove, "check_block", check)
    return starts


def test_a_program_with_proven_results_is_proven(in_process, asked, tmp_path):
    arguments = ["exp", "--range", ONE, ONE + 9000, "--by-digest"]
    assert command(*arguments, output=tmp_path) == 0
    assert len(asked) == 3  # nothing was proven yet
    (path,) = tmp_path.glob("*.json")
    proven = json.loads(path.read_text())
    # As if the program had been another, on another platform.
    prove.write_json(tmp_path / path.name.replace("native", "AVX2"), {**proven, "program": None})
    path.unlink()
    assert command(*arguments, output=tmp_path) == 0
    assert len(asked) == 3
    assert json.loads(path.read_text()) == proven


@pytest.mark.parametrize("key", ["results", "inputs", "claim", "misrounded"])
def test_control_other_certificates_prove_nothing(in_process, asked, tmp_path, key):
    walk = prove.make_walk((ONE, ONE + 5000))
    proven = prove.prove("exp", walk)
    asked.clear()
    assert prove.prove("exp", walk, proven=proven) == proven and not asked
    arguments = ["exp", "--range", ONE, ONE + 5000]
    prove.write_json(tmp_path / f"exp-AVX2-{ONE:08x}-{ONE + 5000:08x}-1.json", {**proven, key: 7})
    assert command(*arguments, "--by-digest", output=tmp_path) == 0
    assert len(asked) == 2


def test_control_a_flipped_bit_asks_the_oracle(in_process, recompiled, monkeypatch, asked):
    walk = prove.make_walk((ONE, ONE + 5000))
    proven = prove.prove("exp", walk)
    asked.clear()
    prove.compiled.cache_clear()

    def flipped(x, exp=repjax.lax.exp, bits=jax.lax.bitcast_convert_type):
        return bits(bits(exp(x), np.uint32) ^ (bits(x, np.uint32) == ONE + 99), np.float32)

    monkeypatch.setattr(repjax.lax, "exp", flipped)
    found = prove.prove("exp", walk, proven=proven)
    assert len(asked) == 2
    assert [x["input"] for x in found["first_misrounded"]] == [f"{ONE + 99:#010x}"]


def test_state_of_another_proof_is_refused(in_process, tmp_path, capsys):
    state = tmp_path / ".state" / f"exp-native-{ONE:08x}-{ONE + 9:08x}-1.json"
    prove.write_json(state, {"head": {"function": "exp"}, "blocks": {}})
    assert command("exp", "--range", ONE, ONE + 9, "--resume", output=tmp_path) == 2
    assert "start again without --resume" in capsys.readouterr().err
    assert command("exp", "--range", ONE, ONE + 9, output=tmp_path) == 0


@pytest.mark.parametrize("processes", [1, 3])
def test_processes_do_not_change_the_certificate(in_process, processes):
    walk = prove.make_walk(sample=30_000)
    assert walk.step % 2 == 1 and 29_000 < len(walk) <= 30_001
    assert prove.prove("tanh", walk) == prove.prove("tanh", walk, processes=processes)


def test_instruction_sets_in_child_processes(tmp_path):
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    flags = cpuinfo.read_text() if cpuinfo.exists() else ""
    isas = [isa for isa in ("SSE4_2", "AVX2") if prove.ISAS[isa] in flags]
    if not isas:
        pytest.skip("needs an x86-64 CPU")
    arguments = ["prove", "log", "--isa", *isas, "--range", "0x3f800000", "0x3f900000"]
    arguments += ["--output", tmp_path, "--date", "today"]
    subprocess.run([sys.executable, "-m", "repjax", *arguments], check=True, cwd=tmp_path)
    found = [json.loads(p.read_text()) for p in sorted(tmp_path.glob("*.json"))]
    assert {f["isa"]: f["fused_multiply_add"] for f in found} == {
        isa: isa == "AVX2" for isa in isas
    }
    assert {f["date"] for f in found} == {"today"}
    assert len({f["results"]["sha256"] for f in found}) == 1
    assert not (tmp_path / ".state").exists()


@pytest.mark.skipif(not library.available(), reason="there is no kernel")
def test_the_kernel_in_child_processes(tmp_path):
    isas = [isa for isa, name in prove.KERNELS.items() if name in library.instruction_sets()]
    arguments = ["log", "--isa", *isas, "--range", "0x3f800000", "0x3f810000"]
    assert command(*arguments, output=tmp_path) == 0
    found = [json.loads(p.read_text()) for p in sorted(tmp_path.glob("*.json"))]
    assert {f["isa"]: f["fused_multiply_add"] for f in found} == {
        isa: isa != "KERNEL_PLAIN" for isa in isas
    }
    assert len({f["results"]["sha256"] for f in found}) == 1


def test_what_the_kernel_lacks(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(library, "available", lambda: False)
    assert command("exp", "--isa", "KERNEL_PLAIN", output=tmp_path) == 2
    assert "expected an instruction set of the C++ kernel, received KERNEL_PLAIN" in (
        capsys.readouterr().err
    )
    with pytest.raises(prove.UsageError, match=r"the C\+\+ kernel computes exp, .* received sin"):
        prove.program_digest("sin", 16, by_kernel=True)


# --- the command's errors -------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "received 'nosuch'"),
        ([], "received neither"),
        (["exp", "--all"], "received both"),
        (["exp", "--range", "9", "9"], "expected 0 <= START < STOP <= 0x100000000, received 0x9"),
        (["exp", "--range", "0", "0x100000001"], "received 0x0 0x100000001"),
        (["exp", "--sample", "0"], "expected a number from 1 to 4294967296, received 0"),
        (["exp", "--processes", "0"], "expected at least 1, received 0"),
    ],
)
def test_errors(arguments, message, tmp_path, capsys):
    assert command(*arguments, output=tmp_path) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["prove", "--isa", "Z80"], ["prove", "--range", "a", "b"], []]
)
def test_errors_of_the_parser(arguments, capsys):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2


def test_missing_gmpy2(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(oracle, "gmpy2", None)
    assert command("exp", output=tmp_path) == 2
    assert "pip install 'repjax[prove]'" in capsys.readouterr().err


def test_missing_instruction_set(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(prove.ISAS, "AVX512", "nosuchflag")
    if not pathlib.Path("/proc/cpuinfo").exists():
        pytest.skip("needs Linux")
    assert command("exp", "--isa", "AVX512", output=tmp_path) == 2
    assert "expected an instruction set of this CPU, received AVX512" in capsys.readouterr().err


# --- the certificates in docs/proofs --------------------------------------------------


@pytest.mark.parametrize("path", CERTIFICATES, ids=lambda path: path.stem)
def test_certificate(path):
    found = json.loads(path.read_text())
    assert path.stem == f"{found['function']}-{found['isa']}"
    assert found["contract_version"] == repjax.CONTRACT_VERSION
    assert found["inputs"]["count"] == 2**32 == sum(found["settled"].values())
    assert (found["misrounded"], found["first_misrounded"]) == (0, [])
    if found["versions"]["jax"] == jax.__version__:
        # The program is the one that was proven; if not, prove it again.
        by_kernel = found["isa"] in prove.KERNELS
        if by_kernel and not library.available():
            pytest.skip("there is no kernel")
        inputs = found["program"]["inputs"]
        digest = prove.program_digest(found["function"], inputs, by_kernel)
        assert digest == found["program"]["stablehlo_sha256"]


def test_each_function_of_the_kernel_is_proven():
    """With fused multiply-adds and without."""
    proven = {path.stem for path in CERTIFICATES}
    for name in programs.ELEMENTARY:
        assert {f"{name}-KERNEL_AVX512", f"{name}-KERNEL_AVX2", f"{name}-KERNEL_PLAIN"} <= proven


def test_certificates_of_a_function_have_the_same_results():
    found = [json.loads(path.read_text()) for path in CERTIFICATES]
    digests = {(f["function"], f["results"]["sha256"]) for f in found}
    assert [a for a, b in itertools.combinations(sorted(digests), 2) if a[0] == b[0]] == []
