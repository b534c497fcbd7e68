"""Train a small Llama on text, and let it write, with the same bits on every machine.

    python examples/language_model.py
    python examples/language_model.py --data book.txt --steps 2000 --width 128 --save model.npz
    python examples/language_model.py --until 100 --save model.npz
    python examples/language_model.py --resume model.npz

Tokens are bytes.  Without --data, the text is the licence of this project; of any text, the last
tenth is held out.  Training is that of large models: AdamW with warm-up and cosine decay, clipped
gradients that are added over microbatches, float32 parameters and bfloat16 arithmetic.  The windows
of text that a step sees are a function of the seed and the step's number, so a resumed run goes on
with the data, too.  Last, the model writes some lines; the sampler's log-probabilities of them are
compared bit by bit with those that a trainer computes.

The last line of standard output is the digest of the trained parameters.  Everything on standard
output is a function of the options and the text alone; times and progress go to standard error.
Only --mode plain, which is stock JAX, makes no such promise.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import pathlib
import sys
import time
import typing
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

import repjax
from repjax import checkpoint
from repjax.models import Llama, generate, log_probs
from repjax.verify import hex_bits

LICENCE = pathlib.Path(__file__).parent.parent / "LICENSE"
BEGIN = 256  # the token before the first byte of a prompt
MAX_BYTES = 1 << 30
#: Prompts that the trained model goes on from.
PROMPTS = (b"", b"You may ", b"the ")
MODES = ("reproducible", "switch", "plain")


class UserError(Exception):
    """Something that the user can mend: shown as one sentence, exit status 2."""


# Data.


class Text(typing.NamedTuple):
    train: np.ndarray  # uint8, the bytes
    held_out: np.ndarray


def load_text(path: pathlib.Path, length: int) -> Text:
    """The bytes of a file, the last tenth of which is held out."""
    if not path.is_file():
        raise UserError(f"expected --data to be a file of text, received {path}; give another one")
    if path.stat().st_size > MAX_BYTES:
        raise UserError(
            f"expected --data of at most {MAX_BYTES} bytes, received {path.stat().st_size} in "
            f"{path}; give a part of it"
        )
    data = np.frombuffer(path.read_bytes(), np.uint8)
    split = len(data) - len(data) // 10
    if len(data) - split <= length:
        raise UserError(
            f"expected more than {10 * (length + 1)} bytes of text, for windows of {length} in the "
            f"tenth that is held out, received {len(data)} in {path}; give more, or lower --length"
        )
    return Text(data[:split], data[split:])


def windows(data: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """int32 tokens (..., length + 1): the windows that begin at the starts."""
    return data[starts[..., None] + np.arange(length + 1)].astype(np.int32)


def batch(text: Text, key, step: int, options) -> np.ndarray:
    """The tokens of a step, (microbatches, rows, length + 1), a function of key and step.

    Starts are threefry's bits, brought into range on the host by integer arithmetic.
    """
    shape = (options.accumulate, options.batch_size)
    bits = np.asarray(jax.random.bits(jax.random.fold_in(key, step), shape, np.uint32))
    starts = bits.astype(np.uint64) * (len(text.train) - options.length) >> np.uint64(32)
    return windows(text.train, starts.astype(np.int64), options.length)


# Training.


class Trainer:
    """The model, its optimizer and its compiled functions."""

    def __init__(self, options):
        self.model = Llama(
            vocabulary=BEGIN + 1,
            positions=options.length + 1,
            width=options.width,
            hidden=3 * options.width,
            depth=options.depth,
            heads=options.heads,
            key_heads=options.key_heads,
            tied=True,
            dtype=getattr(jnp, options.dtype),
            remat=options.remat,
        )
        rate = optax.warmup_cosine_decay_schedule(
            0.0, options.learning_rate, options.warmup, options.steps, options.learning_rate / 10
        )
        # Decay is for products, not for the scales of norms.
        decayed = lambda params: jax.tree.map(lambda p: p.ndim > 1, params)  # noqa: E731
        optimizer = optax.chain(
            optax.clip_by_global_norm(options.clip),
            optax.adamw(rate, b2=0.95, weight_decay=0.1, mask=decayed),
        )

        def initialize(key):
            params = self.model.init(key, jnp.zeros((1, 1), jnp.int32))
            return {"params": params, "optimizer": optimizer.init(params)}

        def loss(params, tokens):
            return -jnp.mean(log_probs(self.model, params, tokens))

        def step(state, tokens):
            def add(total, tokens):
                return jax.tree.map(
                    jnp.add, total, jax.value_and_grad(loss)(state["params"], tokens)
                ), None

            zeros = jax.tree.map(jnp.zeros_like, (jnp.float32(0), state["params"]))
            total, _ = jax.lax.scan(add, zeros, tokens)
            value, gradients = jax.tree.map(lambda x: x / tokens.shape[0], total)
            updates, following = optimizer.update(gradients, state["optimizer"], state["params"])
            params = optax.apply_updates(state["params"], updates)
            return {"params": params, "optimizer": following}, value

        compile_: Callable = repjax.reproducible if options.mode == "reproducible" else jax.jit
        self.compile = compile_
        self.state_shape = lambda key: jax.eval_shape(initialize, key)
        self.initialize = compile_(initialize)
        self.step = compile_(step)
        self.loss = compile_(loss)
        self.log_probs = compile_(
            lambda params, tokens, positions: log_probs(self.model, params, tokens, positions)
        )


def validate(trainer: Trainer, params, text: Text, options) -> float:
    """The mean loss on windows that are spread over what is held out."""
    last = len(text.held_out) - options.length - 1
    starts = np.arange(4 * options.batch_size) * last // (4 * options.batch_size)
    parts = windows(text.held_out, starts, options.length)
    losses = [trainer.loss(params, part) for part in np.split(parts, 4)]
    return math.fsum(map(float, losses)) / len(losses)


def write(trainer: Trainer, params, options) -> list[tuple[bytes, generate.Completion]]:
    """What the model writes after each prompt."""
    keys = [jax.random.key(options.seed + i, impl="threefry2x32") for i in range(len(PROMPTS))]
    requests = [
        generate.Request(
            [BEGIN, *prompt],
            key,
            max_tokens=min(options.tokens, options.length - len(prompt)),
            temperature=0.8,
            top_p=0.95,
        )
        for prompt, key in zip(PROMPTS, keys, strict=True)
    ]
    done = generate.complete(trainer.model, params, requests, slots=2, chunk=8, jit=trainer.compile)
    return list(zip(PROMPTS, done, strict=True))


def differing(trainer: Trainer, params, written, options) -> tuple[int, int]:
    """How many log-probabilities of the sampler are not the trainer's, and of how many."""
    tokens = np.zeros((len(written), options.length + 1), np.int32)
    positions = np.full(tokens.shape, -1, np.int32)
    for row, (prompt, completion) in enumerate(written):
        sequence = [BEGIN, *prompt, *completion.tokens]
        tokens[row, : len(sequence)] = sequence
        positions[row, : len(sequence)] = np.arange(len(sequence))
    values = np.asarray(trainer.log_probs(params, tokens, positions))
    pairs = [
        (values[row, len(prompt) : len(prompt) + len(done.tokens)], done.log_probs)
        for row, (prompt, done) in enumerate(written)
    ]
    different = sum(int((x.view(np.uint32) != y.view(np.uint32)).sum()) for x, y in pairs)
    return different, sum(len(x) for x, _ in pairs)


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
    some = number(int, 0, "an integer of at least 0")
    positive = number(float, math.ulp(0.0), "a positive number")
    parser = argparse.ArgumentParser(
        description="Train a small Llama on text, with the same bits on every machine.",
        epilog="example: python examples/language_model.py --data book.txt --save model.npz",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=pathlib.Path, default=LICENCE, metavar="FILE", help="text")
    add("--mode", choices=MODES, default=MODES[0], help="repjax, its global switch, or stock JAX")
    add("--steps", type=count, default=400, metavar="N", help="of the whole schedule")
    add("--until", type=count, metavar="N", help="stop after this step, for a later --resume")
    add("--batch-size", type=count, default=4, metavar="N", help="rows of a microbatch")
    add("--accumulate", type=count, default=2, metavar="N", help="microbatches of a step")
    add("--length", type=count, default=64, metavar="N", help="tokens of a row")
    add("--width", type=count, default=64, metavar="N", help="features of a token")
    add("--depth", type=count, default=2, metavar="N", help="blocks")
    add("--heads", type=count, default=4, metavar="N", help="heads of queries")
    add("--key-heads", type=count, default=2, metavar="N", help="heads of keys and values")
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of arithmetic")
    add("--remat", action="store_true", help="compute blocks again for their gradients")
    add("--learning-rate", type=positive, default=0.01, metavar="R", help="its maximum")
    add("--warmup", type=some, default=20, metavar="N", help="steps up to the maximum")
    add("--clip", type=positive, default=1.0, metavar="R", help="the largest norm of a gradient")
    seed = number(int, 0, "an integer from 0 to 4294967295", 2**32 - 1)
    add("--seed", type=seed, default=0, metavar="N", help="of weights, data and samples")
    add("--every", type=count, default=100, metavar="N", help="steps between validations")
    add("--tokens", type=count, default=48, metavar="N", help="bytes to write after a prompt")
    add("--save", type=pathlib.Path, metavar="PATH", help="write a checkpoint at validations")
    add("--resume", type=pathlib.Path, metavar="PATH", help="go on from a checkpoint")
    return parser.parse_args(argv)


def check_options(options) -> None:
    if options.warmup >= options.steps:
        raise UserError(
            f"expected --warmup below --steps, which is {options.steps}, received "
            f"{options.warmup}; lower it"
        )
    if options.until is not None and options.until > options.steps:
        raise UserError(
            f"expected --until of at most --steps, which is {options.steps}, received "
            f"{options.until}; lower it"
        )
    longest = max(map(len, PROMPTS))
    if options.length <= longest:
        raise UserError(
            f"expected --length of more than {longest}, the longest prompt, received "
            f"{options.length}; raise it"
        )
    if options.width % options.heads or options.heads % options.key_heads:
        raise UserError(
            f"expected --heads that divide --width and --key-heads that divide --heads, received "
            f"{options.width}, {options.heads} and {options.key_heads}; change them"
        )
    if options.width // options.heads % 2:
        raise UserError(
            f"expected an even number of features of a head, received --width {options.width} and "
            f"--heads {options.heads}; change one of them"
        )
    if options.save is not None and not options.save.absolute().parent.is_dir():
        raise UserError(
            f"expected --save to lie in an existing folder, received {options.save}; create the "
            "folder first"
        )


def bit_relevant(options, text: Text) -> dict:
    """The options that decide the bits of the parameters; a resumed run must have the same."""
    names = ("steps", "batch_size", "accumulate", "length", "width", "depth", "heads", "key_heads")
    return {
        **{name: getattr(options, name) for name in (*names, "dtype", "learning_rate")},
        **{name: getattr(options, name) for name in ("warmup", "clip", "seed")},
        "arithmetic": "stock JAX" if options.mode == "plain" else "repjax",
        "text": repjax.digest(text._asdict()),
    }


def resume(options, like, settings: dict):
    """The state and the step of a checkpoint, checked against this run's options."""
    metadata = checkpoint.load_metadata(options.resume)
    if not isinstance(metadata, dict) or metadata.get("program") != "language_model":
        raise UserError(
            f"expected a checkpoint of this program, received {options.resume}; give another"
        )
    saved = metadata["settings"]
    if names := [name for name in settings if settings[name] != saved.get(name)]:
        raise UserError(
            f"expected the options that {options.resume} was saved with, "
            + ", ".join(f"{name} {saved.get(name)}" for name in names)
            + ", received "
            + ", ".join(f"{name} {settings[name]}" for name in names)
            + "; give the same text and options"
        )
    if metadata["step"] > (options.until or options.steps):
        raise UserError(
            f"expected --until of at least {metadata['step']}, the step of {options.resume}, "
            f"received {options.until}; raise it"
        )
    state, _ = checkpoint.load(options.resume, like)
    return state, metadata["step"]


def train(trainer: Trainer, state, first: int, text: Text, key, settings: dict, options):
    """Train from a step on; returns the state."""
    until = options.until or options.steps
    start, loss = time.perf_counter(), None
    for step in progress(range(first, until), "steps"):
        state, loss = trainer.step(state, batch(text, key, step, options))
        done = step + 1
        if done % options.every == 0 or done == until:
            value, held_out = float(loss), validate(trainer, state["params"], text, options)
            print(
                f"step {done}/{options.steps}: loss {value:.6f} ({hex_bits(value)}), "
                f"held out {held_out:.6f} ({hex_bits(held_out)})",
                flush=True,
            )
            print(f"step {done}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
            if options.save:
                metadata = {"program": "language_model", "settings": settings, "step": done}
                checkpoint.save(options.save, state, metadata)
    return state


def run(options) -> None:
    """Train as the options say, let the model write, and print."""
    check_options(options)
    text = load_text(options.data, options.length)
    settings = bit_relevant(options, text)
    trainer = Trainer(options)
    initial_key, data_key = jax.random.split(jax.random.key(options.seed, impl="threefry2x32"))
    print(
        f"text: {len(text.train)} bytes to train, {len(text.held_out)} held out, {settings['text']}"
    )
    with repjax.enabled() if options.mode == "switch" else contextlib.nullcontext():
        if options.resume:
            state, first = resume(options, trainer.state_shape(initial_key), settings)
        else:
            state, first = trainer.initialize(initial_key), 0
        state = train(trainer, state, first, text, data_key, settings, options)
        params = state["params"]
        written = write(trainer, params, options)
        different, count = differing(trainer, params, written, options)
    for prompt, completion in written:
        new = bytes(token for token in completion.tokens.tolist() if token < BEGIN)
        print(f"writes {prompt.decode()!r} {new.decode(errors='replace')!r}")
    print(f"sampler and trainer: {different} of {count} log-probabilities differ")
    print(f"samples {repjax.digest([(x.tokens, x.log_probs) for _, x in written])}")
    print(f"digest {repjax.digest(params)}", flush=True)


def main(argv=None) -> int:
    options = parse(argv)
    try:
        run(options)
    except (UserError, checkpoint.CheckpointError, OSError) as error:
        print(f"language_model.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
