"""The workaround for TensorFlow's non-determinism, and what it leaves open.

    python studies/workaround.py --quick
    python studies/workaround.py --output studies/results
    python studies/workaround.py --output studies/results --pictures docs/studies

Two Sigma, "A workaround for non-determinism in TensorFlow", 2017, sum 100,000 numbers a hundred
times on a GPU, and train a network 784-1000-1000-10 twice: ``reduce_sum`` and the gradient of a
bias had other bits each time, and products with a column of ones had not.  Here

* the sums are taken a hundred times in one order, a hundred times in other orders, and on several
  platforms, by ``reduce_sum`` and as a product with ones;
* the network is trained in both forms, with a bias that is added and with a column of ones, on two
  platforms, in plain JAX and in repjax.

A product with ones has an order, too, which its library chose; the workaround helps as long as that
choice is the same.  The images are those of --data, a folder with MNIST's four files; without it
Fashion-MNIST's.  A platform is a setting of ``repjax trace``: an instruction set, kernels, devices.

With --output FOLDER the numbers are written to FOLDER/workaround.json, and a study that is
interrupted goes on with the epoch in which it was.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import rows
import workaround_pictures
from jax import lax

import data
import repjax
from data import DataError
from repjax import checkpoint
from repjax.models import perceptron
from repjax.verify import settings, variability
from repjax.verify.progress import counter, is_progress

ORDERS = ("pairwise", "sequential", "order_independent", "exact")
WAYS = ("plain", *ORDERS)
FORMS = ("bias", "ones")
#: Where the network is trained, and where the sums are taken.
PLATFORMS = ("AVX512", "AVX2+kernels=AVX2+devices=2")
SUM_PLATFORMS = ("SSE4_2+kernels=off", "AVX2+kernels=AVX2", "AVX512", "devices=2", "devices=8")
NUMBERS, TIMES, BATCH, EPOCHS, RATE = 100_000, 100, 1000, 5, 1e-3


def program(way: str, function):
    """A function as plain JAX compiles it, or with repjax's order of sums and products."""
    if way == "plain":
        return jax.jit(function)
    contraction = "sequential" if way == "pairwise" else way
    return repjax.reproducible(function, accumulation=way, contraction=contraction)


def split(x: np.ndarray) -> jax.Array:
    """An array whose first axis is split over the devices."""
    mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    return jax.device_put(x, sharding)


# --- sums -----------------------------------------------------------------------------


def numbers() -> np.ndarray:
    """100,000 numbers between 0 and 1, float32."""
    bits = np.random.Generator(np.random.PCG64(0)).integers(0, 2**24, NUMBERS)
    return bits.astype(np.float32) / np.float32(2**24)


def by_reduce_sum(x):
    return jnp.sum(x)


def by_ones(x):
    """The article's: the transpose of a column, times a column of ones."""
    return lax.dot(x[None], jnp.ones((len(x), 1), x.dtype))[0, 0]


SUMS = {"reduce_sum": by_reduce_sum, "product with ones": by_ones}


def sums(times: int) -> dict[str, Any]:
    """Of each sum and way: the numbers of the same order, and of as many others."""
    x, found = numbers(), {}
    orders = np.random.Generator(np.random.PCG64(1))
    permuted = [x[orders.permutation(len(x))] for _ in range(times)]
    for name, function in SUMS.items():
        for way in WAYS:
            f = program(way, function)
            found[f"{name}, {way}"] = {
                "same order": spread([float(f(x)) for _ in range(times)]),
                "other orders": spread([float(f(y)) for y in permuted]),
            }
    return found


def spread(values: list[float]) -> dict[str, Any]:
    return {
        "mean": sum(values) / len(values),
        "max-min": max(values) - min(values),
        "different": len(set(values)),
    }


def sums_here() -> dict[str, str]:
    """The bits of each sum on this platform, its numbers split over the devices."""
    x = split(numbers())
    return {
        f"{name}, {way}": float(program(way, function)(x)).hex()
        for name, function in SUMS.items()
        for way in WAYS
    }


# --- training -------------------------------------------------------------------------


def source(folder: str | None) -> data.Data:
    if folder is None:
        return data.fashion_mnist()
    return data.fashion_mnist(28, folder)._replace(name=pathlib.Path(folder).resolve().name)


def inputs(split: data.Split, indices) -> np.ndarray:
    """float32[batch, 784] in [0, 1]: level / 255."""
    levels = np.arange(256).astype(np.float32) / np.float32(255)
    return levels[split.pixels[indices]].reshape(-1, 784)


def train(form: str, way: str, epochs: int, steps: int | None, kept: str, folder: str | None):
    """The losses of the steps, and of each epoch the article's numbers; weights stay in ``kept``.

    Args:
      kept: a folder for ``EPOCH.npz``, the state after each epoch, from which a run goes on.
    """
    images, ones = source(folder), form == "ones"
    optimizer = optax.adam(RATE)

    def step(params, state, x, labels):
        value, gradients = jax.value_and_grad(perceptron.loss)(params, x, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    def initialize(key):
        params = perceptron.init(key, ones=ones)
        return params, optimizer.init(params)

    step, test = program(way, step), program(way, perceptron.apply)
    tree = program(way, initialize)(jax.random.key(0))
    losses, lines = [], []
    for epoch in range(epochs):
        file = pathlib.Path(kept) / f"{epoch}.npz"
        if file.is_file():
            tree, metadata = checkpoint.load(file, tree)
            losses, lines = metadata["losses"], metadata["lines"]
            continue
        order = np.random.Generator(np.random.PCG64([2, epoch])).permutation(
            len(images.train.labels)
        )
        batches = order[: len(order) - len(order) % BATCH].reshape(-1, BATCH)[:steps]
        with counter("steps") as progress:
            for chosen in batches:
                batch = inputs(images.train, chosen), images.train.labels[chosen]
                *tree, value = step(*tree, *map(split, batch))
                tree = tuple(tree)
                losses.append(float(value).hex())
                progress(len(losses))
        everything = np.arange(len(images.held_out.labels))
        outputs = np.asarray(test(tree[0], inputs(images.held_out, everything)))
        lines.append(
            {
                "correct": int((outputs.argmax(1) == images.held_out.labels).sum()),
                "loss": losses[-1],
                "digest": repjax.digest(in_one_form(tree[0])),
            }
        )
        checkpoint.save(file, tree, {"losses": losses, "lines": lines})
    return {"losses": losses, "epochs": lines}


def in_one_form(params: list) -> list[np.ndarray]:
    """The weights of each layer with the bias as the last row, in both forms."""
    found = []
    for layer in params:
        kernel = np.asarray(layer["kernel"])
        bias = [np.asarray(layer["bias"])[None]] if "bias" in layer else []
        found.append(np.concatenate([kernel, *bias]))
    return found


def weights(file: pathlib.Path) -> np.ndarray:
    """The weights of a kept state, in one row."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for path, x in checkpoint.load_leaves(file).items():
        if path[0] == "0":
            found.setdefault(path[1], {})[path[2]] = x
    layers = [found[k] for k in sorted(found)]
    return np.concatenate([x.ravel() for x in in_one_form(layers)])


# --- the study ------------------------------------------------------------------------


def on(platform: str, *arguments: str) -> Any:
    """What this program prints as a worker on a platform."""
    setting = settings.parse(platform)
    command = [setting.python, str(pathlib.Path(__file__).resolve()), "--worker", *arguments]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **setting.environment}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said = []
        for line in process.stderr:
            if is_progress(line):
                print(f"{platform}: {line}", end="", file=sys.stderr, flush=True)
            else:
                said.append(line)
        output = process.stdout.read()
    if process.returncode:
        reason = said[-1].strip() if said else f"exit status {process.returncode}"
        raise DataError(f"expected a run on {platform}, received an error: {reason}")
    return json.loads(output)


def study(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    quick = options.quick
    epochs, steps = (2, 3) if quick else (options.epochs, None)
    images = source(options.data).name
    found: dict[str, Any] = {"numbers": NUMBERS, "times": 5 if quick else TIMES}
    found["sums"] = sums(found["times"])
    platforms = SUM_PLATFORMS[:2] if quick else SUM_PLATFORMS
    found["sums by platform"] = {platform: on(platform, "sums") for platform in platforms}
    of = {"what": "trainings", "epochs": epochs, "steps": steps, "data": images}
    items = [(way, form, p) for way in ("plain", "sequential") for form in FORMS for p in PLATFORMS]

    def place(way, form, platform) -> pathlib.Path:
        return folder / f"{way}-{form}-{PLATFORMS.index(platform)}"

    def row(item):
        way, form, platform = item
        kept = place(*item)
        kept.mkdir(exist_ok=True)
        words = [form, way, str(epochs), str(steps or 0), str(kept), options.data or ""]
        return on(platform, "train", *words)

    trainings = dict(zip(items, rows.rows(folder / "rows.json", of, items, row), strict=True))
    found["data"] = images
    found["trainings"] = [
        {"way": way, "form": form, "platform": platform, **result}
        for (way, form, platform), result in trainings.items()
    ]
    pairs = [
        ("platforms", w, (w, f, PLATFORMS[0]), (w, f, PLATFORMS[1]))
        for w in ("plain", "sequential")
        for f in FORMS
    ]
    pairs += [
        ("forms", w, (w, "bias", p), (w, "ones", p))
        for w in ("plain", "sequential")
        for p in PLATFORMS
    ]
    found["pairs"] = []
    for between, way, a, b in pairs:
        same = [x == y for x, y in zip(*(trainings[k]["losses"] for k in (a, b)), strict=True)]
        measured = [
            variability.measure("weights", *(weights(place(*k) / f"{e}.npz") for k in (a, b)))
            for e in range(epochs)
        ]
        found["pairs"].append(
            {
                "between": between,
                "way": way,
                "of": a[1] if between == "platforms" else a[2],
                "first loss that differs": None if all(same) else same.index(False) + 1,
                "different losses": same.count(False),
                "vermv": [m.vermv for m in measured],
                "vc": [float(m.vc) for m in measured],
            }
        )
    return found


def show(found: dict[str, Any]) -> None:
    print(f"sums of {found['numbers']} numbers, {found['times']} times")
    for name, s in found["sums"].items():
        same, other = s["same order"], s["other orders"]
        print(
            f"  {name:38}mean {same['mean']:.8f}  max-min {same['max-min']:.6f}, "
            f"in other orders {other['max-min']:.6f} ({other['different']} different)"
        )
    by_platform = found["sums by platform"]
    print(f"different sums on {len(by_platform)} platforms")
    for name in found["sums"]:
        print(f"  {name:38}{len({s[name] for s in by_platform.values()})}")
    print(f"784-1000-1000-10 on {found['data']}")
    for t in found["trainings"]:
        print(f"  {t['way']}, {t['form']}, {t['platform']}")
        for k, line in enumerate(t["epochs"]):
            loss = float.fromhex(line["loss"])
            print(f"    epoch = {k} correct = {line['correct']} loss = {loss:.8f}")
    for p in found["pairs"]:
        first = p["first loss that differs"]
        print(
            f"  two {p['between']}, {p['way']}, {p['of']}: "
            + (f"losses part in step {first}" if first else "all losses the same")
            + f", Vermv of weights {p['vermv'][-1]:.2e}, Vc {p['vc'][-1]:.3f}"
        )


def worker(words: list[str]) -> int:
    if words[0] == "sums":
        print(json.dumps(sums_here()))
    else:
        form, way, epochs, steps, kept, folder = words[1:]
        result = train(form, way, int(epochs), int(steps) or None, kept, folder or None)
        print(json.dumps(result))
    return 0


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, received {text}")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few sums and steps only")
    parser.add_argument(
        "--epochs", type=_positive, default=EPOCHS, help=f"epochs of training; {EPOCHS} without it"
    )
    parser.add_argument("--data", metavar="FOLDER", help="with MNIST's four IDX files")
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", help="of the results")
    parser.add_argument("--pictures", type=pathlib.Path, metavar="FOLDER", help="draw them here")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        if options.worker:
            return worker(options.worker)
        if options.pictures:
            if options.output is None:
                raise DataError("expected --output FOLDER with the results to draw, received none")
            workaround_pictures.draw(options.output, options.pictures)
            return 0
        rows.require_folder(options.output)
        with contextlib.ExitStack() as stack:
            if options.output is None:
                folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            else:
                folder = options.output / "workaround.state"
                folder.mkdir(exist_ok=True)
            found = study(options, folder)
            show(found)
            if options.output:
                rows.write(options.output / "workaround.json", "workaround", found)
                shutil.rmtree(folder)
    except (DataError, checkpoint.CheckpointError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
