"""The training of RepDL's README, in JAX: LeNet with PyTorch's initial weights and orders.

    python studies/repdl.py --quick
    python studies/repdl.py --data /path/to/mnist
    python studies/repdl.py --output studies/results/repdl.json

RepDL (Xie, Zhang and Chen 2025, https://github.com/microsoft/RepDL) prints three hashes of its
example, ``examples/mnist_trainig.py``: of the initial model, of the model after two epochs of MNIST
and of the logits of the test images.  This program computes the same ones, without PyTorch: the
weights and the order of the images come from PyTorch's generator, written once more in
``repjax.repdl``, and the training is that of ``repjax.repdl``.

The first hash needs no data.  With MNIST's four files (--data) the others can be compared, too.
Without them the images are Fashion-MNIST's, for which RepDL's own hashes stand below: the exit
status is 1 if they do not come out.

A run with --output that is interrupted goes on where its last 100 steps ended.  Standard output is
a function of the options and the data alone; progress goes to standard error.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import Any

import jax
import numpy as np
import optax
import rows

import data
import repjax
from data import DataError
from repjax import checkpoint, repdl
from repjax.verify.progress import counter

#: What RepDL's README shows.
PUBLISHED = {
    "initial": "2a2d133895b1684e55d0f152ead2914b55adc551d9790a4b4585309b79c60362",
    "trained": "31ee86a7f75dbd76bac22f209617eb7349f93b0ede116dba924f328cac3013f1",
    "logits": "0ca34dcd37105b4af690c46a62407b4b9b097d1063864c6d99f4309aeb4bca3e",
    "accuracy": 0.9804,
}
#: What RepDL of November 2025 itself prints with PyTorch 2.13 on a CPU, of Fashion-MNIST.
OF_FASHION_MNIST = {
    "initial": PUBLISHED["initial"],
    "trained": "b0f858c6885e8a64df0930de08901ca5d4f7962339ed146e8e9f183d2b41134d",
    "logits": "005b615a6939b67f3bf2e8c4e5e9d4debea08ffc8065ccbd8819145d359cb8d1",
    "accuracy": 0.8668,
}
SEED, EPOCHS, BATCH, RATE = 0, 2, 100, 0.01
QUICK = 12
KEPT_EVERY = 100

LAYERS = {
    "net.0": (repdl.init_conv2d, 1, 6, 5),
    "net.3": (repdl.init_conv2d, 6, 16, 5),
    "net.7": (repdl.init_linear, 16 * 5 * 5, 120),
    "net.9": (repdl.init_linear, 120, 84),
    "net.11": (repdl.init_linear, 84, 10),
}
NAMES = [f"{layer}.{part}" for layer in LAYERS for part in ("weight", "bias")]


def initial(generator: repdl.Generator) -> dict[str, np.ndarray]:
    """The parameters of the README's model by PyTorch's names, as its layers are made in turn."""
    state = {}
    for name, (init, *sizes) in LAYERS.items():
        state[f"{name}.weight"], state[f"{name}.bias"] = init(generator, *sizes)
    return state


def logits(params: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    """float32[batch, 1, 28, 28] to float32[batch, 10]."""

    def layer(name):
        return params[f"{name}.weight"], params[f"{name}.bias"]

    x = repdl.max_pool2d(repdl.relu(repdl.conv2d(images, *layer("net.0"), padding=2)), 2)
    x = repdl.max_pool2d(repdl.relu(repdl.conv2d(x, *layer("net.3"))), 2)
    x = repdl.relu(repdl.linear(x.reshape(len(x), -1), *layer("net.7")))
    return repdl.linear(repdl.relu(repdl.linear(x, *layer("net.9"))), *layer("net.11"))


def loss(params, images, labels):
    return repdl.cross_entropy(logits(params, images), labels)


optimizer = repdl.adam(RATE)


@repjax.reproducible
def train_step(params, state, images, labels):
    value, gradients = jax.value_and_grad(loss)(params, images, labels)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def orders(count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The initial parameters and the images of each step, int64[steps, batch].

    RepDL's program makes the layers of PyTorch, and then its own, which draw once more before they
    take the weights of the first.
    """
    generator = repdl.Generator(SEED)
    params = initial(generator)
    initial(generator)
    kept = count - count % BATCH
    epochs = [generator.epoch(count)[:kept].reshape(-1, BATCH) for _ in range(EPOCHS)]
    return params, np.concatenate(epochs)


def images_of(split: data.Split, indices) -> np.ndarray:
    """As torchvision's ToTensor: float32[batch, 1, 28, 28], level / 255 correctly rounded."""
    levels = np.arange(256).astype(np.float32) / np.float32(255)
    return levels[split.pixels[indices]][:, np.newaxis]


def run(source: data.Data, steps: int | None, kept: pathlib.Path | None) -> dict[str, Any]:
    """Train, and give the hashes, the losses of every hundredth step and the accuracy."""
    params, batches = orders(len(source.train.labels))
    first = repdl.torch_hash(params, NAMES)
    print(f"Hash of the initial model: {first}")
    batches = batches[:steps]
    params, state = jax.tree.map(jax.numpy.asarray, params), None
    state, losses = optimizer.init(params), []
    if kept and kept.is_file():
        of_this = {"data": source.name, "steps": len(batches)}
        (params, state), metadata = checkpoint.load(kept, (params, state))
        if metadata["of"] != of_this:
            raise DataError(
                f"expected {kept} to be of {of_this}, received {metadata['of']}; remove it"
            )
        losses = metadata["losses"]
    with counter("steps") as progress:
        for step in range(len(losses), len(batches)):
            chosen = batches[step]
            images, labels = images_of(source.train, chosen), source.train.labels[chosen]
            params, state, value = train_step(params, state, images, labels)
            losses.append(float(value).hex())
            progress(step + 1)
            if kept and (step + 1) % KEPT_EVERY == 0:
                of_this = {"data": source.name, "steps": len(batches)}
                checkpoint.save(kept, (params, state), {"of": of_this, "losses": losses})
    for step, text in enumerate(losses, 1):
        if step % KEPT_EVERY == 0 or step == len(losses):
            print(f"    step {step}/{len(losses)}, loss {text} ({float.fromhex(text):.4f})")
    trained = repdl.torch_hash(params, NAMES)
    print(f"Hash of the trained model: {trained}")
    forward, count = repjax.reproducible(logits), len(source.held_out.labels)
    outputs = [
        np.asarray(forward(params, images_of(source.held_out, slice(at, at + BATCH))))
        for at in range(0, count - count % BATCH, BATCH)
    ]
    outputs = np.concatenate(outputs)
    right = int((outputs.argmax(1) == source.held_out.labels[: len(outputs)]).sum())
    print(f"Test accuracy of the model on the {len(outputs)} test images: {right / len(outputs)}")
    print(f"Hash of the logits: {repdl.torch_hash(outputs)}")
    return {
        "data": source.name,
        "steps": len(losses),
        "initial": first,
        "trained": trained,
        "logits": repdl.torch_hash(outputs),
        "accuracy": right / len(outputs),
        "losses": {str(k): losses[k - 1] for k in range(100, len(losses) + 1, 100)},
        "digest": repjax.digest(params),
    }


def load(folder: pathlib.Path | None) -> data.Data:
    if folder is None:
        return data.fashion_mnist()
    return data.fashion_mnist(28, folder)._replace(name=str(folder.resolve().name))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, help="folder with MNIST's four IDX files")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} steps only")
    parser.add_argument("--output", type=pathlib.Path, help="JSON file of the results")
    options = parser.parse_args(arguments)
    kept = options.output and options.output.with_suffix(".state.npz")
    try:
        rows.require_folder(options.output and options.output.parent)
        source = load(options.data)
        found = run(source, QUICK if options.quick else None, kept)
        if options.output:
            rows.write(options.output, "repdl", found)
            kept.unlink(missing_ok=True)
    except (DataError, checkpoint.CheckpointError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    agrees = _compare("RepDL's README, MNIST", found, PUBLISHED)
    if options.data or options.quick:
        return 0 if agrees["initial"] else 1
    agrees = _compare("RepDL itself, Fashion-MNIST", found, OF_FASHION_MNIST)
    return 0 if all(agrees.values()) else 1


def _compare(name: str, found: dict[str, Any], expected: dict[str, Any]) -> dict[str, bool]:
    agrees = {key: found[key] == value for key, value in expected.items()}
    print(f"{name}:", ", ".join(f"{k} {'same' if v else 'other'}" for k, v in agrees.items()))
    return agrees


if __name__ == "__main__":
    sys.exit(main())
