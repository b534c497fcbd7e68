"""Run the programs whose bits are goldens (tests/helpers/programs.py).

    python tests/goldens.py [NAME ...]     print the digests as JSON
    python tests/goldens.py --write [NAME ...]    write them to tests/data/goldens.json

The goldens may change only together with the contract's version (docs/numerics.md).
"""

from __future__ import annotations

import argparse
import json
import os

import repjax
from helpers.programs import GOLDENS, PROGRAMS, SAME_AS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", help="programs to run; all without it")
    parser.add_argument("--write", action="store_true", help=f"write {GOLDENS.name}")
    parser.add_argument("--cpus", type=int, help="run on so many of the CPUs")
    parser.add_argument("--first-cpu", type=int, default=0, help="the number of the first one")
    arguments = parser.parse_args()
    if arguments.cpus and hasattr(os, "sched_setaffinity"):
        every = sorted(os.sched_getaffinity(0))
        first = arguments.first_cpu % len(every)
        os.sched_setaffinity(0, (every[first:] + every[:first])[: arguments.cpus])
    if unknown := set(arguments.names) - set(PROGRAMS):
        parser.error(f"expected programs among {list(PROGRAMS)}, received {sorted(unknown)}")
    names = arguments.names or [n for n in PROGRAMS if not (arguments.write and n in SAME_AS)]
    digests = {name: repjax.digest(PROGRAMS[name]()) for name in names}
    if arguments.write:
        goldens = {"contract": repjax.CONTRACT_VERSION, "digests": digests}
        if arguments.names:
            goldens["digests"] = json.loads(GOLDENS.read_text())["digests"] | digests
        GOLDENS.write_text(json.dumps(goldens, indent=2) + "\n")
    print(json.dumps(digests, indent=2))


if __name__ == "__main__":
    main()
