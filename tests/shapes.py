"""Try random shapes: do results keep their bits where docs/numerics.md, section 21, says so?

    python tests/shapes.py --cases 0:10000

A case is an operation, a variation of its operands, a format and a seed (tests/helpers/shapes.py).
Exit status: 0 if what is promised holds, and each promise that is not made was broken by a case;
1 if not.
"""

from __future__ import annotations

import argparse
import collections
import sys

from helpers import shapes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", default="0:10000", metavar="FIRST:END", help="by their numbers")
    start, _, stop = parser.parse_args().cases.partition(":")
    broken: collections.Counter[tuple[str, str]] = collections.Counter()
    tried: collections.Counter[tuple[str, str]] = collections.Counter()
    status = 0
    for number, case in enumerate(shapes.cases(int(start), int(stop)), 1):
        key = case.operation.name, case.variation
        tried[key] += 1
        if not case.same():
            broken[key] += 1
            if case.operation.holds[case.variation]:
                status = 1
                print(f"differs: {case}", flush=True)
        if number % 500 == 0:
            print(f"{number} cases", file=sys.stderr, flush=True)
    for operation in shapes.OPERATIONS:
        for variation, holds in operation.holds.items():
            key = operation.name, variation
            if tried[key] and not holds and not broken[key]:
                status = 1
                print(f"no case of {tried[key]} differs: {operation.name}, {variation}")
    print(f"{sum(tried.values())} cases, {sum(broken.values())} differ, as they may: {not status}")
    return status


if __name__ == "__main__":
    sys.exit(main())
