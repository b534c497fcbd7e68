"""Manifests: what they hold, their seals, their exports, and what verifying them finds."""

from __future__ import annotations

import hashlib
import io
import json
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from repjax.__main__ import main
from repjax.verify import Run, bills, commitments, manifest, read_run, training, verification

SCRIPT = """
import jax.numpy as jnp, numpy as np, repjax
from repjax.verify import Training
from helper import RATE

X = np.load("data.npy")

@repjax.reproducible
def step(w, x):
    return w - RATE * jnp.tanh(x @ w).mean(0) * w

training = Training(lambda: jnp.full((4, 4), 0.5), step, lambda n: X[8 * n :][:8], 9)
number = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A script, its data and helper, its run and manifest, made as a user would."""
    path = tmp_path_factory.mktemp("manifest")
    (path / "script.py").write_text(SCRIPT)
    (path / "helper.py").write_text("RATE = 0.125\n")
    np.save(path / "data.npy", np.random.default_rng(0).normal(size=(72, 4)).astype(np.float32))
    (path / "e.entropy").write_bytes(b"entropy")
    repjax(path, "log", "script.py:training", "--output", "run", "--every", "3")
    options = ["--data", "data.npy", "--entropy", "e.entropy", "--seed", "model=5", "data=-1"]
    repjax(path, "manifest", "run", *options, "--output", "manifest.json")
    return path


def repjax(folder, *arguments, status=0, **environment):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "repjax", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**manifest.os.environ, **environment},
    )
    assert done.returncode == status, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def copy(folder, tmp_path, monkeypatch):
    """The same in a folder of its own, which is the current one."""
    shutil.copytree(folder, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "copy"
    for name in ("script", "helper"):
        sys.modules.pop(name, None)


def sha256(path) -> str:
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


# --- what it holds ----------------------------------------------------------------------


def test_what_a_manifest_holds(folder):
    found = manifest.read(folder / "manifest.json")
    assert [*found] == [*manifest.FIELDS]
    assert found["versions"]["jax"] == jax.__version__
    assert found["versions"]["numpy"] == np.__version__
    assert found["data"] == [
        {"file": "data.npy", "size": 1280, "sha256": sha256(folder / "data.npy")}
    ]
    assert found["entropy"]["sha256"] == sha256(folder / "e.entropy")
    assert found["seeds"] == {"model": 5, "data": -1}
    assert found["training"] == "script.py:training" and found["argv"][:2] == ["repjax", "manifest"]
    assert found["options"]["jax_enable_x64"] is False
    assert found["devices"][0]["platform"] == jax.devices()[0].platform
    assert found["run"]["path"] == "run" and found["run"]["params"]["file"] == "run/params.npz"
    assert found["metadata"] == {"training": "script.py:training"}


def test_modules_in_the_order_of_their_imports(folder):
    found = manifest.read(folder / "manifest.json")["modules"]
    mine = [x for x in found if "module" in x]
    assert [(x["module"], x["file"]) for x in mine] == [
        ("script", "script.py"),
        ("helper", "helper.py"),
    ]
    assert [x["sha256"] for x in mine] == [sha256(folder / x["file"]) for x in mine]
    installed = [x["distribution"] for x in found if "distribution" in x]
    assert len(installed) == len(set(installed)) and {"jax", "numpy", "flax"} <= {*installed}
    assert found.index(mine[0]) > installed.index("jax")


def test_the_commitment_of_a_manifest_is_that_of_its_run(folder):
    commitment = manifest.read(folder / "manifest.json")["commitment"]
    steps = read_run(folder / "run").steps
    whole = commitments.Commitment.of_steps(steps)
    assert commitment["root"] == str(whole) and commitment["trees"] == ["batch", "state"]
    assert [x[0] for x in commitment["steps"]] == list(range(10))
    opened = commitments.open_leaf(steps, 4, "batch", "the root")
    opened.check(commitment["root"])


def test_git(tmp_path):
    assert manifest.code(tmp_path) is None

    def git(*arguments):
        name = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", "-C", tmp_path, *name, *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("1")
    git("add", ".")
    git("commit", "-m", "m")
    found = manifest.code(tmp_path)
    assert len(found["commit"]) == 40 and found["dirty"] is False
    (tmp_path / "file").write_text("2")
    assert manifest.code(tmp_path) == {**found, "dirty": True}


def test_a_manifest_of_this_process(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX2")
    monkeypatch.setenv("NVIDIA_API_KEY", "secret")
    with Run(tmp_path / "run") as run:
        run.step(0, params=np.zeros(3), key=jax.random.key(0))
    found = manifest.make(tmp_path / "run", seeds={"all": 1}, argv=["train.py", "--fast"])
    assert found["environment"]["XLA_FLAGS"] == "--xla_cpu_max_isa=AVX2"
    assert "secret" not in json.dumps(found)
    assert found["argv"] == ["train.py", "--fast"] and found["commitment"]["trees"] == [
        "key",
        "params",
    ]
    manifest.write(tmp_path / "m.json", found)
    assert manifest.read(tmp_path / "m.json") == found
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    again = [manifest.make(tmp_path / "run") for _ in range(2)]
    assert again[0] == again[1] and again[0]["created"] == "1970-01-01T00:00:00Z"


def test_the_training_of_a_script(copy):
    assert main(["manifest", "script.py:training", "--output", "m.json"]) == 0
    found = manifest.read("m.json")
    assert found["commitment"] == manifest.read("manifest.json")["commitment"]
    assert found["run"]["path"] is None and not pathlib.Path("DIR").exists()
    assert main(["manifest", "script.py:training", "--run", "DIR", "--output", "n.json"]) == 0
    assert read_run("DIR").is_finished


# --- files that are none ----------------------------------------------------------------


def test_every_edit_is_noticed(folder, tmp_path):
    text = (folder / "manifest.json").read_bytes()
    path = tmp_path / "m.json"
    for i in range(0, len(text) - 1, 97):
        path.write_bytes(text[:i] + bytes([text[i] ^ 1]) + text[i + 1 :])
        if json_or_none(path) == json.loads(text):
            continue  # white space
        with pytest.raises(manifest.ManifestError):
            manifest.read(path)


def json_or_none(path):
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


@pytest.mark.parametrize(
    "name, value",
    [
        ("created", 5),
        ("versions", {}),
        ("modules", [{"module": "a"}]),
        ("modules", [{"distribution": "a"}]),
        ("devices", [{}]),
        ("options", {"repjax_enable": "perhaps"}),
        ("entropy", "a file"),
        ("data", [1]),
        ("data", [{"file": "a"}]),
        ("code", []),
        ("argv", [1]),
        ("training", 3),
        ("run", {"path": 5}),
        ("commitment", {"root": "a", "trees": ["state"], "steps": [[{}, 1, "a"]]}),
        ("commitment", {"root": "a", "trees": ["state"], "steps": [[1, 1]]}),
        ("commitment", {"root": "a", "trees": ["state"], "steps": [[1, 1, "no digits"]]}),
        ("commitment", {"root": "a", "trees": ["state"], "steps": []}),
    ],
)
def test_fields_that_are_others(name, value, folder, tmp_path):
    found = manifest.read(folder / "manifest.json")
    path = tmp_path / "m.json"
    manifest.write(path, manifest.sealed({**found, name: value}))
    with pytest.raises(manifest.ManifestError, match="the fields of a manifest, received others"):
        manifest.read(path)


def test_files_that_are_none(folder, tmp_path):
    found = manifest.read(folder / "manifest.json")
    path = tmp_path / "m.json"
    steps = found["commitment"]["steps"]
    other = {**found["commitment"], "steps": [*steps[:3], steps[4], *steps[4:]]}
    cases = {
        b"": "no JSON",
        b"[1, 2]": "received None, version None",
        (folder / "data.npy").read_bytes(): "no JSON",
        (folder / "manifest.json").read_bytes()[:-20]: "no JSON",
        b"[" * 100_000: "no JSON",
        json.dumps({**found, "version": 2}).encode(): "version 2; read it with the release",
        json.dumps({**found, "argv": []}).encode(): "changed after it was written",
        json.dumps(manifest.sealed({**found, "commitment": other})).encode(): "not to its steps",
        json.dumps(manifest.sealed({**found, "commitment": {}})).encode(): "the fields of a",
        json.dumps(manifest.sealed({**found, "more": 1})).encode(): "the fields of a manifest",
    }
    for content, message in cases.items():
        path.write_bytes(content)
        with pytest.raises(manifest.ManifestError, match=message):
            manifest.read(path)
        assert path.read_bytes() == content
    with pytest.raises(manifest.ManifestError, match="no file"):
        manifest.read(tmp_path / "none")


# --- exports ----------------------------------------------------------------------------


def nested(x, name):
    """All values under a name."""
    if isinstance(x, dict):
        yield from (value for key, value in x.items() if key == name)
    for value in x.values() if isinstance(x, dict) else x if isinstance(x, list) else ():
        yield from nested(value, name)


@pytest.fixture(scope="module")
def found(folder):
    return manifest.read(folder / "manifest.json")


def test_spdx(found):
    model = pytest.importorskip("spdx_python_model")
    document = bills.spdx(found)

    def checked(document):
        bindings, objects = model.load_data(document)  # types, names of properties and values
        bindings.JSONLDSerializer().write(objects, io.BytesIO())  # what has to be there
        assert not objects.missing_ids
        return objects

    objects = checked(document)
    kinds = {type(x).__name__ for x in objects.foreach()}
    assert {"ai_AIPackage", "dataset_DatasetPackage", "SpdxDocument", "Relationship"} <= kinds
    hashes = {*nested(document, "hashValue")}
    assert {found["data"][0]["sha256"], found["run"]["params"]["sha256"]} <= hashes
    (statement,) = nested(document, "statement")
    assert json.loads(statement) == found

    def of(kind):
        return next(x for x in document["@graph"] if x["type"] == kind)

    package = of("ai_AIPackage")  # what the profiles for AI and data ask for beyond the model
    assert {"suppliedBy", "releaseTime", "software_packageVersion"} <= package.keys()
    assert {"software_primaryPurpose", "software_downloadLocation"} <= package.keys()
    assert package["software_packageVersion"] == found["commitment"]["root"]
    data = of("dataset_DatasetPackage")
    assert {"originatedBy", "builtTime", "releaseTime", "dataset_datasetType"} <= data.keys()
    package["software_primaryPurpose"] = "models"
    with pytest.raises(Exception, match="models"):  # the check can fail
        checked(document)


def test_cyclonedx(found):
    pytest.importorskip("jsonschema")
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    check = validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str
    document = bills.cyclonedx(found)
    assert check(json.dumps(document)) is None
    model = document["metadata"]["component"]
    assert model["type"] == "machine-learning-model"
    assert model["modelCard"]["modelParameters"]["datasets"] == [{"ref": "data/data.npy"}]
    properties = {x["name"]: x["value"] for x in model["modelCard"]["properties"]}
    assert json.loads(properties["repjax:manifest"]) == found
    assert found["commitment"]["root"] in properties["repjax:training"]
    purls = [*nested(document, "purl")]
    assert f"pkg:pypi/jax@{jax.__version__}" in purls
    model["type"] = "model"
    assert check(json.dumps(document)) is not None


def test_exports_by_command(copy):
    for name in bills.FORMATS:
        assert main(["manifest", "manifest.json", "--format", name, "--output", name]) == 0
        assert main(["manifest", "run", "--format", name, "--output", f"{name} 2"]) == 0
        assert pathlib.Path(f"{name} 2").stat().st_size > 1000
    found = manifest.read("manifest.json")
    assert json.loads(pathlib.Path("cyclonedx").read_text()) == bills.cyclonedx(found)
    bare = manifest.make()  # without anything
    for export in bills.FORMATS.values():
        assert "urn:" in json.dumps(export(bare))


# --- verifying --------------------------------------------------------------------------


def verified(*arguments) -> int:
    return main(["verify", "manifest.json", *arguments])


def test_the_same_in_a_process(folder):
    done = repjax(folder, "verify", "manifest.json", XLA_FLAGS="--xla_cpu_max_isa=SSE4_2")
    assert "note: XLA_FLAGS is --xla_cpu_max_isa=SSE4_2" in done.stdout
    assert done.stdout.endswith("9 steps are those of the manifest\n")


@pytest.mark.parametrize(
    "arguments, steps",
    [
        ([], 9),
        (["--from-step", "4"], 5),
        (["--steps", "2:7"], 5),
        (["--steps", "0:1"], 1),
        (["--run", "run"], 9),
        (["--against", "run"], 10),
    ],
)
def test_the_same(arguments, steps, copy, capsys):
    assert verified(*arguments) == 0
    assert capsys.readouterr().out.endswith(f"{steps} steps are those of the manifest\n")


def test_from_a_checkpoint_few_steps_are_run(copy, monkeypatch):
    found, count = training.load("script.py:training"), []
    counted = training.Training(
        found.state, lambda w, x: count.append(1) or found.step(w, x), found.batch, found.steps
    )
    known = manifest.read("manifest.json")
    assert verification.verify(known, counted, run="run", first=6, last=8).same
    assert len(count) == 2


def test_other_code(copy, capsys):
    (copy / "helper.py").write_text("RATE = 0.126\n")
    assert verified() == 1
    out = capsys.readouterr().out
    assert "code differs: helper.py has the SHA-256" in out
    assert "the first that differs is step 1: state: the root" in out
    (copy / "helper.py").write_text("RATE = 0.125  # the same\n")
    sys.modules.pop("helper")
    assert verified() == 1
    out = capsys.readouterr().out
    assert "code differs: helper.py" in out and "9 steps are those of the manifest" in out


def test_other_data(copy, capsys):
    x = np.load("data.npy")
    x[35] *= -1  # which step 5 reads
    np.save("data.npy", x)
    assert verified() == 1
    out = capsys.readouterr().out
    assert "data differs: data.npy" in out
    assert "the first that differs is step 5: batch: the root, state: the root" in out
    shutil.rmtree("run")
    assert verified() == 1
    assert "step 5: give --run RUN to name the leaves" in capsys.readouterr().out


def test_another_run(copy, capsys):
    other = training.load("script.py:training")
    other = training.Training(other.state, lambda w, x: other_step(w, x), other.batch, 9)

    def other_step(w, x, count=[0]):  # noqa: B006
        count[0] += 1
        return training.load("script.py:training").step(w, x) + (count[0] == 7)

    training.log(other, "other")
    assert verified("--against", "other") == 1
    assert "the first that differs is step 7: state: the root" in capsys.readouterr().out
    with Run("short") as run:
        run.step(0, state=other.state())
    assert verified("--against", "short") == 1
    assert "the first that differs is step 1: it is not in both" in capsys.readouterr().out


def test_versions_that_differ_are_notes(copy, capsys):
    found = manifest.read("manifest.json")
    found["versions"] = {**found["versions"], "jax": "0.0.1"}
    found["options"] = {**found["options"], "jax_threefry_partitionable": "perhaps"}
    manifest.write("manifest.json", manifest.sealed(found))
    assert verified() == 0
    out = capsys.readouterr().out
    assert f"note: jax is {jax.__version__}, in the manifest 0.0.1" in out
    assert "note: jax_threefry_partitionable is" in out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["verify", "none"], "expected a manifest, received none"),
        (["verify", "data.npy"], "no JSON"),
        (["verify", "manifest.json", "--steps", "3"], "expected --steps A:B"),
        (["verify", "manifest.json", "--steps", "3:99"], "expected steps from 0 to 9"),
        (["verify", "manifest.json", "--steps", "5:3"], "expected steps from 0 to 9"),
        (["verify", "manifest.json", "--from-step", "-2"], "expected steps from 0 to 9"),
        (["verify", "manifest.json", "--run", "helper.py"], "expected a run directory"),
        (["verify", "manifest.json", "--against", "none"], "expected a run directory"),
        (["verify", "manifest.json", "--training", "script.py:step"], "repjax.verify.Training"),
        (["verify", "manifest.json", "--training", "none.py:step"], "is no file"),
        (["manifest", "none", "--output", "x"], "expected script.py:name"),
        (["manifest", "script.py:number", "--output", "x"], "expected a repjax.verify.Training"),
        (["manifest", "run", "--data", "none", "--output", "x"], "expected a file, received none"),
        (["manifest", "run", "--entropy", "none", "--output", "x"], "expected a file"),
        (["manifest", "run", "--seed", "one", "--output", "x"], "expected NAME=N"),
        (["manifest", "run", "--training", "script.py:none", "--output", "x"], "the name none"),
        (["manifest", "manifest.json", "--seed", "a=1", "--output", "x"], "no other options"),
        (["manifest", "run", "--output", "nowhere/x"], "nowhere"),
        (["manifest", "script.py:training", "--run", "run", "--output", "x"], "received one"),
    ],
)
def test_requests_that_cannot_be_met(arguments, message, copy, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not pathlib.Path("x").exists()


def test_more_requests_that_cannot_be_met(copy, capsys, monkeypatch):
    shutil.copytree("run", "older")
    other = {**manifest.versions(), "jax": "0.0.1"}
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "versions", lambda: other)
        assert main(["manifest", "run", "--output", "x"]) == 2
    assert "expected a run of this process's versions" in capsys.readouterr().err
    with Run("empty") as run:
        run.epoch(1.0)
    assert main(["manifest", "empty", "--output", "x"]) == 2
    assert "expected a run with steps" in capsys.readouterr().err
    with Run("params") as run:
        run.step(0, params=np.zeros(3))
    assert verified("--run", "params") == 2
    assert "expected the run of the commitment" in capsys.readouterr().err
    assert main(["manifest", "params", "--output", "p.json"]) == 0
    assert main(["verify", "p.json"]) == 2
    assert "give --training" in capsys.readouterr().err
    assert main(["verify", "p.json", "--training", "script.py:training"]) == 2
    assert "--against RUN" in capsys.readouterr().err
    assert main(["verify", "p.json", "--against", "params"]) == 0
    shutil.rmtree("run")
    assert verified("--from-step", "3") == 2
    assert "step 3: expected --run RUN" in capsys.readouterr().err
    pathlib.Path("data.npy").unlink()
    assert verified("--against", "older") == 2
    assert "expected a file, received data.npy" in capsys.readouterr().err
