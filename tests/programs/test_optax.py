"""Every optimizer, transformation and schedule of optax is covered.

Each is one program: its initial state and two steps on a small problem.  The program under the
switch is the same, to the letter, as that of repjax.reproducible.

    PYTHONPATH=tests python tests/programs/test_optax.py     write the bits: tests/data/optax.json
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from optax import contrib

import repjax
from helpers.audited import module_text
from helpers.bits import assert_same_bits
from helpers.networks import labels, values
from helpers.paths import DATA
from repjax.verify.audit import audit_module

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

DIGESTS = DATA / "optax.json"
PARAMS = {"w": values((3, 2), 0), "b": values(2, 1)}
XS, YS = values((2, 4, 3), 2), values((2, 4, 2), 3)


def _is_matrix(tree):
    return jax.tree.map(lambda x: x.ndim == 2, tree)


def _norm(updates, *_, **__):
    return optax.global_norm(updates)


def _without_extra(transformation):
    return optax.GradientTransformation(
        transformation.init, lambda *arguments: transformation.update(*arguments)
    )


SGD = optax.sgd(0.1)
#: Those that take a gradient of each example.
PER_EXAMPLE = {"contrib.differentially_private_aggregate", "contrib.dpsgd"}
#: Those that take matrices only.
OF_MATRICES = {"contrib.scale_by_muon"}
#: Those whose state grows in the first step.
GROWING = {"measure_with_ema", "monitor", "snapshot"}
#: Those that need other arguments than a learning rate.
MADE: dict[str, Callable[[], optax.GradientTransformation]] = {
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(0.1), 2).gradient_transformation(),
    "adaptive_grad_clip": lambda: optax.adaptive_grad_clip(0.1),
    "add_decayed_weights": lambda: optax.add_decayed_weights(0.1, _is_matrix),
    "add_noise": lambda: optax.add_noise(0.1, 0.5, jax.random.key(0)),
    "apply_if_finite": lambda: optax.apply_if_finite(SGD, 3),
    "chain": lambda: optax.chain(optax.clip(0.5), optax.adam(0.1)),
    "clip": lambda: optax.clip(0.5),
    "clip_by_block_rms": lambda: optax.clip_by_block_rms(0.1),
    "clip_by_global_norm": lambda: optax.clip_by_global_norm(0.1),
    "conditionally_mask": lambda: optax.conditionally_mask(SGD, lambda step, **_: step > 0),
    "conditionally_transform": lambda: optax.conditionally_transform(
        SGD, lambda step, **_: step > 0
    ),
    "ema": lambda: optax.ema(0.9),
    "flatten": lambda: optax.flatten(optax.adam(0.1)),
    "freeze": lambda: optax.freeze(_is_matrix(PARAMS)),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(
        learning_rate=optax.linear_schedule(0.1, 0.01, 3)
    ),
    "inject_stateful_hyperparams": lambda: optax.inject_stateful_hyperparams(optax.sgd)(0.1),
    "lookahead": lambda: optax.lookahead(SGD, 2, 0.5),
    "masked": lambda: optax.masked(optax.adam(0.1), _is_matrix),
    "measure_with_ema": lambda: optax.monitor({"norm": optax.measure_with_ema(_norm, 0.9)}),
    "monitor": lambda: optax.monitor({"norm": _norm}),
    "multi_transform": lambda: optax.multi_transform(
        {True: SGD, False: optax.adam(0.1)}, _is_matrix
    ),
    "named_chain": lambda: optax.named_chain(("first", optax.clip(0.5)), ("second", SGD)),
    "partition": lambda: optax.partition({True: SGD, False: optax.set_to_zero()}, _is_matrix),
    "scale": lambda: optax.scale(0.3),
    "scale_by_backtracking_linesearch": lambda: optax.scale_by_backtracking_linesearch(3),
    "scale_by_schedule": lambda: optax.scale_by_schedule(optax.linear_schedule(0.1, 0.0, 3)),
    "scale_by_zoom_linesearch": lambda: optax.scale_by_zoom_linesearch(3),
    "selective_transform": lambda: optax.selective_transform(
        optax.adam(0.1), freeze_mask=_is_matrix(PARAMS)
    ),
    "snapshot": lambda: optax.snapshot("norm", _norm),
    "stateless": lambda: optax.stateless(lambda g, p: jax.tree.map(jnp.tanh, g)),
    "stateless_with_tree_map": lambda: optax.stateless_with_tree_map(lambda g, p: g * p),
    "trace": lambda: optax.trace(0.9, nesterov=True),
    "with_extra_args_support": lambda: optax.with_extra_args_support(SGD),
    "noisy_sgd": lambda: optax.noisy_sgd(0.1, key=jax.random.key(0)),
    "contrib.differentially_private_aggregate": lambda: contrib.differentially_private_aggregate(
        0.5, 0.1, key=jax.random.key(0)
    ),
    "contrib.dpsgd": lambda: contrib.dpsgd(0.1, 0.5, 0.1, 0),
    "contrib.galore": lambda: contrib.galore(0.1, rank=1),
    "contrib.scale_by_galore": lambda: contrib.scale_by_galore(rank=1),
    "contrib.mechanize": lambda: contrib.mechanize(SGD),
    "contrib.sam": lambda: _without_extra(contrib.sam(SGD, optax.sgd(0.05))),
    "contrib.scale_by_muon": lambda: contrib.scale_by_muon(
        weight_dimension_numbers=lambda tree: jax.tree.map(
            lambda x: contrib.MuonDimensionNumbers(), tree
        )
    ),
    "contrib.schedule_free": lambda: contrib.schedule_free(SGD, 0.1),
    "contrib.split_real_and_imaginary": lambda: contrib.split_real_and_imaginary(SGD),
}
NAMESPACES = {"": optax, "contrib.": contrib}


def _names() -> list[str]:
    """The names of all functions of optax that return a transformation."""
    found = []
    for prefix, module in NAMESPACES.items():
        for name, value in inspect.getmembers(module, inspect.isfunction):
            result = str(inspect.signature(value).return_annotation)
            if "GradientTransformation" in result and not name.startswith("_"):
                found.append(prefix + name)
    return [*found, "MultiSteps", "monitor", "scale_by_factored_rms", "contrib.dog", "contrib.dowg"]


def make(name: str) -> optax.GradientTransformationExtraArgs:
    if name in MADE:
        return optax.with_extra_args_support(MADE[name]())
    prefix, _, attribute = name.rpartition(".")
    function = getattr(NAMESPACES[prefix and prefix + "."], attribute)
    rate = inspect.signature(function).parameters.get("learning_rate")
    required = rate is not None and rate.default is inspect.Parameter.empty
    return optax.with_extra_args_support(function(0.1) if required else function())


def program(name: str):
    """The parameters, the state and the losses after a step on each of the batches."""
    transformation = make(name)

    def step(carry, batch):
        params, state = carry
        x, y = batch

        def loss(params, x=x, y=y):
            return optax.squared_error(x @ params["w"] + params["b"], y).mean()

        fast = params.fast if name == "lookahead" else params
        value, gradient = jax.value_and_grad(loss)(fast)
        extra = {"value": value, "grad": gradient, "value_fn": loss}
        if name in PER_EXAMPLE:
            gradient = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x, y)
        if name == "contrib.sophia":
            extra = {"obj_fn": loss}
        updates, state = transformation.update(gradient, state, params, **extra)
        return (optax.apply_updates(params, updates), state), value

    def run(params, xs, ys):
        if name in OF_MATRICES:
            params = {"w": params["w"], "b": params["b"][None]}
        if name == "lookahead":
            params = optax.LookaheadParams.init_synced(params)
        carry = params, transformation.init(params)
        if name in GROWING:
            first, _ = step(carry, (xs[0], ys[0]))
            return step(first, (xs[1], ys[1]))
        return lax.scan(step, carry, (xs, ys))

    return run


NAMES = _names()
OPTIMIZERS = [n for n in NAMES if n not in MADE and not n.startswith(("scale_", "contrib.scale_"))]


def assert_same_program(function, *arguments):
    """The switch and the decorator hand the compiler one program, all of it repjax's."""
    decorated = repjax.reproducible(function, keep_unused=True).lower(*arguments)
    with repjax.enabled():
        switched = jax.jit(function, keep_unused=True).lower(*arguments)
    assert module_text(decorated) == module_text(switched)
    assert not audit_module(switched.compiler_ir("stablehlo"))


@pytest.mark.parametrize("name", NAMES)
def test_all_are_covered(name):
    """A new transformation may need a row in MADE."""
    assert_same_program(program(name), PARAMS, XS, YS)


def _digests(name) -> str:
    return repjax.digest(jax.tree.leaves(repjax.reproducible(program(name))(PARAMS, XS, YS)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bits(name):
    """All versions of JAX share them; other versions of optax may state other graphs."""
    recorded = json.loads(DIGESTS.read_text())
    if recorded["optax"] != optax.__version__:
        pytest.skip(f"the bits are those of optax {recorded['optax']}")
    assert _digests(name) == recorded["digests"][name]


@pytest.mark.parametrize("name", ["adam", "clip_by_global_norm", "lion", "rmsprop"])
def test_batched(name):
    """Steps of several networks at once have the bits of each."""
    batches = jax.tree.map(lambda x: np.stack([x, x[..., ::-1]]), (PARAMS, XS, YS))
    run = program(name)
    together = repjax.reproducible(jax.vmap(run))(*batches)
    for k in range(2):
        alone = repjax.reproducible(run)(*jax.tree.map(lambda x, k=k: x[k], batches))
        assert_same_bits(jax.tree.map(lambda x, k=k: x[k], together), alone, name)


SCHEDULES = {
    "constant_schedule": lambda: optax.constant_schedule(0.1),
    "cosine_decay_schedule": lambda: optax.cosine_decay_schedule(0.1, 9, 0.01, 1.5),
    "cosine_onecycle_schedule": lambda: optax.cosine_onecycle_schedule(9, 0.1),
    "exponential_decay": lambda: optax.exponential_decay(0.1, 3, 0.7),
    "join_schedules": lambda: optax.join_schedules(
        [optax.constant_schedule(0.1), optax.linear_schedule(0.1, 0.0, 4)], [3]
    ),
    "linear_onecycle_schedule": lambda: optax.linear_onecycle_schedule(9, 0.1),
    "linear_schedule": lambda: optax.linear_schedule(0.1, 0.01, 7),
    "piecewise_constant_schedule": lambda: optax.piecewise_constant_schedule(0.1, {2: 0.3, 5: 0.1}),
    "piecewise_interpolate_schedule": lambda: optax.piecewise_interpolate_schedule(
        "cosine", 0.1, {2: 0.3, 5: 0.1}
    ),
    "polynomial_schedule": lambda: optax.polynomial_schedule(0.1, 0.01, 1.7, 7),
    "sgdr_schedule": lambda: optax.sgdr_schedule(
        [{"init_value": 0.0, "peak_value": 0.1, "warmup_steps": 2, "decay_steps": 5}] * 2
    ),
    "warmup_constant_schedule": lambda: optax.warmup_constant_schedule(0.0, 0.1, 3),
    "warmup_cosine_decay_schedule": lambda: optax.warmup_cosine_decay_schedule(0.0, 0.1, 3, 9),
    "warmup_exponential_decay_schedule": lambda: optax.warmup_exponential_decay_schedule(
        0.0, 0.1, 3, 2, 0.7
    ),
}


def all_schedules(counts):
    return {name: jax.vmap(make())(counts) for name, make in SCHEDULES.items()}


def test_schedules():
    found = {name for name in dir(optax) if name.endswith("_schedule")}
    assert found - SCHEDULES.keys() == {"scale_by_schedule"}
    assert_same_program(all_schedules, np.arange(12, dtype=np.int32))


LOGITS, TARGETS = values((4, 5), 4), np.abs(values((4, 5), 5))
INTEGERS, SIGNS = labels(4, 5, 6), np.sign(values((4, 5), 7))
LOSSES = {
    "convex_kl_divergence": lambda x: optax.convex_kl_divergence(x, TARGETS),
    "cosine_distance": lambda x: optax.cosine_distance(x, TARGETS),
    "cosine_similarity": lambda x: optax.cosine_similarity(x, TARGETS),
    "ctc_loss": lambda x: optax.ctc_loss(
        x[None], np.zeros((1, 4)), INTEGERS[None, :2] % 4 + 1, np.zeros((1, 2))
    ),
    "ctc_loss_with_forward_probs": lambda x: optax.ctc_loss_with_forward_probs(
        x[None], np.zeros((1, 4)), INTEGERS[None, :2] % 4 + 1, np.zeros((1, 2))
    )[0],
    "dice_loss": lambda x: optax.losses.dice_loss(x[None], TARGETS[None]),
    "binary_dice_loss": lambda x: optax.losses.binary_dice_loss(x[None, :, 0], TARGETS[None, :, 0]),
    "multiclass_generalized_dice_loss": lambda x: optax.losses.multiclass_generalized_dice_loss(
        x[None], TARGETS[None]
    ),
    "generalized_kl_divergence": lambda x: optax.losses.generalized_kl_divergence(x, TARGETS),
    "hinge_loss": lambda x: optax.hinge_loss(x, SIGNS),
    "huber_loss": lambda x: optax.huber_loss(x, TARGETS, delta=0.3),
    "kl_divergence": lambda x: optax.kl_divergence(x, TARGETS),
    "kl_divergence_with_log_targets": lambda x: optax.losses.kl_divergence_with_log_targets(
        x, -TARGETS
    ),
    "l2_loss": lambda x: optax.l2_loss(x, TARGETS),
    "log_cosh": lambda x: optax.log_cosh(x, TARGETS),
    "make_fenchel_young_loss": lambda x: optax.losses.make_fenchel_young_loss(
        jax.scipy.special.logsumexp
    )(x[0], TARGETS[0]),
    "multiclass_hinge_loss": lambda x: optax.losses.multiclass_hinge_loss(x, INTEGERS),
    "multiclass_perceptron_loss": lambda x: optax.losses.multiclass_perceptron_loss(x, INTEGERS),
    "multiclass_sparsemax_loss": lambda x: optax.losses.multiclass_sparsemax_loss(x, INTEGERS),
    "ntxent": lambda x: optax.ntxent(x, INTEGERS % 2),
    "perceptron_loss": lambda x: optax.losses.perceptron_loss(x, SIGNS),
    "poly_loss_cross_entropy": lambda x: optax.losses.poly_loss_cross_entropy(x, TARGETS),
    "ranking_softmax_loss": lambda x: optax.losses.ranking_softmax_loss(x, TARGETS),
    "safe_softmax_cross_entropy": lambda x: optax.safe_softmax_cross_entropy(x, TARGETS),
    "sigmoid_binary_cross_entropy": lambda x: optax.sigmoid_binary_cross_entropy(x, TARGETS),
    "sigmoid_focal_loss": lambda x: optax.sigmoid_focal_loss(x, TARGETS, alpha=0.3),
    "smooth_labels": lambda x: optax.smooth_labels(x, 0.1),
    "softmax_cross_entropy": lambda x: optax.softmax_cross_entropy(x, TARGETS),
    "softmax_cross_entropy_with_integer_labels": lambda x: (
        optax.softmax_cross_entropy_with_integer_labels(x, INTEGERS)
    ),
    "sparsemax_loss": lambda x: optax.losses.sparsemax_loss(x, SIGNS > 0),
    "squared_error": lambda x: optax.squared_error(x, TARGETS),
    "triplet_margin_loss": lambda x: optax.losses.triplet_margin_loss(x, TARGETS, SIGNS),
}


def all_losses(logits):
    def derivative(loss):
        return jax.value_and_grad(lambda x: loss(x).sum())

    return {name: derivative(loss)(logits) for name, loss in LOSSES.items()}


def test_losses():
    found = {name for name, _ in inspect.getmembers(optax.losses, inspect.isfunction)}
    assert found == LOSSES.keys()
    assert_same_program(all_losses, LOGITS)


if __name__ == "__main__":
    digests = {name: _digests(name) for name in OPTIMIZERS}
    recorded = {"optax": optax.__version__, "digests": digests}
    DIGESTS.write_text(json.dumps(recorded, indent=1) + "\n")
