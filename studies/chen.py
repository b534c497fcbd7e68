"""Sixteen runs of a network in eight pairs, after Chen et al. 2022, on platforms that differ.

    python studies/chen.py --network lenet5 --epochs 1 --work runs/lenet5 --output lenet5.json
    python studies/chen.py --quick --output /tmp/quick.json

"Towards training reproducible deep learning models" (ICSE 2022, section 4 and tables 1, 2 and 4)
trains each network 16 times in each setup, and compares the runs pair by pair.  The setups here:

==================  ===========  ===============================================================
setup               computed by  what is random
==================  ===========  ===============================================================
original            plain JAX    drawn anew in each run
seeds               plain JAX    of a seed, one for each pair
repjax              repjax       drawn anew in each run
seeds, repjax       repjax       of a seed, one for each pair
record, repjax      repjax       drawn in the first run of a pair, recorded, replayed in the second
==================  ===========  ===============================================================

The two runs of a pair run on different platforms, which stand in for the paper's hardware: words of
``repjax trace --help`` such as an instruction set, ``kernels=``, ``devices=`` and ``python=`` for
another JAX, and ``cpus=`` for how many processors a run may use.

Runs are compared by ``repjax.verify.compare``: overall accuracy, accuracy of each class and every
prediction (for the forecaster, the mean absolute error and every prediction), and the losses of all
epochs.  The directories of all runs stay in --work.  A study that was interrupted goes on there:
runs that are finished count, and of a run of repjax with a seed that was cut off, what it had
logged has to come out again, bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from repjax.verify import settings

FORMAT, VERSION = "repjax study of Chen et al.", 1
SEEDS = (0, 1, 2, 5, 10, 42, 123, 1234)
#: Of each setup: whether repjax computes, and what is random.
SETUPS = {
    "original": (False, "drawn"),
    "seeds": (False, "seeds"),
    "repjax": (True, "drawn"),
    "seeds, repjax": (True, "seeds"),
    "record, repjax": (True, "recorded"),
}
PLATFORMS = ("AVX512", "AVX2+kernels=AVX2+cpus=1", "SSE4_2+kernels=AVX2", "AVX+devices=2")
STUDY, RUNS = "study.json", "runs"
#: What --quick has in the place of options that are not given.
QUICK = {
    **{"network": "lenet1", "set": "digits", "epochs": 2, "limit": 256, "tested": 128, "pairs": 2},
    "platforms": ["SSE4_2", "AVX2+cpus=1"],
}


class StudyError(ValueError):
    """A study that cannot be run: shown as one sentence, exit status 2."""


@dataclasses.dataclass(frozen=True)
class Study:
    """What decides the runs of a study."""

    network: str
    data: str
    epochs: int
    limit: int | None
    tested: int | None
    batch: int | None
    pairs: int
    setups: tuple[str, ...]
    platforms: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
    """One run: number ``side``, 0 or 1, of a pair."""

    setup: str
    pair: int
    side: int
    platform: str

    @property
    def name(self) -> str:
        return f"{self.setup.replace(', ', '-')}-{self.pair}-{'ab'[self.side]}"

    @property
    def is_recorded(self) -> bool:
        return SETUPS[self.setup][1] == "recorded"

    @property
    def recording(self) -> str:
        """What the first run of the pair drew."""
        return f"{self.setup.replace(', ', '-')}-{self.pair}.entropy"

    @property
    def seed(self) -> int | None:
        return SEEDS[self.pair] if SETUPS[self.setup][1] == "seeds" else None


def plans(study: Study) -> list[Plan]:
    """All runs: the platforms of the pairs are all pairs of platforms, over and over."""
    every = itertools.cycle(itertools.combinations(study.platforms, 2))
    sides = list(itertools.islice(every, study.pairs))
    return [
        Plan(setup, pair, side, sides[pair][side])
        for setup in study.setups
        for pair in range(study.pairs)
        for side in (0, 1)
    ]


# --- the runs of one platform, in a process of its own --------------------------------------


def work(order: dict[str, Any]) -> None:
    """Run some plans, one after the other, with programs that are compiled once."""
    # What a platform is has to be settled before JAX looks.
    import trainings

    if order["cpus"]:
        trainings.on_cpus(order["cpus"])

    from repjax.verify import RunError
    from repjax.verify.progress import counter

    study, folder = Study(**order["study"]), pathlib.Path(order["work"])
    network = _network(study.network, study.batch)
    task = trainings.task(study.data, network, study.limit, study.tested, order["folder"])
    programs: dict[bool, trainings.Compiled] = {}
    done = 0
    with counter(f"{order['title']} steps") as show:

        def progress() -> None:
            nonlocal done
            done += 1
            show(done)

        for plan in (Plan(**x) for x in order["plans"]):
            reproducible = SETUPS[plan.setup][0]
            if reproducible not in programs:
                steps = task.train.count // network.recipe.batch
                programs[reproducible] = trainings.compiled(network, reproducible, steps)
            try:
                _run(plan, programs[reproducible], task, study, folder, progress)
            except RunError as error:
                raise StudyError(f"{plan.name}: {error}") from error


def _network(name: str, batch: int | None):
    """A network, with its recipe's batch or another one."""
    import trainings

    network = trainings.NETWORKS[name]()
    recipe = network.recipe
    return network._replace(recipe=dataclasses.replace(recipe, batch=batch or recipe.batch))


def _run(plan: Plan, program, task, study: Study, folder: pathlib.Path, progress) -> None:
    import trainings

    from repjax.verify import Run, record, replay

    path = folder / RUNS / plan.name
    repeated = plan.seed is not None and SETUPS[plan.setup][0]
    if path.exists() and not repeated:
        shutil.rmtree(path)  # without a seed, or in plain JAX, another run takes its place
    random = contextlib.nullcontext()
    if plan.is_recorded:
        recording = folder / RUNS / plan.recording
        if plan.side == 0:
            for left in (recording, recording.with_name(f"{recording.name}.parts")):
                shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
        random = replay(recording) if plan.side else record(recording)
    metadata = {"plan": dataclasses.asdict(plan), "study": dataclasses.asdict(study)}
    with Run(path, resume=repeated, metadata=metadata, background=True) as run, random:
        trainings.train(program, task, run, seed=plan.seed, epochs=study.epochs, progress=progress)


def start(study: Study, side: int, platform: str, todo: list[Plan], options) -> None:
    """Run the plans of one side and platform in a process, and wait for it."""
    words = platform.split("+")
    cpus = [int(x.removeprefix("cpus=")) for x in words if x.startswith("cpus=")]
    setting = settings.parse("+".join(["plain", *(x for x in words if x[:5] != "cpus=")]))
    order = {
        "study": dataclasses.asdict(study),
        "plans": [dataclasses.asdict(x) for x in todo],
        "work": str(options.work),
        "folder": options.data,
        "cpus": cpus[0] if cpus else None,
        "title": f"side {side} platform {study.platforms.index(platform)}",
    }
    environment = {"JAX_PLATFORMS": "cpu", **os.environ, **setting.environment}
    command = [setting.python, os.path.abspath(__file__), "--worker", json.dumps(order)]
    status = subprocess.run(command, env=environment, check=False).returncode
    if status:
        # What a process refuses, it has said itself.
        ended = f"{platform}: expected its runs to be finished, received exit status {status}; "
        raise StudyError("" if status == 2 else ended + "the same command goes on with --work")


def is_finished(plan: Plan, folder: pathlib.Path) -> bool:
    """Whether a run came to its end; what its files hold is read when it is compared."""
    log = folder / plan.name / "log.jsonl"
    if not log.is_file() or (plan.is_recorded and not (folder / plan.recording).is_file()):
        return False
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - (1 << 20)))
        return b'"finish"' in file.read()


def run(study: Study, options) -> None:
    """All runs that are not finished: first sides before second ones, which replay."""
    every = plans(study)
    for side, platform in itertools.product((0, 1), study.platforms):
        todo = [
            plan
            for plan in every
            if (plan.side, plan.platform) == (side, platform)
            and not is_finished(plan, options.work / RUNS)
        ]
        if todo:
            print(f"side {side}, {platform}: {len(todo)} runs", file=sys.stderr, flush=True)
            start(study, side, platform, todo, options)


# --- the results ------------------------------------------------------------------------


def _spread(numbers: list[float]) -> dict[str, float]:
    """The largest of some differences, and their standard deviation, as in the paper's table 4."""
    return {"largest": max(numbers), "deviation": statistics.pstdev(numbers)}


def results(study: Study, folder: pathlib.Path, progress) -> dict[str, Any]:
    """What the pairs have in common, by setup, and the curves of all runs."""
    from repjax.verify import read_run

    found: dict[str, Any] = {}
    for setup in study.setups:
        pairs, curves = [], []
        for pair in range(study.pairs):
            names = [Plan(setup, pair, side, "").name for side in (0, 1)]
            records = [read_run(folder / RUNS / name) for name in names]
            pairs.append(_pair(*records))
            curves += map(_curve, records)
            progress(len(pairs))
        found[setup] = {"summary": _summary(pairs), "pairs": pairs, "curves": curves}
    return found


def _shown(platform: str, jax: str) -> str:
    """A platform without the path of its Python: what matters is the JAX there."""
    words = [x for x in platform.split("+") if not x.startswith("python=")]
    return "+".join([*words, f"jax {jax}"])


def _pair(a, b) -> dict[str, Any]:
    """One pair: how it differs, by the criteria, and where it first does."""
    from repjax.verify import compare, comparison

    found = compare(a, b)
    same = {x.name: x.same for x in found.criteria}
    first = comparison.first_step(a, b)
    last, other = a.evaluations[-1], b.evaluations[-1]
    losses = [[epoch.loss for epoch in x.epochs] for x in (a, b)]
    result = {
        "platforms": [_shown(x.metadata["plan"]["platform"], x.about["jax"]) for x in (a, b)],
        "verdict": found.verdict,
        "criteria": same,
        "predictions that differ": int((last.predictions != other.predictions).sum()),
        "epochs": [len(x) for x in losses],
        "losses that differ": sum(x != y for x, y in itertools.zip_longest(*losses)),
        "first step that differs": first and first.number,
        "steps": len(a.steps),
    }
    if comparison.is_regression(last, other):
        errors = [float(comparison.mean_absolute_error(x)) for x in (last, other)]
        return result | {"errors": errors}
    of_classes = [
        {name: right / count for name, (right, count) in comparison.accuracies(x).items()}
        for x in (last, other)
    ]
    differences = {name: abs(x - of_classes[1][name]) for name, x in of_classes[0].items()}
    overall = differences.pop(None)
    return result | {"accuracy": overall, "accuracy of classes": list(differences.values())}


def _curve(record) -> dict[str, Any]:
    """Losses as their bits, and what else each epoch has."""
    metrics = sorted({name for epoch in record.epochs for name in epoch.metrics})
    return {
        "loss": [epoch.loss.value.hex() for epoch in record.epochs],
        **{name: [epoch.metrics[name].value for epoch in record.epochs] for name in metrics},
    }


def _summary(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    def spread(name):
        return _spread([float(pair[name]) for pair in pairs])

    summary: dict[str, Any] = {
        "pairs": len(pairs),
        "identical bits": sum(pair["verdict"] == "identical bits" for pair in pairs),
        "identical by the criteria": sum(all(pair["criteria"].values()) for pair in pairs),
        "losses": sum(pair["losses that differ"] for pair in pairs),
        "predictions": spread("predictions that differ"),
    }
    if "errors" in pairs[0]:
        differences = [abs(first - second) for first, second in (x["errors"] for x in pairs)]
        return summary | {"mean absolute error": _spread(differences)}
    classes = [x for pair in pairs for x in pair["accuracy of classes"]]
    return summary | {"accuracy": spread("accuracy"), "accuracy of classes": _spread(classes)}


def text(study: Study, found: dict[str, Any]) -> str:
    """A table for people."""
    lines = [f"{'setup':15} identical  losses  predictions  accuracy or error  classes"]
    for setup, result in found.items():
        x = result["summary"]
        main = x.get("accuracy") or x.get("mean absolute error")
        classes = x.get("accuracy of classes", {}).get("largest", math.nan)
        lines.append(
            f"{setup:15} {x['identical bits']:2} of {x['pairs']:2}   {x['losses']:6}  "
            f"{x['predictions']['largest']:11.0f}  {main['largest']:17.6f}  {classes:7.4f}"
        )
    return "\n".join([*lines, "the largest difference of a pair; losses are counted"])


# --- the command ------------------------------------------------------------------------


def parse(argv) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a network 16 times in 8 pairs in each setup, and compare the pairs.",
        epilog="example: python studies/chen.py --network lenet5 --epochs 1 --work runs/lenet5 "
        "--output lenet5.json",
    )
    add = parser.add_argument
    names = ("lenet1", "lenet4", "lenet5", "resnet38", "resnet56", "wrn-28-10", "forecaster")
    add("--network", choices=names, help="lenet5 without it")
    add("--set", metavar="NAME", help="fashion-mnist, digits, elec_equip, co2 or sunspots")
    add("--data", metavar="DIR", help="a folder with Fashion-MNIST's files")
    add("--epochs", type=count, metavar="N", help="passes over the training data; the recipe's")
    add("--limit", type=count, metavar="N", help="train on the first N examples only")
    add("--tested", type=count, metavar="N", help="test on the first N examples only")
    add("--batch", type=count, metavar="N", help="examples of a step; the recipe's without it")
    add("--pairs", type=count, metavar="N", help="at most 8, the default")
    add("--setups", nargs="+", choices=SETUPS, default=[*SETUPS], help="all without it")
    add("--platforms", nargs="+", metavar="WORDS", help=f"at least two; {' '.join(PLATFORMS)}")
    add("--python", nargs="+", default=[], metavar="FILE", help="further platforms: other JAX")
    add("--work", type=pathlib.Path, metavar="DIR", help="keeps the runs, to go on with")
    add("--output", type=pathlib.Path, metavar="FILE.json", help="write the results")
    add("--note", default="", help="what a reader of the results should know")
    add("--quick", action="store_true", help="LeNet-1, few digits, two pairs, two platforms")
    add("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    usual = {"network": "lenet5", "pairs": len(SEEDS), "platforms": [*PLATFORMS]}
    for name, value in (QUICK if options.quick else usual).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def count(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, received {value!r}")
    return int(value)


def check(options) -> Study:
    """The study of some options, and all that can be wrong before it begins."""
    import trainings

    network = _network(options.network, options.batch)
    is_forecaster = options.network == "forecaster"
    name = options.set or ("elec_equip" if is_forecaster else "fashion-mnist")
    if name not in trainings.SETS:
        raise StudyError(f"expected --set of {', '.join(trainings.SETS)}, received {name}")
    platforms = [*options.platforms, *(f"python={x}" for x in options.python)]
    if len(set(platforms)) < 2 or len(set(platforms)) != len(platforms):
        raise StudyError(
            f"expected at least two platforms, each once, received {platforms}; the runs of a pair "
            "are on two of them"
        )
    for words in platforms:
        for word in words.split("+"):
            if word.startswith("cpus=") and not word.removeprefix("cpus=").isdecimal():
                raise StudyError(f"{words}: expected cpus=N, received {word!r}")
        settings.parse("+".join(x for x in words.split("+") if x[:5] != "cpus=") or "plain")
    if options.pairs > len(SEEDS):
        raise StudyError(f"expected at most {len(SEEDS)} pairs, one a seed, not {options.pairs}")
    if options.output and not options.output.absolute().parent.is_dir():
        raise StudyError(f"expected a folder for --output, received {options.output}; create it")
    trainings.task(name, network, options.limit, options.tested, options.data)
    return Study(
        network=options.network,
        data=name,
        epochs=options.epochs or network.recipe.epochs,
        limit=options.limit,
        tested=options.tested,
        batch=options.batch,
        pairs=options.pairs,
        setups=tuple(options.setups),
        platforms=tuple(platforms),
    )


def prepare(study: Study, folder: pathlib.Path) -> None:
    """A folder for the runs of this study, new or the one that it was begun in."""
    from repjax.checkpoint import replacing

    about = {"format": FORMAT, "version": VERSION, "study": dataclasses.asdict(study)}
    about = json.loads(json.dumps(about))
    path = folder / STUDY
    if path.exists():
        try:
            found = json.loads(path.read_text())
        except ValueError:
            found = None
        if found != about:
            raise StudyError(
                f"{folder}: expected runs of this study, received those of another one; give the "
                "options that it was begun with, or another --work"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise StudyError(f"{folder}: expected an empty folder or one of a study, received neither")
    with replacing(path) as file:
        file.write(json.dumps(about, indent=1).encode())
    (folder / RUNS).mkdir()


def as_json(result: dict[str, Any]) -> str:
    """JSON whose lists of numbers and texts are on one line."""
    lists = re.compile(r"\[\s+[^][{}]*?\s+\]")
    return lists.sub(lambda x: " ".join(x[0].split()), json.dumps(result, indent=1)) + "\n"


def _without_platforms(study: Study) -> dict[str, Any]:
    """What the study was; each pair has its platforms, as :func:`_shown`."""
    return {name: x for name, x in dataclasses.asdict(study).items() if name != "platforms"}


def _processor() -> str:
    info = pathlib.Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", info.read_text(), re.M) if info.exists() else []
    return names[0].strip() if names else os.uname().machine


def main(argv=None) -> int:
    options = parse(argv)
    from data import DataError
    from repjax.checkpoint import replacing
    from repjax.verify import RunError
    from repjax.verify.entropy import EntropyError
    from repjax.verify.progress import counter
    from repjax.verify.recordings import RecordingError

    with tempfile.TemporaryDirectory(prefix="repjax-study-") as temporary:
        try:
            if options.worker:
                work(json.loads(options.worker))
                return 0
            study = check(options)
            options.work = options.work or pathlib.Path(temporary)
            prepare(study, options.work)
            run(study, options)
            with counter("pairs of a setup") as progress:
                found = results(study, options.work, progress)
            if options.output:
                result = {
                    "format": FORMAT,
                    "version": VERSION,
                    "date": time.strftime("%Y-%m-%d"),
                    "note": options.note,
                    "study": _without_platforms(study),
                    "machine": {"cpu": _processor(), "cores": os.cpu_count()},
                    "setups": found,
                }
                with replacing(options.output) as file:
                    file.write(as_json(result).encode())
        except (DataError, StudyError, settings.SettingError, RunError) as error:
            if str(error):
                print(f"chen.py: {error}", file=sys.stderr)
            return 2
        except (OSError, RecordingError, EntropyError) as error:
            print(f"chen.py: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            if not options.worker:
                print("chen.py: interrupted; the same command goes on with --work", file=sys.stderr)
            return 130
    print(text(study, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
