"""Train LeNet on handwritten digits, with the same bits on every machine.

    python examples/train_digits.py
    python examples/train_digits.py --model lenet1 --optimizer adam --save lenet1.npz
    python examples/train_digits.py --data /path/to/mnist --epochs 2

Without --data, the digits are the 1,797 real ones that scikit-learn brings along.  With
--data, any data set in MNIST's IDX format: MNIST itself, Fashion-MNIST, KMNIST, ...

The last line of standard output is the digest of the trained parameters.  Everything on
standard output is a function of the options and the data alone, so two machines' outputs
can be compared with diff; times and progress go to standard error.  Only --mode plain,
which is stock JAX, makes no such promise.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import itertools
import json
import math
import os
import pathlib
import struct
import sys
import time
import typing
import zlib
from collections.abc import Callable
from types import ModuleType

import flax.linen
import jax
import numpy as np
import optax

import repjax
from repjax import checkpoint
from repjax.models import LeNet1, LeNet4, LeNet5
from repjax.verify import hex_bits

MODELS = {"lenet1": LeNet1, "lenet4": LeNet4, "lenet5": LeNet5}
LEARNING_RATES = {"sgd": 0.2, "adam": 0.003}
EVALUATION_BATCH = 256


class UserError(Exception):
    """Something that the user can mend: shown as one sentence, exit status 2."""


# Data.  Pixels stay 8-bit integers until a batch is needed; then a table turns them into
# float32, so that the only rounding is the table's.


class Split(typing.NamedTuple):
    pixels: np.ndarray  # uint8 (count, height, width)
    labels: np.ndarray  # int32 (count,)


class Data(typing.NamedTuple):
    name: str
    train: Split
    held_out: Split
    levels: np.ndarray  # float32: the value of each pixel level
    classes: int

    def images(self, split: Split, indices) -> np.ndarray:
        """float32 images (count, height, width, 1) between -1 (background) and 1."""
        return self.levels[split.pixels[indices]][..., np.newaxis]


def load_digits(size: int) -> Data:
    """scikit-learn's 8x8 digits, every pixel repeated 3 or 4 times, centred in size x size.

    Within each class, in the order of the file, every fifth digit is held out.  Pixels are
    integers p from 0 to 16; their values p/8 - 1 are exact.
    """
    try:
        from sklearn import datasets
    except ImportError:
        raise UserError(
            "expected scikit-learn, which holds the built-in digits, but it is not installed; "
            "run `pip install scikit-learn` or give --data DIR"
        ) from None
    source = datasets.load_digits()
    labels = source.target.astype(np.int32)
    pixels = source.images.astype(np.uint8)
    repeat = size // pixels.shape[1]
    pixels = center(pixels.repeat(repeat, axis=1).repeat(repeat, axis=2), size)
    held_out = np.zeros(len(labels), bool)
    for label in range(10):
        held_out[np.flatnonzero(labels == label)[4::5]] = True
    return Data(
        name="scikit-learn's digits",
        train=Split(pixels[~held_out], labels[~held_out]),
        held_out=Split(pixels[held_out], labels[held_out]),
        levels=np.arange(-8, 9).astype(np.float32) / np.float32(8),
        classes=10,
    )


def load_idx(folder: pathlib.Path, size: int) -> Data:
    """A data set in MNIST's IDX format, centred in size x size.

    Pixels are integers p from 0 to 255; their values (2p - 255)/255 are NumPy float32
    divisions, which are IEEE 754's, correctly rounded: the same 256 values everywhere.
    """
    if not folder.is_dir():
        raise UserError(f"expected --data to be a folder with IDX files, received {folder}")
    train, held_out = (load_idx_split(folder, prefix, size) for prefix in ("train", "t10k"))
    return Data(
        name=str(folder),
        train=train,
        held_out=held_out,
        levels=np.arange(-255, 256, 2).astype(np.float32) / np.float32(255),
        classes=max(10, 1 + int(train.labels.max()), 1 + int(held_out.labels.max())),
    )


def load_idx_split(folder: pathlib.Path, prefix: str, size: int) -> Split:
    images_path = find_idx(folder, f"{prefix}-images", 3)
    labels_path = find_idx(folder, f"{prefix}-labels", 1)
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if len(images) != len(labels) or len(images) == 0:
        raise UserError(
            f"expected as many labels as images and at least one, received {len(images)} in "
            f"{images_path} and {len(labels)} in {labels_path}; get both files from one source"
        )
    if max(images.shape[1:]) > size:
        raise UserError(
            f"expected images of at most {size}x{size}, received {images.shape[1]}x"
            f"{images.shape[2]} in {images_path}; choose another --model or scale them down"
        )
    return Split(center(images, size), labels.astype(np.int32))


def find_idx(folder: pathlib.Path, stem: str, dimensions: int) -> pathlib.Path:
    names = [
        f"{stem}{separator}idx{dimensions}-ubyte{suffix}"
        for separator, suffix in itertools.product("-.", ("", ".gz"))
    ]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"expected one of {', '.join(names)} in {folder}, received none; add it")


def read_idx(path: pathlib.Path, dimensions: int) -> np.ndarray:
    """One IDX file of unsigned bytes, gzip-compressed or not, as a uint8 array."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise UserError(
                f"expected a complete gzip file, received {path} ({error}); download it again"
            ) from None
    magic = 0x800 | dimensions  # 0, 0, type 8 (unsigned byte), number of dimensions
    header = 4 + 4 * dimensions
    received = int.from_bytes(data[:4], "big")
    if len(data) >= 4 and received != magic:
        raise UserError(
            f"expected the IDX magic number 0x{magic:08x}, received 0x{received:08x} in {path}; "
            "give MNIST's format: 8-bit images in idx3 files, 8-bit labels in idx1 files"
        )
    shape = struct.unpack_from(f">{dimensions}I", data, 4) if len(data) >= header else ()
    if len(data) < header or len(data) != header + math.prod(shape):
        expected = header + math.prod(shape) if shape else f"at least {header}"
        raise UserError(
            f"expected {expected} bytes of IDX data, received {len(data)} in {path}; "
            "the file is cut short or damaged, download it again"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def center(pixels: np.ndarray, size: int) -> np.ndarray:
    """Images with a border of zeros, the background, that makes them size x size."""
    margins = [(size - n) // 2 for n in pixels.shape[1:]]
    borders = [
        (before, size - n - before) for before, n in zip(margins, pixels.shape[1:], strict=True)
    ]
    return np.pad(pixels, [(0, 0), *borders])


# Training.


class Mode(typing.NamedTuple):
    """One way to run the same program."""

    layers: ModuleType  # where the model takes its layers from
    compile: Callable  # jax.jit or repjax.reproducible
    scope: Callable  # a context manager to run under
    optimizer: Callable  # what to do with an optax optimizer
    cross_entropy: Callable  # (logits, labels) -> the mean over the batch
    apply_updates: Callable


def stock_cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def explicit_cross_entropy(logits, labels):
    losses = repjax.nn.softmax_cross_entropy_with_integer_labels(logits, labels)
    return repjax.numpy.mean(losses)


def make_mode(name: str) -> Mode:
    stock = Mode(
        layers=flax.linen,
        compile=jax.jit,
        scope=contextlib.nullcontext,
        optimizer=lambda transformation: transformation,
        cross_entropy=stock_cross_entropy,
        apply_updates=optax.apply_updates,
    )
    if name == "plain":
        return stock
    if name == "reproducible":
        return stock._replace(compile=repjax.reproducible)
    if name == "switch":
        return stock._replace(scope=repjax.enabled)
    return Mode(
        layers=repjax.nn,
        compile=jax.jit,
        scope=contextlib.nullcontext,
        optimizer=repjax.optim.reproducible,
        cross_entropy=explicit_cross_entropy,
        apply_updates=repjax.optim.apply_updates,
    )


class Trainer:
    """A model, its optimizer and its compiled functions."""

    def __init__(self, model, transformation, mode: Mode):
        def initialize(key):
            images = np.zeros((1, *model.input_shape), np.float32)
            params = model.init(key, images)["params"]
            return {"params": params, "optimizer": transformation.init(params)}

        def step(state, images, labels):
            def loss(params):
                return mode.cross_entropy(model.apply({"params": params}, images), labels)

            value, gradients = jax.value_and_grad(loss)(state["params"])
            updates, optimizer = transformation.update(
                gradients, state["optimizer"], state["params"]
            )
            params = mode.apply_updates(state["params"], updates)
            return {"params": params, "optimizer": optimizer}, value

        def logits(params, images):
            return model.apply({"params": params}, images)

        self.state_shape = lambda key: jax.eval_shape(initialize, key)
        self.initialize = mode.compile(initialize)
        self.step = mode.compile(step)
        self.logits = mode.compile(logits)


def batches(key, epoch: int, count: int, batch_size: int) -> np.ndarray:
    """The indices of an epoch's batches, (steps, batch_size).

    The order is that of one random 32-bit integer per image, sorted on the host, so that it
    only depends on threefry's bits.  The `count % batch_size` images that are left over sit
    this epoch out, which keeps the batch's shape, and so the compiled program, fixed.
    """
    bits = np.asarray(jax.random.bits(jax.random.fold_in(key, epoch), (count,), np.uint32))
    steps = count // batch_size
    return np.argsort(bits, kind="stable")[: steps * batch_size].reshape(steps, batch_size)


def train_epoch(trainer: Trainer, state, data: Data, indices, description: str):
    """Train on every batch; returns the state and the mean of the batches' losses."""
    losses = []
    for batch in progress(indices, description):
        images = data.images(data.train, batch)
        state, loss = trainer.step(state, images, data.train.labels[batch])
        losses.append(loss)
    # An exact sum on the host, rounded once, then one division.
    return state, math.fsum(float(loss) for loss in losses) / len(losses)


def predict(trainer: Trainer, params, data: Data) -> np.ndarray:
    """The logits of the held-out images, float32 (count, classes)."""
    count = len(data.held_out.labels)
    parts = []
    for start in range(0, count, EVALUATION_BATCH):
        # The last batch is filled up with copies of the last image, to keep one shape.
        batch = np.minimum(np.arange(start, start + EVALUATION_BATCH), count - 1)
        parts.append(np.asarray(trainer.logits(params, data.images(data.held_out, batch))))
    return np.concatenate(parts)[:count]


def progress(items, description: str):
    """The items, behind a progress bar if there is a terminal and tqdm to draw it."""
    if not sys.stderr.isatty():
        return items
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    return tqdm(items, desc=description, leave=False, file=sys.stderr)


# The command line.


def parse(argv) -> argparse.Namespace:
    def number(kind, low, high, text):
        def convert(value):
            try:
                result = kind(value)
            except ValueError:
                result = None
            if result is None or not low <= result <= high:
                raise argparse.ArgumentTypeError(f"expected {text}, received {value!r}")
            return result

        return convert

    count = number(int, 1, sys.maxsize, "a positive integer")
    parser = argparse.ArgumentParser(
        description="Train LeNet on handwritten digits, with the same bits on every machine.",
        epilog="The last line of output is the digest of the trained parameters.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=pathlib.Path, metavar="DIR", help="a folder in MNIST's IDX format")
    add("--model", choices=MODELS, default="lenet5", help="network")
    add("--activation", choices=("tanh", "relu"), default="tanh", help="squashing; sgd suits tanh")
    add("--pool", choices=("avg", "max"), default="avg", help="subsampling")
    add(
        "--mode",
        choices=("reproducible", "explicit", "switch", "plain"),
        default="reproducible",
        help="repjax.reproducible, repjax's own modules, the global switch, or stock JAX",
    )
    orders = ("sequential", "order_independent")
    add("--contraction", choices=orders, default=orders[0], help="order of matrix products")
    epochs = number(int, 0, sys.maxsize, "an integer of at least 0")
    add("--epochs", type=epochs, default=10, metavar="N", help="passes over the data")
    add("--batch-size", type=count, default=64, metavar="N", help="images per step")
    seed = number(int, 0, 2**32 - 1, "an integer from 0 to 4294967295")
    add("--seed", type=seed, default=0, metavar="N", help="of initial weights and order")
    add("--optimizer", choices=LEARNING_RATES, default="adam", help="sgd has momentum 0.9")
    rate = number(float, math.ulp(0.0), sys.float_info.max, "a positive number")
    add("--learning-rate", type=rate, metavar="R", help=f"by optimizer: {LEARNING_RATES}")
    add("--limit", type=count, metavar="N", help="use only the first N training images")
    add("--save", type=pathlib.Path, metavar="PATH", help="write a checkpoint after each epoch")
    add("--resume", type=pathlib.Path, metavar="PATH", help="go on from a checkpoint")
    add("--json", type=pathlib.Path, metavar="PATH", help="write the results as JSON")
    options = parser.parse_args(argv)
    if options.learning_rate is None:
        options.learning_rate = LEARNING_RATES[options.optimizer]
    return options


def bit_relevant(options, data_digest: str) -> dict:
    """The options that decide the bits; a resumed run must have the same."""
    names = ("model", "activation", "pool", "contraction", "batch_size", "seed", "optimizer")
    return {
        **{name: getattr(options, name) for name in (*names, "learning_rate")},
        "arithmetic": "stock JAX" if options.mode == "plain" else "repjax",
        "data": data_digest,
    }


def resume(path, like, settings: dict, epochs: int):
    """The state and the history of a checkpoint, checked against this run's options."""
    metadata = checkpoint.load_metadata(path)
    if not isinstance(metadata, dict) or metadata.get("program") != "train_digits":
        raise UserError(f"expected a checkpoint of this program, received {path}; give another")
    saved = metadata["settings"]
    differing = [name for name in settings if settings[name] != saved.get(name)]
    if differing:
        raise UserError(
            f"expected the options that {path} was saved with, "
            + ", ".join(f"{name} {saved.get(name)}" for name in differing)
            + ", received "
            + ", ".join(f"{name} {settings[name]}" for name in differing)
            + "; give the same data and options"
        )
    history = metadata["history"]
    if len(history) > epochs:
        raise UserError(
            f"expected --epochs of at least {len(history)}, the epochs in {path}, received "
            f"{epochs}; raise it"
        )
    state, _ = checkpoint.load(path, like)
    return state, history


def check_options(options, data: Data) -> None:
    if options.limit is not None and options.limit > len(data.train.labels):
        raise UserError(
            f"expected --limit to be at most {len(data.train.labels)}, the number of training "
            f"images, received {options.limit}; lower it"
        )
    count = options.limit or len(data.train.labels)
    if options.batch_size > count:
        raise UserError(
            f"expected --batch-size to be at most {count}, the number of training images, "
            f"received {options.batch_size}; lower it"
        )
    for name in ("save", "json"):
        path = getattr(options, name)
        if path is not None and not path.absolute().parent.is_dir():
            raise UserError(
                f"expected --{name} to lie in an existing folder, received {path}; "
                f"create the folder first"
            )


def run(options) -> dict:
    """Train as the options say, print, and return the results."""
    network = MODELS[options.model]
    size = network.input_shape[0]
    data = load_idx(options.data, size) if options.data else load_digits(size)
    check_options(options, data)
    data = data._replace(train=Split(*(part[: options.limit] for part in data.train)))
    data_digest = repjax.digest(data._asdict() | {"name": None})
    mode = make_mode(options.mode)
    model = network(
        classes=data.classes,
        activation=options.activation,
        pool=options.pool,
        layers=mode.layers,
    )
    transformation = {
        "sgd": lambda rate: optax.sgd(rate, momentum=0.9),
        "adam": optax.adam,
    }[options.optimizer](options.learning_rate)
    trainer = Trainer(model, mode.optimizer(transformation), mode)
    initial_key, order_key = jax.random.split(jax.random.key(options.seed, impl="threefry2x32"))
    settings = bit_relevant(options, data_digest)

    print(f"data {data.name}: {len(data.train.labels)} training images", end=", ")
    print(f"{len(data.held_out.labels)} held out, {size}x{size}, {data_digest}")
    print(f"model {options.model}, activation {options.activation}, pool {options.pool}")
    print(
        f"training mode {options.mode}, {options.optimizer}, learning rate "
        f"{options.learning_rate}, batches of {options.batch_size}, seed {options.seed}",
        flush=True,
    )

    with mode.scope():
        if options.resume:
            like = trainer.state_shape(initial_key)
            state, history = resume(options.resume, like, settings, options.epochs)
        else:
            state, history = trainer.initialize(initial_key), []
        seconds = []
        for epoch in range(len(history), options.epochs):
            start = time.perf_counter()
            title = f"epoch {epoch + 1}/{options.epochs}"
            indices = batches(order_key, epoch, len(data.train.labels), options.batch_size)
            state, loss = train_epoch(trainer, state, data, indices, title)
            logits = predict(trainer, state["params"], data)
            correct = int(np.sum(logits.argmax(axis=1) == data.held_out.labels))
            seconds.append(time.perf_counter() - start)
            history.append({"loss": hex_bits(loss), "correct": correct})
            print(
                f"{title}: loss {loss:.6f} ({hex_bits(loss)}), "
                f"accuracy {percentage(correct, len(data.held_out.labels))}",
                flush=True,
            )
            print(f"{title}: {seconds[-1]:.2f} s", file=sys.stderr, flush=True)
            if options.save:
                metadata = {"program": "train_digits", "settings": settings, "history": history}
                checkpoint.save(options.save, state, metadata)
        logits = predict(trainer, state["params"], data)

    correct = logits.argmax(axis=1) == data.held_out.labels
    per_class = []
    for label in range(data.classes):
        members = correct[data.held_out.labels == label]
        per_class.append([int(members.sum()), len(members)])
        if len(members):
            print(f"class {label}: accuracy {percentage(*per_class[-1])}")
    print(f"held out: accuracy {percentage(int(correct.sum()), len(correct))}")
    print(f"logits {repjax.digest(logits)}")
    result = repjax.digest(state["params"])
    print(f"digest {result}", flush=True)
    return {
        "settings": settings,
        "mode": options.mode,
        "epochs": history,
        "seconds": seconds,
        "correct": int(correct.sum()),
        "held_out": len(correct),
        "per_class": per_class,
        "logits": repjax.digest(logits),
        "digest": result,
        "jax": jax.__version__,
        "platform": jax.default_backend(),
    }


def percentage(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} % ({part} of {whole})"


def main(argv=None) -> int:
    options = parse(argv)
    jax.config.update("repjax_contraction", options.contraction)
    try:
        results = run(options)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + os.linesep)
    except (UserError, checkpoint.CheckpointError, OSError) as error:
        print(f"train_digits.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
