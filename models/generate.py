"""Sampling from a language model, whose bits do not depend on who else is served.

A request has a prompt, a key and what it wants; its tokens and their log-probabilities are a
function of these and of the parameters.  They are the same alone or among others, in any slot, with
any number of slots, any size of the cache, of the chunks in which prompts are read, and of the
bursts in which tokens are drawn::

    from repjax.models import generate

    keys = [jax.random.key(seed) for seed in range(9)]
    requests = [generate.Request([5, 3, 8], key, max_tokens=20) for key in keys]
    for completion in generate.complete(model, params, requests):
        print(completion.tokens, completion.log_probs)

:func:`complete` serves a list; a :class:`Sampler` serves requests that come and go.

**What a token is drawn by.**  Scores are the logits less their maximum, divided by the temperature.
Tokens are ranked by score, equal scores by the token's number; ``top_k`` keeps the first ones;
``top_p`` keeps of those, by the softmax of their scores, each one before which the probabilities
add up to less than ``top_p``, until one is not kept.  The sum is ``cumsum`` over the ranked
probabilities (``docs/numerics.md``, section 4).  Gumbel noise is added to the scores of what is
kept (C. J. Maddison, D. Tarlow and T. Minka, "A* Sampling", NIPS 2014); its key is the request's,
folded by the position of the token that is drawn.  The largest sum is the token, and of equal ones
the smallest number.  A request whose prompt is another's prompt and first tokens therefore goes on
as that one, under the same key.  Temperature 0 adds no noise.

**Log-probabilities** are the model's, whatever the temperature and what is kept: those that
:func:`repjax.models.log_probs` gives a trainer.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from repjax.models.language import Cache, LanguageModel, check_tokens, chosen
from repjax.reproducible import reproducible

_GENERATOR = "threefry2x32"


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """A prompt, and what is wanted to follow it.

    Attributes:
      prompt: tokens, at least one.
      key: a threefry key, ``jax.random.key(seed)``; its own for each request.
      max_tokens: how many tokens to draw at most.
      temperature: what scores are divided by; 0 takes the token of the largest logit.
      top_k: draw from this many tokens of the largest scores; from all without it.
      top_p: draw from the fewest tokens that have this probability together, in (0, 1].
      stop: tokens after which nothing is drawn; they are part of the completion.
    """

    prompt: Sequence[int]
    key: jax.Array
    max_tokens: int
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    stop: Sequence[int] = ()

    def __post_init__(self) -> None:
        for field in ("prompt", "stop"):
            object.__setattr__(self, field, _tokens(field, getattr(self, field)))
        if not self.prompt:
            raise ValueError(
                "Request: expected a prompt of at least one token, received none; begin with the "
                "token that begins a document"
            )
        _check_key(self.key)
        _check(_is_count(self.max_tokens), "max_tokens", "a positive integer", self.max_tokens)
        t = self.temperature
        valid = _is_number(t) and 0 <= t <= float(np.finfo(np.float32).max)
        _check(valid, "temperature", "a float32 number of at least 0", t)
        valid = self.top_k is None or _is_count(self.top_k)
        _check(valid, "top_k", "a positive integer or None", self.top_k)
        _check(_is_number(self.top_p) and 0 < self.top_p <= 1, "top_p", "in (0, 1]", self.top_p)


@dataclasses.dataclass(frozen=True, eq=False)
class Completion:
    """What was drawn.

    Attributes:
      tokens: int32 (n,), without the prompt.
      log_probs: float32 (n,), of these tokens under the model.
      reason: ``"stop"`` after a token of the request's ``stop``, else ``"length"``.
    """

    tokens: np.ndarray
    log_probs: np.ndarray
    reason: str


def _is_number(x) -> bool:
    return isinstance(x, numbers.Real) and not isinstance(x, bool)


def _is_count(x) -> bool:
    return isinstance(x, numbers.Integral) and not isinstance(x, bool) and x >= 1


def _check(valid: bool, field: str, expected: str, received: Any) -> None:
    if not valid:
        raise ValueError(
            f"Request: expected {field} to be {expected}, received {received!r}; choose such a one"
        )


def _tokens(field: str, tokens: Any) -> tuple[int, ...]:
    array = np.asarray(tokens)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise TypeError(
            f"Request: expected {field} to be integers in one row, received {array.dtype} of shape "
            f"{array.shape}; make tokens of text by the tokenizer of the model"
        )
    return tuple(map(int, array))


def _check_key(key: Any) -> None:
    if jax.dtypes.issubdtype(getattr(key, "dtype", None), jax.dtypes.prng_key):
        received = f"one of {jax.random.key_impl(key)} and shape {key.shape}"
        if jax.random.key_impl(key) == _GENERATOR and not key.shape:
            return
    else:
        received = f"a {type(key).__name__}"
    raise TypeError(
        f"Request: expected a key of {_GENERATOR} and shape (), received {received}; make it by "
        f"jax.random.key(seed, impl={_GENERATOR!r})"
    )


# --- one token -------------------------------------------------------------------------------


def draw(logits, keys, positions, temperature, top_k, top_p) -> tuple[jax.Array, jax.Array]:
    """Tokens and their log-probabilities, each row by itself: int32 (batch,), float32 (batch,).

    Args:
      logits: float32 (batch, vocabulary).
      keys: uint32 (batch, 2), threefry keys.
      positions: int32 (batch,), of the tokens that are drawn.
      temperature: float32 (batch,); the largest logit where it is 0.
      top_k: int32 (batch,); all tokens where it is the vocabulary.
      top_p: float32 (batch,); all tokens where it is 1.
    """
    warm = (temperature > 0)[:, None]
    scores = logits - jnp.max(logits, axis=-1, keepdims=True)
    scores = jnp.where(warm, scores / jnp.where(warm, temperature[:, None], 1), scores)
    # Rows that keep all tokens keep them either way: whether others do does not show.
    some = jnp.any((top_k < logits.shape[-1]) | (top_p < 1))
    keep = lax.cond(some, _kept, lambda x, *_: jnp.ones(x.shape, bool), scores, top_k, top_p)

    def noise(key, position):
        key = jax.random.fold_in(jax.random.wrap_key_data(key, impl=_GENERATOR), position)
        return jax.random.gumbel(key, logits.shape[-1:], jnp.float32)

    noisy = scores + jnp.where(warm, jax.vmap(noise)(keys, positions), 0)
    tokens = jnp.argmax(jnp.where(keep, noisy, -jnp.inf), axis=-1).astype(jnp.int32)
    return tokens, chosen(logits, tokens)


def _kept(scores, top_k, top_p) -> jax.Array:
    """Which tokens are drawn from: bool (batch, vocabulary)."""
    tokens = scores.shape[-1]
    values, ranked = lax.top_k(scores, tokens)
    among = jnp.arange(tokens) < top_k[:, None]
    sums = jnp.cumsum(jax.nn.softmax(jnp.where(among, values, -jnp.inf)), axis=-1)
    before = jnp.pad(sums[:, :-1], ((0, 0), (1, 0)))
    among &= (before < top_p[:, None]) | (top_p >= 1)[:, None]
    # Sums in pairwise order may fall by a unit in the last place: what is kept ends where it first
    # does.  It is then all up to the last one, by score and number, and no place has to be found.
    first_out = jnp.where(among.all(axis=-1), tokens, jnp.argmin(among, axis=-1))
    last = jnp.maximum(first_out - 1, 0)[:, None]
    score, token = (jnp.take_along_axis(x, last, axis=-1) for x in (values, ranked))
    return (scores > score) | ((scores == score) & (jnp.arange(tokens) <= token))


# --- many requests ---------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def _steps(model: LanguageModel, burst: int, jit: Callable[..., Any]) -> tuple[Callable, Callable]:
    """The two functions that are compiled: a chunk of one prompt, and tokens of every slot."""

    def prefill(params, cache, slot, tokens, positions, last, choice):
        rows = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, slot, 1), cache)
        # What an earlier request left is masked, yet zeros times its infinities would be NaN.
        new = positions[0, 0] == 0
        rows = jax.tree.map(lambda x: jnp.where(new, 0, x).astype(x.dtype), rows)
        logits, rows = model.apply(params, tokens, positions, rows, last[:, None])
        cache = jax.tree.map(
            lambda x, row: lax.dynamic_update_slice_in_dim(x, row, slot, 0), cache, rows
        )
        following = jnp.take_along_axis(positions, last[:, None], axis=1)[:, 0] + 1
        return cache, *draw(logits[:, 0], positions=following, **choice)

    def decode(params, cache, tokens, positions, wanted, choice):
        def one(carry, i):
            cache, tokens, positions = carry
            # Who has all that is wanted is padding for the rest of the burst.
            at = jnp.where(i < wanted, positions, -1)
            logits, cache = model.apply(params, tokens[:, None], at[:, None], cache)
            tokens, log_probs = draw(logits[:, 0], positions=positions + 1, **choice)
            return (cache, tokens, positions + 1), (tokens, log_probs)

        (cache, *_), drawn = lax.scan(one, (cache, tokens, positions), jnp.arange(burst))
        return cache, *drawn

    return jit(prefill, donate_argnums=1), jit(decode, donate_argnums=1)


@dataclasses.dataclass(eq=False)
class _Served:
    """A request in a slot, and how far it is."""

    number: int
    request: Request
    read: int = 0  # tokens of the prompt that are in the cache
    tokens: list[int] = dataclasses.field(default_factory=list)
    log_probs: list[np.float32] = dataclasses.field(default_factory=list)

    @property
    def reading(self) -> bool:
        return self.read < len(self.request.prompt)

    def take(self, token: int, log_prob: np.float32) -> Completion | None:
        """Note a token; the completion, if it is the last one."""
        self.tokens.append(int(token))
        self.log_probs.append(log_prob)
        stopped = self.tokens[-1] in self.request.stop
        if not stopped and len(self.tokens) < self.request.max_tokens:
            return None
        reason = "stop" if stopped else "length"
        return Completion(np.int32(self.tokens), np.float32(self.log_probs), reason)


class Sampler:
    """Serves requests that come and go, in slots: continuous batching.

    A :meth:`step` reads one chunk of one prompt, of the request that came first, and draws some
    tokens, a burst, for every request whose prompt is read.  Prompts are padded to whole chunks,
    and empty slots are computed like others; each of the two programs is compiled once.

    Args:
      model: a `GPT` or `Llama`.
      params: its variables, as ``model.init`` gives them.
      slots: how many requests are served at a time; others wait.
      size: places of the cache in each slot, for prompt and completion; the model's positions
        without it.
      chunk: tokens of a prompt that are read at a time.
      burst: tokens that are drawn at a time.  More of them cost less each, since what a call costs,
        such as a look at all parameters, is shared; a request that ends leaves its slot empty up to
        the end of the burst.
      jit: what compiles, ``repjax.reproducible`` unless something is to be compared with it.
    """

    def __init__(
        self,
        model: LanguageModel,
        params: Any,
        *,
        slots: int = 8,
        size: int | None = None,
        chunk: int = 64,
        burst: int = 8,
        jit: Callable[..., Any] = reproducible,
    ):
        for name, value in (("slots", slots), ("chunk", chunk), ("burst", burst)):
            if not _is_count(value):
                raise ValueError(
                    f"Sampler: expected {name} to be a positive integer, received {value!r}; "
                    "choose such a one"
                )
        self._model, self._params = model, params
        self._size = model.positions if size is None else size
        self._cache: Cache = model.make_cache(slots, self._size)
        self._chunk, self._burst = chunk, burst
        self._prefill, self._decode = _steps(model, burst, jit)
        self._slots: list[_Served | None] = [None] * slots
        self._waiting: collections.deque[_Served] = collections.deque()
        self._count = 0
        self._choice = {
            "keys": np.zeros((slots, 2), np.uint32),
            "temperature": np.zeros(slots, np.float32),
            "top_k": np.full(slots, model.vocabulary, np.int32),
            "top_p": np.ones(slots, np.float32),
        }

    def submit(self, request: Request) -> int:
        """Take a request; the number under which :meth:`step` gives its completion."""
        check_tokens("Request", self._model, request.prompt)
        # The last token is not read again, and needs no place.
        needed = len(request.prompt) + request.max_tokens - 1
        if needed > self._size:
            raise ValueError(
                f"Request: expected a prompt and max_tokens that need at most {self._size} places, "
                f"the cache's size, received {len(request.prompt)} tokens and max_tokens "
                f"{request.max_tokens}, which need {needed}; make a Sampler with a larger size, or "
                "ask for fewer tokens"
            )
        self._waiting.append(_Served(self._count, request))
        self._count += 1
        return self._count - 1

    def cancel(self, number: int) -> None:
        """Forget a request, whether it waits or is served."""
        for slot, served in enumerate(self._slots):
            if served is not None and served.number == number:
                self._free(slot)
                return
        for served in self._waiting:
            if served.number == number:
                self._waiting.remove(served)
                return
        raise KeyError(
            f"Sampler.cancel: expected the number of a request that waits or is served, received "
            f"{number}; its completion has been given, or submit never gave this number"
        )

    @property
    def busy(self) -> bool:
        """Whether any request waits or is served."""
        return bool(self._waiting) or any(self._slots)

    def step(self) -> dict[int, Completion]:
        """Go one step on; the completions that it finished, by the requests' numbers."""
        self._admit()
        done: dict[int, Completion] = {}
        reading = [slot for slot, served in enumerate(self._slots) if served and served.reading]
        if reading:
            self._read(min(reading, key=lambda slot: self._slots[slot].number), done)
        self._draw(done)
        return done

    def _admit(self) -> None:
        for slot, served in enumerate(self._slots):
            if served is None and self._waiting:
                self._slots[slot] = served = self._waiting.popleft()
                request, all_tokens = served.request, self._model.vocabulary
                self._choice["keys"][slot] = jax.random.key_data(request.key)
                self._choice["temperature"][slot] = request.temperature
                self._choice["top_k"][slot] = min(request.top_k or all_tokens, all_tokens)
                self._choice["top_p"][slot] = request.top_p

    def _free(self, slot: int) -> None:
        self._slots[slot] = None
        self._choice["temperature"][slot] = 0
        self._choice["top_k"][slot] = self._model.vocabulary
        self._choice["top_p"][slot] = 1

    def _read(self, slot: int, done: dict[int, Completion]) -> None:
        served = self._slots[slot]
        part = served.request.prompt[served.read : served.read + self._chunk]
        tokens = np.zeros((1, self._chunk), np.int32)
        positions = np.full((1, self._chunk), -1, np.int32)
        tokens[0, : len(part)] = part
        positions[0, : len(part)] = np.arange(served.read, served.read + len(part))
        choice = {name: values[slot : slot + 1] for name, values in self._choice.items()}
        self._cache, token, log_prob = self._prefill(
            self._params,
            self._cache,
            np.int32(slot),
            tokens,
            positions,
            np.int32([len(part) - 1]),
            choice,
        )
        served.read += len(part)
        if not served.reading:
            self._take(slot, np.asarray(token)[0], np.asarray(log_prob)[0], done)

    def _draw(self, done: dict[int, Completion]) -> None:
        slots = len(self._slots)
        tokens, wanted = np.zeros(slots, np.int32), np.zeros(slots, np.int32)
        positions = np.full(slots, -1, np.int32)
        drawing = [slot for slot, served in enumerate(self._slots) if served and served.tokens]
        if not drawing:
            return
        for slot in drawing:
            served = self._slots[slot]
            tokens[slot] = served.tokens[-1]
            positions[slot] = len(served.request.prompt) + len(served.tokens) - 1
            wanted[slot] = min(self._burst, served.request.max_tokens - len(served.tokens))
        choice = {name: values.copy() for name, values in self._choice.items()}
        self._cache, *drawn = self._decode(
            self._params, self._cache, tokens, positions, wanted, choice
        )
        drawn_tokens, log_probs = map(np.asarray, drawn)  # (burst, slots)
        for slot in drawing:
            for i in range(wanted[slot]):
                self._take(slot, drawn_tokens[i, slot], log_probs[i, slot], done)
                if self._slots[slot] is None:
                    break  # what comes after a stop token is nobody's

    def _take(self, slot: int, token, log_prob, done: dict[int, Completion]) -> None:
        served = self._slots[slot]
        if (completion := served.take(token, log_prob)) is not None:
            done[served.number] = completion
            self._free(slot)


def complete(
    model: LanguageModel, params: Any, requests: Iterable[Request], **options: Any
) -> list[Completion]:
    """The completions of requests, in their order; ``options`` are those of :class:`Sampler`.

    ``size`` is what the longest request needs, unless it is given.
    """
    requests = list(requests)
    if not requests:
        return []
    needed = max(len(request.prompt) + request.max_tokens - 1 for request in requests)
    sampler = Sampler(model, params, **{"size": min(needed, model.positions), **options})
    numbers = [sampler.submit(request) for request in requests]
    done: dict[int, Completion] = {}
    while sampler.busy:
        done |= sampler.step()
    return [done[number] for number in numbers]
