"""Whether a device has the bits of the contract: ``python -m repjax conformance``.

Every case of :mod:`repjax.verify.vectors`, and the training of LeNet-5, runs on the device that JAX
has, and the digest of its results (:mod:`repjax.digests`) is compared with the golden one.
The goldens, ``conformance.json``, were made on CPU; the hard inputs of the elementary functions
stand there too.  ``--quick`` runs the cases of :data:`QUICK` alone, some of each kind.
Where a digest differs, the case runs once more on the CPU beside the device, to say which elements
differ, and the first operation that does is found, with its operands
(:mod:`repjax.verify.narrow`).

A product comes first, then cases in the order of what they tell, trainings last.  The report is
written before and after each, and before it is looked for where one differs, so that a run that is
cut off loses nothing, and says what did not run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import pathlib
import platform
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import repjax
from repjax.digests import digest, leaves, show
from repjax.environment import check as check_process
from repjax.primitives import gpu
from repjax.primitives.cpu import library
from repjax.primitives.gpu.devices import OLDEST
from repjax.verify import vectors
from repjax.verify.narrow import narrow
from repjax.verify.progress import Bar
from repjax.verify.prove import UsageError, write_json, write_text

GOLDENS = pathlib.Path(__file__).with_suffix(".json")
HARD_INPUTS = pathlib.Path(__file__).parents[2] / "tests" / "data" / "hard_inputs"
#: The cases of ``--quick``: some of each kind, none that takes long with or without the kernels.
QUICK = (
    *("add", "div", "sqrt", "fma", "round to even"),
    *("exp", "log", "pow", "sin", "tanh", "erf", "erf_inv", "logistic", "rsqrt"),
    *("convert_element_type from float32", "convert_element_type from bfloat16"),
    *("dot_general sequential", "dot_general order_independent", "dot_general exact"),
    *("dot_general sequential, special values", "dot_general sequential, bfloat16"),
    *("conv_general_dilated sequential", "conv_general_dilated sequential, gradients"),
    *("reduce_sum pairwise rows", "reduce_sum pairwise columns", "reduce_sum sequential all"),
    *("reduce_sum order_independent all", "reduce_sum exact all", "cumsum, cumprod sequential"),
    *("rows, masked softmax and its gradient", "rows, layer norm of float32 and its gradients"),
    *("pooling", "scatter, add", "embedding, gradient", "sort", "random numbers"),
    *("linear algebra", "complex64", "LSTM, gradients, sequential", "gelu, gradient"),
    "training of LeNet-5, sequential",
)


def check_device(device) -> None:
    """Raise UsageError, in one sentence, unless repjax runs on the device.

    Args:
      device: one of ``jax.devices()``.
    """
    version = str(getattr(device, "compute_capability", ""))
    if device.platform == "cpu":
        return
    if device.platform not in ("gpu", "cuda") or not re.fullmatch(r"\d+\.\d+", version):
        raise UsageError(
            f"expected a CPU or an NVIDIA GPU, received {device.device_kind} "
            f"({device.platform}), for which repjax has no kernels; set JAX_PLATFORMS=cpu"
        )
    if int(version.replace(".", "")) < OLDEST:
        raise UsageError(
            f"expected an NVIDIA GPU of compute capability {OLDEST / 10} (A100) or newer, "
            f"received {device.device_kind} of {version}; set JAX_PLATFORMS=cpu"
        )
    try:
        gpu.check()
    except (RuntimeError, ValueError) as error:
        raise UsageError(str(error)) from None


def find_device():
    """The device that JAX has, where repjax runs as this process is set up; else UsageError."""
    try:
        check_process()
        library.in_use()
        device = jax.devices()[0]
    except (RuntimeError, ValueError) as error:
        raise UsageError(str(error).strip().replace("\n", " ")) from None
    except AssertionError:  # so says JAX of a platform whose plugin is not there
        wanted = os.environ.get("JAX_PLATFORMS", "")
        raise UsageError(
            f"expected a device, received none for JAX_PLATFORMS={wanted}; install the platform's "
            "plugin (jax[cuda13]), or leave the variable out"
        ) from None
    check_device(device)
    return device


def source() -> str:
    """A digest of the package's files, which tells the states of a source tree apart."""
    files = {}
    for package in (repjax, repjax.primitives, repjax.models):
        # In a source tree the folders stand side by side, installed within each other.
        root, name = pathlib.Path(package.__file__).parent, package.__name__.replace(".", "/")
        for path in root.rglob("*"):
            if path.suffix in (".py", ".cc", ".h"):
                files[f"{name}/{path.relative_to(root).as_posix()}"] = path
    found = hashlib.sha256()
    for name, path in sorted(files.items()):
        found.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()[:16]


def environment(device) -> dict[str, str]:
    """What the results were made on and of: device, driver, versions, flags, source."""
    driver = pathlib.Path("/proc/driver/nvidia/version")
    return {
        **repjax.info(),
        "source": source(),
        "devices": f"{device.device_kind}, one of {len(jax.devices())}",
        "compute capability": str(getattr(device, "compute_capability", "")),
        "runtime": device.client.platform_version.strip().replace("\n", ", "),
        # Behind the version stands who built it.
        "driver": driver.read_text().partition("  Release Build")[0].splitlines()[0]
        if driver.exists()
        else "",
        "machine": platform.machine(),
        **{name: os.environ[name] for name in ("XLA_FLAGS", "JAX_PLATFORMS") if name in os.environ},
    }


# --- goldens ----------------------------------------------------------------------------


def load(path: pathlib.Path = GOLDENS) -> dict[str, Any]:
    """The goldens: ``contract``, ``digests`` by case, ``hard_inputs`` by function.

    Raises:
      UsageError: no such file, or one of another kind or of another contract.
    """
    try:
        goldens = json.loads(path.read_text())
        contract, found = goldens["contract"], [goldens["digests"], goldens["hard_inputs"]]
        if not all(isinstance(x, dict) and x for x in found):
            raise ValueError("it holds no digests, or no hard inputs")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"expected goldens in {path}, received {type(error).__name__}: {error}; install "
            "repjax again, or write them with --write"
        ) from None
    if contract != repjax.CONTRACT_VERSION:
        raise UsageError(
            f"expected goldens of contract {repjax.CONTRACT_VERSION} in {path}, received contract "
            f"{contract}; write them anew with --write"
        )
    return goldens


def hard_arrays(hard_inputs: dict[str, str]) -> dict[str, np.ndarray]:
    """The hard inputs as float32 arrays [count, arity]; of texts "x x x" or "x,y x,y x,y"."""
    return {
        name: np.array(
            [[int(x, 16) for x in row.split(",")] for row in text.split()], np.uint32
        ).view(np.float32)
        for name, text in hard_inputs.items()
    }


def read_hard_inputs() -> dict[str, str]:
    """Those of the source tree, as :func:`hard_arrays` takes them."""
    if not HARD_INPUTS.is_dir():
        raise UsageError(
            f"--write: expected a source tree with {HARD_INPUTS}, received an installed package; "
            "run it in a clone of the repository"
        )
    pattern = re.compile(r"^[\da-f]{8}(?: [\da-f]{8})?(?= )", re.MULTILINE)
    return {
        path.stem: " ".join(row.replace(" ", ",") for row in pattern.findall(path.read_text()))
        for path in sorted(HARD_INPUTS.glob("*.txt"))
    }


def all_cases(hard_inputs: dict[str, str]) -> Iterator[vectors.Case]:
    yield vectors.smoke()
    yield from vectors.cases(hard_arrays(hard_inputs))
    yield from vectors.training()


# --- one case ---------------------------------------------------------------------------


def compute(case: vectors.Case, device) -> Any:
    """The results of a case on a device, as NumPy arrays."""
    with jax.default_device(device):
        return jax.tree.map(np.asarray, case.program()(*case.arguments))


def kernels(case: vectors.Case, device) -> str:
    """What the program of a case calls besides XLA's code, by the names that XLA has for it."""
    with jax.default_device(device):
        text = case.program().lower(*case.arguments).compile().as_text()
    return ", ".join(sorted(set(re.findall(r'custom_call_target="([^"]+)"', text)))) or "none"


def kernels_or_why(case: vectors.Case, device) -> str:
    """The same, or why it cannot be said."""
    try:
        return kernels(case, device)
    except Exception as error:  # whatever goes wrong on a device, the other cases are to run
        return _message(error)


def compare(case: vectors.Case, golden: str, device) -> tuple[dict[str, Any], Any]:
    """The row of a case in the report, and the results if these are not the golden ones."""
    start = time.perf_counter()
    row: dict[str, Any] = {"same": False, "expected": golden}
    try:
        results = compute(case, device)
    except Exception as error:  # whatever goes wrong on a device, the other cases are to run
        return row | {"reason": _message(error)}, None
    row |= {"received": digest(results), "seconds": round(time.perf_counter() - start, 2)}
    row["elements"] = sum(leaf.array.size for leaf in leaves(results))
    row["same"] = row["received"] == golden
    return (row, None) if row["same"] else (row | {"reason": "the digest differs"}, results)


def check(case: vectors.Case, golden: str, device) -> dict[str, Any]:
    """The row of a case: whether it has the golden digest and, if not, where it differs."""
    row, results = compare(case, golden, device)
    return row if results is None else row | explain(case, golden, results, device)


def works(device) -> bool:
    """Whether a device still computes: after some errors it does not, until the process ends."""
    try:
        return int(jax.device_put(np.int32(1), device) + np.int32(1)) == 2
    except Exception:
        return False


def _message(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def explain(case, golden, results, device) -> dict[str, Any]:
    """Where results differ from what a CPU computes, if that has the golden digest."""
    if device.platform == "cpu":
        reason = "the digest differs; there is no other device to compare elements with"
        return {"reason": reason}
    try:
        cpu = jax.devices("cpu")[0]
    except RuntimeError:
        reason = "the digest differs; to see elements, let JAX have the CPU too (JAX_PLATFORMS)"
        return {"reason": reason}
    try:
        expected = compute(case, cpu)
    except Exception as error:  # such as too little memory
        return {"reason": f"the digest differs, and this machine's CPU fails: {_message(error)}"}
    if digest(expected) != golden:
        reason = "the digest differs, and so does this machine's CPU: run it with JAX_PLATFORMS=cpu"
        return {"reason": reason}
    found = {"reason": first_difference(results, expected)}
    try:
        return found | {"narrowed": narrow(case.program(), case.arguments, device, cpu)}
    except Exception as error:  # it is one more program, and may fail as any other
        return found | {"narrowed": {"reason": _message(error)}}


def first_difference(results, expected) -> str:
    """Where two trees of arrays of one structure differ, and in how many elements; "" if not."""
    total, first = 0, ""
    for got, want in zip(leaves(results), leaves(expected), strict=True):
        i, j = (x.array.view(f"u{x.array.dtype.itemsize}") for x in (got, want))
        different = np.argwhere(i != j)
        total += len(different)
        if len(different) and not first:
            at = tuple(map(int, different[0]))
            digits = 2 + 2 * i.dtype.itemsize
            first = (
                f"the first in result {show(got.path)} at {at}: expected {j[at]:#0{digits}x} "
                f"({want.array[at]}), received {i[at]:#0{digits}x} ({got.array[at]})"
            )
    return f"{total} elements differ, {first}" if total else ""


# --- the report -------------------------------------------------------------------------


def markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    rows = report["cases"]
    lines = ["# Conformance", ""]
    lines += [f"{key}: {value}  " for key, value in report["environment"].items() if value]
    lines += ["", report["total"], ""]
    if report["running"]:
        lines += [f"Running, or ended while it ran: {report['running']}", ""]
    if report["not_run"]:
        lines += [f"**Not run**: {'; '.join(report['not_run'])}", ""]
    lines += ["| case | elements | seconds | result |", "|---|---:|---:|---|"]
    for name, row in rows.items():
        result = "same" if row["same"] else f"**different**: {row['reason']}"
        result += f"; it calls {row['kernels']}" if "kernels" in row else ""
        cells = [f"{row.get('elements', 0):,}", row.get("seconds", ""), result.replace("|", r"\|")]
        lines.append(f"| {name} | " + " | ".join(map(str, cells)) + " |")
    for name, row in rows.items():
        if "narrowed" in row:
            lines += ["", f"## {name}", "", f"Received {row['received']}.", ""]
            lines += [f"- {line}" for line in shown(row["narrowed"])]
    return "\n".join(lines) + "\n"


def shown(narrowed: dict[str, Any]) -> list[str]:
    """What :func:`narrow` found, as lines; of many operands the first ones."""
    if "operation" not in narrowed:
        return [narrowed["reason"]]
    iteration = f"iteration {narrowed['iteration']}, " if "iteration" in narrowed else ""
    lines = [
        f"operation {narrowed['number']}, {iteration}{narrowed['operation']}: "
        f"{narrowed['differ']} elements of {narrowed['result']['type']} differ, the first at "
        f"{narrowed['at']}: expected {narrowed['expected']}, received {narrowed['received']}"
    ]
    for number, operand in enumerate(narrowed["operands"]):
        words = operand.get("bits", operand.get("digest", "")).split()
        more = f" and {len(words) - 16} more" if len(words) > 16 else ""
        where = operand.get("positions", operand.get("at", ""))
        where = f"{where[:60]}..." if len(where) > 60 else where
        text = f"{' '.join(words[:16])}{more}"
        lines.append(f"operand {number}, {operand['type']}, at {where}: {text}")
    return lines


def _total(report, wanted: int) -> str:
    rows = report["cases"]
    same = sum(row["same"] for row in rows.values())
    elements = sum(row.get("elements", 0) for row in rows.values() if row["same"])
    text = f"{same} of {len(rows)} cases have the golden bits, {elements:,} elements"
    return text if len(rows) == wanted else f"{text}; unfinished, {wanted} cases were to run"


def write(path: pathlib.Path, report: dict[str, Any], page: str) -> None:
    """``path`` with .json and .md, each written atomically; UsageError where that cannot be."""
    try:
        write_json(path.with_name(path.name + ".json"), report)
        write_text(path.with_name(path.name + ".md"), page)
    except OSError as error:
        raise UsageError(f"--output: expected a folder to write to, received {error}") from None


def earlier(path: pathlib.Path, environment: dict[str, str]) -> dict[str, Any]:
    """The ``cases`` and what was ``not_run`` of a report, if it is of the same environment."""
    try:
        report = json.loads(path.with_name(path.name + ".json").read_text())
        if report["environment"] == environment:
            return {"cases": {**report["cases"]}, "not_run": [*report["not_run"]]}
    except (OSError, ValueError, KeyError, TypeError):
        pass  # there is none, or what is there is none
    return {"cases": {}, "not_run": []}


# --- the command ------------------------------------------------------------------------


def add_command(commands) -> None:
    """Add ``conformance`` to the subparsers of ``python -m repjax``."""
    parser = commands.add_parser(
        "conformance",
        help="compare the bits of every primitive on this device with those of the contract",
        description="Run every primitive, and the training of LeNet-5, on the device that JAX has, "
        "and compare the results with goldens made on CPU. A product comes first, trainings last. "
        "Exit status: 0 if all bits are the same, 1 if not, 2 if the request cannot be met, or "
        "cases are left that did not run.",
        epilog="examples: repjax conformance --quick; repjax conformance --output results "
        "--minutes 10",
    )
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument(
        "--smoke", action="store_true", help="only the device, its kernels, and one product"
    )
    parts.add_argument(
        "--quick",
        action="store_true",
        help=f"only {len(QUICK)} cases, some of each kind, in seconds; on a terminal, with a bar",
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        metavar="DIR",
        help="write DIR/conformance.json and .md after every case (DIR/smoke or DIR/quick of those "
        "parts); with --only, the other cases of a report that is there stay, if all is as it was",
    )
    parser.add_argument(
        "--minutes", type=minutes, default=math.inf, metavar="M", help="begin no case after them"
    )
    parts.add_argument(
        "--only", nargs="+", default=[""], metavar="PREFIX", help="cases whose names start so"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"write {GOLDENS.name}, on a CPU; with --only, the other goldens stay",
    )
    parser.set_defaults(run=run)


def minutes(text: str) -> float:
    """The value of ``--minutes``."""
    if not (found := float(text)) >= 0:
        raise ValueError(text)  # which argparse makes a message of
    return found


def run(arguments: argparse.Namespace) -> int:
    """The command; returns its exit status."""
    arguments.deadline = time.monotonic() + 60 * arguments.minutes
    try:
        device = find_device()
        if arguments.write:
            if arguments.smoke or arguments.quick:
                raise UsageError(
                    "--write: expected --only or nothing beside it, received --smoke or --quick; "
                    "name the cases with --only"
                )
            return _write_goldens(arguments.only, device)
        return _compare(arguments, device)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _compare(arguments, device) -> int:
    goldens = load()
    every = [vectors.smoke()] if arguments.smoke else [*all_cases(goldens["hard_inputs"])]
    if arguments.quick:
        chosen = [case for case in every if case.name in QUICK]
    else:
        chosen = [case for case in every if case.name.startswith(tuple(arguments.only))]
    if not chosen:
        raise UsageError(f"--only: expected the start of a case's name, received {arguments.only}")
    if missing := [case.name for case in chosen if case.name not in goldens["digests"]]:
        raise UsageError(f"expected goldens of {', '.join(missing)}; write them with --write")
    names = [case.name for case in chosen]
    found = environment(device)
    part = "smoke" if arguments.smoke else "quick" if arguments.quick else "conformance"
    path = arguments.output and arguments.output / part
    before: dict[str, Any] = {"cases": {}, "not_run": []}
    if path and arguments.only != [""]:
        before = earlier(path, found)
    kept = {name: row for name, row in before["cases"].items() if name not in names}
    others = [name for name in before["not_run"] if name not in names]
    report = {"environment": found, "total": "", "running": "", "not_run": [*names, *others]}
    report["cases"] = kept
    wanted = len(names) + len(kept) + len(others)

    def save(running: str = ""):
        report["running"], report["total"] = running, _total(report, wanted)
        if path:
            write(path, report, markdown(report))

    for line in _header(device, found):
        print(line, flush=True)
    stopped = ""
    with Bar(len(chosen), arguments.quick) as progress:
        for number, case in enumerate(chosen, 1):
            if time.monotonic() >= arguments.deadline:
                stopped = (
                    f"--minutes: expected time for {len(chosen)} cases, {arguments.minutes:g} "
                )
                stopped += f"minutes were enough for {number - 1}"
                break
            progress.show(number - 1, case.name)
            save(running=case.name)
            row, results = compare(case, goldens["digests"][case.name], device)
            report["cases"][case.name] = row
            report["not_run"].remove(case.name)
            if results is not None:
                save(running=f"{case.name}, to find where it differs")
                row |= explain(case, goldens["digests"][case.name], results, device)
            if case.name == "smoke":
                row["kernels"] = kernels_or_why(case, device)
            save()
            if not (progress.drawn and row["same"]):
                progress.clear()
                _say(f"{number}/{len(chosen)} {case.name}", row)
            if "received" not in row and not works(device):
                stopped = f"{case.name} failed, and the device computes nothing since: "
                stopped += row["reason"]
                break
    save()
    print(f"{device.device_kind}: {report['total']}")
    if arguments.quick:
        print(f"all {len(every)} cases: repjax conformance")
    if left := [name for name in names if name in report["not_run"]]:
        rest = " ".join(map(repr, left))
        print(f"error: {stopped}; run the rest with --only {rest}", file=sys.stderr)
    if not all(row["same"] for name, row in report["cases"].items() if name in names):
        return 1
    return 2 if left else 0


def _say(name: str, row: dict[str, Any]) -> None:
    """Print the row of a case."""
    result = "same" if row["same"] else f"DIFFERENT: {row['reason']}"
    calls = f", it calls {row['kernels']}" if "kernels" in row else ""
    print(f"{name}: {result}{calls}", flush=True)
    for line in shown(row["narrowed"]) if "narrowed" in row else ():
        print(f"    {line}", flush=True)


def _header(device, found: dict[str, str]) -> Iterator[str]:
    """What the device is, and what computes on it and on the CPU beside it."""
    versions = f"repjax {found['repjax']}, jax {found['jax']}"
    if device.platform == "cpu":
        yield f"{found['cpu']}, {found['platform']}; {versions}"
    else:
        device_is = f"{found['devices']} {found['compute capability']}, {found['runtime']}"
        yield f"{device_is}; {versions}"
        yield f"gpu kernels: {found['gpu kernels']}"
    yield f"cpu products: {found['cpu products']}"
    if not library.available():
        yield "warning: whatever is computed on the CPU takes many times as long without its kernel"


def _write_goldens(only: list[str], device) -> int:
    if device.platform != "cpu":
        raise UsageError(
            f"--write: expected a CPU, received {device.device_kind}; set JAX_PLATFORMS=cpu"
        )
    hard_inputs = read_hard_inputs()
    cases = {case.name: case for case in all_cases(hard_inputs)}
    if missing := set(vectors.registered()).difference(*(c.primitives() for c in cases.values())):
        raise UsageError(f"--write: expected a case for every primitive, found none for {missing}")
    written = {} if only == [""] else load()["digests"]
    chosen = [name for name in cases if name not in written or name.startswith(tuple(only))]
    for number, name in enumerate(chosen, 1):
        written[name] = digest(compute(cases[name], device))
        print(f"{number}/{len(chosen)} {name}", flush=True)
    digests = {name: written[name] for name in written if name in cases}
    goldens = {"contract": repjax.CONTRACT_VERSION, "digests": digests, "hard_inputs": hard_inputs}
    write_json(GOLDENS, goldens)
    return 0
