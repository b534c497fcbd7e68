"""Language models: one sequence has one set of bits, however it is computed and served."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import repjax
from helpers import sequences
from helpers.bits import assert_same_bits, bits
from helpers.paths import TESTS
from repjax.models import GPT, Llama, generate, log_probs
from repjax.models.generate import Request, Sampler

LLAMA = sequences.MODELS["llama-float32"]
GPT_ = sequences.MODELS["gpt-float32"]
KEY = jax.random.key(3)
#: Two beside the one that serves a request alone: each is two programs to compile.
FEW = [(5, 40, 3, 3), (2, 24, 16, 1)]


@pytest.fixture(scope="module")
def params():
    return sequences.variables(LLAMA)


@pytest.mark.parametrize("name", ["gpt-float32", "llama-bfloat16", "llama-float16"])
def test_random_schedules(name):
    """A sample; ``python tests/sequences.py --schedules 10000`` runs many."""
    model = sequences.MODELS[name]
    params = sequences.variables(model)
    compared = 0
    for seed in range(12):
        found, count = sequences.differences(model, params, seed, samplers=FEW)
        assert found == [], f"schedule {seed}"
        compared += count
    assert compared > 100


def _on_eight_devices(*options: str) -> subprocess.CompletedProcess[str]:
    flags = "--xla_force_host_platform_device_count=8"
    return subprocess.run(
        [sys.executable, TESTS / "sequences.py", "--models", "llama-float32", *options],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="devices are made of the CPU")
def test_random_schedules_on_eight_devices():
    """Slots, parameters and the trainer's rows are split."""
    result = _on_eight_devices("--schedules", "6")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("0 of 6 schedules differ on 8 devices")


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="devices are made of the CPU")
def test_plain_jax_on_eight_devices_is_noticed():
    """Negative control."""
    result = _on_eight_devices("--schedules", "2", "--plain")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "2 of 2 schedules differ on 8 devices" in result.stdout


def test_plain_jax_is_noticed(params):
    """Negative control: the bits of plain JAX follow the batch and the chunks."""
    found = [sequences.differences(LLAMA, params, s, jax.jit, FEW[:1])[0] for s in range(4)]
    assert any("alone" in text for texts in found for text in texts)
    assert any("trainer" in text for texts in found for text in texts)


@pytest.mark.parametrize("model", [GPT_.copy(dtype=jnp.bfloat16), LLAMA])
def test_logits_of_chunks_and_in_one_pass(model):
    params = sequences.variables(model)
    tokens = np.random.default_rng(0).integers(0, model.vocabulary, (2, 12)).astype(np.int32)
    whole, none = repjax.reproducible(model.apply)(params, tokens)
    assert none is None
    step = repjax.reproducible(model.apply)
    cache, parts = model.make_cache(2, 29), []
    for start in range(0, 12, 4):
        positions = np.broadcast_to(np.arange(start, start + 4), (2, 4))
        part, cache = step(params, tokens[:, start : start + 4], positions, cache)
        parts.append(part)
    assert_same_bits(jnp.concatenate(parts, axis=1), whole)
    # Two of the tokens only, and a model that computes blocks again for its gradient.
    at = np.int32([[3, 11], [0, 5]])
    some, _ = repjax.reproducible(lambda p, t: model.apply(p, t, at=at))(params, tokens)
    assert_same_bits(some, np.take_along_axis(np.asarray(whole), at[..., None], axis=1))


def test_remat_changes_no_bits(params):
    tokens = np.random.default_rng(1).integers(0, 61, (2, 9)).astype(np.int32)

    def gradients(model):
        return repjax.reproducible(jax.grad(lambda p: -log_probs(model, p, tokens).mean()))(params)

    assert_same_bits(gradients(LLAMA.copy(remat=True)), gradients(LLAMA))


def test_nnx_has_the_same_bits(params):
    """One definition serves NNX, by Flax's own bridge."""
    tokens = np.random.default_rng(1).integers(0, 61, (2, 9)).astype(np.int32)
    model = nnx.bridge.ToNNX(LLAMA, rngs=nnx.Rngs(0))
    nnx.bridge.lazy_init(model, tokens)
    graph, state = nnx.split(model)
    nnx.replace_by_pure_dict(state, params["params"])
    logits, _ = repjax.reproducible(lambda s, t: nnx.merge(graph, s)(t))(state, tokens)
    assert_same_bits(logits, repjax.reproducible(LLAMA.apply)(params, tokens)[0])


# --- sampling --------------------------------------------------------------------------------


_DRAW = repjax.reproducible(generate.draw)


def _draw(logits, top_k=None, top_p=1.0, temperature=1.0, seed=0):
    """Tokens of many keys and one row of logits."""
    rows, tokens = logits.shape
    keys = jax.random.key_data(jax.random.split(jax.random.key(seed), rows))
    return _DRAW(
        logits,
        keys,
        np.zeros(rows, np.int32),
        np.full(rows, temperature, np.float32),
        np.full(rows, top_k or tokens, np.int32),
        np.full(rows, top_p, np.float32),
    )


#: Probabilities 4/16, 4/16, 1/16, 2/16, 4/16, 1/16: three ties of the largest.
TIES = np.log(np.float32([4, 4, 1, 2, 4, 1]))


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (None, 1.0, {0, 1, 2, 3, 4, 5}),
        (1, 1.0, {0}),
        (2, 1.0, {0, 1}),
        (5, 1.0, {0, 1, 2, 3, 4}),
        (None, 0.2, {0}),
        (None, 0.3, {0, 1}),
        (None, 0.7, {0, 1, 4}),
        (None, 0.8, {0, 1, 4, 3}),
        (None, 0.93, {0, 1, 4, 3, 2}),
        (None, 1e-50, {0}),
        (3, 0.6, {0, 1}),  # of what top_k keeps, each has a third
        (3, 0.7, {0, 1, 4}),
    ],
)
def test_what_is_kept(top_k, top_p, kept):
    tokens, _ = _draw(np.tile(TIES, (600, 1)), top_k, top_p)
    assert set(np.asarray(tokens).tolist()) == kept


def test_tokens_have_their_probabilities():
    rows = 20000
    logits = np.log(np.float32([[0.5, 0.3, 0.15, 0.05]])).repeat(rows, 0)
    for temperature in (1.0, 0.5):
        tokens, values = _draw(logits, temperature=temperature)
        expected = np.array([0.5, 0.3, 0.15, 0.05]) ** (1 / temperature)
        expected /= expected.sum()
        counts = np.bincount(tokens, minlength=4) / rows
        # Five standard deviations; the keys are fixed, and so are the counts.
        assert (abs(counts - expected) < 5 * np.sqrt(expected * (1 - expected) / rows)).all()
        # Whatever the temperature, the log-probabilities are the model's.
        assert (abs(np.exp(values) - np.exp(logits[0])[tokens]) < 1e-6).all()


def test_temperature_0_takes_the_first_of_the_largest():
    # In the contract the second one is +0, too; with the third one the largest are drawn from.
    for temperature, expected in ((0.0, {1}), (1e-44, {1}), (1e-30, {1, 4, 5})):
        tokens, _ = _draw(np.tile(TIES[::-1], (600, 1)), temperature=temperature)
        assert set(np.asarray(tokens).tolist()) == expected


def test_what_others_keep_does_not_show():
    """Ranking is left out where no row asks for it: the bits are the same either way."""
    logits = np.random.default_rng(0).normal(size=(40, 61)).astype(np.float32).round(1)
    keys = jax.random.key_data(jax.random.split(KEY, 40))
    rest = np.zeros(40, np.int32), np.ones(40, np.float32)
    everything, p = np.full(40, 61, np.int32), np.ones(40, np.float32)
    without = _DRAW(logits, keys, *rest, everything, p)
    everything[7], p[9] = 3, 0.2
    beside = _DRAW(logits, keys, *rest, everything, p)
    others = np.delete(np.arange(40), [7, 9])
    for x, y in zip(without, beside, strict=True):
        assert_same_bits(np.asarray(x)[others], np.asarray(y)[others])


def _complete(params, request, **options):
    (completion,) = generate.complete(
        LLAMA, params, [request], **{"slots": 2, "burst": 3, **options}
    )
    return completion


def test_a_request_goes_on_from_what_was_drawn(params):
    request = Request([5, 3, 8], KEY, max_tokens=9, top_p=0.9)
    first = _complete(params, request, size=24, chunk=5)
    longer = [5, 3, 8, *first.tokens[:4]]
    then = _complete(
        params, dataclasses.replace(request, prompt=longer, max_tokens=5), size=24, chunk=5
    )
    assert_same_bits(then.tokens, first.tokens[4:])
    assert_same_bits(then.log_probs, first.log_probs[4:])
    assert first.reason == "length"


def test_stop_tokens_end_a_completion_and_are_part_of_it(params):
    request = Request([5, 3, 8], KEY, max_tokens=9, top_p=0.9)
    whole = _complete(params, request, size=24, chunk=5)
    stop = int(whole.tokens[3])
    first = int(np.flatnonzero(whole.tokens == stop)[0])
    stopped = _complete(params, dataclasses.replace(request, stop=[stop]), size=24, chunk=5)
    assert stopped.reason == "stop"
    assert_same_bits(stopped.tokens, whole.tokens[: first + 1])
    assert_same_bits(stopped.log_probs, whole.log_probs[: first + 1])


def test_nothing_of_an_earlier_request_is_left(params):
    request = Request([5, 3, 8], KEY, max_tokens=6)
    expected = _complete(params, request, size=24, chunk=5)
    sampler = Sampler(LLAMA, params, slots=2, size=24, chunk=5, burst=3)
    sampler._cache = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), sampler._cache)
    sampler.submit(request)
    done = {}
    while sampler.busy:
        done |= sampler.step()
    assert np.isfinite(done[0].log_probs).all()
    assert (bits(done[0].log_probs) == bits(expected.log_probs)).all()


# --- wrong input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"prompt": []}, ValueError, "expected a prompt of at least one token, received none"),
        ({"prompt": [1.5]}, TypeError, "expected prompt to be integers in one row, received float"),
        ({"prompt": [[1]]}, TypeError, r"expected prompt to be .* of shape \(1, 1\)"),
        ({"prompt": "text"}, TypeError, "make tokens of text by the tokenizer"),
        ({"stop": ["."]}, TypeError, "expected stop to be integers"),
        ({"key": jax.random.key(0, impl="rbg")}, TypeError, "of threefry2x32 .* received one of r"),
        ({"key": jax.random.split(KEY)}, TypeError, r"received one of threefry2x32 and shape \(2"),
        ({"key": jax.random.key_data(KEY)}, TypeError, r"received a ArrayImpl; make it by jax.ra"),
        ({"key": 3}, TypeError, "received a int"),
        ({"max_tokens": 0}, ValueError, "expected max_tokens to be a positive integer, received 0"),
        ({"max_tokens": True}, ValueError, "expected max_tokens to be a positive"),
        ({"temperature": -0.5}, ValueError, "expected temperature to be a float32 number of at l"),
        ({"temperature": float("nan")}, ValueError, "received nan"),
        ({"temperature": 1e300}, ValueError, r"received 1e\+300"),
        ({"temperature": "warm"}, ValueError, "received 'warm'"),
        ({"top_k": 0}, ValueError, "expected top_k to be a positive integer or None"),
        ({"top_p": 0}, ValueError, r"expected top_p to be in \(0, 1\], received 0"),
        ({"top_p": 1.1}, ValueError, r"expected top_p to be in \(0, 1\], received 1.1"),
    ],
)
def test_requests_that_cannot_be(change, error, message):
    with pytest.raises(error, match=message):
        Request(**({"prompt": [1, 2], "key": KEY, "max_tokens": 3} | change))


def test_requests_that_do_not_fit(params):
    sampler = Sampler(LLAMA, params, slots=2, size=24, chunk=5, burst=3)
    for token in (61, -1):
        with pytest.raises(ValueError, match=f"expected tokens from 0 to 60, received {token}"):
            sampler.submit(Request([3, token], KEY, max_tokens=3))
    with pytest.raises(ValueError, match=r"at most 24 places.* received 20 tokens .* need 25"):
        sampler.submit(Request([3] * 20, KEY, max_tokens=6))
    number = sampler.submit(Request([3] * 20, KEY, max_tokens=5))
    sampler.cancel(number)
    assert not sampler.busy
    with pytest.raises(KeyError, match="expected the number of a request that waits or is served"):
        sampler.cancel(number)
    for options in ({"slots": 0}, {"chunk": 2.5}, {"burst": -1}):
        with pytest.raises(ValueError, match="to be a positive integer"):
            Sampler(LLAMA, params, **options)
    with pytest.raises(ValueError, match=r"make_cache: expected .* 64 positions, received batch 8"):
        Sampler(LLAMA, params, size=65)
    assert generate.complete(LLAMA, params, []) == []


def test_models_that_cannot_be(params):
    tokens = jnp.zeros((1, 4), jnp.int32)
    sizes = {"vocabulary": 9, "positions": 8, "width": 8, "depth": 1, "heads": 2}

    def refused(message, model, *arguments, **named):
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(lambda: model.init(KEY, tokens))
            model.apply(*arguments, **named)

    refused("expected depth to be a positive integer, received 0", GPT(**sizes | {"depth": 0}))
    refused("expected heads that divide the width 8, received 3", GPT(**sizes | {"heads": 3}))
    refused("expected dtype float32, bfloat16 or float16, r", GPT(**sizes, dtype=jnp.float64))
    refused("expected key_heads that divide the 2 heads", Llama(**sizes, hidden=8, key_heads=4))
    refused("an even number", Llama(**sizes | {"heads": 8, "width": 8}, hidden=8))
    refused(r"received float32 of shape \(1, 4\)", LLAMA, params, jnp.zeros((1, 4)))
    refused(r"at least one of them, received int32 of shape \(1, 0\)", LLAMA, params, tokens[:, :0])
    refused("expected at most 64 tokens", LLAMA, params, jnp.zeros((1, 65), jnp.int32))
    refused("positions of the tokens' shape", LLAMA, params, tokens, tokens[0])
    for cache in (LLAMA.make_cache(2, 24), GPT_.make_cache(1, 24), LLAMA.make_cache(1, 24)[:1]):
        refused("expected a cache of 2 blocks of shape", LLAMA, params, tokens, tokens, cache)
    with pytest.raises(ValueError, match=r"with a length of at least 2, received \(1, 1\)"):
        log_probs(LLAMA, params, tokens[:, :1])
    with pytest.raises(ValueError, match="expected tokens from 0 to 60, received 99"):
        log_probs(LLAMA, params, jnp.full((1, 4), 99))
