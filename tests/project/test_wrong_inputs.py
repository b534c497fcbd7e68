"""What a user gets wrong is answered in one screen: the user's line, and a sentence that helps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import pytest

from helpers.paths import ROOT

#: Lines of a small terminal.
SCREEN = 24
START = "import jax, jax.numpy as jnp, numpy as np, optax, repjax\n"
#: What is wrong; the line that shows it to the user; what the answer says.
PROGRAMS = {
    "an operation without a reproducible form": (
        """
        @repjax.reproducible
        def spectrum(matrix):
            return jnp.linalg.eigvals(matrix)

        spectrum(jnp.eye(3))  # here
        """,
        "program.py:4:11 (spectrum): eig has no reproducible form; factor with",
    ),
    "double precision": (
        """
        jax.config.update("jax_enable_x64", True)

        @repjax.reproducible
        def train_step(weights, batch):
            return batch @ weights

        train_step(np.ones(3), np.ones((2, 3), np.float32))  # here
        """,
        "or turn jax_enable_x64 off, which makes float64 of numbers that have no other type\n"
        "The arguments weights are in double precision.",
    ),
    "a derivative of a reproducible function": (
        """
        @repjax.reproducible
        def loss(weights):
            return weights**2

        jax.grad(loss)(2.0)  # here
        """,
        "received a derivative of the reproducible function loss; put it outside: repjax.repro",
    ),
    "an argument that is no array": (
        """
        @repjax.reproducible
        def train_step(weights, optimizer):
            return weights * 2

        train_step(1.0, "adam")  # here
        """,
        "<class 'str'> and was passed to the function at path optimizer.",
    ),
    "shapes that do not fit": (
        """
        @repjax.reproducible
        def train_step(weights, batch):
            return jnp.dot(batch, weights)  # here

        train_step(jnp.ones((3, 4)), jnp.ones((5, 7)))
        """,
        "dot_general requires contracting dimensions to have the same shape, got (7,) and (3,).",
    ),
    "an order that there is not": (
        """
        @repjax.reproducible(accumulation="fast")  # here
        def loss(weights):
            return weights**2
        """,
        "expected one of pairwise, sequential, order_independent, exact; received 'fast'",
    ),
    "a misspelt option": (
        """
        @repjax.reproducible(static_argnum=1)  # here
        def loss(weights, n):
            return weights * n
        """,
        "received 'static_argnum'; use static_argnums",
    ),
    "the call of a function in place of the function": (
        "repjax.reproducible(jnp.sin(1.0))  # here",
        "repjax.reproducible: expected a function, received ArrayImpl; pass the function itself",
    ),
    "the switch inside of a traced function": (
        """
        @jax.jit
        def step(x):
            with repjax.enabled():  # here
                return x * 2

        step(1.0)
        """,
        "inside one; set it around the outermost call, or use @repjax.reproducible inside",
    ),
    "an optimizer that was not made": (
        "repjax.optim.reproducible(optax.adam)  # here",
        "received function; pass the result of optax.sgd(...), optax.adam(...)",
    ),
    "a digest of text": (
        'repjax.digest({"layer": {"name": "conv"}})  # here',
        "received type str at layer/name; convert or leave it out",
    ),
    "a name that there is not": (
        "repjax.nn.Densee(3)  # here",
        "module 'repjax.nn' has no attribute 'Densee'. Did you mean: 'Dense'?",
    ),
    "a file that is no checkpoint": (
        """
        open("params.npz", "wb").write(b"weights")
        repjax.checkpoint.load("params.npz", {})  # here
        """,
        "params.npz: expected a repjax checkpoint, received a file that starts with b'weights'",
    ),
}
#: Variables of the environment, a program, and the answer.
ENVIRONMENTS = [
    ({"REPJAX_ENABLE": "yes"}, "", "REPJAX_ENABLE: expected 0 or 1, received 'yes'"),
    (
        {"REPJAX_NATIVE": "AVX9"},
        "repjax.reproducible(lambda x: x @ x)(jnp.ones((2, 2)))",
        "REPJAX_NATIVE: expected off",
    ),
    (
        {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"},
        "repjax.reproducible(lambda x: x + x)(1.0)",
        "XLA_FLAGS: expected xla_cpu_enable_fast_math=false, received 'true', which lets XLA",
    ),
]
COMMANDS = [
    (["audit", "train.py"], "repjax: expected a command, received 'audit'; use repjax diagnose"),
    (["comparre", "a", "b"], "repjax: expected a command, received 'comparre'; use repjax compare"),
    (["frobnicate"], "repjax: expected a command, received 'frobnicate'; repjax --help lists them"),
    (
        ["digest", "nowhere.npz"],
        "repjax digest: [Errno 2] No such file or directory: 'nowhere.npz'",
    ),
    (["run", "nowhere.py"], "repjax run: expected a script, received nowhere.py, which is no file"),
    (["compare", "a", "b"], "repjax compare: "),
]


def _python(folder, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(tmp_path, name):
    body, answer = PROGRAMS[name]
    program = tmp_path / "program.py"
    program.write_text(START + textwrap.dedent(body).strip("\n") + "\n")
    (line,) = [i for i, s in enumerate(program.read_text().splitlines(), 1) if "# here" in s]
    result = _python(tmp_path, "program.py")
    said = result.stderr
    assert result.returncode == 1 and answer in said
    assert len(said.splitlines()) <= SCREEN, said
    assert re.search(rf'program.py", line {line}\b', said), said


@pytest.mark.parametrize("environment", range(len(ENVIRONMENTS)))
def test_environments(tmp_path, environment):
    variables, body, answer = ENVIRONMENTS[environment]
    result = _python(tmp_path, "-c", START + body, **variables)
    assert result.returncode == 1 and answer in result.stderr
    assert len(result.stderr.splitlines()) <= SCREEN


@pytest.mark.parametrize("command", range(len(COMMANDS)))
def test_commands(tmp_path, command):
    arguments, answer = COMMANDS[command]
    result = _python(tmp_path, "-m", "repjax", *arguments)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith(answer) and result.stderr.count("\n") == 1


def test_all_frames_on_demand(tmp_path):
    """And so that the test above can fail: repjax has frames of its own."""
    (tmp_path / "program.py").write_text(
        START + "repjax.reproducible(jnp.linalg.eigvals)(jnp.eye(3))\n"
    )
    shown = {
        mode: _python(tmp_path, "program.py", JAX_TRACEBACK_FILTERING=mode).stderr
        for mode in ("off", "auto")
    }
    assert str(ROOT / "primitives") in shown["off"] or "repjax/primitives" in shown["off"]
    assert len(shown["off"].splitlines()) > SCREEN > len(shown["auto"].splitlines())


def test_the_public_face_is_what_is_listed():
    program = "import repjax; print(dir(repjax) == sorted(repjax.__all__), *dir(repjax))"
    said = _python(ROOT / "docs", "-c", program).stdout.split()
    assert said[0] == "True"
    assert {"reproducible", "enabled", "digest", "explain", "info", "lax", "nn"} < {*said}
    assert not {"os", "config", "objects", "rewrite", "primitives", "environment"} & {*said}


def test_importing_it_imports_neither_flax_nor_optax():
    """Nor what takes as long; all of these come when they are asked for."""
    program = (
        "import sys, repjax; before = {*sys.modules}; repjax.nn, repjax.optim, repjax.explain; "
        "print([{'flax', 'optax', 'repjax.verify', 'jax.experimental.pallas'} & x "
        "for x in (before, {*sys.modules})][0] == set(), 'flax' in sys.modules)"
    )
    assert _python(ROOT / "docs", "-c", program).stdout.split() == ["True", "True"]


def test_a_version_of_jax_that_was_not_tested():
    program = "from repjax import environment as e; [e.check_version(v) for v in {}]"
    tested = _python(ROOT / "docs", "-W", "error", "-c", program.format(["0.10.2", "0.12.0.1"]))
    assert tested.returncode == 0, tested.stderr
    for version in ("0.10.1", "0.13", "0.13.0.dev20270101", "1.0"):
        said = _python(ROOT / "docs", "-W", "error", "-c", program.format([version])).stderr
        assert f"received jax {version}, whose programs may differ: see whether repjax conf" in said
