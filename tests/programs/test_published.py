"""The networks of the literature and their recipes: sizes, definitions, one set of bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest

import repjax
from helpers import published
from helpers.networks import values
from helpers.paths import ROOT, TESTS
from repjax.models import Forecaster, ResNet38, ResNet56, WideResNet28x10, recipes
from repjax.verify import settings

#: What stands in for other machines, and which networks are tried there: without kernels the
#: compiler takes minutes for the deep ones.
SETTINGS = {
    "SSE4_2+kernels=off+devices=2": ["lenet1"],
    "AVX2+kernels=off": ["lenet5", "forecaster"],
    "AVX2+kernels=AVX2+devices=8": ["lenet4", "lenet5", "forecaster", "resnet38"],
    "AVX+kernels=PLAIN": ["lenet1", "lenet4", "lenet5", "resnet38", "resnet56", "wrn-28-10"],
}


# --- sizes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "trainable"),
    [
        (ResNet38(), 565_386),
        (ResNet56(), 857_706),
        (WideResNet28x10(), 36_479_194),
        (WideResNet28x10(classes=100), 36_536_884),
    ],
    ids=["resnet38", "resnet56", "wrn-28-10, 10 classes", "wrn-28-10, 100 classes"],
)
def test_parameters_of_residual_networks(model, trainable):
    images = np.zeros((2, 32, 32, 3), np.float32)
    logits, variables = jax.eval_shape(model.init_with_output, jax.random.key(0), images)
    assert sum(x.size for x in jax.tree.leaves(variables["params"])) == trainable
    assert (logits.shape, logits.dtype) == ((2, model.classes), np.float32)
    # Convolutions of 3x3, and an affine layer: what the name counts.  Two stages of the narrow
    # networks, and three of the wide one, begin with a projection.
    kernels = [
        x for path, x in jax.tree.leaves_with_path(variables["params"]) if "kernel" in str(path)
    ]
    squares = [x for x in kernels if x.shape[:2] == (3, 3)]
    projections = [x for x in kernels if x.shape[:2] == (1, 1)]
    assert len(squares) == 1 + 6 * model.blocks
    assert len(projections) == (3 if model.widths[0] != 16 else 2)
    averages = jax.tree.leaves(variables["batch_stats"])
    assert len(averages) == 2 * (1 + 6 * model.blocks)


def test_parameters_of_the_forecaster():
    windows = np.zeros((3, 24), np.float32)
    forecasts, variables = jax.eval_shape(Forecaster().init_with_output, jax.random.key(0), windows)
    assert sum(x.size for x in jax.tree.leaves(variables)) == 16_961
    assert (forecasts.shape, forecasts.dtype) == ((3,), np.float32)


@pytest.mark.parametrize(
    ("model", "wrong"),
    [
        (ResNet38(), np.zeros((2, 32, 32), np.float32)),
        (ResNet38(), np.zeros((2, 32, 32, 3), np.uint8)),
        (Forecaster(), np.zeros((2, 24, 1), np.float32)),
        (Forecaster(), np.zeros((2, 24), np.int32)),
    ],
)
def test_wrong_inputs(model, wrong):
    with pytest.raises(ValueError, match=r"expected float32 .* received .* of shape .*; "):
        jax.eval_shape(model.init, jax.random.key(0), wrong)


# --- recipes ------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", [0.0, -1.0])
def test_augmentation_moves_pixels_as_the_bits_say(fill):
    images, key = values((40, 9, 7, 2), 5), jax.random.key(6)
    bits = np.asarray(jax.random.bits(key, (40, 3), np.uint32))
    expected = []
    for image, (flip, down, right) in zip(images, bits, strict=True):
        image = image[:, ::-1] if flip >> 31 else image
        padded = np.full((17, 15, 2), fill, np.float32)
        padded[4:13, 4:11] = image
        expected.append(padded[down % 9 :][:9, right % 9 :][:, :7])
    assert len({(x[0] >> 31, x[1] % 9, x[2] % 9) for x in bits.tolist()}) > 20
    for wrap in (jax.jit, repjax.reproducible):
        moved = np.asarray(wrap(lambda k, x: recipes.augment(k, x, fill=fill))(key, images))
        np.testing.assert_array_equal(moved.view(np.uint32), np.stack(expected).view(np.uint32))


@pytest.mark.parametrize(
    ("recipe", "decay", "factor", "epochs"),
    [
        (recipes.RESNET, 2e-4, 0.1, (81, 122)),
        (recipes.WIDE_RESNET, 5e-4, 0.2, (60, 120, 160)),
    ],
    ids=["resnet", "wide"],
)
def test_the_rate_the_momentum_and_the_penalty(recipe, decay, factor, epochs):
    """One step an epoch, beside the definition in NumPy's float32."""
    f = np.float32
    optimizer = recipe.optimizer(1)
    params = {"layer": {"kernel": f(0.75), "bias": f(-0.5)}}
    state = optimizer.init(params)

    @repjax.reproducible
    def step(params, state, gradients):
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    expected = {name: (x, f(0)) for name, x in params["layer"].items()}
    for n, gradient in enumerate(values((170,), 7)):
        rate = f(0.1)
        for boundary in epochs:
            rate = rate * f(factor) if n >= boundary else rate
        for name, (x, trace) in expected.items():
            g = gradient + f(decay) * x if name == "kernel" else gradient
            trace = g + f(0.9) * trace
            expected[name] = (x + -rate * (g + f(0.9) * trace), trace)
        params, state = step(params, state, {"layer": dict.fromkeys(("kernel", "bias"), gradient)})
        for name, (x, _) in expected.items():
            got = np.asarray(params["layer"][name])
            assert got.view(np.uint32) == x.view(np.uint32), (n, name)


def test_steps_draw_anew_and_by_their_number_alone():
    """The flips of a step are a function of the key and of how many steps there were."""
    seen = []
    recipe = recipes.RESNET

    class Pixels(recipes.nn.Module):
        @recipes.nn.compact
        def __call__(self, images, train=False):
            jax.debug.callback(lambda x: seen.append(repjax.digest(np.asarray(x))), images)
            return recipes.nn.Dense(3)(images.reshape(len(images), -1))

    program = recipes.program(Pixels(), recipe, 1)
    images, targets = values((8, 6, 6, 1), 8), np.arange(8, dtype=np.int32) % 3
    state = program.initialize(jax.random.key(0), images)
    seen.clear()
    step = jax.jit(program.step)
    for state_ in (state, state, {**state, "step": state["step"] + 1}):
        jax.block_until_ready(step(state_, jax.random.key(1), images, targets))
        jax.effects_barrier()
    again, same, other = (seen[len(seen) // 3 * n] for n in range(3))
    assert again == same != other


# --- bits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", published.CASES)
def test_this_process(name):
    assert published.digest(name) == published.golden(name)


def test_plain_jax_has_other_bits():
    """Negative control."""
    assert published.digest("lenet1", jax.jit) != published.golden("lenet1")


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="instruction sets are a CPU matter")
@pytest.mark.parametrize("words", SETTINGS)
def test_settings(words):
    setting = settings.parse(words)
    names = SETTINGS[words]
    result = subprocess.run(
        [sys.executable, "-m", "helpers.published", *names],
        env={**os.environ, **setting.environment, "JAX_PLATFORMS": "cpu"}
        | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, TESTS)))},
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {name: published.golden(name) for name in names}


def test_a_golden_of_another_contract_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "published.json"
    path.write_text(json.dumps({"contract": 0, "digests": {}}))
    monkeypatch.setattr(published, "GOLDENS", path)
    with pytest.raises(ValueError, match="expected goldens of contract"):
        published.golden("lenet1")
