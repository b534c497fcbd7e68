"""Prove that compiled functions are correctly rounded: ``python -m repjax prove``.

A proof walks over bit patterns of float32, all of them unless told otherwise, gives
each one to the compiled ``repjax.lax.<function>`` and compares the bits of every result
with the oracle (:mod:`repjax.verify.oracle`).  It ends in a certificate, a JSON file with
everything that the result depends on.  Work is done in child processes, one block of
inputs at a time; what is done is kept in a file, so that an interrupted proof can go on.

A certificate is about one compiled program: one function, version of JAX and instruction
set, of XLA or of the C++ kernel.  That other programs agree, where the compiler may contract
multiply-adds elsewhere, is what the bounds in ``primitives/elementary`` and
``tests/numerics/test_elementary.py`` are for.

A program whose results are those of a proven one, bit for bit, is proven as well, and
hashing results is faster than asking the oracle: ``--by-digest`` proves that way
wherever the folder has a certificate of the same function and inputs.

**Digest, format 1.**  The results' bits, 32-bit little-endian, in the order of the inputs,
are cut into blocks of 2**22, the last one shorter; the digest is the SHA-256 of the
concatenated SHA-256 digests of the blocks.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import hashlib
import json
import multiprocessing
import os
import pathlib
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jaxlib
import numpy as np

import repjax
from repjax import segments
from repjax.information import processor
from repjax.primitives.cpu import bytecode, library
from repjax.verify import oracle

#: Inputs per block: one call of the compiled function, one entry of the state.
BLOCK = 2**22
#: Inputs per call of the oracle, whose float64 arrays then fit into a core's cache.
CHUNK = 2**16
#: Misrounded inputs that a certificate and the output list; the rest is only counted.
LISTED = 20
#: XLA's names of instruction sets, and the CPU flag without which they mean less.
ISAS = {"SSE4_2": "sse4_2", "AVX": "avx", "AVX2": "avx2", "AVX512": "avx512f"}
#: Those of the C++ kernel, which computes the function within a reproducible program.
KERNELS = {f"KERNEL_{name}": name for name in ("AVX512", "AVX2", "NEON", "PLAIN")}
SAVE_SECONDS = 10.0
#: What certificates agree in that may be proven by one digest.
SAME_CLAIM = ("function", "format", "claim", "contract_version", "inputs")

CLAIM = (
    "repjax.lax.{name}(x) is {name}(x) rounded to float32, to nearest even, then canonical, "
    "for every input x, itself made canonical first (docs/numerics.md, sections 1 and 3)"
)
ORACLE = (
    "a float64 reference (NumPy, SciPy) settles a result where both ends of {interval} round to "
    "it, MPFR all others; MPFR audits every input whose bits are a multiple of {stride} "
    "(repjax/verify/oracle.py)"
)


class UsageError(ValueError):
    """A request that cannot be met; the command's exit status is 2."""


def available() -> list[str]:
    """The functions that the library has and the oracle knows."""
    return [name for name in oracle.FUNCTIONS if hasattr(repjax.lax, name)]


def make_walk(bounds: tuple[int, int] | None = None, sample: int | None = None) -> range:
    """The inputs of a proof as a range of bit patterns.

    Args:
      bounds: the first bit pattern and the one after the last; by default all.
      sample: about how many inputs to take, evenly spaced by an odd step; by default all.

    Raises:
      UsageError: bounds or sample that make no sense.
    """
    size = 2**oracle.FLOAT32.width
    start, stop = bounds or (0, size)
    if not 0 <= start < stop <= size:
        raise UsageError(
            f"--range: expected 0 <= START < STOP <= {size:#x}, received {start:#x} {stop:#x}; "
            "give the first bit pattern and the one after the last"
        )
    if sample is None:
        return range(start, stop)
    if not 0 < sample <= stop - start:
        raise UsageError(
            f"--sample: expected a number from 1 to {stop - start}, received {sample}; there "
            "are no more inputs in the range"
        )
    return range(start, stop, (stop - start) // sample | 1)


# --- in a worker ----------------------------------------------------------------------


_kernel: str | None = None  # the instruction set of the C++ kernel, if that is what is proven


@functools.cache
def compiled(name: str, by_kernel: bool = False) -> Any:
    """The library's function, compiled: by XLA, or by the C++ kernel in a reproducible program.

    To be called and lowered in ``segments.as_bound``, without which kernels compute both.
    """
    function = getattr(repjax.lax, name)
    return repjax.reproducible(function) if by_kernel else jax.jit(function)


def program_digest(name: str, size: int, by_kernel: bool = False) -> str:
    """SHA-256 of the StableHLO text of the function for ``size`` inputs."""
    with segments.as_bound(True):
        text = compiled(name, by_kernel).lower(jax.ShapeDtypeStruct((size,), np.float32)).as_text()
    if by_kernel and "repjax_elementwise" not in text:
        raise UsageError(
            f"--isa: the C++ kernel computes {', '.join(bytecode.ELEMENTARY)}, received {name}; "
            "prove XLA's code for it"
        )
    return hashlib.sha256(text.encode()).hexdigest()


def describe(name: str, walk: range, isa: str | None) -> dict[str, Any]:
    """What the result of a proof depends on; the head of its certificate."""
    size = min(BLOCK, len(walk))
    digest = program_digest(name, size, _kernel is not None)
    device = jax.devices()[0]
    return {
        "function": name,
        "format": "float32",
        "claim": CLAIM.format(name=name),
        "contract_version": repjax.CONTRACT_VERSION,
        "inputs": {
            "start": f"{walk.start:#010x}",
            "stop": f"{walk.stop:#010x}",
            "step": walk.step,
            "count": len(walk),
        },
        "platform": device.platform,
        "isa": isa or "native",
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "device": processor() if device.platform == "cpu" else device.device_kind,
        "fused_multiply_add": _contracts(),
        "versions": {
            "repjax": repjax.__version__,
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            **oracle.versions(),
        },
        "oracle": _describe_oracle(name),
        "program": {"inputs": size, "stablehlo_sha256": digest},
    }


def _describe_oracle(name: str) -> str:
    width, scale = f"2**{int(np.log2(oracle.FILTER))}", oracle.function(name).scale
    interval = f"y +- {width} (|y| + {scale:g})" if scale else f"y (1 +- {width})"
    return ORACLE.format(interval=interval, stride=oracle.AUDIT_STRIDE)


def _contracts() -> bool:
    """Whether multiply-adds are fused; XLA's, as a check that the flag took effect."""
    if _kernel is not None:
        return _kernel != "PLAIN"
    x = np.full(4096, 1 + 2**-12, np.float32)
    y = jax.jit(lambda x, c: x * x + c)(x, np.full(4096, -1 - 2**-11, np.float32))
    return bool(np.asarray(y).any())  # 2**-24 is lost unless they are fused


def _run_block(name: str, inputs: range, size: int) -> tuple[np.ndarray, np.ndarray, str]:
    """The inputs' bits, the compiled function's results' bits, and the SHA-256 of the latter."""
    patterns = np.arange(inputs.start, inputs.stop, inputs.step, np.uint64).astype(np.uint32)
    function = compiled(name, _kernel is not None)
    with segments.as_bound(True):
        results = np.asarray(function(np.resize(patterns, size).view(np.float32)))
    results = results.view(np.uint32)[: len(patterns)]
    return patterns, results, hashlib.sha256(results.astype("<u4", copy=False)).hexdigest()


def hash_block(name: str, inputs: range, size: int) -> dict[str, Any]:
    """:func:`check_block` without the oracle: the digest alone."""
    return {"misrounded": 0, "sha256": _run_block(name, inputs, size)[2]}


def check_block(name: str, inputs: range, size: int) -> dict[str, Any]:
    """Compare the compiled function with the oracle on some inputs.

    Args:
      name: the function.
      inputs: bit patterns.
      size: the length of the array that the function is compiled for, >= len(inputs).

    Returns:
      Counts, the first misrounded inputs, and the SHA-256 digest of the results' bits.
    """
    function = oracle.function(name)
    patterns, results, digest = _run_block(name, inputs, size)
    tally = {"misrounded": 0, "first": [], "by_mpfr": 0, "audited": 0, "reference_error": 0.0}
    for i in range(0, len(patterns), CHUNK):
        x, received = patterns[i : i + CHUNK], results[i : i + CHUNK]
        wanted = oracle.expected(function, x)
        wrong = np.flatnonzero(received != wanted.bits)
        tally["misrounded"] += len(wrong)
        for j in wrong[: LISTED - len(tally["first"])]:
            triple = zip(("input", "received", "expected"), (x, received, wanted.bits), strict=True)
            tally["first"].append({key: f"{array[j]:#010x}" for key, array in triple})
        tally["by_mpfr"] += wanted.by_mpfr
        tally["audited"] += wanted.audited
        tally["reference_error"] = max(tally["reference_error"], wanted.reference_error)
    return {**tally, "sha256": digest}


# --- in the parent --------------------------------------------------------------------


def certificate(head: dict[str, Any], blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """The certificate of a proof from its description and the tallies of its blocks."""
    total = {key: sum(b[key] for b in blocks) for key in ("misrounded", "by_mpfr", "audited")}
    return {
        **head,
        "misrounded": total["misrounded"],
        "first_misrounded": [x for b in blocks for x in b["first"]][:LISTED],
        "settled": {
            "by_filter": head["inputs"]["count"] - total["by_mpfr"],
            "by_mpfr": total["by_mpfr"],
        },
        "audit": {
            "count": total["audited"],
            "largest_reference_error_ulp64": round(max(b["reference_error"] for b in blocks), 3),
        },
        "results": _digest(blocks),
    }


def _digest(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    digest = hashlib.sha256(b"".join(bytes.fromhex(b["sha256"]) for b in blocks))
    return {"format": 1, "block": BLOCK, "sha256": digest.hexdigest()}


def _by_digest(head: dict[str, Any], proven: dict[str, Any]) -> dict[str, Any]:
    """The certificate of a program with the results of a proven one."""
    # The oracle was asked for that proof, by its libraries.
    versions = {key: proven["versions"][key] for key in oracle.versions()}
    undated = {key: value for key, value in proven.items() if key != "date"}
    return {**undated, **head, "versions": {**head["versions"], **versions}}


def write_text(path: pathlib.Path, text: str) -> None:
    """Write atomically: the file is the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def write_json(path: pathlib.Path, value: Any) -> None:
    """:func:`write_text` of a value as JSON."""
    write_text(path, json.dumps(value, indent=1) + "\n")


@contextlib.contextmanager
def workers(isa: str | None, processes: int) -> Iterator[concurrent.futures.Executor]:
    """Child processes whose XLA generates code for an instruction set, or the native one."""
    if isa is not None:
        _require_isa(isa)
    pool = concurrent.futures.ProcessPoolExecutor(
        processes,
        multiprocessing.get_context("spawn"),  # XLA's threads do not survive a fork
        initializer=_start_worker,
        initargs=(isa,),
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(isa: str | None) -> None:
    global _kernel
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent saves what is done and stops
    if isa in KERNELS:
        jax.config.update("jax_platforms", "cpu")
        _kernel = KERNELS[isa]
        library.choose(_kernel)
    elif isa is not None:  # in time: XLA reads its flags when the first program is compiled
        os.environ["XLA_FLAGS"] = (
            f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_max_isa={isa}".strip()
        )
        jax.config.update("jax_platforms", "cpu")


def _require_isa(isa: str) -> None:
    if isa in KERNELS:
        if not library.available() or KERNELS[isa] not in library.instruction_sets():
            reason = library.in_use()[1] or f"has {', '.join(library.instruction_sets())} here"
            raise UsageError(
                f"--isa: expected an instruction set of the C++ kernel, received {isa}; the kernel "
                f"is not used or lacks it: {reason}"
            )
        return
    with contextlib.suppress(OSError):
        if not re.search(rf"\b{ISAS[isa]}\b", pathlib.Path("/proc/cpuinfo").read_text()):
            raise UsageError(
                f"--isa: expected an instruction set of this CPU, received {isa}; the code "
                "would not use it: leave it out, or take another machine"
            )


def prove(
    name: str,
    walk: range | None = None,
    *,
    isa: str | None = None,
    processes: int = 1,
    state: pathlib.Path | None = None,
    resume: bool = False,
    known: dict[str, Any] | None = None,
    proven: dict[str, Any] | None = None,
    report: Callable[[int, int], None] = lambda done, misrounded: None,
) -> dict[str, Any]:
    """Compare a compiled function with the oracle over a walk; see the module.

    Args:
      name: one of :func:`available`.
      walk: the inputs, from :func:`make_walk`; by default all.
      isa: one of :data:`ISAS` or :data:`KERNELS`, or None for what XLA chooses.
      processes: how many child processes.
      state: a file for what has been done, removed at the end; None for none.
      resume: go on from the state, if there is one.
      known: a certificate, returned as it is if it is the one of this very proof.
      proven: a certificate of another program for the same function and inputs: the oracle is
        asked only if the results differ.
      report: called with the numbers of inputs done and misrounded so far.

    Returns:
      The certificate.

    Raises:
      UsageError: an unknown function, an instruction set that this CPU lacks, or a state
        of another proof.
      ImportError: gmpy2 is missing.
    """
    oracle.require_gmpy2()
    if name not in available():
        raise UsageError(
            f"prove: expected functions among {', '.join(available())}; received {name!r}; "
            "a function needs a line in repjax/verify/oracle.py and a twin in repjax.lax"
        )
    walk = make_walk() if walk is None else walk
    pieces = [walk[i : i + BLOCK] for i in range(0, len(walk), BLOCK)]
    with workers(isa, processes) as pool:
        head = pool.submit(describe, name, walk, isa).result()
        if known is not None and {key: known.get(key) for key in head} == head:
            return known
        if proven is not None and all(proven.get(key) == head[key] for key in SAME_CLAIM):
            hashed: dict[int, Any] = {}
            _run_blocks(pool, processes, hash_block, name, pieces, hashed, report)
            if _digest([hashed[i] for i in range(len(pieces))]) == proven["results"]:
                return _by_digest(head, proven)
        done = _load(state, head) if resume and state else {}
        saved = time.monotonic()

        def save():
            if state is not None:
                write_json(state, {"head": head, "blocks": done})

        def report_and_save(inputs, misrounded):
            nonlocal saved
            report(inputs, misrounded)
            if time.monotonic() - saved > SAVE_SECONDS:
                save()
                saved = time.monotonic()

        try:
            _run_blocks(pool, processes, check_block, name, pieces, done, report_and_save)
        except BaseException:
            save()
            raise
    if state is not None:
        state.unlink(missing_ok=True)
    return certificate(head, [done[i] for i in range(len(pieces))])


def _run_blocks(pool, processes: int, function, name: str, pieces, done, report) -> None:
    """``done[i] = function(name, pieces[i], size)`` for all i that are missing, in ``pool``."""
    todo = iter([i for i in range(len(pieces)) if i not in done])
    running: dict[concurrent.futures.Future, int] = {}

    def start():
        if (i := next(todo, None)) is not None:
            running[pool.submit(function, name, pieces[i], len(pieces[0]))] = i

    for _ in range(processes):
        start()
    while True:
        report(sum(len(pieces[i]) for i in done), sum(b["misrounded"] for b in done.values()))
        if not running:
            return
        finished, _ = concurrent.futures.wait(
            running, return_when=concurrent.futures.FIRST_COMPLETED
        )
        for future in finished:
            done[running.pop(future)] = future.result()
            start()


def _load(state: pathlib.Path, head: dict[str, Any]) -> dict[int, Any]:
    if not state.exists():
        return {}
    saved = json.loads(state.read_text())
    if saved["head"] != head:
        different = [key for key in head if saved["head"].get(key) != head[key]]
        raise UsageError(
            f"--resume: expected the state of the same proof in {state}, received one that "
            f"differs in {', '.join(different)}; start again without --resume"
        )
    return {int(i): block for i, block in saved["blocks"].items()}


# --- the command ----------------------------------------------------------------------


def add_command(commands) -> None:
    """Add ``prove`` to the subparsers of ``python -m repjax``."""
    parser = commands.add_parser(
        "prove",
        help="prove that functions are correctly rounded for all inputs",
        description="Compare the compiled repjax.lax.FUNCTION with an oracle for all 2**32 inputs "
        "and write a certificate. Exit status: 0 if all results are right, 1 if not, 2 if the "
        "request cannot be met.",
        epilog="example: repjax prove exp log --isa AVX512 SSE4_2",
    )
    parser.add_argument("functions", nargs="*", metavar="FUNCTION", help=", ".join(available()))
    parser.add_argument("--all", action="store_true", help="every function")
    parser.add_argument(
        "--isa",
        nargs="+",
        choices=[*ISAS, *KERNELS],
        default=[None],
        help="the largest instruction set that XLA may use, or that of the C++ kernel; one proof "
        "for each (default: XLA's)",
    )
    parser.add_argument(
        "--range",
        nargs=2,
        type=lambda text: int(text, 0),
        metavar=("START", "STOP"),
        help="only these bit patterns, such as 0x3f800000 0x40000000",
    )
    parser.add_argument("--sample", type=int, metavar="N", help="only about N evenly spaced inputs")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument(
        "--resume", action="store_true", help="go on with interrupted proofs, skip finished ones"
    )
    parser.add_argument(
        "--by-digest",
        action="store_true",
        help="where the folder has a certificate of the same inputs, for any instruction set or "
        "an older program, only compare the digests of the results",
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("docs/proofs"),
        metavar="FOLDER",
        help="for certificates, its folder .state for unfinished proofs; default: %(default)s",
    )
    parser.add_argument("--date", help="written into the certificates; left out by default")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """The command; returns its exit status."""
    try:
        return max(
            _prove_one(name, isa, arguments) for name in _names(arguments) for isa in arguments.isa
        )
    except (UsageError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command with --resume goes on", file=sys.stderr)
        return 130


def _names(arguments) -> list[str]:
    if arguments.processes < 1:
        raise UsageError(
            f"--processes: expected at least 1, received {arguments.processes}; leave it out for 1"
        )
    if arguments.all == bool(arguments.functions):
        raise UsageError(
            f"prove: expected functions or --all, received {'both' if arguments.all else 'neither'}"
            f"; the functions are {', '.join(available())}"
        )
    return available() if arguments.all else arguments.functions


def _prove_one(name, isa, arguments) -> int:
    walk = make_walk(arguments.range and tuple(arguments.range), arguments.sample)
    inputs = ""
    if len(walk) < 2**oracle.FLOAT32.width:
        inputs = f"-{walk.start:08x}-{walk.stop:08x}-{walk.step}"
    label = f"{name}-{isa or 'native'}{inputs}"
    path = arguments.output / f"{label}.json"
    state = arguments.output / ".state" / path.name
    known = json.loads(path.read_text()) if arguments.resume and path.exists() else None
    proven = _find_proven(arguments.output, name, inputs) if arguments.by_digest else None
    with _progress(label, len(walk)) as report:
        found = prove(
            name,
            walk,
            isa=isa,
            processes=arguments.processes,
            state=state,
            resume=arguments.resume,
            known=known,
            proven=proven,
            report=report,
        )
    with contextlib.suppress(OSError):
        state.parent.rmdir()  # where nothing else is unfinished
    if arguments.date and found is not known:
        found["date"] = arguments.date
    write_json(path, found)
    print(f"{label}: {found['misrounded']:,} of {len(walk):,} misrounded; {path}", flush=True)
    for x in found["first_misrounded"]:
        print(f"  {name}({x['input']}): expected {x['expected']}, received {x['received']}")
    return 1 if found["misrounded"] else 0


def _find_proven(folder: pathlib.Path, name: str, inputs: str) -> dict[str, Any] | None:
    """A certificate without misrounded results, for whatever instruction set."""
    for isa in (*ISAS, *KERNELS, "native"):
        path = folder / f"{name}-{isa}{inputs}.json"
        if path.exists() and (proven := json.loads(path.read_text())).get("misrounded") == 0:
            return proven
    return None


@contextlib.contextmanager
def _progress(label: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, if tqdm is there; otherwise a line now and then."""
    tqdm = None
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            from tqdm import tqdm
    if tqdm is not None:
        with tqdm(total=total, desc=label, unit="", unit_scale=True) as bar:

            def report(done, misrounded):
                bar.update(done - bar.n)
                bar.set_postfix(misrounded=misrounded)

            yield report
        return
    started = shown = time.monotonic()

    def report(done, misrounded):
        nonlocal shown
        if (now := time.monotonic()) - shown >= SAVE_SECONDS:
            shown = now
            print(
                f"{label}: {done / total:.1%} after {now - started:.0f} s, "
                f"{misrounded:,} misrounded",
                file=sys.stderr,
                flush=True,
            )

    yield report
