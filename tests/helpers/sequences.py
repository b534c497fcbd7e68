"""Random schedules of requests, and whether each sequence has one set of bits in all of them.

A *schedule* is some requests, when they come, which of them are cancelled, and the sampler that
serves them: its slots, the size of its cache, its chunks and bursts.  Each request is also
served alone, by another sampler, and a trainer computes the log-probabilities of all sequences,
packed into rows with padding anywhere, inside of ``value_and_grad``.  On eight devices, sampler
and trainer split the batch and the parameters over them; a request that is alone stays on one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import repjax
from helpers.bits import bits
from repjax.models import GPT, Llama, log_probs
from repjax.models.generate import Completion, Request, Sampler
from repjax.models.language import LanguageModel

Layout = tuple[int, int]
_GPT = GPT(vocabulary=61, positions=64, width=16, depth=2, heads=4)
_LLAMA = Llama(vocabulary=61, positions=64, width=16, depth=2, heads=4, key_heads=2, hidden=24)
MODELS: dict[str, LanguageModel] = {
    "gpt-float32": _GPT,
    "llama-float32": _LLAMA,
    "gpt-bfloat16": _GPT.copy(dtype=jnp.bfloat16),
    "llama-bfloat16": _LLAMA.copy(dtype=jnp.bfloat16, tied=True),
    "gpt-float16": _GPT.copy(dtype=jnp.float16),
    "llama-float16": _LLAMA.copy(dtype=jnp.float16),
}
#: Slots, size, chunk and burst of samplers; those of the one that serves a request alone.
SAMPLERS = [(2, 24, 5, 2), (5, 40, 3, 1), (3, 64, 1, 8), (5, 24, 16, 3), (1, 33, 2, 4)]
ALONE = (1, 64, 7, 1)
#: Samplers on eight devices; the last is over how many the batch is split, and the parameters.
DEVICES = 8
ON_DEVICES = [
    (2, 24, 5, 2, (2, 4)),
    (4, 40, 3, 1, (4, 2)),
    (8, 24, 16, 3, (8, 1)),
    (5, 33, 2, 4, (1, 8)),
]
LONGEST = 12  # prompts and completions: together they fit into the smallest cache
ROWS, LENGTH = 4, 48  # of the trainer's batch


def variables(model: LanguageModel, seed: int = 0) -> Any:
    """Parameters for which tokens matter to each other; by NumPy, the same in every version."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    return jax.tree.map(
        lambda x: np.float32(rng.normal(size=x.shape) * 0.5 + (x.ndim == 1)), shapes
    )


def split(tree: Any, layout: Layout | None, axis: str) -> Any:
    """The arrays, each divided over a mesh axis along its last or first axis that allows it.

    Args:
      layout: over how many devices "batch" and "features" are split; None changes nothing.
      axis: "batch", which is looked for from the front, or "features", from the back.
    """
    if layout is None:
        return tree
    names = ("batch", "features")
    mesh = jax.make_mesh(layout, names, axis_types=(AxisType.Auto, AxisType.Auto))

    def put(x):
        places = range(x.ndim) if axis == "batch" else reversed(range(x.ndim))
        parts = [None] * x.ndim
        for place in places:
            if x.shape[place] % mesh.shape[axis] == 0:
                parts[place] = axis
                break
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*parts)))

    return jax.tree.map(put, tree)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Requests, the steps before which they come, those cancelled and when, and the sampler."""

    requests: list[Request]
    come: list[int]
    cancelled: dict[int, int]
    slots: int
    size: int
    chunk: int
    burst: int
    layout: Layout | None = None


def schedule(seed: int, vocabulary: int, samplers=SAMPLERS) -> Schedule:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 8))
    requests = [
        Request(
            prompt=rng.integers(0, vocabulary, rng.integers(1, LONGEST + 1)),
            key=jax.random.key(int(rng.integers(1 << 30))),
            max_tokens=int(rng.integers(1, LONGEST + 1)),
            temperature=float(rng.choice([0, 0.7, 1, 1, 1.5])),
            top_k=[None, int(rng.integers(1, 20))][rng.integers(2)],
            top_p=float([1, rng.uniform(0.2, 1)][rng.integers(2)]),
            stop=rng.integers(0, vocabulary, rng.integers(0, 5)),
        )
        for _ in range(count)
    ]
    come = sorted(map(int, rng.integers(0, 12, count)))
    cancelled = {int(rng.integers(count)): int(rng.integers(2, 12))} if rng.random() < 0.3 else {}
    return Schedule(requests, come, cancelled, *samplers[rng.integers(len(samplers))])


def serve(model, params, plan: Schedule, jit) -> dict[int, Completion]:
    """The completions of the requests that were not cancelled, by their places in the schedule."""
    sampler = Sampler(
        model,
        split(params, plan.layout, "features"),
        slots=plan.slots,
        size=plan.size,
        chunk=plan.chunk,
        burst=plan.burst,
        jit=jit,
    )
    sampler._cache = split(sampler._cache, plan.layout, "batch")
    places: dict[int, int] = {}
    done: dict[int, Completion] = {}
    step = 0
    while len(places) < len(plan.requests) or sampler.busy:
        while len(places) < len(plan.requests) and plan.come[len(places)] <= step:
            place = len(places)
            places[sampler.submit(plan.requests[place])] = place
        for number, place in places.items():
            if plan.cancelled.get(place) == step and place not in done:
                sampler.cancel(number)
        done |= {places[number]: completion for number, completion in sampler.step().items()}
        step += 1
    return done


def alone(model, params, request: Request, jit) -> Completion:
    slots, size, chunk, burst = ALONE
    sampler = Sampler(model, params, slots=slots, size=size, chunk=chunk, burst=burst, jit=jit)
    sampler.submit(request)
    while sampler.busy:
        if done := sampler.step():
            return done[0]
    raise AssertionError("a request without a completion")


def pack(rng, documents: list[np.ndarray]):
    """Rows of the documents in a random order with padding anywhere, and where each one is."""
    tokens = rng.integers(0, 61, (ROWS, LENGTH)).astype(np.int32)  # padding has any tokens
    positions = np.full((ROWS, LENGTH), -1, np.int32)
    end = [0] * ROWS
    where = {}
    for i in rng.permutation(len(documents)):
        length = len(documents[i])
        row = next(row for row in rng.permutation(ROWS) if end[row] + length <= LENGTH)
        # A gap that leaves room for the longest document, where there is room for one.
        room = (LENGTH - end[row] - length) % (2 * LONGEST)
        start = end[row] + int(rng.integers(0, room + 1))
        tokens[row, start : start + length] = documents[i]
        positions[row, start : start + length] = np.arange(length)
        where[int(i)] = row, start
        end[row] = start + length
    return tokens, positions, where


_TRAINERS: dict[Any, Callable] = {}


def trained(
    model, params, documents: list[np.ndarray], seed: int, jit, layout: Layout | None = None
) -> list[np.ndarray]:
    """The log-probabilities of documents as a training step computes them, packed."""
    if (model, jit) not in _TRAINERS:

        def loss(params, tokens, positions):
            values = log_probs(model, params, tokens, positions)
            return -jnp.mean(values), values

        _TRAINERS[model, jit] = jit(jax.value_and_grad(loss, has_aux=True))
    tokens, positions, where = pack(np.random.default_rng(seed), documents)
    (_, values), _ = _TRAINERS[model, jit](
        split(params, layout, "features"), *split((tokens, positions), layout, "batch")
    )
    values = np.asarray(values)
    return [
        values[row, start : start + len(document) - 1]
        for document, (row, start) in ((d, where[i]) for i, d in enumerate(documents))
    ]


def differences(model, params, seed: int, jit=repjax.reproducible, samplers=SAMPLERS):
    """What differs in a schedule, each a sentence, and how many log-probabilities were compared."""
    plan = schedule(seed, model.vocabulary, samplers)
    served = serve(model, params, plan, jit)
    expected = set(range(len(plan.requests))) - set(plan.cancelled)
    found = [f"request {i} has no completion" for i in sorted(expected - set(served))]
    compared = 0
    sequences, places = [], []
    for i, completion in sorted(served.items()):
        request = plan.requests[i]
        other = alone(model, params, request, jit)
        where = f"request {i} of {len(plan.requests)}"
        if not (
            np.array_equal(completion.tokens, other.tokens) and completion.reason == other.reason
        ):
            found.append(f"{where}: tokens {completion.tokens} among others, {other.tokens} alone")
        elif unequal := int((bits(completion.log_probs) != bits(other.log_probs)).sum()):
            found.append(f"{where}: {unequal} log-probabilities differ from those alone")
        sequences.append(np.concatenate([np.int32(request.prompt), completion.tokens]))
        places.append((where, len(request.prompt), completion.log_probs))
    if sequences:
        values = trained(model, params, sequences, seed, jit, plan.layout)
        for (where, prompt, sampled), value in zip(places, values, strict=True):
            compared += len(sampled)
            if unequal := int((bits(value[prompt - 1 :]) != bits(sampled)).sum()):
                found.append(f"{where}: {unequal} log-probabilities differ from the trainer's")
    return found, compared
