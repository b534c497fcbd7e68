"""Run random programs in many ways and compare their bits.

    python tests/fuzz.py --seeds 0:1000 --output DIR
    python tests/fuzz.py --seeds 0:1000 --settings native,off,SSE4_2 --python ENV/bin/python
    python tests/fuzz.py --seeds 17:18 --show
    python tests/fuzz.py --seeds 0:3000 --coverage

A program (tests/helpers/random_programs.py) is computed by one process for each setting: with the
C++ kernels, without, with other instruction sets, and for each ``--python``, another environment
with another version of JAX, with the kernels.  All have to give the same bits through
``repjax.reproducible``, several programs compiled together.  In one of the settings, another one
for each program, it is also computed in another way (with --others N, each N-th program is):

==========  ================================================================================
``switch``  ``jax.jit`` under ``repjax.enabled()``
``eager``   operation by operation under ``repjax.enabled()``
``vmap``    ``jax.vmap`` of the program, against a loop over three variants of the data
``map``     ``jax.lax.map`` of the program, against the same loop
==========  ================================================================================

What differs, and what raises where plain JAX does not, is minimised and written to DIR/finds as a
script that runs by itself; DIR/results.jsonl has a line for each program, and a second run with
the same DIR leaves out what it has.  With --coverage, programs are traced only, and primitives of
repjax's tables that none of them has are listed.  Exit status: 0 if all bits are the same, or all
primitives reached, 1 if not, 2 if the request cannot be met.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import copy
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
ISAS = ("SSE4_2", "AVX", "AVX2", "AVX512")
WAYS = ("switch", "eager", "vmap", "map")
VARIANTS = 3  # of the data, where a way is compared with a loop over data
TOGETHER = 6  # programs that are compiled as one
CHUNK = 48  # programs between two looks at the clock
#: Refusals that docs/numerics.md states, as expressions.
DOCUMENTED = ("ragged_dot_general expected group_sizes of one dimension",)
#: Functions that versions of JAX state as other graphs, or their derivatives, beside those that
#: tests/library.py lists; and conditionals, whose second derivatives differ (docs/numerics.md,
#: sections 9 and 12).
OF_A_VERSION = ("jnp.frexp", "jnp.i0", "jnp.ldexp", "jnp.polyval", "lax.igamma", "lax.igammac")
CONDITIONAL = re.compile(r"\blax\.(cond|switch)\b")
#: Functions with derivatives of their own, whose second derivatives inside a scan differ, too.
CUSTOM = re.compile(r"\.(softplus|relu6?|log_sigmoid|mish|logaddexp2?)\b|\bcumlogsumexp\b")
#: Primitives that programs do not have, by the reason.
NOT_REACHED = {
    "needs several devices, as tests/helpers/devices.py has": "all_gather all_gather_invariant "
    "all_to_all axis_index mesh_cast pmax pmin ppermute psum psum_invariant pvary reduce_scatter "
    "reshard shard_map sharding_constraint",
    "no row calls it; tests of their own do": "composite custom_partitioning custom_vmap_call "
    "device_put iota_2x32_shape lu_pivots_to_permutation random_gamma reduce_xor scaled_matmul "
    "threefry2x32",
    "newer versions of JAX have it": "call_hi_primitive eval_jaxpr log2 mulhi polynomial",
    "derivatives have it, which are traced before they are rewritten": "one_minus_square",
    "other names or forms stand for it where the rows are traced": "broadcast_to checkpoint "
    "closed_call copy_p core_call custom_lin empty expand_dims pjit",
    "is bound in comparators, which a sort has when it is lowered": "eq_to le_to lt_to",
    "computes nothing": "debug_callback debug_print",
}

Answer = dict[str, Any]  # by way: {"digests": [...]} or {"error": ..., "plain": ...}


# --- a process that computes ---------------------------------------------------------------


def _digest(x) -> str:
    import numpy as np

    from helpers.bits import canonical

    x = np.asarray(x)
    if np.iscomplexobj(x):
        x = np.stack([x.real, x.imag])
    head = f"{x.dtype} {x.shape} ".encode()
    return hashlib.sha256(head + canonical(x).tobytes()).hexdigest()[:12]


def _ways(plain: bool = False) -> dict[str, Callable[..., Any]]:
    """By way, a function of a program and its orders that gives its results."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import repjax
    from helpers import random_programs

    # Plain JAX is what the others are measured by: it has to take the program in the same way.
    reproducible = repjax.reproducible if not plain else lambda f: jax.jit(f)
    enabled = repjax.enabled if not plain else contextlib.nullcontext

    def decorator(program, orders):
        function = random_programs.build(program)
        return reproducible(function, **orders)(*random_programs.arrays(program))

    def switch(program, orders):
        function = random_programs.build(program)
        with enabled(**orders):
            return jax.jit(function)(*random_programs.arrays(program))

    def eager(program, orders):
        function = random_programs.build(program)
        with enabled(**orders):
            return function(*map(jnp.asarray, random_programs.arrays(program)))

    def variants(program):
        return [random_programs.arrays(program, variant) for variant in range(VARIANTS)]

    def loop(program, orders):
        function = reproducible(random_programs.build(program), **orders)
        results = [map(np.asarray, function(*inputs)) for inputs in variants(program)]
        return [np.stack(parts) for parts in zip(*results, strict=True)]

    def batched(transform):
        def way(program, orders):
            function = transform(random_programs.build(program))
            inputs = [np.stack(parts) for parts in zip(*variants(program), strict=True)]
            return reproducible(function, **orders)(*inputs)

        return way

    def mapped(function):
        return lambda *inputs: jax.lax.map(lambda xs: function(*xs), inputs)

    return {
        "decorator": decorator,
        "switch": switch,
        "eager": eager,
        "loop": loop,
        "vmap": batched(jax.vmap),
        "map": batched(mapped),
    }


def _plain_error(program, way: str) -> str | None:
    """What plain JAX raises for the program in this way, if anything."""
    import jax

    try:
        jax.block_until_ready(_ways(plain=True)[way](program, {}))
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:500]
    return None


def _orders(program) -> dict[str, str]:
    return dict(zip(("accumulation", "contraction"), program["order"], strict=True))


def _answer(program, way: str) -> Answer:
    """The digests of a program's results in one way, or its error."""
    function = _ways()[way]
    try:
        results = function(program, _orders(program))
        return {"digests": [_digest(x) for x in results]}
    except Exception as error:
        return {
            "error": f"{type(error).__name__}: {error}"[:2000],
            "plain": _plain_error(program, way),
        }


def _answers_together(programs) -> list[Answer] | None:
    """Those of programs of one order, compiled as one; None if anything is raised."""
    import repjax
    from helpers import random_programs

    functions = [random_programs.build(p) for p in programs]

    def together(inputs):
        return [f(*xs) for f, xs in zip(functions, inputs, strict=True)]

    try:
        inputs = [random_programs.arrays(p) for p in programs]
        results = repjax.reproducible(together, **_orders(programs[0]))(inputs)
        return [{"digests": [_digest(x) for x in each]} for each in results]
    except Exception:
        return None


def _compute(request) -> list[dict[str, Answer]]:
    """For each program of a request, the answers by way."""
    programs, ways = request["programs"], request["ways"]
    together = _answers_together(programs) if len(programs) > 1 else None
    answers = []
    for i, (program, wanted) in enumerate(zip(programs, ways, strict=True)):
        mine = {way: _answer(program, way) for way in wanted if way != "decorator"}
        if "decorator" in wanted:
            mine["decorator"] = together[i] if together else _answer(program, "decorator")
        answers.append(mine)
    return answers


# --- faults, for the controls ----------------------------------------------------------------


def _fault_unguarded() -> None:
    """Products and sums as plain JAX has them, which contracts them."""
    import jax

    from repjax.primitives.core.tables import RULES

    RULES["mul"] = lambda context, operands, params: jax.lax.mul(*operands)
    RULES["add"] = lambda context, operands, params: jax.lax.add(*operands)


def _fault_sum() -> None:
    """Sums in another order."""
    from repjax.primitives.core.tables import RULES

    right = RULES["reduce_sum"]

    def backwards(context, operands, params):
        import jax

        (x,) = operands
        return right(context, [jax.lax.rev(x, params["axes"])], params)

    RULES["reduce_sum"] = backwards


def _fault_crash() -> None:
    """An operation that raises."""
    from repjax.primitives.core.tables import RULES

    def raises(context, operands, params):
        raise ValueError("a fault")

    RULES["tanh"] = raises


def _fault_death() -> None:
    """An operation that ends the process."""
    from repjax.primitives.core.tables import RULES

    RULES["tanh"] = lambda context, operands, params: os._exit(3)


FAULTS = {
    name.removeprefix("_fault_"): f for name, f in globals().items() if name.startswith("_fault_")
}


def serve(fault: str | None = None) -> None:
    """Answer requests, one JSON line each, until there are no more."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed is no answer
    import warnings

    import jax

    import repjax

    warnings.simplefilter("ignore")
    if fault:
        FAULTS[fault]()
    info = repjax.info()
    print(json.dumps({key: info[key] for key in ("jax", "cpu products")}), file=out, flush=True)
    for served, line in enumerate(sys.stdin, 1):
        print(json.dumps(_compute(json.loads(line))), file=out, flush=True)
        if served % 40 == 0:  # or compiled programs would fill the memory
            jax.clear_caches()


# --- settings --------------------------------------------------------------------------------


class UsageError(Exception):
    """A request that cannot be met."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a process differs in: its name, its Python, its environment, its options."""

    name: str
    python: str = sys.executable
    environment: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ()


def setting(name: str) -> Setting:
    """``native``, ``off``, an instruction set, ``off+SSE4_2``, or ``fault=...``."""
    environment, options = {}, ()
    for part in name.split("+"):
        if part == "off":
            environment["REPJAX_NATIVE"] = "off"
        elif part in ISAS:
            environment["XLA_FLAGS"] = f"--xla_cpu_max_isa={part}"
        elif part.startswith("fault=") and part[6:] in FAULTS:
            options = ("--fault", part[6:])
        elif part != "native":
            raise UsageError(
                f"--settings: expected native, off, {', '.join(ISAS)}, fault= and one of "
                f"{', '.join(FAULTS)}, or several joined by +; received {name!r}"
            )
    return Setting(name, environment=tuple(environment.items()), options=options)


class Died(Exception):
    """A process ended, or gave no answer in time."""


class Worker:
    """A process of one setting, started when it is needed, and again after it has died."""

    def __init__(self, setting: Setting, seconds: float = 600):
        self.setting, self.seconds = setting, seconds
        self.lock = threading.Lock()
        self.process: subprocess.Popen | None = None
        self.info: dict[str, str] = {}

    def _start(self) -> None:
        environment = {
            k: v for k, v in os.environ.items() if k not in ("REPJAX_NATIVE", "XLA_FLAGS")
        }
        environment |= dict(self.setting.environment)
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        command = [self.setting.python, __file__, "--worker", *self.setting.options]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment, cwd=ROOT, bufsize=0,
        )  # fmt: skip
        self.info = json.loads(self._read())

    def _read(self) -> bytes:
        end, parts = time.monotonic() + self.seconds, []
        output = self.process.stdout
        while not (parts and parts[-1].endswith(b"\n")):
            ready, _, _ = select.select([output], [], [], max(end - time.monotonic(), 0))
            part = os.read(output.fileno(), 1 << 16) if ready else b""
            if not part:
                reason = "ended" if ready else f"gave no answer in {self.seconds:.0f} s"
                self.stop()
                raise Died(f"the process {reason}")
            parts.append(part)
        return b"".join(parts)

    def ask(self, programs, ways) -> list[dict[str, Answer]]:
        """The answers of several programs, by way; of a process that dies, one by one."""
        with self.lock:
            try:
                return self._ask(programs, ways)
            except Died as error:
                if len(programs) == 1:
                    return [{way: {"error": str(error), "plain": None} for way in ways[0]}]
        return [
            answer
            for program, wanted in zip(programs, ways, strict=True)
            for answer in self.ask([program], [wanted])
        ]

    def _ask(self, programs, ways):
        if self.process is None:
            self._start()
        request = json.dumps({"programs": programs, "ways": ways}) + "\n"
        try:
            self.process.stdin.write(request.encode())
        except BrokenPipeError:
            self.stop()
            raise Died("the process ended") from None
        return json.loads(self._read())

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


# --- comparison ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Find:
    """Two results of one program that differ, or an error.

    Attributes:
      kind: ``bits``, ``error`` or ``refused``.
      places: two pairs of a setting and a way, or one.
      message: the error, or which outputs differ.
    """

    kind: str
    places: tuple[tuple[str, str], ...]
    message: str

    @property
    def signature(self) -> tuple:
        line = re.sub(r"\d+|\[.*?\]", "#", self.message.partition("\n")[0])[:120]
        return (
            self.kind,
            *(self.places if self.kind == "bits" else ()),
            line * (self.kind != "bits"),
        )


def refusals(error: str) -> list[str]:
    """The reasons of a RefusedError, one for each operation."""
    found = [line.partition("): ")[2] for line in error.splitlines() if "): " in line]
    return found or [error]


def is_of_a_version(program) -> bool:
    """Whether versions of JAX are documented to state it otherwise."""
    from helpers.random_programs import DERIVATIVES
    from library import REWRITTEN

    texts = [text for _, text in program["statements"]]
    called = {name for text in texts for name in re.findall(r"\b(?:jnp|jax|lax)\.[\w.]+", text)}
    names = program["transforms"]
    derivatives = sum(name in DERIVATIVES for name in names) + names.count("grad_of_grad")
    has_conditionals = "cond" in names or any(map(CONDITIONAL.search, texts))
    is_scanned = "scan" in names or any("lax.scan" in text for text in texts)
    has_custom = is_scanned and any(map(CUSTOM.search, texts))
    return not called.isdisjoint({*REWRITTEN, *OF_A_VERSION}) or (
        derivatives > 1 and (has_conditionals or has_custom)
    )


def compare(
    answers: dict[str, dict[str, Answer]], versions: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, list[Find]]:
    """What comes out for one program: same, refused, plain or found, and the finds.

    With ``versions``, of JAX by setting, only settings of one version have to agree.
    """
    finds, refused, plain = [], set(), set()
    reference: dict[tuple, tuple[tuple[str, str], list[str]]] = {}
    for name, by_way in answers.items():
        for way, answer in by_way.items():
            place = (name, way)
            if "error" in answer:
                if answer.get("plain"):
                    plain.add(place)
                elif answer["error"].startswith("RefusedError"):
                    refused.add(place)
                    for reason in refusals(answer["error"]):
                        if not any(re.match(pattern, reason) for pattern in DOCUMENTED):
                            finds.append(Find("refused", (place,), reason))
                else:
                    finds.append(Find("error", (place,), answer["error"]))
                continue
            family = "batched" if way in ("loop", "vmap", "map") else "single"
            family = (family, versions.get(name))
            first, digests = reference.setdefault(family, (place, answer["digests"]))
            if digests != answer["digests"]:
                at = [
                    i
                    for i, d in enumerate(answer["digests"])
                    if i >= len(digests) or d != digests[i]
                ]
                finds.append(Find("bits", (first, place), f"outputs {at}"))
    if finds:
        return "found", finds
    return ("plain" if plain else "refused" if refused else "same"), []


# --- minimisation ----------------------------------------------------------------------------


def _without_dead(program):
    """The program without statements and inputs that no output needs."""
    from helpers.random_programs import NAME

    needed, kept = set(program["outputs"]), []
    for name, text in reversed(program["statements"]):
        if name in needed:
            kept.append([name, text])
            needed.update(NAME.findall(text))
    inputs = [x for x in program["inputs"] if x["name"] in needed]
    return {**program, "statements": kept[::-1], "inputs": inputs}


def _types_of_values(program) -> dict[str, Any]:
    from helpers import random_programs

    names = [name for name, _ in program["statements"]]
    bare = {**program, "outputs": names, "transforms": []}
    known = zip(names, random_programs.types(bare), strict=True)
    given = {
        x["name"]: s
        for x, s in zip(program["inputs"], random_programs.structs(program), strict=True)
    }
    return given | dict(known)


def smaller(program) -> Iterator[dict[str, Any]]:
    """Programs that are simpler by one thing, the most drastic first."""
    from helpers import random_programs

    for i in range(len(program["transforms"])):
        rest = program["transforms"][:i] + program["transforms"][i + 1 :]
        yield {**program, "transforms": rest}
    if len(program["outputs"]) > 1:
        for name in program["outputs"]:
            yield {**program, "outputs": [name]}
        for name in program["outputs"]:
            yield {**program, "outputs": [n for n in program["outputs"] if n != name]}
    of = _types_of_values(program)
    for i, (name, text) in enumerate(program["statements"]):
        alike = [
            n
            for n in dict.fromkeys(random_programs.NAME.findall(text))
            if n in of and (of[n].shape, of[n].dtype) == (of[name].shape, of[name].dtype)
        ]
        dtype = of[name].dtype.name
        for other in [*alike, None]:
            changed = copy.deepcopy(program)
            if other is None:
                if dtype == "complex64" or name in program["outputs"]:
                    continue
                other = f"x{900 + i}"
                kind = "tame" if dtype in random_programs.FLOATS else "ties"
                shape = list(of[name].shape)
                changed["inputs"].append(
                    {"name": other, "shape": shape, "dtype": dtype, "kind": kind, "seed": i}
                )
            del changed["statements"][i]
            pattern = re.compile(rf"\b{name}\b")
            changed["statements"] = [[n, pattern.sub(other, t)] for n, t in changed["statements"]]
            changed["outputs"] = [n for n in changed["outputs"] if n != name]
            if changed["outputs"] and changed["statements"]:
                yield changed
    for i, entry in enumerate(program["inputs"]):
        if entry["kind"] in ("hostile", "patterns", "wide", "unit") and entry["dtype"] != "bool":
            for kind in ("equal", "ties", "tame"):
                changed = copy.deepcopy(program)
                changed["inputs"][i]["kind"] = kind
                yield changed
    if program["order"] != ["pairwise", "sequential"]:
        yield {**program, "order": ["pairwise", "sequential"]}


def minimise(program, fails: Callable[[Any], bool], attempts: int = 150) -> dict[str, Any]:
    """A program as small as it can be found that still fails."""
    from helpers import random_programs

    changed = True
    while changed and attempts > 0:
        changed = False
        for candidate in map(_without_dead, smaller(program)):
            try:
                random_programs.types(candidate)
            except Exception:
                continue  # JAX does not take it
            if not candidate["inputs"]:
                continue
            attempts -= 1
            if fails(candidate):
                program, changed = candidate, True
                break
            if attempts <= 0:
                break
    return program


# --- the command -------------------------------------------------------------------------------


class Fuzzer:
    """Workers of some settings, and what they have found.

    Attributes:
      counts: how many programs came out how.
      finds: pairs of a program and a :class:`Find`.
    """

    def __init__(self, settings: list[Setting], jobs: int = 2, others: int = 1):
        self.workers = {s.name: Worker(s) for s in settings}
        self.pool = concurrent.futures.ThreadPoolExecutor(jobs)
        self.others = others
        self.counts: collections.Counter = collections.Counter()
        self.compared: collections.Counter = collections.Counter()
        self.rejected: list[str] = []

    def __enter__(self) -> Fuzzer:
        return self

    def __exit__(self, *_) -> None:
        self.pool.shutdown(cancel_futures=True)
        for worker in self.workers.values():
            worker.stop()

    def ways(self, program, name: str) -> list[str]:
        """In which ways a setting computes a program."""
        names = list(self.workers)
        number, rest = divmod(program["seed"], self.others)
        if rest or name != names[number % len(names)]:
            return ["decorator"]
        way = WAYS[number // len(names) % len(WAYS)]
        if way == "vmap" and program["order"][1] == "order_independent":
            way = "map"  # a batch of right operands is one product with more columns
        return ["decorator", way, "loop"] if way in ("vmap", "map") else ["decorator", way]

    def run(self, programs) -> list[tuple[Any, str, list[Find]]]:
        """Programs with what came out, for each."""
        groups: dict[tuple, list[list[Any]]] = collections.defaultdict(lambda: [[]])
        for program in programs:
            group = groups[tuple(program["order"])]
            if len(group[-1]) == TOGETHER:
                group.append([])
            group[-1].append(program)
        jobs = []
        for group in (g for gs in groups.values() for g in gs if g):
            for name, worker in self.workers.items():
                ways = [self.ways(p, name) for p in group]
                self.compared.update(f"{name} {w}" for ws in ways for w in ws)
                jobs.append((name, group, self.pool.submit(worker.ask, group, ways)))
        answers: dict[int, dict[str, dict[str, Answer]]] = collections.defaultdict(dict)
        for name, group, job in jobs:
            for program, answer in zip(group, job.result(), strict=True):
                answers[program["seed"]][name] = answer
        results = []
        for program in programs:
            by_setting = {name: answers[program["seed"]][name] for name in self.workers}
            outcome, finds = compare(by_setting, self._versions(program))
            self.counts[outcome] += 1
            results.append((program, outcome, finds))
        return results

    def _versions(self, program) -> dict[str, str]:
        if not is_of_a_version(program):
            return {}
        return {name: worker.info["jax"] for name, worker in self.workers.items() if worker.info}

    def repeats(self, program, find: Find) -> bool:
        """Whether a program, by itself, comes out as a find says."""
        answers: dict[str, dict[str, Answer]] = {}
        for name in dict.fromkeys(name for name, _ in find.places):
            ways = [way for other, way in find.places if other == name]
            answers[name] = self.workers[name].ask([program], [ways])[0]
        _, finds = compare(answers, self._versions(program))
        return any(other.signature == find.signature for other in finds)


def not_reached(seeds: range) -> list[str]:
    """Primitives of repjax's tables that no program of the seeds has, but for NOT_REACHED."""
    from helpers import random_programs
    from repjax.primitives.core.tables import EXACT, EXACT_ON_INTEGERS, RULES

    missing = {*RULES, *EXACT, *EXACT_ON_INTEGERS}
    missing -= {name for names in NOT_REACHED.values() for name in names.split()}
    for seed in seeds:
        missing -= random_programs.primitives(random_programs.generate(seed))
    return sorted(missing)


def describe(program, find: Find) -> str:
    """A comment for the script of a find."""
    places = " and ".join(f"{setting}, {way}" for setting, way in find.places)
    lines = find.message.splitlines()[:12]
    return "\n".join(f"# {line}" for line in [f"{find.kind}: {places}", *lines]) + "\n"


def _seeds(text: str) -> range:
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match or int(match[1]) >= int(match[2]):
        raise argparse.ArgumentTypeError(f"expected FIRST:END with FIRST < END, received {text!r}")
    return range(int(match[1]), int(match[2]))


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, received {text!r}")
    return int(text)


def _parse(arguments):
    parser = argparse.ArgumentParser(
        prog="fuzz.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=_seeds, default=range(100), metavar="FIRST:END")
    parser.add_argument(
        "--settings",
        default="native,off,SSE4_2,AVX2",
        help="separated by commas (default: %(default)s)",
    )
    parser.add_argument(
        "--python", action="append", default=[], help="of another environment, with repjax's needs"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument(
        "--others", type=_count, default=1, metavar="N", help="another way for each N-th program"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes that compute at a time")
    parser.add_argument("--minimise", type=int, default=20, help="how many finds, at most")
    parser.add_argument("--output", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--show", action="store_true", help="print the programs, and stop")
    parser.add_argument("--coverage", action="store_true", help="which primitives they reach")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--fault", choices=FAULTS, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    parsed = _parse(arguments)
    if parsed.worker:
        serve(parsed.fault)
        return 0
    try:
        return _run(parsed)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(parsed) -> int:
    import warnings

    from helpers import random_programs

    warnings.simplefilter("ignore")
    if parsed.show:
        for seed in parsed.seeds:
            print(random_programs.script(random_programs.generate(seed)))
        return 0
    if parsed.coverage:
        missing = not_reached(parsed.seeds)
        print(f"not reached: {' '.join(missing) or 'none'}")
        return 1 if missing else 0
    settings = [setting(name) for name in parsed.settings.split(",")]
    for python in parsed.python:
        if not os.access(python, os.X_OK):
            raise UsageError(f"--python: expected a Python that can be run, received {python!r}")
        settings.append(Setting(python, python))
    done, log = set(), None
    if parsed.output:
        (parsed.output / "finds").mkdir(parents=True, exist_ok=True)
        path = parsed.output / "results.jsonl"
        if path.exists():
            done = {json.loads(line)["seed"] for line in path.read_text().splitlines()}
        log = path.open("a")
    seeds = [seed for seed in parsed.seeds if seed not in done]
    start, minimised = time.monotonic(), collections.Counter()
    with Fuzzer(settings, parsed.jobs, parsed.others) as fuzzer:
        for first in range(0, len(seeds), CHUNK):
            if time.monotonic() - start > 60 * parsed.minutes:
                print(f"stopped after {parsed.minutes} minutes, before seed {seeds[first]}")
                break
            programs = [
                random_programs.generate(seed, fuzzer.rejected)
                for seed in seeds[first : first + CHUNK]
            ]
            for program, outcome, finds in fuzzer.run(programs):
                for find in _distinct(finds):
                    _report(fuzzer, program, find, parsed, minimised)
                if log:
                    row = {"seed": program["seed"], "outcome": outcome}
                    row["finds"] = [dataclasses.asdict(find) for find in finds]
                    print(json.dumps(row), file=log, flush=True)
            if first == 0:  # a setting may not have the kernels that it is meant to have
                print("\n".join(f"{name}: {w.info}" for name, w in fuzzer.workers.items()))
            total = sum(fuzzer.counts.values())
            speed = total / (time.monotonic() - start)
            counts = ", ".join(f"{n} {outcome}" for outcome, n in fuzzer.counts.most_common())
            print(f"{total}/{len(seeds)} programs: {counts}; {speed:.2f} a second", flush=True)
        print(f"answers: {dict(fuzzer.compared)}")
        if fuzzer.rejected:
            print(f"{len(fuzzer.rejected)} draws that JAX does not take, such as:")
            print("\n".join(sorted({text[:200] for text in fuzzer.rejected})[:10]))
    return 1 if fuzzer.counts["found"] else 0


def _distinct(finds: list[Find]) -> list[Find]:
    return list({find.signature: find for find in reversed(finds)}.values())[::-1]


def _report(fuzzer: Fuzzer, program, find: Find, parsed, minimised) -> None:
    from helpers import random_programs

    seed = program["seed"]
    print(f"FOUND seed {seed} {find.kind} {find.places}: {find.message[:300]}", flush=True)
    if minimised.total() >= parsed.minimise or minimised[find.signature] >= 3:
        return
    minimised[find.signature] += 1
    note = ""
    if fuzzer.repeats(program, find):
        program = minimise(program, lambda p: fuzzer.repeats(p, find))
    else:
        note = "# not by itself, but compiled together with its neighbours\n"
    text = random_programs.script(program)
    if parsed.output:
        name = f"{seed}-{find.kind}-{'-'.join(find.places[-1])}"
        name = re.sub(r"[^\w.+=-]+", "_", name)
        path = parsed.output / "finds" / f"{name}.py"
        path.write_text(describe(program, find) + note + text)
        path.with_suffix(".json").write_text(json.dumps(program))
        print(f"  {path}")
    print(describe(program, find) + note + random_programs.source(program), flush=True)
    print(f"  {program['transforms']} {program['order']}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
