"""The way of one element: equation, line, section, body, kernel, operands, and the reference."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import repjax
import stock_primitives
from helpers.bits import normal
from helpers.paths import ROOT
from helpers.recomputed import own_primitives
from repjax.__main__ import main
from repjax.primitives.core import tables
from repjax.primitives.cpu import library
from repjax.verify import definitions, explanation, walk
from repjax.verify.explanation import ExplanationError

DOCS = (ROOT / "docs" / "instruments.md").read_text()
X, W, Y = normal((8, 4)), normal((4, 2), 1), normal((8, 2), 2)


def line_of(function, part: str) -> str:
    """``file:line`` of the line of a function that has this text."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [n for n, text in enumerate(lines, first) if part in text]
    return f"test_explanation.py:{number}:"


def bits(x) -> str:
    return f"0x{int(np.asarray(x, np.float32).view(np.uint32)):08x}"


# --- at a glance ------------------------------------------------------------------------


@repjax.reproducible
def exponential(x):
    return jnp.exp(x)


def test_an_exponential():
    found = repjax.explain(exponential, np.float32(0.3))
    x = found.source
    assert (x.primitive, x.section, x.formula) == ("exp", 3, "e**x, correctly rounded")
    assert x.line.startswith(line_of(exponential, "jnp.exp"))
    assert x.code == "return jnp.exp(x)"
    assert x.value == found.value == x.reference == "0x3facc82d (1.3498589)"
    assert [y.text for y in x.operands] == ["0x3e99999a (0.3), the argument 0"]
    file, _, line = x.body.partition(":")
    text = (ROOT / file).read_text().splitlines()[int(line) - 1]
    assert file == "primitives/operations/elementary/exp.py" and text.startswith("def body")
    assert found.agrees
    lines = str(found).splitlines()
    assert lines[0] == "the result = 0x3facc82d (1.3498589)"
    assert lines[-1] == "  reference 0x3facc82d (1.3498589): the same bits"
    assert "docs/numerics.md#3-elementary-functions" in str(found)
    assert len(lines) < 12


@repjax.reproducible
def gradient(w, x, y):
    def loss(w):
        error = x @ w - y
        return jnp.mean(error**2)

    return jax.grad(loss)(w)


def test_an_element_of_the_gradient_of_a_matrix_product():
    found = repjax.explain(gradient, W, X, Y, index=(1, 0))
    x = found.source
    assert found.value.startswith(bits(gradient(W, X, Y)[1, 0]))
    assert x.primitive == "dot_general" and x.section == 5 and x.index == (0, 1)
    assert len(x.moved) == 1 and "transpose" in x.moved[0]
    # JAX 0.12 has not kept the line of a transposed product.
    assert re.search(f"{line_of(gradient, 'x @ w')}|reads from test_explanation", x.line)
    first, second = x.operands
    # The chain goes over the batch: the first, the second and the last of its terms.
    for k in 0, 1, 7:
        assert bits(X[k, 1]) in second.text
    assert second.text.startswith("8 terms: ") and "the argument 1[0, 1]" in second.text
    assert first.source.primitive == "mul" and first.source.agrees
    assert found.agrees and x.agrees
    assert "s = fma(a[k], b[k], s)" in str(found)


@repjax.reproducible
def softmax(x):
    return jax.nn.softmax(x)


def test_a_softmax():
    found = repjax.explain(softmax, X, index=(2, 1), depth=3)
    names = [x.primitive for x in found.elements]
    assert names[:3] == ["div", "exp", "reduce_sum"] and "max" in {*names, "max"}
    total = found.elements[2]
    assert found.agrees and all(x.agrees for x in found.elements)
    assert "4 terms: " in total.operands[0].text and "the last two sums" in total.operands[0].text
    # Of the tree, the last addition: even and odd elements.
    e = np.asarray(repjax.lax.exp(repjax.lax.sub(X[2], X[2].max())))
    both = [repjax.lax.add(e[i], e[i + 2]) for i in range(2)]
    assert all(bits(s) in total.operands[0].text for s in both)


OPTIMIZER = optax.adam(1e-2)


@repjax.reproducible
def update(params, state, gradients):
    updates, state = OPTIMIZER.update(gradients, state)
    return optax.apply_updates(params, updates), state


def test_an_update_by_adam():
    params = {"w": W, "b": W[0]}
    arguments = params, OPTIMIZER.init(params), jax.tree.map(lambda x: x / 2, params)
    found = repjax.explain(update, *arguments, output="0/w", index=(3, 1), depth=6)
    assert found.output == "0/w" and found.value.startswith(bits(update(*arguments)[0]["w"][3, 1]))
    names = {x.primitive for x in found.elements}
    assert names >= {"add", "mul", "div", "sqrt", "sub"} and found.agrees
    assert "transform.py" in str(found), "the line is that of optax"
    same = repjax.explain(update, *arguments, output=1, index=(-1, -1))
    assert (same.output, same.index, same.value) == ("0/w", (3, 1), found.value)


# --- the reference decides --------------------------------------------------------------


def test_plain_jax_has_other_bits():
    """On every machine, of a product that is the smallest normal number (section 1)."""
    tiny = np.float32(2**-126)
    found = repjax.explain(lambda x, y: x * y, tiny, np.float32(1))
    assert found.source.plain and found.agrees is False
    assert "repjax is off here" in found.source.computed
    assert (found.value[:10], found.source.reference[:10]) == ("0x00800000", "0x00000000")
    assert "not the contract's bits" in str(found)
    with repjax.enabled():
        found = repjax.explain(lambda x, y: x * y, tiny, np.float32(1))
    assert found.agrees and found.value == "0x00000000 (0.0)"


def test_another_result_is_told_apart(monkeypatch):
    """Negative control: what an equation gives, with its lowest bit flipped."""
    stock = walk.bind

    def flipped(equation, operands):
        results = stock(equation, operands)
        if equation.primitive.name != "mul":
            return results
        x = np.array(results[0])
        x.view(np.uint32)[...] ^= 1
        return [jnp.asarray(x)]

    monkeypatch.setattr(walk, "bind", flipped)
    found = repjax.explain(repjax.reproducible(lambda x: x * 3 + 1), X, index=(1, 1))
    assert [x.agrees for x in found.elements] == [True, False]
    assert not found.agrees and "OTHER BITS" in str(found)


def test_orders_are_those_of_the_function():
    for order, formula in [
        ("sequential", "s = +0; s = add(s, x[k])"),
        ("order_independent", "the exact sum of the x"),
        ("pairwise", "replace it by add(x[:h], x[h:])"),
    ]:
        total = repjax.reproducible(lambda x: x.sum(), accumulation=order)
        found = repjax.explain(total, normal(1000))
        assert found.agrees and formula in found.source.formula
        assert found.value.startswith(bits(total(normal(1000))))
    found = repjax.explain(
        repjax.reproducible(lambda x: x @ x.T, contraction="order_independent"), X, index=(3, 2)
    )
    assert found.agrees and "common grids" in found.source.formula
    assert "order_independent.py" in found.source.body


# --- the way ----------------------------------------------------------------------------


def moved(x):
    y = (2 * x).T
    y = jnp.concatenate([y, jnp.zeros((1, 8))])[::-1]
    y = lax.dynamic_slice(jnp.pad(y, 1), (1, 1), (5, 8)).reshape(4, 10)
    return jnp.where(y > -1e9, y, 7)[jnp.array([3, 1])]


def test_an_element_is_followed_through_what_moves_it():
    where = np.asarray(moved(np.arange(32, dtype=np.float32).reshape(8, 4) + 1))
    for at in np.ndindex(*where.shape):
        number = int(where[at] / 2) - 1
        if number < 0:
            with pytest.raises(ExplanationError, match="a constant of the program"):
                repjax.explain(moved, X, index=at)
            continue
        found = repjax.explain(moved, X, index=at)
        assert found.source.primitive == "mul" and found.source.index == divmod(number, 4)
        assert bits(X.reshape(-1)[number]) in str(found)
        assert found.source.moved[-1].startswith("transpose")


def test_loops_and_branches():
    @repjax.reproducible
    def f(xs):
        def step(carry, x):
            carry = lax.cond(carry > 0, lambda c: c * x, lambda c: c - x, carry)
            return carry, jnp.tanh(carry)

        last, all_ = lax.scan(step, jnp.float32(1), xs)
        return lax.while_loop(lambda v: v < 100, lambda v: v + 60, last), all_

    xs = np.float32([2, 3, -4])
    found = repjax.explain(f, xs, output=1, index=2, depth=1)
    (tanh, product) = found.elements
    assert tanh.primitive == "tanh" and "[2]." in tanh.place
    assert product.primitive == "mul" and "the argument 0[2]" in product.operands[1].text
    found = repjax.explain(f, xs, depth=3)
    assert [x.primitive for x in found.elements][:2] == ["add", "add"]
    assert found.agrees


def test_a_convolution_and_its_pooling():
    @repjax.reproducible
    def f(x, w):
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME")
        return lax.reduce_window(y, -np.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    found = repjax.explain(f, normal((1, 2, 4, 4)), normal((3, 2, 3, 3), 1), index=(0, 2, 0, 0))
    window, chain = found.elements
    assert window.section == 6 and "4 terms" in window.operands[0].text
    assert chain.section == 5 and "18 terms: +0 (padding)" in chain.operands[0].text
    assert found.agrees


def test_integers_keys_and_complex_numbers():
    def f(key, x):
        draw = jax.random.bits(key, (3,))
        return draw, jax.random.split(key)[1], jnp.exp(x * 1j), x > 0

    run = repjax.reproducible(f)
    found = [repjax.explain(run, jax.random.key(1), X[0], output=i) for i in range(4)]
    assert all(x.agrees for x in found)
    assert [x.source.section for x in found] == [10, 10, 19, 2]
    assert "the key 0x" in found[1].value and " + i 0x" in found[2].value
    assert found[3].value in ("True", "False")


def test_a_layer_of_flax():
    model = linen.Dense(3)
    with repjax.enabled():
        params = model.init(jax.random.key(0), X)
    found = repjax.explain(repjax.reproducible(model.apply), params, X, index=(7, 2))
    assert [x.primitive for x in found.elements] == ["add", "dot_general"] and found.agrees


def test_what_has_no_reference_is_said():
    found = repjax.explain(lambda x: jnp.linalg.eigvals(x), X[:4])
    assert found.source.agrees is None and "no reference" in str(found)
    assert "repjax refuses it" in found.source.computed


# --- what computes it -------------------------------------------------------------------


@pytest.mark.skipif(not library.available(), reason="there is no kernel")
def test_kernels_and_why():
    product = repjax.reproducible(lambda x, w: x @ w)
    found = repjax.explain(product, X, W)
    assert "C++ kernel repjax_product" in found.source.computed
    assert library.in_use()[0] in found.source.computed


@pytest.mark.parametrize("number", definitions.SECTIONS)
def test_sections_are_those_of_the_contract(number):
    title = stock_primitives.sections()[number].splitlines()[0]
    assert title == f"{number}. {definitions.SECTIONS[number].title}"


@pytest.mark.parametrize("name", definitions.FORMULAS)
def test_formulas_are_those_of_the_contract(name):
    """Word by word, but for line breaks and what Markdown needs."""

    def plain(text: str) -> str:
        return re.sub(r"[\s\\`|*]+", "", text)

    assert plain(definitions.FORMULAS[name]) in plain(stock_primitives.NUMERICS.read_text())


def test_every_primitive_has_a_section_and_a_body():
    names = {*tables.RULES, *tables.EXACT, *tables.EXACT_ON_INTEGERS} - tables.STRUCTURAL
    for name in names:
        table = next(t for t in (tables.RULES, tables.EXACT, tables.EXACT_ON_INTEGERS) if name in t)
        assert re.fullmatch(
            r"(primitives|repjax)/.+\.py:\d+", definitions._code(table[name], [])
        ), name
    for name in own_primitives():
        body = tables.BODIES[tables.PRIMITIVES[name]].__self__.body
        orders = ["pairwise", "sequential"]
        assert re.fullmatch(r"(primitives|repjax)/.+\.py:\d+", definitions._code(body, orders)), (
            name
        )


# --- wrong requests ---------------------------------------------------------------------


@repjax.reproducible
def several(x):
    return {"a": x + 1, "b": {"c": x[:0], "d": x, "e": 3 * jnp.ones(3)}}


WRONG = {
    "no such path": ({"output": "z"}, "expected a result among a, b/c, b/d, b/e or a number"),
    "no such number": ({"output": 4}, "below 4, received 4"),
    "too far": ({"index": (8, 0)}, r"expected an index into the shape \[8, 4\], received \[8, 0\]"),
    "too few": ({"index": 3}, r"received \[3\]"),
    "no elements": ({"output": "b/c"}, r"expected a result with elements, received \[0, 4\]"),
    "an argument": ({"output": "b/d"}, r"received the argument 0\[0, 0\], as it is: 0x"),
    "depth": ({"depth": -1}, "expected a depth from 0 on"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_requests(name):
    options, message = WRONG[name]
    with pytest.raises(ExplanationError, match=message):
        repjax.explain(several, X, **options)


def test_wrong_arguments():
    with pytest.raises(ExplanationError, match="expected arrays as arguments, received str as 0/a"):
        repjax.explain(several, {"a": "text"})
    with pytest.raises(ExplanationError, match="expected a function with a result"):
        repjax.explain(lambda x: None, X)
    with pytest.raises(repjax.RefusedError, match="eig"):
        repjax.explain(repjax.reproducible(jnp.linalg.eigvals), X[:4])


# --- the command ------------------------------------------------------------------------

SCRIPT = """
import jax.numpy as jnp, numpy as np, repjax
from repjax.verify import Training

print("the script speaks")
x = np.arange(6, dtype=np.float32).reshape(2, 3)

def plain():
    return jnp.exp(0.3 * x)

def tiny():
    return np.float32(2**-126) * jnp.ones(3)

def number():
    return x

reproducible = repjax.reproducible(plain)
refused = repjax.reproducible(lambda: jnp.linalg.eigvals(x[:, :2]))
training = Training(
    state=lambda: {"w": jnp.ones(3)},
    step=lambda state, batch: {"w": state["w"] - 0.1 * batch.sum(0)},
    batch=lambda n: x + n,
    steps=2,
)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("explain") / "script.py"
    path.write_text(SCRIPT)
    return path


def command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-P", "-m", "repjax", "explain", *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command(script):
    done = command(f"{script}:reproducible", "--index", "1,0", "--depth", "1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("the result[1, 0] = 0x") and "the script speaks" not in done.stdout
    assert "the same bits" in lines[-1] and any("script.py:9:" in line for line in lines)
    done = command(f"{script}:reproducible", REPJAX_NATIVE="off")
    assert done.returncode == 0 and "there is no C++ kernel: REPJAX_NATIVE is off" in done.stdout
    done = command(f"{script}:tiny")
    assert done.returncode == 1 and "not the contract's bits" in done.stdout


def test_a_step_of_a_training(script):
    done = command(f"{script}:training", "--repjax", "--output", "w", "--index", "2")
    assert done.returncode == 0, done.stderr
    assert "w[2] = 0x" in done.stdout and "reduce_sum" in done.stdout


WRONG_COMMANDS = {
    "no script": (["none.py:f"], "which is no file"),
    "no name": (["{script}:missing"], "expected the name missing"),
    "no function": (["{script}:x"], "expected a function without arguments"),
    "no result": (["{script}:plain", "--output", "b"], "expected a result among"),
    "no index": (["{script}:plain", "--index", "a"], "expected numbers with commas"),
    "outside": (["{script}:plain", "--index", "0,9"], "expected an index into the shape [2, 3]"),
    "not computed": (["{script}:number"], "expected an element that an equation computed"),
    "refused": (["{script}:refused"], "eig"),
    "no step": (["{script}:training", "--step", "3"], "expected a step from 0 to 2"),
}


@pytest.mark.parametrize("name", WRONG_COMMANDS)
def test_wrong_commands(name, script, capsys):
    arguments, message = WRONG_COMMANDS[name]
    status = main(["explain", *(x.format(script=script) for x in arguments)])
    captured = capsys.readouterr()
    assert status == 2 and captured.out == ""
    assert message in captured.err and "Traceback" not in captured.err


COMMANDS = re.findall(r"^    \$ repjax explain (.*)\n((?:    .*\n)+)", DOCS, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "shown"), COMMANDS, ids=[c.split(":")[1] for c, _ in COMMANDS]
)
def test_the_docs_show_what_it_prints(arguments, shown, monkeypatch, capsys):
    """Except for what is of a machine, and for lines, of a version of JAX and optax."""
    others = ("computed", *(("the result", "value", "reference") if "plain" in arguments else ()))

    def kept(text: str) -> list[str]:
        lines = [re.sub(r", at .*|:\d+$", "", x.strip()) for x in text.splitlines()]
        lines = [re.sub(r"\b0(\.\d+)+\b", "", x) for x in lines]
        return [x for x in lines if not x.startswith(others)]

    monkeypatch.chdir(ROOT)
    main(["explain", *arguments.split()])
    assert kept(capsys.readouterr().out) == kept(shown)


def test_nothing_is_imported_for_it():
    """``import repjax`` does not import the explanation, nor the reference mpmath."""
    code = (
        "import sys, repjax; print([m for m in sys.modules if 'explanation' in m or m == 'mpmath'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"
    assert explanation.DEPTH == 2
