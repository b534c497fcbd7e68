"""Which runs of Chen et al. 2022 are the same, by their criteria, from their raw result files.

    python benchmarks/icse22.py --data icse2022-results.tar.xz

The archive is that of the paper's public repository: files named
``MODEL_tf_VERSION_HARDWARE_seed_SEED_PATCH_RECORD_RUN.txt``.  Pairs are those of the paper (its
section 4): a recorded run and its replay, two runs of one seed, and runs 1 and 2, 3 and 4 and so on
without a seed.  A row of the table is a setting: of its pairs, how many have equal accuracies
(overall and of each class), equal predictions and equal losses in every epoch.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator

from repjax.verify import compare, icse22

_NAME = re.compile(
    r"(?P<model>\w+)_tf_(?P<version>\d+)_(?P<hardware>cpu|gpu)_seed_(?P<seed>-?\d+)"
    r"_(?P<patch>nopatch|patch)_(?P<kind>norecord|record)_(?P<run>\d+)"
)
HEADS = (
    "model",
    "TensorFlow",
    "device",
    "patched",
    "pairs",
    "number",
    "accuracy",
    "predictions",
    "losses",
)


def pairs(names) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """The settings and the names of the two runs of all pairs."""
    for name in sorted(names):
        found = _NAME.fullmatch(name)
        if found is None:
            continue
        run = int(found["run"])
        prefix = name.removesuffix(str(run))
        if found["kind"] == "record":
            kind, other = "recorded and replayed", name.replace("_record_", "_replay_")
        elif run % 2 == 0:
            continue
        else:
            kind = "without a seed" if found["seed"] == "-1" else "of one seed"
            other = f"{prefix}{run + 1}"
        if other in names:
            patched = "yes" if found["patch"] == "patch" else "no"
            setting = found["model"], found["version"], found["hardware"], patched, kind
            yield setting, name, other


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="the archive, icse2022-results.tar.xz")
    data = parser.parse_args().data
    counts: dict[tuple[str, ...], collections.Counter] = collections.defaultdict(
        collections.Counter
    )
    with tempfile.TemporaryDirectory() as folder:
        try:
            with tarfile.open(data) as archive:
                archive.extractall(folder, filter="data")
        except (OSError, tarfile.TarError) as error:
            print(f"--data: expected the archive of the paper's results: {error}", file=sys.stderr)
            return 2
        files = {path.stem: path for path in pathlib.Path(folder).rglob("*.txt")}
        for setting, first, second in pairs(files):
            found = compare(icse22.read(files[first]), icse22.read(files[second]))
            same = {x.name for x in found.criteria if x.same}
            count = counts[setting]
            count["number"] += 1
            count["accuracy"] += {"overall accuracy", "accuracy of each class"} <= same
            count["predictions"] += "every prediction" in same
            count["losses"] += {"loss of every epoch", "number of epochs"} <= same
    print("| " + " | ".join(HEADS) + " |\n|" + "---|" * len(HEADS))
    for setting, count in sorted(counts.items()):
        cells = (*setting, *(str(count[name]) for name in HEADS[len(setting) :]))
        print("| " + " | ".join(cells) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
