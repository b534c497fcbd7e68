"""``repjax diagnose`` and ``repjax run``: what is planted is found, and nothing else is."""

from __future__ import annotations

import json
import os
import pathlib
import random
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import repjax
from repjax.verify import hazards

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs" / "test_ecosystem.py"

#: Lines end with the kinds of remarks that are due there; all others are harmless.
PLANTED = """
import concurrent.futures, glob, math, os, pathlib, random, secrets, sys, tempfile, uuid
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
import repjax

here = pathlib.Path(__file__).parent

# --- Python
names = {"w", "b", sys.argv[0]}
first = [name for name in names]  # hazard: order of a set
for name in names | {"c"}:  # hazard: order of a set
    pass
print(*names, file=sys.stderr)  # hazard: order of a set
harmless = sorted(names), len(names), {n + "x" for n in names}, max(n for n in names)
numbers = [n for n in {1, 2, 3}]
seed = hash("a name") % 2**32  # hazard: hash seed
files = os.listdir(here)  # hazard: order of files
files = [*glob.glob(str(here / "*"))]  # hazard: order of files
files = [p.name for p in here.iterdir()]  # hazard: order of files
files = sorted(p.name for p in here.iterdir())
more = os.listdir(here)
more.sort()
with concurrent.futures.ThreadPoolExecutor() as pool:
    tasks = [pool.submit(len, "a"), pool.submit(len, "b")]
    done = [*concurrent.futures.as_completed(tasks)]  # hazard: order of completion
    done = list(pool.map(len, names))  # hazard: order of a set
    done = list(pool.map(len, sorted(names)))

class Key:
    def __hash__(self):
        return hash(("Key", 1))

# --- NumPy
x = np.random.default_rng(0).integers(0, 9, (8, 4)).astype(np.float32)
centred = x - x.mean(0)  # hazard: floats outside of JAX
weights = np.exp(x[:, 0])  # hazard: floats outside of JAX
y = x @ np.linalg.inv(np.eye(4))  # hazard: floats outside of JAX
rate = math.exp(-3)  # hazard: floats outside of JAX
labels = np.arange(8) % 2
accuracy = (labels == 1).sum() / 8
x = (x - 4) / 8

# --- entropy
token = os.urandom(4), secrets.token_hex(4)  # hazard: entropy
name = tempfile.mktemp()
generator = random.Random()  # hazard: entropy
value = random.random()  # hazard: entropy
random.seed(3)
value = random.random(), random.Random(3).random(), random.Random("a").random()
random.seed()  # hazard: entropy
name = uuid.uuid4()  # hazard: entropy
name = uuid.uuid1()  # hazard: entropy
name = uuid.uuid5(uuid.NAMESPACE_DNS, "a")
value = random.SystemRandom().random()  # hazard: entropy
value = np.random.default_rng().random()  # hazard: entropy
value = np.random.RandomState().rand()  # hazard: entropy
value = np.random.rand(3)  # hazard: entropy
np.random.seed(0)
value = np.random.rand(3), np.random.RandomState(0).rand(), np.random.default_rng(1).random()
value = np.random.Generator(np.random.PCG64()).random()  # hazard: entropy

# --- JAX
model = nn.Dense(2)
params = model.init(jax.random.key(0), x)  # hazard: plain JAX, on GPUs

@repjax.reproducible
def step(params, x):
    loss = lambda p: (jnp.tanh(model.apply(p, x)) ** 2).mean()
    return jax.tree.map(lambda w, g: w - 0.5 * g, params, jax.grad(loss)(params))

params = step(params, x)
scores = jnp.tanh(params["params"]["bias"])  # hazard: plain JAX

@jax.jit
def scatter(rows):
    return jnp.zeros(3).at[jnp.array([0, 0, 1])].add(rows)  # hazard: plain JAX, on GPUs

scatter(x[:3, 0])
jax.jit(lambda x: x.reshape(-1)[::2].argmax())(x)
"""
OPTIONS = {
    "jax_default_prng_impl": "rbg",
    "jax_threefry_partitionable": False,
    "jax_default_matmul_precision": "float32",
    "jax_enable_x64": True,
}


def command(*arguments, cwd=None, **environment) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "repjax", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def script(folder: pathlib.Path, text: str, name: str = "script.py") -> pathlib.Path:
    path = folder / name
    path.write_text(text)
    return path


def remarks(path: pathlib.Path) -> list[dict[str, str]]:
    return json.loads(path.read_text())["remarks"]


def test_planted_hazards_are_found_and_nothing_else(tmp_path):
    path = script(tmp_path, PLANTED)
    result = command("diagnose", "--json", tmp_path / "found.json", path)
    assert result.returncode == 1, result.stderr
    planted = {
        (number, kind)
        for number, line in enumerate(PLANTED.splitlines(), 1)
        for kind in line.partition("# hazard: ")[2].split(", ")
        if kind
    }
    found = {
        (int(x["place"].rpartition(":")[2]), x["kind"]) for x in remarks(tmp_path / "found.json")
    }
    assert found == planted and len(planted) > 12
    assert re.search(r"script\.py:\d+: plain JAX: computes .*scatter-add", result.stdout)
    assert re.search(r"^  tanh +repjax: .* script\.py:\d+", result.stdout, re.M)


def test_entropy_that_a_library_draws_is_found(tmp_path):
    """From the generator of NumPy that nobody seeds; a seed, or a generator of its own, is fine."""
    text = "import numpy as np\nfrom sklearn.utils import shuffle\n{}\nshuffle([1, 2, 3]{})\n"
    for before, argument, expected in (
        ("", "", ["numpy.random, in a library"]),
        ("np.random.seed(0)", "", []),
        ("", ", random_state=0", []),
    ):
        path = script(tmp_path, text.format(before, argument))
        command("diagnose", "--json", tmp_path / "found.json", path)
        found = remarks(tmp_path / "found.json")
        assert [x["text"].partition(":")[0] for x in found] == expected
        assert all(x["kind"] == "entropy" for x in found)


def test_entropy_is_recorded_with_the_diagnosis(tmp_path):
    """``--patch --entropy``: what is recorded then is replayed by ``repjax run``."""
    text = "import os, jax.numpy as jnp\nprint(os.urandom(8).hex(), jnp.tanh(jnp.ones(2)))\n"
    path, file = script(tmp_path, text), tmp_path / "first.entropy"
    result = command("diagnose", "--patch", "--entropy", file, path)
    assert result.returncode == 1 and "script.py:2: entropy: os.urandom: " in result.stdout
    drawn = re.search(r"^[0-9a-f]{16} .*$", result.stderr, re.M)[0]
    again = command("replay", file, "--", "-m", "repjax", "run", path)
    assert (again.returncode, again.stdout) == (0, f"{drawn}\n"), again.stderr
    assert command("diagnose", "--entropy", file, path).stderr.startswith(
        f"repjax diagnose: {file}: expected no file, received one"
    )


def test_options_are_found(tmp_path):
    text = "import jax, jax.numpy as jnp\n" + "".join(
        f"jax.config.update({name!r}, {value!r})\n" for name, value in OPTIONS.items()
    )
    path = script(tmp_path, text + "jnp.ones(2)\n")
    result = command("diagnose", path, XLA_FLAGS="--xla_cpu_max_isa=AVX2")
    assert result.returncode == 1, result.stderr
    found = re.findall(r"everywhere: option: (\w+) is", result.stdout)
    assert found == sorted([*OPTIONS, "XLA_FLAGS"], key=lambda name: f"{name} is")


def test_a_refusal_is_found(tmp_path):
    path = script(
        tmp_path,
        "import jax, jax.numpy as jnp\n"
        "def f(x):\n"
        "    return jax.pure_callback(lambda x: x, x, x)\n"
        "jax.jit(f)(jnp.ones(2))\n",
    )
    result = command("diagnose", path)
    assert result.returncode == 1 and "script.py:3: refused: pure_callback" in result.stdout
    assert "none by repjax; try repjax diagnose --patch" in result.stdout


def test_the_patch_leaves_nothing_to_say(tmp_path):
    """A program in plain JAX has remarks, and with ``--patch`` none."""
    text = (
        "import jax, jax.numpy as jnp\njax.jit(jnp.tanh)(jnp.ones(2))\nprint('from the script')\n"
    )
    path = script(tmp_path, text)
    plain, patched = command("diagnose", path), command("diagnose", "--patch", path)
    assert (plain.returncode, patched.returncode) == (1, 0), patched.stderr
    assert "0 of them with floats in plain JAX" in patched.stdout and "no remarks" in patched.stdout
    assert "from the script" not in plain.stdout and "from the script" in plain.stderr


@pytest.mark.parametrize("name", ["equinox", "haiku", "distrax", "numpyro", "diffrax", "jaxopt"])
def test_no_false_alarm_on_programs_of_other_libraries(name, tmp_path):
    """Nothing is said but which lines have floats computed by NumPy, and that is true."""
    pytest.importorskip(name)
    path = script(tmp_path, PROGRAMS.read_text() + f"\n\n{name}()\n")
    tests = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    found = tmp_path / "found.json"
    environment = {"PYTHONPATH": tests, "EQX_ON_ERROR": "nan"}
    result = command("diagnose", "--patch", "--json", found, path, **environment)
    assert result.returncode == 1, result.stderr
    for remark in remarks(found):
        line = path.read_text().splitlines()[int(remark["place"].rpartition(":")[2]) - 1]
        function = remark["text"].partition(":")[0].rpartition(".")[2]
        assert remark["kind"] == "floats outside of JAX" and f".{function}(" in line, remark


@pytest.mark.parametrize(
    "arguments",
    [
        ("train_digits.py", "--epochs", "1"),
        ("train_digits.py", "--epochs", "1", "--mode", "switch"),
        ("first_difference.py", "runs"),
        ("language_model.py", "--steps", "2", "--warmup", "1", "--tokens", "4"),
        ("reinforcement.py", "--quick"),
    ],
    ids=lambda arguments: arguments[0] + arguments[-1],
)
def test_no_false_alarm_on_the_examples(arguments, tmp_path):
    example, *rest = arguments
    result = command("diagnose", ROOT / "examples" / example, *rest, cwd=tmp_path)
    assert (result.returncode, result.stdout.splitlines()[-1]) == (0, "no remarks"), result.stdout


FAILS = "import jax.numpy as jnp\njnp.tanh(jnp.ones(2))\nraise KeyError('of the script')\n"


@pytest.mark.parametrize(
    "text, arguments, message",
    [
        (None, (), "expected a script, received .*script.py, which is no file"),
        ("", ("-m",), "expected a module, received '.*script.py', which is not there"),
        (FAILS, (), "KeyError: 'of the script'\n(.*\n)*repjax diagnose: the script failed"),
        ("raise SystemExit(3)", (), "repjax diagnose: the script failed"),
        ("def f(:", (), "SyntaxError"),
        ("", ("--json", "/nowhere/found.json"), "--json: expected a file in a folder"),
    ],
    ids=["no file", "no module", "exception", "status", "syntax", "no folder"],
)
def test_what_cannot_be_diagnosed(text, arguments, message, tmp_path):
    path = tmp_path / "script.py"
    if text is not None:
        path.write_text(text)
    result = command("diagnose", *arguments, path)
    assert result.returncode == 2 and re.search(message, result.stderr), result.stderr
    if text == FAILS:
        assert "tanh" in result.stdout  # what was seen before


def test_a_diagnosis_leaves_nothing_behind(tmp_path):
    """Functions that were watched are themselves again, and no program is looked at."""
    before = jnp.exp, os.listdir, sys.getprofile(), os.urandom, random.random, np.random.rand
    with hazards.Watch(tmp_path):
        assert os.listdir is not before[1] and sys.getprofile() is not None
    now = jnp.exp, os.listdir, sys.getprofile(), os.urandom, random.random, np.random.rand
    assert now == before


# --- repjax run and REPJAX_ENABLE --------------------------------------------------------

BITS = """
import sys
import jax, jax.numpy as jnp
x = jnp.linspace(-3, 3, 1001)
import repjax
print(repjax.digest([jax.jit(jnp.tanh)(x), x @ x]), *sys.argv[1:], __name__)
"""


@pytest.fixture(scope="module")
def expected():
    """The digests: plain, reproducible, and with order-independent products."""
    x = jnp.linspace(-3, 3, 1001)

    def digest():
        return repjax.digest([jax.jit(jnp.tanh)(x), x @ x])

    found = [digest()]
    for contraction in (None, "order_independent"):
        with repjax.enabled(contraction=contraction):
            x = jnp.linspace(-3, 3, 1001)
            found.append(digest())
    assert len({*found}) == 3
    return found


def test_a_script_is_run_reproducibly(tmp_path, expected):
    path = script(tmp_path, BITS)
    result = command("run", path, "--of", "the script")
    assert result.stdout == f"{expected[1]} --of the script __main__\n", result.stderr
    result = command("run", "--contraction", "order_independent", path)
    assert result.stdout == f"{expected[2]} __main__\n", result.stderr
    result = command("run", "-m", "script", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert result.stdout == f"{expected[1]} __main__\n", result.stderr


def test_the_status_is_the_scripts(tmp_path):
    assert command("run", script(tmp_path, "raise SystemExit(7)")).returncode == 7
    assert command("run", script(tmp_path, "raise SystemExit('why')")).stderr == "why\n"
    failed = command("run", script(tmp_path, FAILS))
    assert failed.returncode == 1 and failed.stderr.endswith("KeyError: 'of the script'\n")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("nothing.py",), "repjax run: expected a script, received nothing.py, which is no file"),
        (("--contraction", "random", "x.py"), "repjax run: contraction: expected one of"),
    ],
)
def test_what_cannot_be_run(arguments, message):
    result = command("run", *arguments)
    assert result.returncode == 2 and result.stderr.startswith(message), result.stderr


@pytest.mark.parametrize(
    "environment, which",
    [
        ({}, 0),
        ({"REPJAX_ENABLE": "0"}, 0),
        ({"REPJAX_ENABLE": "1"}, 1),
        ({"REPJAX_ENABLE": "1", "REPJAX_CONTRACTION": "order_independent"}, 2),
    ],
)
def test_the_environment_switches_repjax_on(environment, which, tmp_path, expected):
    path = script(tmp_path, BITS.replace("import repjax", "").replace("x =", "import repjax\nx ="))
    result = subprocess.run(
        [sys.executable, path], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert result.stdout == f"{expected[which]} __main__\n", result.stderr


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("REPJAX_ENABLE", "yes", "REPJAX_ENABLE: expected 0 or 1, received 'yes'"),
        ("REPJAX_ACCUMULATION", "any", "accumulation: expected one of"),
    ],
)
def test_a_wrong_value_in_the_environment_is_refused(name, value, message):
    result = subprocess.run(
        [sys.executable, "-c", "import repjax"],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1 and message in result.stderr
