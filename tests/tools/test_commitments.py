"""Commitments: the trees are those of RFC 6962, and nothing but what was committed to is opened."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from repjax.verify import Run, RunError, Training, commitments, read_run, training
from repjax.verify.commitments import Commitment, CommitmentError, Tree, open_leaf

#: Test vectors of the Merkle trees of Certificate Transparency: entries, and the roots of the trees
#: over the first 1 to 8 of them (RFC 6962's reference implementation).
ENTRIES = [
    bytes.fromhex(x)
    for x in (
        *("", "00", "10", "2021", "3031", "40414243", "5051525354555657"),
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)


def defined(entries: list[bytes]) -> bytes:
    """The root as RFC 6962 defines it, by recursion."""
    if len(entries) == 1:
        return hashlib.sha256(b"\x00" + entries[0]).digest()
    k = 1
    while 2 * k < len(entries):
        k *= 2
    parts = defined(entries[:k]), defined(entries[k:])
    return hashlib.sha256(b"\x01" + parts[0] + parts[1]).digest()


def some(size: int) -> list[bytes]:
    return [commitments.entry("leaf", "t", str(i), "d") for i in range(size)]


def test_the_vectors_of_rfc_6962():
    for n, root in enumerate(ROOTS, 1):
        assert Tree(ENTRIES[:n]).root.hex() == root == defined(ENTRIES[:n]).hex()


@pytest.mark.parametrize("size", [*range(1, 34), 63, 64, 65, 100, 1000])
def test_every_proof_leads_to_the_root(size):
    tree = Tree(some(size))
    assert tree.root == defined(some(size)) and tree.size == size
    for i in range(0, size, 1 + size // 40):
        proof = tree.proof(i)
        assert len(proof) <= commitments.height(size) == (size - 1).bit_length()
        assert commitments.root(some(size)[i], i, size, proof) == tree.root


def test_children_are_hashes_of_nodes():
    tree = Tree(some(11))
    for level in range(1, commitments.height(11) + 1):
        for i in range(commitments.width(11, level)):
            left, right = tree.children(level, i)
            assert commitments.node_hash(left, right) == tree.node(level, i)
            assert (right is None) == (2 * i + 1 >= commitments.width(11, level - 1))


def test_no_proof_leads_another_entry_to_the_root():
    chance = random.Random(0)
    for size in (1, 2, 3, 7, 8, 13):
        tree, entries = Tree(some(size)), some(size)
        for i in range(size):
            proof = tree.proof(i)
            others = [(entries[i] + b" ", i, size, proof)]
            others += [(entries[i], j, size, proof) for j in range(size) if j != i]
            for k in range(len(proof)):
                forged = bytearray(proof[k])
                forged[chance.randrange(32)] ^= 1 << chance.randrange(8)
                others.append((entries[i], i, size, [*proof[:k], bytes(forged), *proof[k + 1 :]]))
                others.append((entries[i], i, size, proof[:k] + proof[k + 1 :]))
            others.append((entries[i], i, size, [*proof, bytes(32)]))
            for other in others:
                with contextlib.suppress(CommitmentError):
                    assert commitments.root(*other) != tree.root, other


def test_an_entry_tells_two_sizes_apart():
    """Its proofs have other lengths: where one tree has this entry, the other one has a node."""
    trees = {size: Tree(some(size)) for size in range(1, 40)}
    for size, tree in trees.items():
        for other in trees.keys() - {size}:
            i = commitments.telling(size, other)
            assert i == commitments.telling(other, size) < min(size, other)
            assert len(tree.proof(i)) != len(trees[other].proof(i))


def test_a_node_is_no_entry():
    """The two children of the root as an entry of a tree with one: another root."""
    tree = Tree(some(2))
    left, right = tree.children(1, 0)
    assert Tree([left + right]).root != tree.root


def test_a_tree_of_nothing():
    with pytest.raises(CommitmentError, match="received none"):
        Tree([])
    with pytest.raises(CommitmentError, match="expected an entry from 0 to 2"):
        commitments.root(b"", 3, 3, [])


# --- a training -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """What a run's log holds: parameters, the state of an optimizer, a batch and a key."""
    path = tmp_path_factory.mktemp("commitments") / "run"
    with Run(path) as run:
        for n in range(9):
            w = np.arange(6, dtype=np.float32) + n
            trees = {"params": {"a": w, "b": -w}, "state": (w * 2, None), "key": jax.random.key(n)}
            run.step(n, **trees, **({"batch": w[:3]} if n else {}))
    return read_run(path).steps


def test_a_commitment_is_a_function_of_the_log(steps):
    first = Commitment.of_steps(steps)
    assert str(first) == str(Commitment.of_steps(dict(reversed(steps.items()))))
    assert len(first.bytes) == 32 and str(first) == f"sha256:{first.bytes.hex()}"
    assert [x.leaves for x in first.steps] == [5] + [6] * 8
    assert str(first) == GOLDEN


#: The format is 1 as long as this stays.
GOLDEN = "sha256:7554c618f036daaca0efcd9daa83fc1552c3ddbe68f38829880d68854d8f6de2"


def test_every_leaf_of_every_step_can_be_opened(steps):
    whole = str(Commitment.of_steps(steps))
    for n, trees in steps.items():
        for tree, path, digest in commitments.leaves(trees):
            found = open_leaf(steps, n, tree, path)
            found.check(whole)
            assert found.leaf == (tree, path, digest) and found.hashes <= 3 + 4
    for wrong in [(99, "params", "a"), (1, "none", "a"), (1, "params", "c")]:
        with pytest.raises(CommitmentError, match="expected a leaf of the log"):
            open_leaf(steps, *wrong)


def test_nothing_else_can_be_opened(steps):
    whole = str(Commitment.of_steps(steps))
    found = open_leaf(steps, 5, "params", "a")
    other = open_leaf(steps, 6, "params", "a")
    for name in ("number", "leaf", "leaf_proof", "step_proof", "place", "leaf_place"):
        value = getattr(other, name) if name != "leaf_place" else found.leaf_place - 1
        with pytest.raises(CommitmentError):
            dataclasses.replace(found, **{name: value}).check(whole)
    with pytest.raises(CommitmentError):
        dataclasses.replace(found, count=found.count + 1).check(whole)
    with pytest.raises(CommitmentError):
        dataclasses.replace(found, leaf_count=found.leaf_count - 1).check(whole)
    with pytest.raises(CommitmentError, match="expected a proof for the commitment"):
        found.check("sha256:" + "0" * 64)


def test_any_change_of_a_log_is_another_commitment(steps):
    whole = str(Commitment.of_steps(steps))
    names = [(n, tree, path) for n in steps for tree, path, _ in commitments.leaves(steps[n])]

    def changed(change, *place):
        copy = {n: {tree: dict(x) for tree, x in trees.items()} for n, trees in steps.items()}
        change(copy, *place)
        return str(Commitment.of_steps(copy))

    def edited(x, n, tree, path):
        x[n][tree][path] = "sha256:" + "0" * 64

    def removed(x, n, tree, path):
        del x[n][tree][path]

    def renamed(x, n, tree, path):
        x[n][tree][path + "x"] = x[n][tree].pop(path)

    found = {whole}
    for place in names:
        found.update(changed(change, *place) for change in (edited, removed, renamed))
    found.add(changed(lambda x: x.pop(8)))
    found.add(changed(lambda x: x.pop(4)))
    found.add(changed(lambda x: x.__setitem__(9, x[8])))
    found.add(changed(lambda x: x.update({3: x[4], 4: x[3]})))
    found.add(changed(lambda x: x[3].update(states=x[3].pop("state"))))
    assert len(found) == 1 + 3 * len(names) + 5


# --- runs in the background -------------------------------------------------------------


def test_a_run_in_the_background_is_the_same(tmp_path):
    for background in (False, True):
        with Run(tmp_path / str(background), background=background) as run:
            w = np.zeros(1000, np.float32)
            for n in range(20):
                run.step(n, params=w, key=jax.random.key(n))
                w += 1  # while the step before may wait to be written
                if n % 5 == 0:
                    run.epoch(float(n))
            run.evaluate([1, 2], [1, 2])
            run.finish({"w": w})
    first, second = (tmp_path / str(x) / "log.jsonl" for x in (False, True))
    assert first.read_bytes() == second.read_bytes()


def test_what_goes_wrong_in_the_background_is_raised(tmp_path):
    run = Run(tmp_path / "run", background=True)
    run.step(0, params=np.zeros(3))
    run.step(1, params="no array")
    with pytest.raises(TypeError, match="received type str"):
        run.epoch(1.0)
    run.step(2, params=np.zeros(3))
    with pytest.raises(RunError, match="expected the steps before step 2"):
        run.close()
    assert [*read_run(tmp_path / "run").steps] == [0]


def test_what_went_wrong_first_in_the_background_is_raised(tmp_path):
    with pytest.raises(TypeError, match="received type str"):  # noqa: SIM117
        with Run(tmp_path / "run", background=True) as run:
            run.step(0, params="no array")
            run.step(1, params=np.zeros(3))
            run._waiting[-1].exception()  # both have been tried
            run.epoch(1.0)


def test_a_donated_array_in_the_background(tmp_path):
    run = Run(tmp_path / "run", background=True)
    x = jnp.zeros(3)
    run._wait()
    x.delete()
    run.step(0, params=x)
    with pytest.raises(RuntimeError, match="deleted"):
        run.close()


def test_a_resumed_run_in_the_background(tmp_path):
    run = Run(tmp_path / "run")
    run.step(0, params=np.float32(1))
    run.close()
    with Run(tmp_path / "run", resume=True, background=True) as run:
        run.step(0, params=np.float32(1))
        run.step(1, params=np.float32(2))
    assert [*read_run(tmp_path / "run").steps] == [0, 1]
    run = Run(tmp_path / "run", resume=True, background=True)
    run.step(0, params=np.float32(3))
    with pytest.raises(RunError, match="with other bits"):
        run.close()


def test_what_repjax_log_writes_can_be_committed_to(tmp_path):
    found = Training(lambda: jnp.zeros(3), lambda w, x: w + x, lambda n: np.float32(n), 4)
    training.log(found, tmp_path / "run")
    steps = read_run(tmp_path / "run").steps
    assert [x.leaves for x in Commitment.of_steps(steps).steps] == [1, 2, 2, 2, 2]
