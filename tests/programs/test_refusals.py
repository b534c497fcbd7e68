"""What refusals say: what was expected and what received, or what has no form, and a remedy."""

from __future__ import annotations

import ast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive

import repjax
from helpers.paths import ROOT
from helpers.refusals import FORM
from repjax.primitives.core import interpret
from repjax.primitives.core.tables import ADVICE


def _text(node) -> str:
    """The text of an expression, with a word for what is known only when it runs."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.FormattedValue):
        return _text(node.value)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.Constant):
        return str(node.value)
    name = getattr(node, "id", "")
    value = getattr(interpret, name, None)
    return value if isinstance(value, str) else "something"


def _refusals():
    """File, line and text of each RefusedError that is made; the report is made of others."""
    for folder in ("primitives", "repjax"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                name = getattr(getattr(node, "func", None), "id", "")
                if isinstance(node, ast.Call) and name == "RefusedError":
                    text = _text(node.args[0])
                    if text != "something":
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def test_every_refusal_has_the_form_of_one_sentence_with_a_remedy():
    refusals = dict(_refusals())
    assert len(refusals) > 20
    for place, text in refusals.items():
        assert FORM.fullmatch(text), f"{place}: {text}"


def test_every_advice_completes_the_sentence():
    for name, advice in {**ADVICE, "anything else": interpret.WRITE_IT}.items():
        assert FORM.fullmatch(f"{name} has no reproducible form; {advice}"), name


@pytest.mark.parametrize(
    "wrong",
    [
        "eig has no reproducible form",
        "eig has no reproducible form; ",
        "mul expected float32; convert it",
        "mul expected float32, received float64; convert it.",
        "mul expected float32, received float64; convert it; ",
    ],
)
def test_other_forms_are_noticed(wrong):
    """Negative control."""
    assert not FORM.fullmatch(wrong)


@pytest.mark.parametrize("function", [jnp.linalg.eig, jnp.linalg.eigvals])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_eigenvalues_are_refused_as_such(function, dtype):
    """Their results are complex, whatever the matrix is."""
    with pytest.raises(repjax.RefusedError) as caught:
        repjax.reproducible(lambda x: function(x)[0])(np.eye(3, dtype=dtype))
    message = str(caught.value)
    assert "): eig has no reproducible form; factor with jax.lax.linalg.cholesky" in message
    assert "complex" not in message


def test_what_nobody_knows_has_a_remedy_too():
    primitive = Primitive("of_another_library")
    primitive.def_abstract_eval(lambda x: x)
    with pytest.raises(
        repjax.RefusedError, match="of_another_library has no reproducible form; write"
    ):
        repjax.reproducible(primitive.bind)(np.float32(1))
    with pytest.raises(
        repjax.RefusedError, match="of_another_library has no reproducible form; write"
    ):
        repjax.reproducible(primitive.bind)(np.complex64(1))


def test_complex128_names_the_option():
    with jax.enable_x64(True), pytest.raises(repjax.RefusedError) as caught:
        repjax.reproducible(lax.exp)(np.complex128([1]))
    assert "expected complex64, received complex128" in str(caught.value)
    assert "or turn jax_enable_x64 off" in str(caught.value)
