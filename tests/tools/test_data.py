"""The example's data: scikit-learn's digits, IDX files, batches, and every error's wording."""

import gzip
import json
import struct

import jax
import numpy as np
import pytest

import repjax.checkpoint
from helpers.paths import ROOT
from helpers.scripts import load

EXAMPLE = ROOT / "examples" / "train_digits.py"


@pytest.fixture(scope="module")
def example():
    return load(EXAMPLE)


# scikit-learn's digits.


@pytest.mark.parametrize(("size", "repeat"), [(32, 4), (28, 3)])
def test_digits(example, size, repeat):
    datasets = pytest.importorskip("sklearn.datasets")
    source = datasets.load_digits()
    data = example.load_digits(size)
    assert (len(data.train.labels), len(data.held_out.labels), data.classes) == (1442, 355, 10)
    margin = (size - 8 * repeat) // 2
    images = np.concatenate([data.images(split, slice(None)) for split in data[1:3]])
    assert images.dtype == np.float32 and images.shape == (1797, size, size, 1)
    # Every pixel of a block has the same exact value, and the border is background.
    inner = images[:, margin : size - margin, margin : size - margin, 0]
    blocks = inner.reshape(1797, 8, repeat, 8, repeat)
    assert (blocks == blocks[:, :, :1, :, :1]).all()
    small = (blocks[:, :, 0, :, 0].astype(np.float64) + 1) * 8
    border = np.ones((size, size), bool)
    border[margin : size - margin, margin : size - margin] = False
    assert (images[:, border, 0] == -1).all()
    # Together the two parts are the source; every fifth of a class is held out.
    labels = np.concatenate([data.train.labels, data.held_out.labels])
    for label in range(10):
        members = source.images[source.target == label]
        held_out = np.arange(len(members)) % 5 == 4
        ordered = np.concatenate([members[~held_out], members[held_out]])
        np.testing.assert_array_equal(small[labels == label], ordered)


# IDX files.


def idx(array):
    array = np.asarray(array, np.uint8)
    return struct.pack(f">I{array.ndim}I", 0x800 | array.ndim, *array.shape) + array.tobytes()


def make_arrays(train=70, held_out=12, size=28, classes=10):
    rng = np.random.RandomState(0)
    return {
        f"{prefix}-{kind}": array
        for prefix, count in (("train", train), ("t10k", held_out))
        for kind, array in (
            ("images", rng.randint(0, 256, (count, size, size)).astype(np.uint8)),
            ("labels", (np.arange(count) % classes).astype(np.uint8)),
        )
    }


def write(folder, arrays, separator="-", compress=False):
    for stem, array in arrays.items():
        data = idx(array)
        name = f"{stem}{separator}idx{array.ndim}-ubyte"
        if compress:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
        else:
            (folder / name).write_bytes(data)


@pytest.mark.parametrize("separator", ["-", "."])
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("size", [28, 32])
def test_idx(example, tmp_path, separator, compress, size):
    arrays = make_arrays()
    write(tmp_path, arrays, separator, compress)
    data = example.load_idx(tmp_path, size)
    margin = (size - 28) // 2
    for prefix, split in (("train", data.train), ("t10k", data.held_out)):
        np.testing.assert_array_equal(split.labels, arrays[f"{prefix}-labels"])
        pixels = np.pad(arrays[f"{prefix}-images"], [(0, 0), (margin, margin), (margin, margin)])
        # Correctly rounded: float64 division, rounded again, is right for so small integers.
        expected = ((2 * pixels.astype(np.float64) - 255) / 255).astype(np.float32)
        images = data.images(split, slice(None))[..., 0]
        np.testing.assert_array_equal(images.view(np.uint32), expected.view(np.uint32))


def test_gzip_is_recognised_by_content(example, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(idx([1, 2, 3])))
    assert example.read_idx(path, 1).tolist() == [1, 2, 3]


def test_odd_sizes_are_centred(example):
    centred = example.center(np.ones((1, 5, 6), np.uint8), 8)[0]
    rows, columns = np.nonzero(centred)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (1, 5, 1, 6)


def test_more_classes(example, tmp_path):
    write(tmp_path, make_arrays(classes=26))
    assert example.load_idx(tmp_path, 28).classes == 26
    write(tmp_path, make_arrays(classes=3))
    assert example.load_idx(tmp_path, 28).classes == 10


def replaced(stem, data):
    def damage(folder):
        (folder / stem).write_bytes(data)

    return damage


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
GOOD = idx(np.zeros((70, 28, 28)))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / IMAGES).unlink(), "expected one of train-images-idx3-ubyte, "),
        (replaced(IMAGES, b""), "expected at least 16 bytes of IDX data, received 0"),
        (replaced(IMAGES, GOOD[:3]), "expected at least 16 bytes of IDX data, received 3"),
        (replaced(IMAGES, GOOD[:10]), "expected at least 16 bytes of IDX data, received 10"),
        (replaced(IMAGES, GOOD[:-1]), f"expected {len(GOOD)} bytes of IDX data, received"),
        (replaced(IMAGES, GOOD + b"\0"), f"expected {len(GOOD)} bytes of IDX data, received"),
        (replaced(IMAGES, b"\x89PNG\r\n\x1a\n"), "magic number 0x00000803, received 0x89504e47"),
        (replaced(IMAGES, idx([1, 2])), "magic number 0x00000803, received 0x00000801"),
        (replaced(LABELS, GOOD), "magic number 0x00000801, received 0x00000803"),
        (replaced(IMAGES, GOOD[:3] + b"\x04" + GOOD[4:]), "received 0x00000804"),
        (replaced(IMAGES, b"\0\0\x0d\x03" + GOOD[4:]), "received 0x00000d03"),
        (replaced(IMAGES, gzip.compress(GOOD)[:-9]), "expected a complete gzip file"),
        (replaced(IMAGES, b"\x1f\x8bnonsense"), "expected a complete gzip file"),
        (replaced(LABELS, idx([1, 2])), "received 70 in"),
        (replaced(IMAGES, idx(np.zeros((70, 33, 20)))), "at most 28x28, received 33x20"),
    ],
)
def test_damaged_idx(example, tmp_path, capsys, damage, message):
    write(tmp_path, make_arrays())
    damage(tmp_path)
    options = ["--data", str(tmp_path), "--model", "lenet1", "--mode", "plain", "--epochs", "0"]
    assert example.main(options) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("train_digits.py: error: expected ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert "; " in captured.err


# Batches.


def test_batches(example):
    key = jax.random.key(1)
    indices = example.batches(key, 0, 70, 16)
    assert indices.shape == (4, 16)
    assert len(np.unique(indices)) == 64 and indices.min() >= 0 and indices.max() < 70
    np.testing.assert_array_equal(indices, example.batches(key, 0, 70, 16))
    assert (indices != example.batches(key, 1, 70, 16)).any()
    assert (indices != example.batches(jax.random.key(2), 0, 70, 16)).any()


# The program, in plain mode, whose compilation takes no time; test_example runs the others.


PLAIN = ["--model", "lenet1", "--mode", "plain", "--batch-size", "16"]


@pytest.fixture
def run(example, tmp_path, capsys):
    write(tmp_path, make_arrays())

    def run(*options):
        status = example.main(["--data", str(tmp_path), *PLAIN, *options])
        return status, capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def saved(example, tmp_path_factory):
    """The checkpoint of one epoch on the same data."""
    folder = tmp_path_factory.mktemp("saved")
    write(folder, make_arrays())
    path = folder / "checkpoint.npz"
    options = ["--data", str(folder), "--epochs", "1", "--save", str(path)]
    assert example.main([*PLAIN, *options]) == 0
    return path.read_bytes()


def test_run_on_idx_files(run, tmp_path):
    path = tmp_path / "result.json"
    status, captured = run("--epochs", "1", "--json", str(path), "--limit", "40")
    assert status == 0
    result = json.loads(path.read_text())
    lines = captured.out.splitlines()
    assert lines[-1] == f"digest {result['digest']}"
    assert "40 training images, 12 held out, 28x28" in lines[0]
    assert lines[3].startswith("epoch 1/1: loss 2.")
    assert result["epochs"][0]["loss"] in lines[3]
    assert sum(n for _, n in result["per_class"]) == result["held_out"] == 12
    assert " s" in captured.err and " s\n" not in captured.out
    assert run("--epochs", "1", "--limit", "40")[1].out == captured.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "lenet4"], "model lenet1, "),
        (["--seed", "1"], "seed 0, received seed 1"),
        (["--learning-rate", "0.5"], "learning_rate 0.003, received learning_rate 0.5"),
        (["--optimizer", "sgd"], "optimizer adam, learning_rate 0.003, received optimizer sgd"),
        (["--limit", "30"], "data sha256:"),
        (["--mode", "reproducible"], "arithmetic stock JAX, received arithmetic repjax"),
        (["--epochs", "0"], "--epochs of at least 1"),
    ],
)
def test_resume_needs_the_same_options(run, saved, tmp_path, options, message):
    path = tmp_path / "checkpoint.npz"
    path.write_bytes(saved)
    status, captured = run("--epochs", "2", *options, "--resume", str(path), "--save", str(path))
    assert status == 2
    assert message in captured.err and captured.err.count("\n") == 1
    assert path.read_bytes() == saved


def test_resume_needs_a_checkpoint_of_this_program(run, tmp_path):
    path = tmp_path / "checkpoint.npz"
    repjax.checkpoint.save(path, {"a": np.ones(1)})
    status, captured = run("--resume", str(path))
    assert status == 2
    assert "expected a checkpoint of this program" in captured.err


@pytest.mark.parametrize(
    "options",
    [
        ["--epochs", "-1"],
        ["--epochs", "x"],
        ["--batch-size", "0"],
        ["--seed", "-1"],
        ["--seed", str(2**32)],
        ["--learning-rate", "0"],
        ["--learning-rate", "nan"],
        ["--learning-rate", "inf"],
        ["--limit", "0"],
        ["--model", "lenet2"],
        ["--mode", "fast"],
    ],
)
def test_wrong_option_values(example, capsys, options):
    with pytest.raises(SystemExit) as caught:
        example.main(options)
    assert caught.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"error: argument {options[0]}: " in message
    assert options[1] in message


def test_batches_larger_than_the_data(run):
    status, captured = run("--limit", "10")
    assert status == 2
    assert "--batch-size to be at most 10, the number of training images, received 16" in (
        captured.err
    )
