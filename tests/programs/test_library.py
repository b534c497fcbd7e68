"""Functions of jax.numpy and its relatives: covered or refused as docs/coverage.md says.

Each group of functions is one program.  The program under the switch is the same, to the letter, as
that of repjax.reproducible, so it is run once, and its bits are compared with those in
tests/data/library.json, which all versions of JAX share.

    PYTHONPATH=tests python tests/programs/test_library.py     write tests/data/library.json
"""

from __future__ import annotations

import itertools
import json
import re
import warnings

import jax
import numpy as np
import pytest

import repjax
from helpers.audited import module_text
from helpers.paths import DATA
from helpers.refusals import FORM
from library import CALLS, LIBRARIES, NO_PROGRAMS, PAGE, REFUSED, REWRITTEN, X, Y, functions, page
from repjax.verify.audit import audit_module

DIGESTS = DATA / "library.json"
PRESENT = [name for library in LIBRARIES for name in functions(library) if name not in NO_PROGRAMS]
COVERED = [name for name in PRESENT if name in CALLS and name not in REFUSED]
#: Seconds to compile, each.
SLOW = {
    *(f"jax.scipy.linalg.{name}" for name in ("expm", "expm_frechet", "pascal", "polar")),
    *(f"jax.scipy.special.{name}" for name in ("beta", "betaln", "comb", "exp1", "expi", "expn")),
    *(f"jax.scipy.special.{name}" for name in ("fresnel", "hyp1f1", "hyp2f1", "poch")),
}
#: The signs of their vectors are nobody's.
VECTORS = {
    f"{module}.{name}" for module in ("jnp.linalg", "jax.scipy.linalg") for name in ("eigh", "svd")
}
#: Of which plain JAX before 0.11 has none for CPU; test_ragged.py has its own.
NOT_THERE = {"jax.nn.scaled_matmul"}
SIZE = 30
GROUPS = [COVERED[i : i + SIZE] for i in range(0, len(COVERED), SIZE)]
groups = pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def _program(names):
    def program(x, y):
        return [CALLS[name](x, y) for name in names]

    return program


def _compiled_results(names):
    return repjax.reproducible(_program(names))(X, Y)


def test_every_function_is_called():
    """New versions of JAX may add functions: add a call of them to tests/library.py."""
    assert not [name for name in PRESENT if name not in CALLS]
    assert PAGE.read_text() == page()
    assert not [name for name in (*REFUSED, *REWRITTEN) if name not in CALLS]


@pytest.mark.parametrize("name", [name for name in REFUSED if name in PRESENT])
def test_refused(name):
    jax.eval_shape(CALLS[name], X, Y)
    with pytest.raises(repjax.RefusedError) as caught:
        jax.eval_shape(repjax.reproducible(CALLS[name]), X, Y)
    lines = re.findall(r"\): (\S+) (.*)", str(caught.value))
    causes = {operation for operation, reason in lines if "pairs of real arrays" not in reason}
    assert ", ".join(sorted(causes)) == REFUSED[name]
    for operation, reason in lines:
        assert FORM.fullmatch(f"{operation} {reason}"), reason


@groups
def test_the_switch_gives_the_same_program(names):
    program = _program(names)
    decorated = repjax.reproducible(program, keep_unused=True).lower(X, Y)
    with repjax.enabled():
        switched = jax.jit(program, keep_unused=True).lower(X, Y)
    assert module_text(decorated) == module_text(switched)
    assert not audit_module(switched.compiler_ir("stablehlo"))


@groups
def test_bits_and_values(names):
    names = [name for name in names if name not in SLOW | NOT_THERE]
    results = _compiled_results(names)
    digests = json.loads(DIGESTS.read_text())
    plain = jax.jit(_program(names))(X, Y)
    for name, result, other in zip(names, results, plain, strict=True):
        if name not in REWRITTEN:
            assert _digest(result) == digests[name], name
        for x, y in zip(jax.tree.leaves(result), jax.tree.leaves(other), strict=True):
            assert (x.dtype, x.shape) == (y.dtype, y.shape), name
            x, y = (np.abs(v) if name in VECTORS else np.asarray(v) for v in (x, y))
            assert _distance(x, y) <= 256, name


def _digest(result) -> str:
    return repjax.digest(jax.tree.leaves(result))[:23]


def _distance(x, y) -> float:
    """In units in the last place of y, or of 2**-10 if it is smaller; inf for other NaNs."""
    if np.iscomplexobj(y):
        return max(_distance(x.real, y.real), _distance(x.imag, y.imag))
    x, y = x.astype(np.float64), y.astype(np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    if not ((x == y) | (np.isnan(x) & np.isnan(y)) | finite).all():
        return np.inf
    x, y = x[finite], y[finite]
    return (np.abs(x - y) / np.spacing(np.float32(np.maximum(np.abs(y), 2.0**-10)))).max(initial=0)


def test_the_comparison_of_programs_sees():
    first, second = (lambda x, y: x @ (x - y)), (lambda x, y: x @ (y - x))
    texts = [module_text(repjax.reproducible(f).lower(X, Y)) for f in (first, first, second)]
    assert texts[0] == texts[1] != texts[2]


def test_the_distance_sees():
    x = np.float32([1, np.nan, np.inf, 3])
    assert _distance(x, x) == 0
    assert _distance(np.nextafter(x, np.float32(0)), x) == np.inf  # inf became finite
    assert 0 < _distance(x[3:] + np.float32(1e-5), x[3:]) < 128 < _distance(x[3:] + 1, x[3:])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    kept = [[name for name in names if name not in SLOW | REWRITTEN] for names in GROUPS]
    found = itertools.chain(*(zip(names, _compiled_results(names), strict=True) for names in kept))
    written = {name: _digest(result) for name, result in found}
    DIGESTS.write_text(json.dumps(written, indent=1) + "\n")
