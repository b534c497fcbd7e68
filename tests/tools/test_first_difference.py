"""Traces and where they part: every planted fault is located to its equation and line."""

from __future__ import annotations

import inspect
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import repjax
from helpers.paths import ROOT
from repjax import checkpoint, tracing
from repjax.__main__ import main
from repjax.verify import Run, Training, bisect, logs, settings, trace, traces, training, walk

W = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
TINY = np.full(4, 2.0**-70, np.float32)


def network(w, x, key):
    """A bit of everything: calls, loops, branches, random numbers, a derivative."""

    def loss(w):
        h = jnp.tanh(x @ w)
        h = h * 0.3 + h  # a multiplication and an addition
        total, rows = jax.lax.scan(lambda c, row: (c + row.sum(), jnp.exp(row)), 0.0, h)
        rows = jax.lax.cond(total > 1e9, lambda r: r, lambda r: jnp.sqrt(r + 1), rows)
        count = jax.lax.while_loop(lambda n: n < 3, lambda n: n + 1, 0)
        return jax.nn.softplus(rows).mean() / count + jax.random.normal(key, ()) * total

    return jax.value_and_grad(loss, allow_int=True)(w)[0], loss(w), TINY * TINY[:4] * jnp.sum(w)


KEY = jax.random.key(0)
LINES = {
    text: number
    for number, text in enumerate(
        inspect.getsource(network).splitlines(), network.__code__.co_firstlineno
    )
}


def is_at(equation, function, part: str) -> bool:
    """Whether an equation is at the line of a function that has this part."""
    lines, start = inspect.getsourcelines(function)
    (number,) = [i for i, text in enumerate(lines, start) if part in text]
    return f":{number}:" in equation.line


def line_of(part: str) -> int:
    (found,) = [number for text, number in LINES.items() if part in text]
    return found


@pytest.fixture(scope="module")
def whole():
    return trace(network, W, X, KEY)


def test_a_trace_of_the_same_is_the_same(whole):
    assert bisect(whole, trace(network, W, X, KEY)).kind == "same"
    assert str(bisect(whole, whole)) == "no difference"


def test_equation_by_equation_is_the_function(whole):
    results = walk.compiled(walk.program(repjax.reproducible(network), (W, X, KEY)))
    reproducible = trace(repjax.reproducible(network), W, X, KEY)
    assert reproducible.alone == reproducible.compiled
    assert all(e.orders == ("pairwise", "sequential") for e in reproducible.equations)
    assert len(results) == len(reproducible.compiled)
    assert all(e.orders is None for e in whole.equations)


def test_what_nothing_depends_on_is_left_out():
    both = repjax.reproducible(lambda x: (jnp.exp(x), jnp.log(x)))

    def f(x):
        jnp.sin(x)
        return both(x)[1] + 1

    found = trace(f, np.float32(2))
    assert [e.primitive for e in found.equations] == ["exp", "log", "add"]
    assert found.alone == found.compiled


def test_places_and_lines(whole):
    places = {e.primitive: e for e in whole.equations}
    assert len({e.place for e in whole.equations}) == len(whole.equations)
    for primitive, part in [("dot_general", "x @ w"), ("sqrt", "jnp.sqrt"), ("while", "")]:
        if part:
            assert f":{line_of(part)}:" in places[primitive].line, places[primitive]
    assert sum(e.primitive == "exp" for e in whole.equations) >= 3  # one of each iteration
    assert "[2]." in places["exp"].place or "[" not in places["exp"].place


def test_without_tracing_nothing_costs_anything(monkeypatch):
    """A program is the same and compiled once, whether or not it is traced in between."""
    compiled = []
    monkeypatch.setattr(tracing, "named", lambda *_: pytest.fail("called without a trace"))
    step = jax.jit(repjax.reproducible(lambda x: jnp.exp(x).sum()))
    plain = jax.jit(lambda x: jnp.exp(x).sum())

    def run():
        compiled.append([f.lower(X).as_text() for f in (step, plain)])
        step(X), plain(X)
        return step._cache_size(), plain._cache_size()

    before = run()
    monkeypatch.undo()
    first = trace(step, X)
    assert [e.primitive for e in first.equations] == ["exp", "reduce_sum"]
    monkeypatch.setattr(tracing, "named", lambda *_: pytest.fail("called without a trace"))
    assert before == run() == (1, 1)
    assert compiled[0] == compiled[1]
    assert not any(tracing._NAME in text for text in compiled[0])


# --- planted faults ---------------------------------------------------------------------


def plant(monkeypatch, fault) -> None:
    """``fault(number, equation, operands, results)`` gives other results."""
    stock, count = walk.bind, [0]

    def bind(equation, operands):
        results = fault(count[0], equation, operands, stock(equation, operands))
        count[0] += 1
        return results

    monkeypatch.setattr(walk, "bind", bind)


def flip(results):
    """The lowest bit of the last element of the first result."""
    x = np.array(results[0])
    words = x.view(f"u{x.itemsize}") if x.ndim else x.reshape(1).view(f"u{x.itemsize}")
    words.reshape(-1)[-1] ^= 1
    return [jnp.asarray(x if x.ndim else words.view(x.dtype)[0]), *results[1:]]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 0.999])
def test_a_flipped_bit(whole, share, monkeypatch):
    floats = [
        i for i, e in enumerate(whole.equations) if all(x.startswith("float") for x, _ in e.gives)
    ]
    at = floats[int(share * len(floats))]
    plant(monkeypatch, lambda n, e, xs, results: flip(results) if n == at else results)
    found = bisect(whole, trace(network, W, X, KEY))
    assert found.kind == "equation"
    assert found.first[0].place == found.second[0].place == whole.equations[at].place
    assert found.first[0].line == whole.equations[at].line and found.first[0].line in str(found)


def backwards(operands):
    """A product of matrices whose terms are added from the last to the first."""
    x, w = (np.asarray(v) for v in operands)
    total = np.zeros((x.shape[0], w.shape[1]), np.float32)
    for k in reversed(range(x.shape[1])):
        total = total + x[:, k, None] * w[k]
    return [jnp.asarray(total)]


#: A primitive, which of the equations with it, a part of its line, and what it gives instead.
FAULTS = {
    "one iteration of a scan": ("exp", 2, "jnp.exp(row)", lambda xs, ys: flip(ys)),
    "one iteration too many": ("lt", 3, "n < 3", lambda xs, ys: [~ys[0]]),
    "another random number": ("random_bits", 0, "random.normal", lambda xs, ys: flip(ys)),
    "another sign": ("tanh", 0, "jnp.tanh", lambda xs, ys: [ys[0] * -1]),
    "not a number": ("log1p", 0, "softplus", lambda xs, ys: [ys[0] * np.nan]),
    "a lower precision": ("sqrt", 0, "jnp.sqrt", lambda xs, ys: [jnp.float16(ys[0]) * 1.0]),
    "an approximate quotient": (
        "div",
        0,
        "jnp.sqrt",
        lambda xs, ys: [ys[0] * np.float32(1.0000001)],
    ),
    "another order of one product": ("dot_general", 0, "x @ w", lambda xs, ys: backwards(xs)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_one_operation(name, whole, monkeypatch):
    primitive, count, part, change = FAULTS[name]
    at = [i for i, e in enumerate(whole.equations) if e.primitive == primitive][count]

    def fault(n, equation, operands, results):
        if n != at:
            return results
        changed = change(operands, results)
        return [jnp.asarray(x, y.dtype) for x, y in zip(changed, results, strict=True)]

    plant(monkeypatch, fault)
    found = bisect(whole, trace(network, W, X, KEY))
    assert found.kind == "equation" and found.first[0].place == whole.equations[at].place
    assert f":{line_of(part)}:" in found.first[0].line


def test_a_contracted_multiplication_and_addition(whole, monkeypatch):
    products = {}

    def contract(n, equation, operands, results):
        if equation.primitive.name == "mul":
            factors = [np.asarray(x, np.float64) for x in operands]
            products[id(results[0])] = factors[0] * factors[1], results[0]
        if equation.primitive.name == "add" and id(operands[0]) in products:
            exact = products[id(operands[0])][0] + np.asarray(operands[1], np.float64)
            return [jnp.asarray(exact.astype(np.float32))]
        return results

    plant(monkeypatch, contract)
    found = bisect(whole, trace(network, W, X, KEY))
    assert found.kind == "equation" and found.first[0].primitive == "add"
    assert f":{line_of('h * 0.3 + h')}:" in found.first[0].line


def test_a_flushed_subnormal_number(monkeypatch):
    tiny = np.float32(2.0**-70)

    def f(x):
        y = x * 3
        return y * x

    before = trace(f, tiny)

    def flush(n, equation, operands, results):
        return [jnp.where(jnp.abs(x) < 2.0**-126, 0, x) for x in results]

    with monkeypatch.context() as patch:
        plant(patch, lambda n, e, xs, results: [np.float32(xs[0]) * np.float32(xs[1])])
        kept = trace(f, tiny)
    with monkeypatch.context() as patch:
        plant(patch, flush)
        flushed = trace(f, tiny)
    found = bisect(kept, flushed)
    assert found.kind == "equation" and found.first[0].place == "1"
    assert is_at(found.first[0], f, "y * x")
    assert before.equations[0].gives == kept.equations[0].gives


@pytest.mark.parametrize(
    "order", [{"accumulation": "sequential"}, {"accumulation": "order_independent"}]
)
def test_another_order_of_sums(order):
    def f(x):
        y = jnp.exp(x)
        z = y.sum()
        return z + 1

    x = np.random.default_rng(2).normal(size=1000).astype(np.float32)
    with repjax.enabled():
        first = trace(f, x)
    with repjax.enabled(**order):
        second = trace(f, x)
    found = bisect(first, second)
    assert found.kind == "equation" and found.first[0].primitive == "reduce_sum"
    assert found.second[0].orders[0] == order["accumulation"]
    assert is_at(found.first[0], f, "y.sum()")


def test_another_order_of_products():
    def f(x):
        y = x @ x.T
        return jnp.tanh(y)

    x = np.random.default_rng(2).normal(size=(8, 300)).astype(np.float32)
    first, second = (
        trace(repjax.reproducible(f, contraction=order), x)
        for order in ("sequential", "order_independent")
    )
    found = bisect(first, second)
    assert found.kind == "equation" and found.first[0].primitive == "dot_general"
    assert is_at(found.first[0], f, "x @ x.T")


#: A function as two versions of JAX may write it; the slope of tanh is that of 0.10 and of 0.12.
FORMULAS = {
    "expm1": (jnp.expm1, lambda x: jnp.exp(x) - 1, "expm1"),
    "the slope of tanh": (
        lambda x: (1 - jnp.tanh(x)) + (1 - jnp.tanh(x)) * jnp.tanh(x),
        lambda x: 1 - jnp.square(jnp.tanh(x)),
        "sub",
    ),
    "log1p": (lambda x: jnp.log1p(x * x), lambda x: jnp.log(x * x + 1), "log1p"),
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("after", [lambda z: z * 3, lambda z: z])
def test_another_formula(name, after):
    """As another version of JAX may have."""
    *formulas, primitive = FORMULAS[name]
    formula = [formulas[0]]

    def f(x):
        y = x * 2
        z = formula[0](y)
        return after(z)

    first = trace(f, X)
    formula[0] = formulas[1]
    found = bisect(first, trace(f, X))
    assert found.kind == "program"
    assert primitive in [e.primitive for e in found.first] and found.second
    assert primitive not in [e.primitive for e in found.second] or primitive == "sub"
    line = inspect.getsourcefile(test_another_formula).rpartition("/")[2]
    assert all(e.line.startswith(f"{line}:") for e in (*found.first, *found.second))


def test_another_formula_of_the_same_bits_is_passed_over(monkeypatch):
    formula = [lambda x: x * 2]

    def f(x):
        y = formula[0](x)
        return jnp.tanh(y) + 1

    first = trace(f, X)
    formula[0] = lambda x: x + x
    second = trace(f, X)
    assert bisect(first, second).kind == "same"
    at = [e.primitive for e in second.equations].index("tanh")
    plant(monkeypatch, lambda n, e, xs, results: flip(results) if n == at else results)
    found = bisect(first, trace(f, X))
    assert found.kind == "equation" and found.first[0].primitive == "tanh"


@pytest.mark.parametrize("name, change", [("0", 0), ("1", 1)])
def test_another_input(whole, name, change):
    args = [W, X]
    args[change] = np.asarray(flip([args[change]])[0])
    found = bisect(whole, trace(network, *args, KEY))
    assert found.kind == "inputs" and found.names == (name,)


def test_another_constant():
    def f(x, rate):
        return jnp.exp(x) * rate

    found = bisect(trace(lambda x: f(x, 0.1), X), trace(lambda x: f(x, 0.1000001), X))
    assert found.kind == "equation" and found.first[0].primitive == "mul"
    assert "has another constant: its operand 1" in str(found)
    assert is_at(found.first[0], f, "jnp.exp(x) * rate")


def test_a_closed_over_array():
    k = [np.ones(4, np.float32)]
    first = trace(lambda x: jnp.exp(x) * k[0], X)
    k[0] = k[0] * np.float32(1 + 2**-23)
    assert bisect(first, trace(lambda x: jnp.exp(x) * k[0], X)).names == ("constant 0",)


def test_equations_that_a_compiler_changes_together(whole, monkeypatch):
    """A fault of the compiled program alone."""
    stock = walk.compiled
    monkeypatch.setattr(walk, "compiled", lambda program: flip(stock(program)))
    found = bisect(whole, trace(network, W, X, KEY))
    assert found.kind == "together" and "level together" in str(found)


def test_levels(whole):
    together = trace(network, W, X, KEY, level="together")
    assert any(e.primitive == "scan" for e in together.equations)
    up_to = trace(network, W, X, KEY, level="up-to")
    assert [e.place for e in up_to.equations] == [e.place for e in together.equations]
    assert not any(e.reads for e in up_to.equations)
    leaf = trace(network, W, X, KEY, level="leaf")
    assert leaf.compiled == whole.compiled and not leaf.equations
    with pytest.raises(ValueError, match="one level"):
        bisect(whole, leaf)
    with pytest.raises(ValueError, match="expected the level"):
        trace(network, W, X, KEY, level="line")


def test_not_a_number_is_one():
    payloads = np.array([0x7FC00000, 0xFFC00001], np.uint32).view(np.float32)
    first, second = (trace(lambda x: x + 1, x) for x in payloads)
    assert bisect(first, second).kind == "same"
    assert bisect(first, trace(lambda x: x + 1, np.float32(1))).kind == "inputs"


# --- files ------------------------------------------------------------------------------


def test_files(whole, tmp_path):
    path = tmp_path / "a.trace"
    written = trace(network, W, X, KEY, path=path, setting="here")
    assert traces.read(path) == written
    assert written.equations == whole.equations and written.setting == "here"
    assert [p.name for p in tmp_path.iterdir()] == ["a.trace"]
    with pytest.raises(ValueError, match="expected no file"):
        trace(network, W, X, KEY, path=path)


def test_files_that_are_none(whole, tmp_path):
    path = tmp_path / "a.trace"
    trace(network, W, X, KEY, path=path)
    text = path.read_bytes()
    lines = text.splitlines(keepends=True)
    cases = {
        "cut": (text[:-1], "cut short"),
        "half": (b"".join(lines[:5]), "cut short"),
        "edited": (text.replace(b"tanh", b"tanj"), "seal"),
        "moved": (b"".join([lines[0], lines[2], lines[1], *lines[3:]]), "seal"),
        "foreign": (b"PK\x03\x04 something\n", "seal"),
        "empty": (b"", "cut short"),
    }
    for name, (content, message) in cases.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            traces.read(path)
        assert path.read_bytes() == content, name


def test_records_of_something_else(tmp_path):
    path = tmp_path / "a.trace"
    first = {"kind": "trace", "format": "repjax trace", "version": 1}
    with open(path, "wb") as file:
        log = logs.Writer(file)
        log.write(first)
        log.write({"kind": "end", "results": {}})
    with pytest.raises(ValueError, match="the records of a trace"):
        traces.read(path)
    with pytest.raises(ValueError, match="no file"):
        traces.read(tmp_path / "none")


# --- commands ---------------------------------------------------------------------------

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from repjax.verify import Training

X = jnp.asarray(np.random.default_rng(0).normal(size=(64, 4)), jnp.float32)

def step(w, x):
    y = jnp.tanh(x @ w)
    z = y * w[0] + 1
    return w - 0.1 * z.mean(0) * w

training = Training(
    state=lambda: jnp.full((4, 4), 0.5), step=step, batch=lambda n: X[8 * n :][:8], steps=6
)
number = 3

def multiply_and_add():
    y = X[:, 0] * X[:, 1]
    return y + X[:, 2]

def of_devices():
    n = jax.device_count()
    mesh = jax.make_mesh((n,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec
    f = jax.shard_map(
        lambda x: jax.lax.psum(x.sum(), "i"), mesh=mesh, in_specs=spec("i"), out_specs=spec()
    )
    return jax.jit(f)(jnp.sin(jnp.arange(4092) * 1.7))

def refused():
    return jax.lax.approx_max_k(X[0], 2)

def tanh():
    return jax.grad(lambda x: jnp.tanh(x).sum())(X)

def sums():
    y = jnp.exp(X)
    return y.sum()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_training_is_repeated_from_its_checkpoints(script, tmp_path, monkeypatch):
    found = training.load(f"{script}:training")
    final = training.log(found, tmp_path / "run", every=2)
    steps = []
    counted = Training(
        found.state, lambda s, b: steps.append(1) or found.step(s, b), found.batch, 6
    )
    state = training.state_after(counted, tmp_path / "run", 5)
    assert len(steps) == 1  # from the checkpoint of step 4
    assert repjax.digest(found.step(state, found.batch(5))) == repjax.digest(final)
    other = Training(found.state, lambda s, b: found.step(s, b) * 2, found.batch, 6)
    with pytest.raises(ValueError, match="expected the state of step 3 of the log"):
        training.state_after(other, tmp_path / "run", 3)
    with pytest.raises(ValueError, match="a log with step 7"):
        training.state_after(found, tmp_path / "run", 7)
    path = tmp_path / "run" / training.CHECKPOINTS / "4.npz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(checkpoint.CheckpointError):
        training.state_after(found, tmp_path / "run", 5)


def test_commands_of_files(script, tmp_path, capsys):
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert main(["trace", f"{script}:multiply_and_add", "--output", a]) == 0
    assert main(["bisect", a, a]) == 0
    assert main(["trace", f"{script}:training", "--output", b]) == 0
    capsys.readouterr()
    assert main(["bisect", a, b]) == 2
    assert "expected two traces of one program" in capsys.readouterr().err


def test_commands_of_runs(script, tmp_path, capsys):
    runs = [str(tmp_path / x) for x in "ab"]
    assert main(["log", f"{script}:training", "--output", runs[0]]) == 0
    with Run(runs[1]) as run:
        found = training.load(f"{script}:training")
        state = found.state()
        run.step(0, state=state)
        for n in range(6):
            state = found.step(state, found.batch(n)) if n != 3 else state
            run.step(n + 1, state=state, batch=found.batch(n))
        run.finish(state)
    capsys.readouterr()
    assert main(["bisect", runs[0], runs[0]]) == 0
    assert main(["bisect", *runs]) == 1
    assert "step 4, state" in capsys.readouterr().out
    Run(tmp_path / "other").close()
    assert main(["bisect", str(tmp_path / "other"), runs[0]]) == 2
    assert "logged the same steps, received 0 and 7" in capsys.readouterr().err
    with Run(tmp_path / "begun") as run:
        run.step(0, state=found.state())
    assert main(["bisect", runs[0], str(tmp_path / "begun")]) == 1
    assert "numbers of their steps differ: 7 and 1" in capsys.readouterr().out
    inputs = str(tmp_path / "inputs.npz")
    step = ["trace", f"{script}:training", "--step", "4"]
    assert main([*step, "--from", runs[0], "--save-inputs", inputs]) == 0
    assert main([*step, "--inputs", inputs, "--output", str(tmp_path / "t")]) == 0
    assert {"0", "1"} <= traces.read(tmp_path / "t").inputs.keys()
    values = ["--values", "0", "--output", str(tmp_path / "v")]
    assert main([*step, "--inputs", inputs, *values]) == 0
    assert {k[0] for k in checkpoint.load_leaves(tmp_path / "v")} == {"reads", "gives"}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["trace", "{}"], "expected script.py:name"),
        (["trace", "none.py:main"], "is no file"),
        (["trace", "{}:nothing"], "expected the name nothing"),
        (["trace", "{}:number"], "expected a function without arguments"),
        (["trace", "{}:step"], "expected a function without arguments, received (w, x)"),
        (["trace", "{}:refused", "--repjax"], "approx_top_k"),
        (["trace", "{}:step", "--values", "0"], "--values: expected --output"),
        (["trace", "{}:step", "--settings", "plain,repjax", "--from", "x"], "received --from, too"),
        (["log", "{}:training", "--output", "x", "--every", "0"], "at least one step between"),
        (["bisect", ".", "{}"], "expected a run directory"),
        (["trace", "{}:training", "--step", "9"], "expected a step from 0 to 6"),
        (["trace", "{}:training", "--step", "3"], "expected --from RUN"),
        (["trace", "{}:multiply_and_add", "--values", "77", "--output", "x"], "the place of an"),
        (["log", "{}:step", "--output", "x"], "expected a repjax.verify.Training"),
        (["bisect", "{}:training"], "expected A and B, or"),
        (["bisect", "{}:training", "--settings", "plain"], "expected two settings"),
        (["bisect", "{}:training", "--settings", "plain,fast"], "received 'fast'"),
        (["bisect", "{}:training", "--settings", "plain,python=/no"], "which is no file"),
        (["bisect", "{}", "{}"], "the file is no repjax trace"),
    ],
)
def test_requests_that_cannot_be_met(arguments, message, script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    status = main([x.format(script) for x in arguments])
    jax.config.update("repjax_enable", False)  # by --repjax it is on for the process
    assert status == 2 and message in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".pyc") in (
        ["script.py"],
        ["__pycache__", "script.py"],
    )


def test_settings(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
    found = settings.parse("repjax+AVX2+kernels=off+devices=8+contraction=sequential+JAX_X=1")
    assert found.options == ["--repjax", "--contraction", "sequential"]
    assert found.environment == {
        "XLA_FLAGS": "--xla_a=1 --xla_cpu_max_isa=AVX2 --xla_force_host_platform_device_count=8",
        "REPJAX_NATIVE": "off",
        "JAX_X": "1",
    }


def test_progress_of_a_setting_is_passed_on(tmp_path, monkeypatch, capfd):
    """And what else it says is in the result."""
    python = tmp_path / "python"
    said = "steps of 9: 4\\nKeyError: 3\\nrepjax log: 1 of 2\\n"
    python.write_text(f"#!/bin/sh\nprintf '{said}' >&2\necho out\nexit 2\n")
    python.chmod(0o755)
    done = settings.run(settings.parse(f"plain+python={python}"), ["log"])
    assert (done.returncode, done.stderr) == (2, "KeyError: 3\nrepjax log: 1 of 2\n")
    assert capfd.readouterr() == ("out\n", f"plain+python={python}: steps of 9: 4\n")


def located(*arguments) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "repjax", "bisect", *arguments], capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "name, pair, expected",
    [
        ("multiply_and_add", "plain+SSE4_2,plain+AVX2", ("add, at script.py:19", "against 0x")),
        ("of_devices", "plain+devices=2,plain+devices=3", ("shard_map, at script.py:28",)),
        ("training", "plain,repjax+accumulation=sequential", ("step 1, state", "at script.py:")),
    ],
)
def test_two_settings(name, pair, expected, script):
    done = located(f"{script}:{name}", "--settings", pair)
    assert done.returncode == 1, done.stderr
    assert all(part in done.stdout for part in expected), done.stdout
    done = located(f"{script}:{name}", "--settings", pair.split(",")[0] + "," + pair.split(",")[0])
    assert (done.returncode, done.stdout) == (0, "no difference\n"), done.stderr


def test_plain_jax_on_two_instruction_sets():
    """The answer that docs/instruments.md has."""
    program = str(ROOT / "examples" / "first_difference.py")
    done = located(f"{program}:plain", "--settings", "plain+SSE4_2,plain+AVX512")
    assert done.returncode == 1, done.stderr
    assert "the first that differs is step 1, state: 0/params/c1/bias" in done.stdout
    assert "equation 0.3, tanh, at lenet.py:84:15 (LeNet._activate)" in done.stdout


def test_both_sides_of_a_trace(script):
    """``repjax trace --settings`` is ``repjax bisect --settings``."""
    command = ["trace", "--settings", "repjax,repjax+accumulation=sequential", f"{script}:sums"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "repjax", *command], capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert "reduce_sum, at script.py:38" in done.stdout
