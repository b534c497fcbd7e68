"""Disputes: whoever cheats is convicted, wherever and however, and an honest party never."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import repjax
from repjax.__main__ import main
from repjax.verify import Training, commitments, dispute, parties, runs, sources, training, walk
from repjax.verify.dispute import Referee
from repjax.verify.parties import RunParty

STEPS = 7
X = np.random.default_rng(0).normal(size=(8 * STEPS, 5)).astype(np.float32)
Y = (np.arange(8 * STEPS) % 3).astype(np.int32)


def made(rate=0.05, seed=0, precision=None, drop=0.1, decay=0.0, steps=STEPS, batch=None, **orders):
    """A training of a network with a key, a loop, a branch and Adam."""
    optimizer = optax.adam(rate)

    @repjax.reproducible
    def state():
        keys = jax.random.split(jax.random.key(seed), 3)
        params = {
            "first": jax.random.normal(keys[0], (5, 6)) / 2,
            "second": jax.random.normal(keys[1], (6, 3)) / 2,
        }
        return {"params": params, "adam": optimizer.init(params), "key": keys[2]}

    def loss(params, key, x, y):
        if precision:
            params = jax.tree.map(lambda w: w.astype(precision).astype(w.dtype), params)
        h = jnp.tanh(x @ params["first"])
        h = jnp.where(jax.random.uniform(key, h.shape) < drop, 0, h)
        logits = h @ params["second"]
        _, rows = jax.lax.scan(lambda c, row: (c + 1, row * 0.5), 0, logits)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits + rows, y)
        return losses.mean() + decay * jnp.sum(params["first"] ** 2)

    @repjax.reproducible(**orders)
    def step(state, batch):
        key, now = jax.random.split(state["key"])
        gradient = jax.grad(loss)(state["params"], now, *batch)
        large = jnp.max(jnp.abs(gradient["first"])) > 0.05
        gradient = jax.lax.cond(
            large, lambda g: jax.tree.map(lambda x: x / 2, g), lambda g: g, gradient
        )
        updates, adam = optimizer.update(gradient, state["adam"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "adam": adam, "key": key}

    def of_step(n):
        return X[8 * n :][:8], Y[8 * n :][:8]

    return Training(state, step, batch or of_step, steps)


HONEST = made()
REFEREE = Referee(HONEST)


def states_of(found: Training, batch=None):
    """The states after all steps, and the batches that they read."""
    states, batches = [found.state()], []
    for n in range(found.steps):
        batches.append((batch or found.batch)(n))
        states.append(found.step(states[-1], batches[-1]))
    return states, batches


STATES, BATCHES = states_of(HONEST)


class Known(RunParty):
    """A party that has its states and batches in memory, and answers as an honest one does."""

    def __init__(self, found: Training = HONEST, states=STATES, batches=BATCHES):
        self.states, self.batches = states, batches
        super().__init__(found, "memory")

    def logged(self):
        digests = [{"state": runs.digests(state)} for state in self.states]
        for trees, batch in zip(digests[1:], self.batches, strict=False):
            trees["batch"] = runs.digests(batch)
        return dict(enumerate(digests))

    def state(self, n):
        return self.states[n]

    def computed(self, n):
        found = parties.program(self.training, n).program
        inputs = found.inputs
        if n:
            inputs = inputs | walk.arguments((self.states[n - 1], self.batches[n - 1]))
        return walk.steps(dataclasses.replace(found, inputs=inputs))


#: Traced once for all: honest parties answer the same.
ALICE = Known()


def verdict(cheat, referee=REFEREE):
    """Of the honest party against the other one, in either place; both have to be the same."""
    found = referee.decide(ALICE, cheat), referee.decide(cheat, ALICE)
    assert found[0].kind == found[1].kind, found
    if found[0].kind == "convicted":
        assert found[0].convicted == ("the second",), found[0]
        assert found[1].convicted == ("the first",), found[1]
        assert found[0].place == found[1].place
    return found[0]


def test_honest_parties_agree():
    assert str(REFEREE.decide(ALICE, Known())).startswith("no difference")


# --- where operands come from -----------------------------------------------------------


def loops(w, key, n):
    """A loop whose end depends on data, one over rows and back, and a branch."""
    total, rows = jax.lax.scan(lambda c, row: (c + row.sum(), row * c), 0.0, w, reverse=True)
    more = jax.lax.while_loop(lambda x: x.sum() < 50, lambda x: x * 2, jnp.abs(rows) + 1)
    found = jax.lax.cond(total > 0, lambda x: -x, lambda x: x[::-1], more)
    return found + jax.random.normal(key, found.shape), jax.lax.fori_loop(
        0, n, lambda i, y: y + i, w
    )


@pytest.mark.parametrize("change", [lambda f: f, repjax.reproducible])
def test_sources_are_where_the_values_of_a_walk_come_from(change):
    w = np.array([[0.5, -1e-40], [2.0, -0.0], [-0.25, 3.0]], np.float32)
    found = walk.program(change(loops), (w, jax.random.key(1), 3))
    shapes = {k: jax.ShapeDtypeStruct(x.shape, x.dtype) for k, x in found.inputs.items()}
    known, walked = [], walk.steps(found)

    def value(source):
        match source:
            case sources.Input():
                return parties.elements(found.inputs[source.name])
            case sources.Constant():
                return parties.elements(source.value)
            case sources.Result():
                return parties.elements(known[source.index].results[source.number])
            case sources.Canonical():
                inner = value(source.source)
                return inner if inner.dtype.kind == "u" else canonical(inner)
            case sources.Element():
                return value(source.source)[source.index]
            case sources.Stack():
                return np.stack([value(x) for x in source.sources])

    canonical = dispute.reference.values.canonical
    abstract = sources.steps(dataclasses.replace(found, inputs=shapes), lambda x: int(value(x)))
    while True:
        try:
            known.append(next(walked))
        except StopIteration as end:
            results = end.value
            break
        step = next(abstract)
        assert (step.place, step.equation, step.orders) == (
            known[-1].place,
            known[-1].equation,
            known[-1].orders,
        )
        for x, y in zip(known[-1].operands, step.operands, strict=True):
            assert parties.kind(x) == parties.kind(y)
            assert parties.elements(x).tobytes() == value(y).tobytes()
    with pytest.raises(StopIteration) as end:
        next(abstract)
    for x, y in zip(results, end.value.value, strict=True):
        assert parties.elements(x).tobytes() == value(y).tobytes()
    assert len(known) > 40


# --- a training that is another one -----------------------------------------------------


def other_batch(n, at=3):
    x, y = HONEST.batch(n)
    return (x[::-1].copy(), y[::-1].copy()) if n == at else (x, y)


OTHERS = {
    "rate": {"rate": np.nextafter(np.float32(0.05), np.float32(1)).item()},
    "seed": {"seed": 1},
    "bfloat16": {"precision": jnp.bfloat16},
    "float16": {"precision": jnp.float16},
    "dropout": {"drop": 0.11},
    "decay": {"decay": 1e-6},
    "sums": {"accumulation": "sequential"},
    "products": {"contraction": "order_independent"},
    "batch": {"batch": other_batch},
    "more steps": {"steps": STEPS - 1},
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_training(name):
    other = made(**OTHERS[name])
    cheat = Known(other, *states_of(other))
    found = verdict(cheat)
    assert found.kind == "convicted"
    expected = {
        "batch": ("step 4, batch: 0", "another batch"),
        "more steps": ("", "7 steps in its log"),
        "seed": ("step 0", "constant of the program"),
        "rate": ("step 1", "constant of the program"),
        "dropout": ("step 2", "constant of the program"),
        "sums": ("step 1", "where the reference gives"),
        "products": ("step 1", "where the reference gives"),
        "decay": ("step 1", ""),
        "bfloat16": ("step 1", "computes another program"),
        "float16": ("step 1", "computes another program"),
    }[name]
    assert found.place.startswith(expected[0]) and expected[1] in str(found), found


@pytest.mark.parametrize("name", ["rate", "bfloat16", "decay", "dropout", "sums"])
def test_another_training_with_the_equations_of_the_right_one(name):
    """It has computed something else, and answers what it should have computed."""
    states, batches = states_of(made(**OTHERS[name]))
    found = verdict(Known(HONEST, states, batches))
    assert found.kind == "convicted" and "than its equations give" in str(found)


def test_a_batch_that_was_read_in_secret():
    states, _ = states_of(HONEST, other_batch)

    class Cheat(Known):
        def computed(self, n):  # what it really computed
            self.batches = [*map(other_batch, range(STEPS))]
            return super().computed(n)

    found = verdict(Cheat(HONEST, states))
    assert found.kind == "convicted" and "the input 1/0" in str(found)


# --- a log that was changed -------------------------------------------------------------


def flipped(x, bit: int, at: int = 0):
    """An array, or a key, with one bit turned over."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(flipped(jax.random.key_data(x), bit, at))
    words = np.array(x).reshape(-1).view(f"u{x.dtype.itemsize}")
    words[at % words.size] ^= words.dtype.type(1 << bit)
    return jnp.asarray(words.view(x.dtype).reshape(x.shape))


def leaves_of(tree) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def with_a_bit(state, leaf: str, bit: int, at: int = 0):
    """A state with one bit of a leaf turned over."""
    return jax.tree_util.tree_map_with_path(
        lambda path, x: flipped(x, bit, at) if jax.tree_util.keystr(path) == leaf else x, state
    )


def resumed(state, n: int):
    """The states from the n-th on, if that one is this one."""
    states = [*STATES[:n], state]
    for batch in BATCHES[n:]:
        states.append(HONEST.step(states[-1], batch))
    return states


LEAVES = leaves_of(STATES[0])
PLACES = [
    (n, leaf, bit)
    for bit, (n, leaf) in enumerate([(0, LEAVES[-1]), (3, LEAVES[3]), (7, LEAVES[0])])
]
MORE_PLACES = [
    (n, leaf, (7 * n + 3 * i) % 31) for i, leaf in enumerate(LEAVES) for n in (1, 2, 5, 6)
]


def a_flipped_bit(n, leaf, bit):
    found = verdict(Known(HONEST, resumed(with_a_bit(STATES[n], leaf, bit), n)))
    assert found.kind == "convicted" and found.place.startswith(f"step {n}, state: "), found
    assert "than its equations give" in str(found)


@pytest.mark.parametrize("n, leaf, bit", PLACES)
def test_a_flipped_bit(n, leaf, bit):
    a_flipped_bit(n, leaf, bit)


@pytest.mark.parametrize("n, leaf, bit", MORE_PLACES)
def test_every_flipped_bit(n, leaf, bit):
    a_flipped_bit(n, leaf, bit)


def test_a_skipped_step():
    states = resumed(STATES[2], 3)
    assert verdict(Known(HONEST, states)).place.startswith("step 3, state: ")


def test_swapped_steps():
    states, batches = [*STATES], [*BATCHES]
    states[3], states[4] = states[4], states[3]
    assert verdict(Known(HONEST, states)).kind == "convicted"
    batches[2], batches[3] = batches[3], batches[2]
    found = verdict(Known(HONEST, states, batches))
    assert "another batch" in str(found) and found.place.startswith("step 3")


def test_steps_that_are_not_those_of_the_log():
    class Cheat(Known):
        def logged(self):
            return {n + (n > 3): trees for n, trees in super().logged().items()}

    assert "another step in the place of step 4" in str(verdict(Cheat()))


@pytest.mark.parametrize("steps", [1, STEPS - 1, STEPS])
def test_a_log_that_was_cut_short(steps):
    found = verdict(Known(HONEST, STATES[:steps], BATCHES[: steps - 1]))
    assert f"{steps} steps in its log" in str(found)


@pytest.mark.parametrize("write", [str.upper, lambda x: f"{x[:2]} {x[2:]}"])
def test_a_root_that_is_written_otherwise(write):
    """It is the same one, in an entry that has another hash."""

    class Step(commitments.Step):
        @property
        def entry(self):
            return commitments.entry("step", self.number, self.leaves, write(self.root.hex()))

    cheat = Known()
    steps = [Step(x.number, x.leaves, x.root) for x in ALICE.commitment.steps]
    cheat._commitment = commitments.Commitment(tuple(steps))
    assert "no hash" in str(verdict(cheat))


def test_numbers_that_are_written_otherwise():
    class Step(commitments.Step):
        @property
        def entry(self):
            return commitments.entry("step", self.number, float(self.leaves), self.root.hex())

    cheat = Known()
    steps = [Step(x.number, x.leaves, x.root) for x in ALICE.commitment.steps]
    cheat._commitment = commitments.Commitment(tuple(steps))
    assert "leaves in step 0" in str(verdict(cheat))


def test_leaves_that_were_added_or_renamed():
    class Cheat(Known):
        def __init__(self, change):
            self.change = change
            super().__init__()

        def logged(self):
            steps = super().logged()
            self.change(steps[5]["state"])
            return steps

    more = verdict(Cheat(lambda state: state.update(z=state["key"])))
    assert "leaves in step 5" in str(more)
    renamed = verdict(Cheat(lambda state: state.update({"kez": state.pop("key")})))
    assert "another leaf in the place of state: key" in str(renamed)


# --- equations that were forged ---------------------------------------------------------


class Forger(Known):
    """Logs another leaf at a step, and changes what one equation gives to justify it.

    ``goes_on``: the equations after it read what it gives.
    """

    def __init__(self, index: int, n: int = 4, bit: int = 0, goes_on: bool = True):
        self.index, self.n, self.bit, self.goes_on = index, n, bit, goes_on
        super().__init__(HONEST, resumed(with_a_bit(STATES[n], LEAVES[-1], 1), n))

    def forged(self, results):
        # Not a low bit of a float: what a bit makes of 0 has to be canonical, or it has no effect.
        bit = self.bit + 24 * (results[0].dtype == jnp.float32)
        return [flipped(results[0], bit), *results[1:]]

    def computed(self, n):
        if n != self.n:
            yield from super().computed(n)
            return
        stock, count = walk.bind, [0]

        def bind(equation, operands):
            results = stock(equation, operands)
            if count[0] == self.index:
                results = self.forged(results)
            count[0] += 1
            return results

        walk.bind = bind if self.goes_on else stock
        try:
            for i, step in enumerate(super().computed(n)):
                if i == self.index and not self.goes_on:
                    step = dataclasses.replace(step, results=self.forged(step.results))
                yield step
        finally:
            walk.bind = stock


def count_of_equations() -> int:
    return len(ALICE.traced(4).entries)


SHARES = [0.0, 0.2, 0.45, 0.8]
MORE_SHARES = [i / 30 for i in range(30)]


def forged(share, goes_on):
    index = int(share * count_of_equations())
    found = verdict(Forger(index, goes_on=goes_on))
    step = [*ALICE.computed(4)][index]
    assert found.kind == "convicted" and f"equation {step.place}," in found.place, found
    assert "where the reference gives" in str(found) and "without JAX" in str(found)
    assert found.hashes < 300


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("share", SHARES)
def test_a_forged_equation(share, goes_on):
    forged(share, goes_on)


@pytest.mark.parametrize("share", MORE_SHARES)
def test_every_forged_equation(share):
    forged(share, share * 30 % 2 == 0)


def test_a_large_result_is_judged_by_one_element(monkeypatch):
    monkeypatch.setattr(dispute, "MOST_ELEMENTS", 1)
    steps = [*ALICE.computed(4)]
    index = next(i for i, step in enumerate(steps) if step.equation.primitive.name == "tanh")
    found = verdict(Forger(index))
    assert "it gives 0x" in str(found) and "where the reference gives 0x" in str(found), found
    assert found.size > 2 * 4 * 8 * 6  # operands, and results of both


class Editor(Forger):
    """Commits to other entries of equations."""

    def __init__(self, edit):
        self.edit = edit
        super().__init__(0, goes_on=True)

    def computed(self, n):
        return Known.computed(self, n)

    def traced(self, n):
        found = super().traced(n)
        if n == self.n and self.edit:
            self.edit(found.entries)
            found.tree = commitments.Tree(found.entries)
            self.edit = None
        return found


def rewritten(index, change):
    def edit(entries):
        fields = list(parties.json.loads(entries[index]))
        change(fields)
        entries[index] = commitments.entry(*fields)

    return edit


ZEROS = "sha256:" + "0" * 64
EDITS = {
    "ends early": (lambda e: e.pop(), "computes nothing at"),
    "goes on": (lambda e: e.append(e[-1]), "goes on after the end"),
    "another place": (rewritten(9, lambda f: f.__setitem__(1, "7")), "another program"),
    "another primitive": (rewritten(9, lambda f: f.__setitem__(2, "sin")), "another program"),
    "another type": (rewritten(9, lambda f: f[4][0].__setitem__(0, "int8[]")), "another program"),
    "more results": (rewritten(9, lambda f: f[4].append(f[4][0])), "another program"),
    "another operand": (rewritten(40, lambda f: f[3][0].__setitem__(1, ZEROS)), "another value"),
    "no entry": (rewritten(9, lambda f: f.pop()), "no equation"),
    "nonsense": (rewritten(9, lambda f: f.__setitem__(3, 5)), "no equation"),
    "a result": (rewritten(40, lambda f: f[4][0].__setitem__(1, ZEROS)), "reference gives"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_equations(name):
    edit, reason = EDITS[name]
    found = verdict(Editor(edit))
    assert found.kind == "convicted" and reason in str(found), found


# --- answers that are forged ------------------------------------------------------------


class Liar(Forger):
    """Forges answers: ``forge(answer)`` changes those to the questions that match."""

    def __init__(self, match, forge, n=4):
        self.match, self.forge = match, forge
        super().__init__(30, n)

    def answer(self, question):
        found = copy.deepcopy(super().answer(question))
        if all(question.get(k) == v for k, v in self.match.items()):
            return self.forge(found) or found
        return found


def put(key, value):
    return lambda answer: answer.__setitem__(key, value)


LIES = {
    "refuses about": ({"ask": "about"}, lambda a: {"refused": "no"}, "refuses to answer (no)"),
    "refuses children": ({"ask": "children"}, lambda a: {"refused": "no"}, "refuses"),
    "refuses a trace": ({"ask": "trace"}, lambda a: {"refused": "no"}, "refuses"),
    "refuses an entry": ({"tree": "equations"}, lambda a: {"refused": "no"}, "refuses"),
    "no object": ({"ask": "trace"}, lambda a: ["no"], "refuses"),
    "other fields": ({"ask": "trace"}, lambda a: {"yes": 1}, "which is no answer"),
    "no hash": ({"ask": "children"}, put("left", "x"), "no hash"),
    "a hash in place of none": ({"ask": "children"}, put("left", None), "no hash"),
    "no number": ({"ask": "trace"}, put("equations", "many"), "no number"),
    "another number": ({"ask": "trace"}, lambda a: put("equations", a["equations"] + 1)(a), ""),
    "a huge number": ({"ask": "trace"}, put("equations", 1 << 60), "no number"),
    "other steps": ({"ask": "children", "tree": "steps"}, put("left", "0" * 64), "contradict"),
    "other leaves": ({"ask": "children", "tree": "leaves"}, put("right", "0" * 64), "contradict"),
    "other equations": ({"ask": "children", "tree": "equations"}, put("left", "0" * 64), "contr"),
    "a forged proof": (
        {"ask": "entry", "tree": "steps"},
        lambda a: a["proof"].__setitem__(0, "1" * 64),
        "contradicts its commitment",
    ),
    "a short proof": (
        {"ask": "entry"},
        lambda a: a["proof"].pop() and None,
        "contradicts its commitment",
    ),
    "a long proof": (
        {"ask": "entry"},
        lambda a: a["proof"].append("1" * 64),
        "contradicts its commitment",
    ),
    "another leaf": (
        {"ask": "entry", "tree": "leaves"},
        lambda a: a["entry"].__setitem__(3, ZEROS),
        "contradicts its commitment",
    ),
    "no entry": ({"ask": "entry"}, put("entry", "none"), "no entry"),
    "an entry that JSON does not hold": ({"ask": "entry"}, put("entry", [float("nan")]), "contr"),
    "another root": ({"ask": "about"}, put("root", "2" * 64), "contradict"),
    "no root": ({"ask": "about"}, put("root", None), "no hash"),
    "fewer steps": ({"ask": "about"}, put("steps", 3), "3 steps in its log"),
    "a root of equations": ({"ask": "trace"}, put("root", "3" * 64), "contradict"),
}


@pytest.mark.parametrize("name", LIES)
def test_forged_answers(name):
    match, forge, reason = LIES[name]
    found = verdict(Liar(match, forge))
    assert found.kind == "convicted" and reason in str(found), found


@pytest.mark.parametrize(
    "forge, reason",
    [
        (lambda a: {"refused": "no"}, "refuses"),
        (put("arrays", []), "another number of arrays"),
        (put("arrays", [{"dtype": "object", "shape": [], "data": ""}]), "no array"),
        (put("arrays", [{"dtype": "float32", "shape": [9], "data": "AAAA"}]), "no array"),
        (put("arrays", "none"), "another number of arrays"),
        (
            put("arrays", [parties.as_json(np.zeros(3, np.float32))]),
            "an array that it has not committed to",
        ),
    ],
)
def test_arrays_that_are_not_given(forge, reason):
    """The referee asks the first party for what an equation reads."""
    found = REFEREE.decide(Liar({"ask": "results"}, forge), ALICE)
    assert found.convicted == ("the first",) and reason in str(found), found
    assert REFEREE.decide(ALICE, Liar({"ask": "results"}, forge)).convicted == ("the second",)


def test_a_commitment_that_was_published_before():
    published = [str(x.commitment) for x in (ALICE, Forger(30))]
    assert REFEREE.decide(ALICE, Forger(30), published).convicted == ("the second",)
    found = REFEREE.decide(ALICE, Known(), published)
    assert found.convicted == ("the second",) and "has published" in str(found)


def test_two_cheats_are_both_convicted():
    first, second = Forger(30, bit=0), Forger(30, bit=1)
    second.states[4] = with_a_bit(STATES[4], LEAVES[-1], 2)
    second.steps, second._commitment = second.logged(), None
    assert REFEREE.decide(first, second).convicted == dispute.NAMES


def test_a_wrong_reference_convicts_nobody_who_is_honest(monkeypatch):
    stock = dispute.reference.REFERENCES["tanh"]
    wrong = lambda operation: [x + 1 for x in stock(operation)]  # noqa: E731
    monkeypatch.setitem(dispute.reference.REFERENCES, "tanh", wrong)
    names = [parties.json.loads(e)[2] for e in ALICE.traced(4).entries]
    found = verdict(Forger(names.index("tanh")))
    assert found.kind == "undecided" and "which neither party does" in str(found), found


# --- where there is no verdict ----------------------------------------------------------


def test_other_versions_are_no_reason_to_convict():
    old = {**parties.versions(), "jax": "0.0.1"}
    found = verdict(Liar({"ask": "about"}, put("versions", old)))
    assert found.kind == "undecided" and "jax 0.0.1" in str(found)


def test_no_reference(monkeypatch):
    monkeypatch.setitem(dispute.reference.EXCEPTIONS, "tanh", "none here")
    monkeypatch.delitem(dispute.reference.REFERENCES, "tanh")
    names = [parties.json.loads(e)[2] for e in ALICE.traced(4).entries]
    cheat = Forger(names.index("tanh"))
    found = verdict(cheat)
    assert found.kind == "undecided" and "no reference computes" in str(found), found
    found = verdict(cheat, Referee(HONEST, own=True))
    assert found.kind == "convicted" and "repjax did, on this machine" in str(found)


def test_plain_jax_is_not_judged():
    plain = Training(
        state=lambda: jnp.ones(3), step=lambda w, x: w * x, batch=lambda n: X[n, :3], steps=2
    )
    states, batches = states_of(plain)
    other = Known(plain, [states[0], states[1] + 1, states[2]], batches)
    other.computed = lambda n: (
        dataclasses.replace(x, results=[y + 1 for y in x.results]) for x in Known.computed(other, n)
    )
    found = Referee(plain).decide(Known(plain, states, batches), other)
    assert found.kind == "undecided" and "plain JAX computes this" in str(found)
    with repjax.enabled():
        honest = Known(plain, *states_of(plain))
        other = Known(plain, [states[0], states[1] + 1, states[2]], batches)
        found = Referee(plain).decide(honest, other)
    assert found.convicted == ("the second",)


def test_a_constant_that_the_referee_has_not():
    def made(k):
        step = repjax.reproducible(lambda w, x: w * x + k)
        return Training(lambda: jnp.ones(3), step, lambda n: X[n, :3], 2)

    pair = [made(np.full(3, k, np.float32)) for k in (1, 1)]
    first, second = (Known(x, *states_of(x)) for x in pair)
    second.states[1] = second.states[1] + 1
    second.steps, second._commitment = second.logged(), None
    stock = Known.computed

    def computed(n):
        for step in stock(second, n):
            forged = step.equation.primitive.name == "mul"
            yield (
                dataclasses.replace(step, results=[x + 1 for x in step.results]) if forged else step
            )

    second.computed = computed
    assert Referee(pair[0]).decide(first, second).convicted == ("the second",)
    found = Referee(made(np.full(3, 2, np.float32))).decide(first, second)
    assert "the first" not in found.convicted


def test_a_state_that_cannot_be_traced():
    found = Training(
        state=lambda: {"w": jnp.ones(3) * float(jnp.sum(X[0]))},
        step=lambda s, x: {"w": scaled(s["w"], x)},
        batch=lambda n: X[n, :3],
        steps=3,
    )
    states, batches = states_of(found)
    honest, referee = Known(found, states, batches), Referee(found)
    for n, kind in ((0, "undecided"), (2, "convicted")):
        other = [*states]
        other[n] = {"w": flipped(states[n]["w"], 3)}
        assert referee.decide(honest, Known(found, other, batches)).kind == kind


def test_numbers_of_python_in_a_state():
    found = Training(
        state=lambda: {"count": 0, "w": jnp.ones(3)},
        step=lambda s, x: {"count": s["count"] + 1, "w": scaled(s["w"], x)},
        batch=lambda n: X[n, :3],
        steps=3,
    )
    states, batches = states_of(found)
    assert type(states[2]["count"]) is int
    other = [*states[:2], {**states[2], "w": flipped(states[2]["w"], 3)}, states[3]]
    referee = Referee(found)
    honest = Known(found, states, batches)
    assert referee.decide(honest, Known(found, other, batches)).convicted == ("the second",)
    other = [*states[:2], {**states[2], "count": 3}, states[3]]
    assert referee.decide(honest, Known(found, other, batches)).convicted == ("the second",)


scaled = repjax.reproducible(lambda w, x: w * x)


# --- commands ---------------------------------------------------------------------------

SCRIPT = """
import dataclasses, jax.numpy as jnp, numpy as np, repjax
from repjax.verify import Training

print("a script may print")
X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)

@repjax.reproducible
def step(w, x):
    y = jnp.tanh(x @ w)
    return w - 0.1 * y.mean(0) * w

@repjax.reproducible
def faster(w, x):
    y = jnp.tanh(x @ w)
    return w - 0.125 * y.mean(0) * w

training = Training(lambda: jnp.full((4, 4), 0.5), step, lambda n: X[8 * n :][:8], 6)
other = dataclasses.replace(training, step=faster)
plain = Training(lambda: jnp.full((4, 4), 0.5), lambda w, x: step(w, x) * 2, lambda n: X[n:][:8], 2)
"""


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A script, and runs of its trainings."""
    folder = tmp_path_factory.mktemp("dispute")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    for name in ("training", "other"):
        training.log(training.load(f"{script}:{name}"), folder / name)
    return folder


def held(*arguments) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "repjax", "dispute", *map(str, arguments)],
        capture_output=True,
        text=True,
    )


def test_two_processes(logged):
    script = logged / "script.py"
    words = ["-P", "-m", "repjax", "answer", logged / "other", "--training", f"{script}:other"]
    command = " ".join([sys.executable, *map(str, words)])
    done = held(logged / "training", command, "--training", f"{script}:training")
    assert done.returncode == 1, done.stderr
    assert "the parties part at step 1" in done.stdout
    assert "the second is convicted: it reads another value as operand 0" in done.stdout
    assert "at script.py:1" in done.stdout


def test_a_run_against_itself(logged, capfd):
    run = str(logged / "training")
    command = ["dispute", run, run, "--training", f"{logged / 'script.py'}:training"]
    assert main(command) == 0
    assert "no difference" in capfd.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["{}/training", "{}/none"], "expected a run or a command in quotes"),
        (["{}/training", "{}"], "expected a run directory"),
        (["{}/training", "{}/training", "--settings", "plain"], "expected two settings"),
        (["{}/training", "{}/training", "--commitments", "1,2,3"], "expected two commitments"),
        (["{}/training", "{}/training", "--training", "none.py:x"], "is no file"),
        (["{}/training", "{}/training", "--training", "{}/script.py:step"], "Training"),
        (["{}/training", "/nowhere/python -c 1"], "No such file"),
        (["{}/training", "cat /dev/null"], "{}"),
    ],
)
def test_requests_that_cannot_be_met(arguments, message, logged, capfd):
    arguments = [x.replace("{}", str(logged)) for x in arguments]
    if "--training" not in arguments:
        arguments += ["--training", f"{logged / 'script.py'}:training"]
    assert main(["dispute", *arguments]) == 2
    error = capfd.readouterr().err
    assert message.replace("{}", "") in error and "Traceback" not in error, error


@pytest.mark.parametrize("question", ["nonsense", "[1]", '"about"'])
def test_questions_that_are_none(question, logged):
    command = ["answer", logged / "training", "--training", f"{logged / 'script.py'}:training"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "repjax", *map(str, command)],
        capture_output=True,
        text=True,
        input='{"ask": "everything"}\n' + question + "\n",
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "expected a question, an object of JSON" in done.stderr
    answers = done.stdout.splitlines()  # without what the script prints
    assert len(answers) == 1 and "expected a question (about" in answers[0]


def test_a_party_that_does_not_answer(logged, capfd):
    answers = [sys.executable, "-c", '"import sys; sys.stdin.read()"']
    arguments = [str(logged / "training"), " ".join(answers), "--seconds", "0.5"]
    command = ["dispute", *arguments, "--training", f"{logged / 'script.py'}:training"]
    assert main(command) == 2
    assert "no answer in 0.5 seconds" in capfd.readouterr().err
