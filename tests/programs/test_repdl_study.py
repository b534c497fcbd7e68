"""studies/repdl.py: RepDL's own hashes, on every platform, and after an interruption."""

from __future__ import annotations

import gzip
import json
import os
import re
import struct
import subprocess
import sys

import numpy as np
import pytest

from helpers.paths import ROOT
from helpers.scripts import load

STUDY = ROOT / "studies" / "repdl.py"
#: What RepDL of November 2025 itself prints with PyTorch 2.13, of the images below.
REPDL = {
    "initial": "2a2d133895b1684e55d0f152ead2914b55adc551d9790a4b4585309b79c60362",
    "trained": "46d115cff8623cc1ce02609bd7ca9efe9455a22ff08216386862ace2c6ab242b",
    "logits": "feeb5dfb22136b19b9b65d7e0eb3477a8c043d1b9d2fd1747b917e1b9eb2a556",
    "accuracy": 0.27,
}


def images(first, count):
    """Pixels (count, 28, 28) and labels by a formula, from image ``first`` on."""
    k, r, c = np.ogrid[first : first + count, :28, :28]
    pixels = (k * k * 7 + r * r * (k % 11 + 1) + c * (k % 10 + 1) * 5 + r * c) % 256
    return pixels.astype(np.uint8), (np.arange(first, first + count) % 10).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """600 and 100 images in MNIST's format."""
    folder = tmp_path_factory.mktemp("images")
    for name, part in (("train", images(0, 600)), ("t10k", images(600, 100))):
        for stem, array in zip(("images-idx3", "labels-idx1"), part, strict=True):
            head = struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape)
            data = gzip.compress(head + array.tobytes())
            (folder / f"{name}-{stem}-ubyte.gz").write_bytes(data)
    return folder


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, str(STUDY), *map(str, arguments)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {
            "XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2 --xla_force_host_platform_device_count=8",
            "REPJAX_NATIVE": "off",
        },
    ],
    ids=["here", "SSE4_2 without kernels"],
)
def test_the_hashes_are_repdls(folder, tmp_path, environment):
    result = run("--data", folder, "--output", tmp_path / "repdl.json", **environment)
    assert result.returncode == 0, result.stderr
    found = json.loads((tmp_path / "repdl.json").read_text())
    assert {name: found[name] for name in REPDL} == REPDL
    assert found["steps"] == 12
    assert result.stdout.splitlines()[0].endswith(REPDL["initial"])
    assert result.stdout.endswith(
        "MNIST: initial same, trained other, logits other, accuracy other\n"
    )


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "studies")
    return load(STUDY)


def test_an_interrupted_run_goes_on(study, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "KEPT_EVERY", 4)
    step, calls = study.train_step, []

    def counted(*args):
        calls.append(1)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return step(*args)

    output = tmp_path / "repdl.json"
    arguments = ["--data", str(folder), "--output", str(output)]
    monkeypatch.setattr(study, "train_step", counted)
    with pytest.raises(KeyboardInterrupt):
        study.main(arguments)
    kept = tmp_path / "repdl.state.npz"
    assert kept.is_file()
    assert not output.exists()
    assert study.main(arguments) == 0
    found = json.loads(output.read_text())
    assert len(calls) == 7 + 12 - 4
    assert found["trained"] == REPDL["trained"]
    assert not kept.exists()


def test_a_changed_pixel_is_noticed(study, folder, monkeypatch):
    """Negative control: the hashes see the data."""
    source = study.load(folder)
    params, batches = study.orders(600)
    pixels = source.train.pixels.copy()
    pixels[batches[0, 0], 14, 14] ^= 128
    other = source.train._replace(pixels=pixels)
    steps = []
    for train in (source.train, other):
        tree, state = params, study.optimizer.init(params)
        for chosen in batches[:2]:
            batch = study.images_of(train, chosen), train.labels[chosen]
            tree, state, _ = study.train_step(tree, state, *batch)
        steps.append(study.repdl.torch_hash(tree, study.NAMES))
    assert steps[0] != steps[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere"], "expected Fashion-MNIST in nowhere"),
        (["--output", "nowhere/repdl.json", "--quick", "--data", "FOLDER"], "nowhere"),
        (["--output", "TMP/repdl.json", "--data", "FOLDER"], "repdl.state.npz"),
    ],
)
def test_wrong_inputs(study, folder, tmp_path, arguments, message, capsys):
    (tmp_path / "repdl.state.npz").write_bytes(b"no checkpoint")
    places = {"FOLDER": str(folder), "TMP": str(tmp_path)}
    words = [re.sub("FOLDER|TMP", lambda found: places[found[0]], word) for word in arguments]
    assert study.main(words) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert (tmp_path / "repdl.state.npz").read_bytes() == b"no checkpoint"
