"""How the papers train the networks of this package, as functions that can be compiled.

=====================  =========================================================================
recipe                 it is
=====================  =========================================================================
:data:`LENET`          batches of 128, SGD with rate 0.01, 50 epochs; glorot, tanh, average pooling
:data:`RESNET`         batches of 128, SGD with rate 0.1 and Nesterov momentum 0.9, the rate divided
                       by 10 after 81 and 122 epochs, 200 epochs; L2 1e-4; flips and shifts
:data:`WIDE_RESNET`    the same with the rate divided by 5 after 60, 120 and 160 epochs, L2 5e-4
                       as weight decay
:data:`FORECASTER`     batches of 32, Adam with rate 1e-3, at most 50 epochs, until 5 have gone by
                       without a better mean absolute error on the validation data
=====================  =========================================================================

Sources: B. Chen et al., "Towards training reproducible deep learning models", ICSE 2022 (4.1),
and the public implementations that it names; S. Zagoruyko and N. Komodakis, "Wide Residual
Networks", BMVC 2016.  What ModelX's batches and optimizer are is not disclosed.

All that is random in a step, the flips and the shifts, is drawn by threefry inside of the program,
of a key and the number of the step::

    program = recipes.program(ResNet38(), recipes.RESNET, steps_per_epoch=468)
    initialize, step = map(repjax.reproducible, (program.initialize, program.step))
    state = initialize(jax.random.key(0), images[:1])
    state, loss = step(state, key, images, labels)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax


def augment(key, images, shift: int = 4, fill: float = 0.0):
    """Each image flipped or not, and moved by up to ``shift`` pixels each way.

    Args:
      key: a threefry key.
      images: float32 (batch, height, width, channels).
      shift: the most pixels; the offsets are random bits modulo ``2 * shift + 1``.
      fill: of the pixels that are moved in.

    Nothing is rounded: pixels are only moved.
    """
    bits = jax.random.bits(key, (len(images), 3), np.uint32)
    flipped = lax.rev(images, (2,))
    images = jnp.where((bits[:, 0] >> 31)[:, None, None, None] == 0, images, flipped)
    margins = [(0, 0), (shift, shift), (shift, shift), (0, 0)]
    padded = jnp.pad(images, margins, constant_values=np.float32(fill))
    offsets = (bits[:, 1:] % np.uint32(2 * shift + 1)).astype(np.int32)

    def window(image, offset):
        return lax.dynamic_slice(image, (offset[0], offset[1], 0), images.shape[1:])

    return jax.vmap(window)(padded, offsets)


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def mean_absolute_error(forecasts, targets):
    return jnp.abs(forecasts - targets).mean()


def _kernels(params):
    """Which leaves the penalty is on: the weights of convolutions and affine layers."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A recipe.

    Attributes:
      batch: examples of a step.
      epochs: how many, or at most how many.
      optimizer: of the number of steps of an epoch.
      loss: of outputs and targets.
      augmented: whether images are flipped and moved.
      fill: what pixels that are moved in are: the background.
      patience: epochs without a better validation loss after which training stops, or None.
    """

    batch: int
    epochs: int
    optimizer: Callable[[int], optax.GradientTransformation]
    loss: Callable[[Any, Any], Any] = cross_entropy
    augmented: bool = False
    fill: float = 0.0
    patience: int | None = None


def _stepped(decay: float, factor: float, *epochs: int):
    """SGD with rate 0.1 and Nesterov momentum, the rate times a factor after these epochs.

    ``decay`` times the weights is added to the gradient.
    """

    def optimizer(steps_per_epoch: int) -> optax.GradientTransformation:
        boundaries = {epoch * steps_per_epoch: factor for epoch in epochs}
        return optax.chain(
            optax.add_decayed_weights(decay, mask=_kernels),
            optax.sgd(
                optax.piecewise_constant_schedule(0.1, boundaries), momentum=0.9, nesterov=True
            ),
        )

    return optimizer


LENET = Recipe(128, 50, lambda steps: optax.sgd(0.01))
# The penalty 1e-4 * sum(w**2) has the gradient 2e-4 * w.
RESNET = Recipe(128, 200, _stepped(2e-4, 0.1, 81, 122), augmented=True)
WIDE_RESNET = Recipe(128, 200, _stepped(5e-4, 0.2, 60, 120, 160), augmented=True)
FORECASTER = Recipe(32, 50, lambda steps: optax.adam(1e-3), mean_absolute_error, patience=5)


class Program(NamedTuple):
    """Functions of arrays alone, for ``jax.jit`` or ``repjax.reproducible``.

    Attributes:
      initialize: ``(key, inputs) -> state``; of the inputs only shape and type matter.
      step: ``(state, key, inputs, targets) -> state, loss``: one step of training.  What it draws
        is a function of the key and of how many steps there were.
      predict: ``(state, inputs) -> outputs``.

    A state is a tree of arrays: ``params``, ``optimizer``, ``step``, and the network's other
    variables under ``rest``.
    """

    initialize: Callable[..., Any]
    step: Callable[..., Any]
    predict: Callable[..., Any]


def program(model: nn.Module, recipe: Recipe, steps_per_epoch: int) -> Program:
    """The training of a model by a recipe."""
    optimizer = recipe.optimizer(steps_per_epoch)

    def initialize(key, inputs):
        rest = dict(model.init(key, inputs))
        params = rest.pop("params")
        start = {"params": params, "optimizer": optimizer.init(params)}
        return {**start, "rest": rest, "step": jnp.zeros((), jnp.uint32)}

    def step(state, key, inputs, targets):
        if recipe.augmented:
            key = jax.random.fold_in(key, state["step"])
            inputs = augment(key, inputs, fill=recipe.fill)
        rest = state["rest"]

        def loss(params):
            if not rest:
                return recipe.loss(model.apply({"params": params}, inputs), targets), rest
            variables = {"params": params, **rest}
            outputs, updated = model.apply(variables, inputs, train=True, mutable=list(rest))
            return recipe.loss(outputs, targets), updated

        (value, rest), gradients = jax.value_and_grad(loss, has_aux=True)(state["params"])
        updates, optimizer_state = optimizer.update(gradients, state["optimizer"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        new = {"params": params, "optimizer": optimizer_state}
        return {**new, "rest": rest, "step": state["step"] + 1}, value

    def predict(state, inputs):
        return model.apply({"params": state["params"], **state["rest"]}, inputs)

    return Program(initialize, step, predict)
