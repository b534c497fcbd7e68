"""Serve random schedules of requests, and look whether each sequence has one set of bits.

    python tests/sequences.py --schedules 10000
    python tests/sequences.py --schedules 100 --plain --models gpt-float32
    python tests/sequences.py --first 17 --schedules 1 --models llama-bfloat16
    python tests/sequences.py --schedules 100 --contraction order_independent
    XLA_FLAGS=--xla_force_host_platform_device_count=8 python tests/sequences.py --schedules 1000

Schedule n of a model (tests/helpers/sequences.py) is a function of n alone.  Its requests come
and go in a sampler with some slots, size of the cache and chunks; each is also served alone, and a
trainer computes the log-probabilities of all sequences, packed and padded, with their gradients.
Tokens and log-probabilities have to have the same bits.  Where there are eight devices, slots,
parameters and the trainer's batch are split over them, and a request that is alone stays on one.
With --plain it is plain JAX that computes, in which they differ; so they do with order-independent
products, whose grids follow other rows and columns.

The models take turns.  Exit status: 0 if all bits are the same, 1 if not, 2 if
the request cannot be met.
"""

from __future__ import annotations

import argparse
import functools
import time

import jax

import repjax
from helpers import sequences
from repjax.verify.progress import counter

SHOWN = 10
ORDERS = ("sequential", "order_independent")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        epilog="example: python tests/sequences.py --schedules 10000",
    )
    parser.add_argument("--schedules", type=int, default=100, help="how many in all (100)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first (0)")
    parser.add_argument("--models", nargs="+", default=list(sequences.MODELS), metavar="MODEL")
    parser.add_argument("--plain", action="store_true", help="compute by plain JAX")
    parser.add_argument("--accumulation", choices=[*ORDERS, "pairwise"], help="order of sums")
    parser.add_argument("--contraction", choices=ORDERS, help="order of products")
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - set(sequences.MODELS):
        parser.error(f"expected models among {list(sequences.MODELS)}, received {sorted(unknown)}")
    if arguments.schedules < 1 or arguments.first < 0:
        parser.error(
            f"expected at least one schedule and a first of at least 0, received "
            f"{arguments.schedules} and {arguments.first}"
        )
    orders = {name: getattr(arguments, name) for name in ("accumulation", "contraction")}
    if arguments.plain and any(orders.values()):
        parser.error(
            "expected no --accumulation and no --contraction with --plain, received one; plain JAX "
            "has no orders to choose"
        )
    jit = jax.jit if arguments.plain else functools.partial(repjax.reproducible, **orders)
    devices = sequences.DEVICES if jax.device_count() >= sequences.DEVICES else 1
    samplers = sequences.ON_DEVICES if devices > 1 else sequences.SAMPLERS
    numbers = range(arguments.first, arguments.first + arguments.schedules)
    differing = compared = 0
    start = time.monotonic()
    params = {name: sequences.variables(sequences.MODELS[name]) for name in arguments.models}
    with counter("schedules") as show:
        for done, number in enumerate(numbers):
            name = arguments.models[done % len(arguments.models)]  # in turns
            found, count = sequences.differences(
                sequences.MODELS[name], params[name], number, jit, samplers
            )
            compared += count
            differing += bool(found)
            if found and differing <= SHOWN:
                print(f"{name}, --first {number}: " + "; ".join(found), flush=True)
            show(done + 1)
    print(
        f"{differing} of {arguments.schedules} schedules differ on {devices} devices; {compared} "
        f"log-probabilities were compared in {time.monotonic() - start:.0f} s"
    )
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
