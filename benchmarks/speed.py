"""Every kind of program beside plain JAX: ratios, their geometric means, and what got slower.

    python benchmarks/speed.py [--minutes 6] [--only PATTERN] [--output benchmarks/results/speed]
    python benchmarks/speed.py --compare benchmarks/results/speed.json
    python benchmarks/speed.py --results NOW.json --compare BEFORE.json

Both programs of a case are called in turns in one process; the ratio is that of the smallest times.
Each case has an equal share of the minutes that are left, compiling included, and at least three
turns.  Devices, and what is without the C++ kernels, have processes of their own.  Prints tables
and, with --output, writes OUTPUT.md and OUTPUT.json.  --full adds GPT-2 small's shape, which takes
some minutes more and 6 GB.  --busy keeps so many other processes busy meanwhile, which the results
say under ``other work``.

An interrupted run (Ctrl-C) writes what it has, and lists the rest as not run.

--compare measures the cases of a file of results, or those of --results, and prints those whose
ratio is larger by more than the tolerance.

**Format 1** of OUTPUT.json: an object with ``format``, ``version``, ``environment``, ``cases``,
``not_run`` (reasons by name), ``failed`` (errors by name) and ``seal``, the SHA-256 of the object
without it.  A case has its ``group``, ``base``, ``bar`` or null, ``base_s``, ``ours_s``,
``base_first_s``, ``ours_first_s`` (seconds), ``ratio`` and ``turns``.

Exit status: 0; 1 if a ratio got worse, a case failed or the run was interrupted; 2 if a request
or a file is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import speed_cases
import tables
from cpu import environment

import repjax
from repjax.verify import conformance
from repjax.verify.progress import Bar

FORMAT, VERSION = "repjax speed", 1
MOST_BYTES = 1 << 24  # of a file that is read
LEAST_TURNS, BURST = 3, 0.03  # seconds of one way, in which a short call is made again and again
#: Calls of one way, at least: OpenBLAS, which plain JAX's linear algebra is, keeps its threads busy
#: for a while after a call of the other way.
LEAST_CALLS = 6
LONGEST = 6.0  # seconds of a case, if there are few
INTERRUPTED = "interrupted before it"
MOST_BUSY = 1024
LIBRARIES = ("flax", "optax", "blackjax", "jraph")

Row = dict[str, Any]


class ResultsError(ValueError):
    """A file that has no results of this program."""


# --- measuring ----------------------------------------------------------------------------


def seconds(call) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def smallest(calls, until: float) -> tuple[list[float], int]:
    """The smallest time of each call, made in turns at least ``until`` a time of perf_counter, and
    how many turns there were."""
    best, turns = [math.inf] * len(calls), 0
    while turns < LEAST_TURNS or time.perf_counter() < until:
        for which, call in enumerate(calls):
            end, made = time.perf_counter() + BURST, 0
            while made < LEAST_CALLS or time.perf_counter() < end:
                best[which] = min(best[which], seconds(call))
                made += 1
        turns += 1
    return best, turns


def measure(calls, until: float) -> dict[str, float]:
    """The first and the smallest times of both calls, and the ratio of these."""
    first = [seconds(call) for call in calls]
    best, turns = smallest(calls, until)
    names = ("base_s", "ours_s"), ("base_first_s", "ours_first_s")
    row = dict(zip(names[0], best, strict=True)) | dict(zip(names[1], first, strict=True))
    return {**row, "ratio": best[1] / best[0], "turns": turns}


@dataclasses.dataclass
class Report:
    """What was found: rows of measured cases, and why others were not, by name."""

    environment: dict[str, str]
    cases: dict[str, Row] = dataclasses.field(default_factory=dict)
    not_run: dict[str, str] = dataclasses.field(default_factory=dict)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)

    def add(self, kind: str, name: str, value: Any) -> None:
        getattr(self, kind)[name] = value


Chosen = list[tuple[speed_cases.Group, dict[str, speed_cases.Case]]]


def chosen(groups: list[speed_cases.Group], patterns: list[str]) -> Chosen:
    """The cases whose names, ``group: case``, have one of these patterns, by group."""
    found = []
    for group in groups:
        names = {f"{group.name}: {case.name}": case for case in group.cases}
        names = {name: case for name, case in names.items() if matches(name, patterns)}
        if names:
            found.append((group, names))
    return found


def matches(name: str, patterns: list[str]) -> bool:
    return any(re.search(pattern, name, re.IGNORECASE) for pattern in patterns)


def here(group, cases: dict[str, speed_cases.Case], end: float) -> Iterator[tuple[str, str, Any]]:
    """Of a group measured in this process: the field of the report, the name, and the value.

    The cases of this group have what is left until ``end``.
    """
    for place, (name, case) in enumerate(cases.items()):
        missing = [x for x in case.needs if importlib.util.find_spec(x) is None]
        if missing:
            yield "not_run", name, f"{' and '.join(missing)} not installed"
            continue
        begun = time.perf_counter()
        share = max(0.0, end - begun) / (len(cases) - place)
        try:
            found = measure(case.make(), begun + min(share, LONGEST))
        except Exception as error:  # the others are measured; the command says so at its end
            text = str(error).strip().splitlines() or [""]
            yield "failed", name, f"{type(error).__name__}: {text[0]}"
        else:
            yield "cases", name, {"group": group.name, "base": group.base, "bar": case.bar, **found}
        jax.clear_caches()
        gc.collect()


def elsewhere(group, cases, end: float, options: list[str]) -> Iterator[tuple[str, str, Any]]:
    """The same, in a process with the variables of the group."""
    patterns = [f"^{re.escape(name)}$" for name in cases]
    left = max(0.0, end - time.perf_counter()) / 60
    command = [sys.executable, __file__, "--child", "--minutes", str(left), *options, "--only"]
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", **group.environment}
    seen = set()
    with subprocess.Popen(
        [*command, *patterns], env=variables, stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            kind, name, value = json.loads(line)
            seen.add(name)
            yield kind, name, value
    for name in [name for name in cases if name not in seen]:
        yield "failed", name, f"its process ended with status {process.returncode}"


def run(
    wanted: Chosen, minutes: float, options: list[str], report: Report, busy: int = 0
) -> Report:
    """Measure, beside ``busy`` other processes; what is done is shown on standard error.

    Whoever interrupts it gets what there is; the other cases are among those that were not run.
    """
    with busy_processes(busy):
        watch = OtherWork()
        try:
            _run(wanted, minutes, options, report)
        except KeyboardInterrupt:
            for name in (name for _, cases in wanted for name in cases):
                if not any(name in x for x in (report.cases, report.not_run, report.failed)):
                    report.add("not_run", name, INTERRUPTED)
        of_them = f"{busy} busy processes, " if busy else ""
        report.environment["other work"] = of_them + watch.cores()
    return report


def _run(wanted: Chosen, minutes: float, options: list[str], report: Report) -> None:
    end = time.perf_counter() + 60 * minutes
    left = sum(len(cases) for _, cases in wanted)
    with Bar(left) as bar:
        total = left
        for group, cases in wanted:
            now = time.perf_counter()
            until = now + max(0.0, end - now) * len(cases) / left
            if group.environment:
                results = elsewhere(group, cases, until, options)
            else:
                results = here(group, cases, until)
            bar.show(total - left, group.name)
            for kind, name, value in results:
                report.add(kind, name, value)
                left -= 1
                bar.clear()
                text = f"{value['ratio']:.2f}" if kind == "cases" else value
                print(f"{name}: {text}", file=sys.stderr, flush=True)
                bar.show(total - left, group.name)


#: Computes until whoever started it has ended.
_BUSY = "import os; p = os.getppid()\nwhile os.getppid() == p: sum(range(1 << 20))"


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """So many processes that do nothing but compute, one thread each."""
    started = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


class OtherWork:
    """How busy other processes of the machine are from now on."""

    def __init__(self):
        self.start = self._read()

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        """Seconds of the clock, of all processors, and of this process with its children."""
        try:
            line = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()
            user, nice, system, _, _, irq, softirq, steal = map(int, line[1:9])
            busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return None
        return time.perf_counter(), busy, sum(os.times()[:4])

    def cores(self) -> str:
        now = self._read()
        if self.start is None or now is None:
            return "unknown"
        clock, busy, own = (b - a for a, b in zip(self.start, now, strict=True))
        return f"{max(0.0, busy - own) / max(clock, 1e-9):.2f} cores"


# --- files --------------------------------------------------------------------------------


def seal(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(report: Report) -> dict[str, Any]:
    body = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(report)}
    return {**body, "seal": seal(body)}


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def read(path: pathlib.Path) -> Report:
    """Raises ResultsError: another file, one of another version, cut short or changed."""
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise ResultsError(f"{path}: expected at most {MOST_BYTES} bytes, received {size}")
        text = path.read_bytes()
    except OSError as error:
        why = error.strerror
        raise ResultsError(f"{path}: expected a file of results, received {why}") from None
    try:
        body = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ResultsError(
            f"{path}: expected a whole file of results, as --output writes it, received one that "
            "is no JSON or is cut short"
        ) from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise ResultsError(
            f"{path}: expected results of benchmarks/speed.py, whose format is {FORMAT!r}, "
            "received another file"
        )
    if (version := body.get("version")) != VERSION:
        raise ResultsError(
            f"{path}: expected version {VERSION} of the format, received {version!r}; measure again"
        )
    fields = [field.name for field in dataclasses.fields(Report)]
    received = body.pop("seal", None)
    if received != seal(body) or not all(isinstance(body.get(name), dict) for name in fields):
        raise ResultsError(
            f"{path}: expected the results that were measured, received a file that was changed "
            "afterwards; measure again"
        )
    return Report(*(body[name] for name in fields))


# --- comparing ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Names of cases, and of those that were measured both times the ratio before and now."""

    worse: dict[str, tuple[float, float]]
    better: dict[str, tuple[float, float]]
    new: list[str]
    missing: list[str]

    def lines(self, tolerance: float) -> Iterator[str]:
        for word, found in (("worse", self.worse), ("better", self.better)):
            for name, (then, now) in found.items():
                yield f"{word}: {name}: {then:.2f} before, {now:.2f} now, {now / then:.2f} times"
        for word, names in (("new", self.new), ("missing", self.missing)):
            yield from (f"{word}: {name}" for name in names)
        yield f"{len(self.worse)} cases are worse by more than {tolerance:g} times"


def compare(now: Report, then: Report, tolerance: float, patterns: list[str]) -> Comparison:
    """What changed by more than ``tolerance`` times; of ``then`` what the patterns name."""
    before = {name: row for name, row in then.cases.items() if matches(name, patterns)}
    both = {n: (before[n]["ratio"], row["ratio"]) for n, row in now.cases.items() if n in before}
    return Comparison(
        worse={n: r for n, r in both.items() if r[1] > tolerance * r[0]},
        better={n: r for n, r in both.items() if r[0] > tolerance * r[1]},
        new=[name for name in now.cases if name not in then.cases],
        missing=[name for name in before if name not in now.cases],
    )


# --- output -------------------------------------------------------------------------------


def page(report: Report) -> str:
    """The tables, as :mod:`tables` reads them."""
    lines = ["# Speed", ""]
    lines += [f"{key}: {value}  " for key, value in report.environment.items() if value]
    titles = ["case", "compared with", "compared, ms", "repjax, ms", "ratio", "bar"]
    titles += ["first call: compared, s", "repjax, s"]
    rows = [
        [
            *(name, row["base"], f"{row['base_s'] * 1e3:.3f}", f"{row['ours_s'] * 1e3:.3f}"),
            *(f"{row['ratio']:.2f}", f"{row['bar']:.2f}" if row["bar"] else ""),
            *(f"{row['base_first_s']:.2f}", f"{row['ours_first_s']:.2f}"),
        ]
        for name, row in report.cases.items()
    ]
    lines += ["", tables.table(titles, rows)]
    if rows:
        found = [dict(zip(titles, row, strict=True)) for row in rows]
        lines += ["", tables.groups_of(found), "", tables.over_bars(found)]
    for title, found in (("Not run", report.not_run), ("Failed", report.failed)):
        if found:
            lines += ["", f"{title}:", "", *(f"- {name}: {why}" for name, why in found.items())]
    return "\n".join(lines) + "\n"


def information() -> dict[str, str]:
    info = {**environment(), "products": repjax.info()["cpu products"]}
    for name in LIBRARIES:
        if importlib.util.find_spec(name):
            info[name] = importlib.metadata.version(name)
    return info


# --- the command line ---------------------------------------------------------------------


def _number(least: float, what: str):
    def parse(text: str) -> float:
        value = float(text)
        if not least <= value < math.inf:
            raise ValueError(text)
        return value

    parse.__name__ = what  # which argparse shows
    return parse


def _count(text: str) -> int:
    if not 0 <= (value := int(text)) <= MOST_BUSY:
        raise ValueError(text)
    return value


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error:
        raise ValueError(text) from None
    return text


_count.__name__ = "number of processes"
_pattern.__name__ = "regular expression"


def parse() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        epilog="example: python benchmarks/speed.py --only sparse 'elementwise.*exp' "
        "--compare benchmarks/results/speed.json",
    )
    add = parser.add_argument
    add("--minutes", type=_number(0, "minutes"), default=6.0, help="of the whole run (6)")
    add("--only", nargs="+", type=_pattern, default=[""], metavar="PATTERN", help="cases whose "
        "name, 'group: case', has one of these regular expressions")  # fmt: skip
    add("--list", action="store_true", help="print the names of the cases, and measure nothing")
    add("--full", action="store_true", help="GPT-2 small's shape as well")
    add("--busy", type=_count, default=0, metavar="N", help="other processes that compute "
        "meanwhile, one thread each (0)")  # fmt: skip
    add("--output", type=pathlib.Path, help="write OUTPUT.md and OUTPUT.json")
    add("--compare", type=pathlib.Path, metavar="BASELINE.json", help="with results from before")
    add("--tolerance", type=_number(1, "tolerance"), default=1.25, help="a ratio that is larger "
        "by more than this factor is worse (1.25)")  # fmt: skip
    add("--results", type=pathlib.Path, metavar="FILE.json", help="measure nothing, take these")
    add("--child", action="store_true", help=argparse.SUPPRESS)
    return parser, parser.parse_args()


def main() -> int:
    parser, arguments = parse()
    options = ["--full"] if arguments.full else []
    wanted = chosen(speed_cases.groups(arguments.full), arguments.only)
    if not wanted and not arguments.results:
        parser.error(f"--only: expected a case's name, received {arguments.only}; see --list")
    if arguments.list:
        print("\n".join(name for _, cases in wanted for name in cases))
        return 0
    if arguments.child:
        end = time.perf_counter() + 60 * arguments.minutes
        for group, cases in wanted:
            for result in here(group, cases, end):
                print(json.dumps(result), flush=True)
        return 0
    if arguments.output and not arguments.output.parent.is_dir():
        parser.error(f"--output: expected a folder to write to, received {arguments.output.parent}")
    try:
        then = read(arguments.compare) if arguments.compare else None
        report = read(arguments.results) if arguments.results else None
    except ResultsError as error:
        print(f"speed.py: {error}", file=sys.stderr)
        return 2
    if report is None:
        report = run(wanted, arguments.minutes, options, Report(information()), arguments.busy)
    print(page(report))
    if arguments.output:
        try:
            conformance.write(arguments.output, sealed(report), page(report))
        except conformance.UsageError as error:
            parser.error(str(error))
    worse = {}
    if then:
        for key in ("cpu", "jax", "products", "other work"):
            before, now = (each.environment.get(key) for each in (then, report))
            if before != now:
                print(f"{key}: {before} before, {now} now")
        found = compare(report, then, arguments.tolerance, arguments.only)
        print("\n".join(found.lines(arguments.tolerance)))
        worse = found.worse
    for name, why in report.failed.items():
        print(f"failed: {name}: {why}", file=sys.stderr)
    interrupted = not arguments.results and INTERRUPTED in report.not_run.values()
    return 1 if worse or report.failed or interrupted else 0


if __name__ == "__main__":
    raise SystemExit(main())
