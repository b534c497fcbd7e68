"""The command line: ``repjax COMMAND``, or ``python -m repjax COMMAND``."""

from __future__ import annotations

import argparse
import difflib
import sys

from repjax import CONTRACT_VERSION, __version__
from repjax.verify import (
    bisection,
    comparison,
    conformance,
    diagnosis,
    dispute,
    explanation,
    inspection,
    manifest,
    parties,
    prove,
    recordings,
    report,
    traces,
    training,
    verification,
)

#: Words that one may try, and the command for what they say.
_OTHER_WORDS = {"audit": "diagnose", "check": "conformance", "doctor": "info", "diff": "compare"}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status (2: a request that cannot be met)."""
    parser = argparse.ArgumentParser(prog="repjax", description="Tools that check bits.")
    version = f"repjax {__version__}, contract {CONTRACT_VERSION}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in (
        *(comparison, report, training, traces, bisection, explanation),
        *(manifest, verification, dispute, parties),
        *(diagnosis, recordings, conformance, prove, inspection),
    ):
        module.add_command(commands)
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands.choices:
        print(f"repjax: {_unknown(arguments[0], [*commands.choices])}", file=sys.stderr)
        return 2
    parsed = parser.parse_args(arguments)
    return parsed.run(parsed)


def _unknown(word: str, commands: list[str]) -> str:
    near = difflib.get_close_matches(word, commands, 1)
    meant = _OTHER_WORDS.get(word) or (near[0] if near else None)
    remedy = f"use repjax {meant}" if meant else "repjax --help lists them"
    return f"expected a command, received {word!r}; {remedy}"


if __name__ == "__main__":
    sys.exit(main())
