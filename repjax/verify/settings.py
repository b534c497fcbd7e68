"""Settings under which a command is run once more, in a process of its own.

A setting is words with ``+`` between them::

    plain                   as plain JAX computes; the default
    repjax                  with repjax_enable
    accumulation=ORDER      with repjax_enable and this order of sums
    contraction=ORDER       and this order of products
    SSE4_2, AVX, AVX2, AVX512   the instruction set that XLA compiles for on CPUs
    kernels=off             without repjax's kernels, or with those of an instruction set
    devices=8               as many devices of the host
    python=PATH             another Python, with other versions of JAX
    --xla_...               a flag of XLA
    NAME=VALUE              a variable of the environment, its name in capitals
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

from repjax.verify.progress import is_progress

ISAS = ("SSE4_2", "AVX", "AVX2", "AVX512")


class SettingError(ValueError):
    """A word that is none of a setting's."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A setting.

    Attributes:
      text: as it was given.
      python: the interpreter.
      environment: variables that differ from this process's.
      options: for commands that :func:`add_options` has been applied to.
    """

    text: str
    python: str
    environment: dict[str, str]
    options: list[str]


def parse(text: str) -> Setting:
    """The setting that a text stands for.

    Raises:
      SettingError: naming the word.
    """
    python, options = sys.executable, []
    environment: dict[str, str] = {}
    flags = [os.environ["XLA_FLAGS"]] if os.environ.get("XLA_FLAGS") else []
    for word in text.split("+"):
        name, equals, value = word.partition("=")
        if word in ("plain", "repjax"):
            options += ["--repjax"] if word == "repjax" else []
        elif name in ("accumulation", "contraction") and value:
            options += [f"--{name}", value]
        elif word in ISAS:
            flags.append(f"--xla_cpu_max_isa={word}")
        elif name == "kernels" and value:
            environment["REPJAX_NATIVE"] = value
        elif name == "devices" and value.isdecimal():
            flags.append(f"--xla_force_host_platform_device_count={value}")
        elif name == "python" and value:
            if not pathlib.Path(value).is_file():
                raise SettingError(f"{text}: expected a Python, received {value}, which is no file")
            python = value
        elif word.startswith("--xla_"):
            flags.append(word)
        elif equals and re.fullmatch("[A-Z][A-Z0-9_]*", name):
            environment[name] = value
        else:
            raise SettingError(
                f"{text}: expected words of a setting (repjax trace --help), received {word!r}"
            )
    if flags:
        environment["XLA_FLAGS"] = " ".join(flags)
    return Setting(text, python, environment, options)


def command(setting: Setting, arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """``repjax ARGUMENTS`` with a setting, and its environment; another Python has to have repjax,
    too."""
    words = [setting.python, "-m", "repjax", *arguments, *setting.options]
    return words, {**os.environ, **setting.environment}


def run(setting: Setting, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run :func:`command`.

    What it says of its progress is passed on, and all else of its standard error is in the result.
    """
    words, environment = command(setting, arguments)
    said = []
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if is_progress(line):
                print(f"{setting.text}: {line}", end="", file=sys.stderr, flush=True)
            else:
                said.append(line)
    return subprocess.CompletedProcess(words, process.returncode, None, "".join(said))


def add_options(parser) -> None:
    """The options of :attr:`Setting.options`, for :func:`enable`."""
    parser.add_argument("--repjax", action="store_true", help="with repjax_enable")
    for name in ("accumulation", "contraction"):
        parser.add_argument(f"--{name}", metavar="ORDER", help=f"repjax_{name}")


def enable(arguments) -> None:
    """Set the options of :func:`add_options` for this process."""
    import jax

    for name in ("accumulation", "contraction"):
        if value := getattr(arguments, name):
            jax.config.update(f"repjax_{name}", value)
    if arguments.repjax or arguments.accumulation or arguments.contraction:
        jax.config.update("repjax_enable", True)
