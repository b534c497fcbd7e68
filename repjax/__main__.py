"""The command line: ``repjax COMMAND``, or ``python -m repjax COMMAND``."""

from __future__ import annotations

import argparse
import sys

from repjax.verify import (
    bisection,
    comparison,
    conformance,
    diagnosis,
    dispute,
    explanation,
    manifest,
    parties,
    prove,
    recordings,
    report,
    traces,
    training,
    verification,
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status (2: a request that cannot be met)."""
    parser = argparse.ArgumentParser(prog="repjax", description="Tools that check bits.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in (
        *(comparison, report, training, traces, bisection, explanation),
        *(manifest, verification, dispute, parties),
        *(diagnosis, recordings, conformance, prove),
    ):
        module.add_command(commands)
    parsed = parser.parse_args(arguments)
    return parsed.run(parsed)


if __name__ == "__main__":
    sys.exit(main())
