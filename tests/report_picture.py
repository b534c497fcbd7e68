"""The picture in docs/instruments.md: ``repjax report`` of two trainings in plain JAX.

    python tests/report_picture.py [--keep FOLDER]

trains the LeNet-5 of examples/first_difference.py twice by gradient descent, compiled for SSE4.2
and for AVX2, writes the page about the two runs, and has Chromium draw the top of it
to docs/report.png.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from PIL import Image  # matplotlib depends on it

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "report.png"
ISAS = ("SSE4_2", "AVX2")
EPOCHS, STEPS, TESTED, RATE = 12, 20, 500, 0.5
WIDTH, HEIGHT = 1000, 1640


def train(path: str) -> None:
    """One of the two runs."""
    sys.path.insert(0, str(ROOT / "examples"))
    import first_difference as example
    import jax
    import numpy as np

    from repjax import checkpoint
    from repjax.verify import Run, training

    labels, images = example.LABELS[-TESTED:], example.IMAGES[-TESTED:]
    gradient = jax.jit(jax.value_and_grad(example.loss))
    predict = jax.jit(lambda params: example.model.apply(params, images).argmax(1))
    params, _ = example.state()
    with Run(path, metadata={"rate": RATE, "steps of an epoch": STEPS}) as run:
        (run.path / training.CHECKPOINTS).mkdir()
        run.step(0, state=params)
        for n in range(1, EPOCHS * STEPS + 1):
            batch = example.batch((n - 1) % STEPS)
            loss, slope = gradient(params, *batch)
            params = jax.tree.map(lambda w, g: w - RATE * g, params, slope)
            run.step(n, state=params, batch=batch)
            if n % STEPS == 0:
                checkpoint.save(run.path / training.CHECKPOINTS / f"{n}.npz", params)
                run.epoch(loss)
                run.evaluate(labels, np.asarray(predict(params), np.int32))
        run.finish(params)


def draw(folder: pathlib.Path, browser: str) -> None:
    for isa in ISAS:
        environment = {**os.environ, "XLA_FLAGS": f"--xla_cpu_max_isa={isa}"}
        command = [sys.executable, __file__, "--train", str(folder / isa)]
        subprocess.run(command, env=environment, check=True)
    command = [sys.executable, "-m", "repjax", "report", *ISAS, "--output", "report.html"]
    subprocess.run(command, cwd=folder)
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    size = f"--window-size={WIDTH},{HEIGHT}"
    page = (folder / "report.html").as_uri()
    command = [browser, *options, size, f"--screenshot={folder / 'report.png'}", page]
    subprocess.run(command, check=True)
    with Image.open(folder / "report.png") as picture:
        picture.convert("RGB").quantize(64).save(PICTURE, optimize=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", metavar="FOLDER", help="leave runs and page there")
    parser.add_argument("--train", metavar="RUN", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train)
        return 0
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("expected Chromium, which draws the page; install it", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(arguments.keep or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        draw(folder, browser)
    return 0


if __name__ == "__main__":
    sys.exit(main())
