"""Teach a small Llama to sort, by reinforcement: its sampler and its trainer have the same bits.

    python examples/reinforcement.py
    python examples/reinforcement.py --mode plain
    python examples/reinforcement.py --steps 1000 --longest 8 --width 64

Group-relative policy optimization (GRPO; Z. Shao et al., "DeepSeekMath", arXiv:2402.03300, section
4.1) on a task whose answers can be verified: a prompt is some digits from 0 to 5, and the answer is
these digits in order.  In each step the policy answers some prompts several times; a reward is the
fraction of the places that are right, and an answer's advantage is its reward less the mean of its
group, in units of the group's deviation.  Each batch of answers is for one update, and there is no
penalty for leaving a model of reference.

The answers come from a sampler with a cache, beside other requests, and the update computes their
log-probabilities anew, in whole rows, inside jax.grad.  The ratio of the two is what the objective
clips, and what programs correct by where the two disagree.  Here it is 1.0 for every token in every
step, and the divergence (KL) between the sampler's policy and the trainer's is 0.0.  With
--mode plain, which is stock JAX, neither is.

The last line of standard output is the digest of the trained parameters.  Everything on standard
output is a function of the options alone; times and progress go to standard error.  Only --mode
plain makes no such promise.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
import typing
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

import repjax
from repjax.models import Llama, generate, log_probs

DIGITS = 6
ANSWER = DIGITS  # the token between a prompt and its answer
VOCABULARY = DIGITS + 1
SHORTEST = 2  # digits of a prompt
MODES = ("reproducible", "switch", "plain")


class UserError(Exception):
    """Something that the user can mend: shown as one sentence, exit status 2."""


# The task.


def prompts(key, count: int, longest: int) -> list[np.ndarray]:
    """Digits, from SHORTEST to ``longest`` of them, by threefry's bits and integer arithmetic."""
    bits = np.asarray(jax.random.bits(key, (count, longest + 1), np.uint32)).astype(np.int64)
    lengths = SHORTEST + bits[:, 0] % (longest - SHORTEST + 1)
    return [row[1 : 1 + n] % DIGITS for row, n in zip(bits, lengths, strict=True)]


def reward(prompt: np.ndarray, answer: np.ndarray) -> np.float32:
    """The fraction of the digits that are where they belong, rounded once."""
    return np.float32((np.sort(prompt) == answer).sum()) / np.float32(len(prompt))


# The policy.


class Batch(typing.NamedTuple):
    """What an update learns from: rows of a prompt, its answer and padding.

    Element j of ``sampled`` and ``answered`` is about token j + 1.
    """

    tokens: np.ndarray  # int32 (groups * size, length)
    positions: np.ndarray  # the same
    sampled: np.ndarray  # float32 (groups * size, length - 1): the sampler's log-probabilities
    answered: np.ndarray  # bool, the same: which tokens are an answer's
    rewards: np.ndarray  # float32 (groups, size)


class Report(typing.NamedTuple):
    """What is said of a step."""

    reward: float
    divergence: float
    smallest: float
    largest: float
    differing: int
    count: int


def advantages(rewards) -> jax.Array:
    """Rewards (groups, size) against their groups'."""
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    deviation = jnp.sqrt(jnp.square(centred).mean(axis=1, keepdims=True))
    return centred / (deviation + 1e-4)


class Trainer:
    """The model, its optimizer and its compiled functions."""

    def __init__(self, options):
        self.options = options
        self.model = Llama(
            vocabulary=VOCABULARY,
            positions=2 * options.longest + 1,
            width=options.width,
            hidden=3 * options.width,
            depth=options.depth,
            heads=4,
            key_heads=2,
            tied=True,
            dtype=getattr(jnp, options.dtype),
        )
        rate = optax.cosine_decay_schedule(options.learning_rate, options.steps)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))

        def initialize(key):
            params = self.model.init(key, jnp.zeros((1, 1), jnp.int32))
            return {"params": params, "optimizer": optimizer.init(params)}

        def update(state, batch: Batch):
            weights = advantages(batch.rewards).reshape(-1, 1)

            def loss(params):
                values = log_probs(self.model, params, batch.tokens, batch.positions)
                ratio = jnp.exp(values - batch.sampled)
                clipped = jnp.clip(ratio, 1 - options.clip, 1 + options.clip)
                gains = jnp.minimum(ratio * weights, clipped * weights)
                gains = jnp.where(batch.answered, gains, 0).sum(1) / batch.answered.sum(1)
                return -gains.mean(), (values, ratio)

            gradients, aside = jax.grad(loss, has_aux=True)(state["params"])
            updates, following = optimizer.update(gradients, state["optimizer"], state["params"])
            params = optax.apply_updates(state["params"], updates)
            return {"params": params, "optimizer": following}, aside

        compile_: Callable = repjax.reproducible if options.mode == "reproducible" else jax.jit
        self.compile = compile_
        self.initialize = compile_(initialize)
        self.update = compile_(update)

    def answer(self, params, questions, keys, temperature: float) -> list[generate.Completion]:
        """An answer to each prompt, from a sampler that serves several at a time."""
        requests = [
            generate.Request([*prompt, ANSWER], key, len(prompt), temperature=temperature)
            for prompt, key in zip(questions, keys, strict=True)
        ]
        return generate.complete(
            self.model,
            params,
            requests,
            slots=8,
            size=self.model.positions,
            chunk=self.options.longest + 1,
            burst=1,
            jit=self.compile,
        )

    def sample(self, params, key) -> Batch:
        """Answers to some prompts, to each one as many as a group has."""
        groups, size = self.options.groups, self.options.size
        prompt_key, *keys = jax.random.split(key, 1 + groups * size)
        questions = prompts(prompt_key, groups, self.options.longest)
        questions = [prompt for prompt in questions for _ in range(size)]
        shape = len(questions), self.model.positions
        tokens, positions = np.zeros(shape, np.int32), np.full(shape, -1, np.int32)
        sampled = np.zeros((shape[0], shape[1] - 1), np.float32)
        answered = np.zeros(sampled.shape, bool)
        rewards = np.zeros(shape[0], np.float32)
        for row, (prompt, done) in enumerate(
            zip(questions, self.answer(params, questions, keys, 1.0), strict=True)
        ):
            sequence = [*prompt, ANSWER, *done.tokens]
            tokens[row, : len(sequence)] = sequence
            positions[row, : len(sequence)] = np.arange(len(sequence))
            answer = slice(len(prompt), len(sequence) - 1)
            sampled[row, answer], answered[row, answer] = done.log_probs, True
            rewards[row] = reward(prompt, done.tokens)
        return Batch(tokens, positions, sampled, answered, rewards.reshape(groups, size))

    def step(self, state, key) -> tuple[dict, Report]:
        """One step: sample, update."""
        batch = self.sample(state["params"], key)
        state, (values, ratio) = self.update(state, batch)
        return state, report(batch, np.asarray(values), np.asarray(ratio))


def report(batch: Batch, values: np.ndarray, ratio: np.ndarray) -> Report:
    """The sampler's log-probabilities beside the trainer's, and the rewards.

    The divergence is half the mean square of the logarithms of ratios (J. Schulman, "Approximating
    KL Divergence", 2020), in float64: 0.0 where all ratios are 1, and nowhere else.
    """
    sampled, values, ratio = (x[batch.answered] for x in (batch.sampled, values, ratio))
    logarithms = values.astype(np.float64) - sampled.astype(np.float64)
    return Report(
        math.fsum(batch.rewards.ravel()) / batch.rewards.size,
        math.fsum(logarithms * logarithms) / (2 * len(logarithms)),
        float(ratio.min()),
        float(ratio.max()),
        int((sampled.view(np.uint32) != values.view(np.uint32)).sum()),
        len(logarithms),
    )


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
    def number(kind, low, text, high=math.inf):
        def convert(value):
            try:
                result = kind(value)
            except ValueError:
                result = None
            if result is None or not low <= result <= high or result == math.inf:
                raise argparse.ArgumentTypeError(f"expected {text}, received {value!r}")
            return result

        return convert

    count = number(int, 1, "a positive integer")
    positive = number(float, math.ulp(0.0), "a positive number")
    parser = argparse.ArgumentParser(
        description="Teach a small Llama to sort, by reinforcement, with one set of bits.",
        epilog="example: python examples/reinforcement.py --mode plain",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--mode", choices=MODES, default=MODES[0], help="repjax, its global switch, or stock JAX")
    add("--steps", type=count, default=160, metavar="N", help="batches of answers, and updates")
    add("--groups", type=count, default=16, metavar="N", help="prompts of a step")
    add("--size", type=number(int, 2, "at least 2"), default=8, metavar="N", help="of a group")
    longest = number(int, SHORTEST, f"an integer from {SHORTEST} to 512", 512)
    add("--longest", type=longest, default=3, metavar="N", help="digits of a prompt, at most")
    add("--width", type=count, default=32, metavar="N", help="features of a token")
    add("--depth", type=count, default=2, metavar="N", help="blocks")
    add("--dtype", choices=("bfloat16", "float32"), default="float32", help="of arithmetic")
    add("--learning-rate", type=positive, default=0.005, metavar="R", help="of Adam, at first")
    add("--clip", type=positive, default=0.2, metavar="R", help="how far a ratio counts from 1")
    seed = number(int, 0, "an integer from 0 to 4294967295", 2**32 - 1)
    add("--seed", type=seed, default=0, metavar="N", help="of weights, prompts and answers")
    add("--every", type=count, default=20, metavar="N", help="steps between lines")
    add("--quick", action="store_true", help="4 steps of 2 groups of 4, to try it")
    options = parser.parse_args(argv)
    if options.quick:
        options.steps, options.every, options.groups, options.size = 4, 1, 2, 4
    return options


def run(options) -> None:
    """Train as the options say, and print."""
    if options.width % 8:
        raise UserError(
            f"expected --width to be a multiple of 8, for 4 heads of an even number of features, "
            f"received {options.width}; change it"
        )
    trainer = Trainer(options)
    initial_key, data_key, exam_key = jax.random.split(
        jax.random.key(options.seed, impl="threefry2x32"), 3
    )
    start, reports = time.perf_counter(), []
    with repjax.enabled() if options.mode == "switch" else contextlib.nullcontext():
        state = trainer.initialize(initial_key)
        for step in progress(range(options.steps), "steps"):
            state, new = trainer.step(state, jax.random.fold_in(data_key, step))
            reports.append(new)
            done = step + 1
            if done % options.every == 0 or done == options.steps:
                recent = reports[-options.every :]
                mean = math.fsum(x.reward for x in recent) / len(recent)
                print(
                    f"step {done}/{options.steps}: reward {mean:.3f}, KL "
                    f"{max(x.divergence for x in recent)}, ratio "
                    f"{min(x.smallest for x in recent)} to {max(x.largest for x in recent)}",
                    flush=True,
                )
                print(f"step {done}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
        exam_key, *keys = jax.random.split(exam_key, 65)
        questions = prompts(exam_key, len(keys), options.longest)
        answers = trainer.answer(state["params"], questions, keys, 0.0)
    right = sum(reward(x, y.tokens) == 1 for x, y in zip(questions, answers, strict=True))
    words = lambda x: " ".join(map(str, x))  # noqa: E731
    for prompt, answer in list(zip(questions, answers, strict=True))[:3]:
        print(f"sorts {words(prompt)} as {words(answer.tokens)}")
    print(f"sorts {right} of {len(questions)} prompts")
    print(
        f"sampler and trainer: {sum(x.differing for x in reports)} of "
        f"{sum(x.count for x in reports)} log-probabilities differ, and KL is not 0.0 in "
        f"{sum(x.divergence != 0 for x in reports)} of {len(reports)} steps"
    )
    print(f"digest {repjax.digest(state['params'])}", flush=True)


def main(argv=None) -> int:
    options = parse(argv)
    try:
        run(options)
    except UserError as error:
        print(f"reinforcement.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
