"""Compile for GPUs that need not be there, lint the PTX, and run it on the CPU, bit for bit.

    python tests/gpu_offline.py [--targets sm_80 ...] [--only PREFIX ...] [--run] [--training]
    python tests/gpu_offline.py --large | --races | --devices | --float64 | --controls

For every case of ``repjax.verify.vectors``: XLA compiles it deviceless, :mod:`ptx.lint` looks for
instructions whose bits are not fixed, and, with --run, :mod:`ptx.run` executes the program and its
result is compared with the CPU's.  One JSON object for each; exits with 1 if anything was found.

Whatever is run is searched for races.  --large are products of which a GPU is full, --races all our
kernels with their warps in random orders, and without each of their barriers.

What this does not show: that the program fits and runs on a device; what ptxas, which is trusted,
or an autotuner on the device makes of it.  XLA may choose another algorithm there for what is left
to a library.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time

import jax

from ptx.checks import (
    BACKENDS,
    FLOAT64_PRODUCTS,
    large_products,
    problems,
    problems_of_backend,
    problems_of_devices,
    problems_of_large,
    problems_of_words,
    product_cases,
)
from ptx.controls import (
    check_control,
    controls,
    problems_of_float64,
    problems_of_races,
    racing,
)
from ptx.races import EmulationError
from ptx.targets import TARGETS
from repjax.verify import conformance, vectors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=[*TARGETS])
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose names start so")
    parser.add_argument("--run", action="store_true", help="run them on the CPU, and compare")
    parser.add_argument("--training", action="store_true", help="also compile the training")
    parser.add_argument("--controls", action="store_true", help="what must be caught, instead")
    parser.add_argument("--large", action="store_true", help="large products, instead")
    parser.add_argument("--races", action="store_true", help="races and controls, instead")
    parser.add_argument("--devices", action="store_true", help="programs on several, instead")
    parser.add_argument("--backends", action="store_true", help="products by each, instead")
    parser.add_argument("--float64", action="store_true", help="orders of its sums, instead")
    parser.add_argument("--words", action="store_true", help="integers of 64 bits, instead")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("I", "OF"))
    options = parser.parse_args()
    # Deviceless: the plugin is to register where there is no GPU, and nothing is to run on one.
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    jax.config.update("jax_platforms", "cpu")
    hard = conformance.hard_arrays(conformance.load()["hard_inputs"])
    cases = [*vectors.cases(hard, small=True)]
    if options.training:
        cases += vectors.training(steps=2, batch=4)
    chosen = [case for case in cases if case.name.startswith(tuple(options.only))]
    part, parts = options.part
    bad = 0
    for target in options.targets:
        if options.controls:
            for name, *control in controls():
                found = {"control": name, **check_control(target, *control)}
                print(json.dumps({"target": target, **found}), flush=True)
            continue
        names = [case.name for case in chosen[part::parts]]
        checks = [
            functools.partial(
                problems, target, case, options.run and not case.name.startswith("training")
            )
            for case in chosen[part::parts]
        ]
        if options.devices:
            names = ["sequential", "order_independent", "map"]
            checks = [functools.partial(problems_of_devices, target, name) for name in names]
        if options.backends:
            pairs = [(backend, name) for backend in BACKENDS for name in product_cases()]
            names = [", ".join(pair) for pair in pairs]
            checks = [functools.partial(problems_of_backend, target, *pair) for pair in pairs]
        if options.large:
            products = [
                case for case in large_products() if case.name.startswith(tuple(options.only))
            ]
            names = [case.name for case in products]
            checks = [functools.partial(problems_of_large, target, case) for case in products]
        if options.races:
            pairs = [pair for pair in racing() if pair[0].name.startswith(tuple(options.only))]
            names = [case.name for case, _ in pairs]
            checks = [functools.partial(problems_of_races, target, *pair) for pair in pairs]
        if options.float64:
            names = [*FLOAT64_PRODUCTS]
            checks = [functools.partial(problems_of_float64, target, name) for name in names]
        if options.words:
            names = ["product", "convolution", "long"]
            checks = [functools.partial(problems_of_words, target, name) for name in names]
        for name, check in zip(names, checks, strict=True):
            start = time.perf_counter()
            try:
                found = check()
                found, *counts = found if options.races else (found,)
            except (NotImplementedError, EmulationError) as error:
                notes = "; ".join(getattr(error, "__notes__", []))
                found, counts = [f"{type(error).__name__}: {error} {notes}"], []
            bad += bool(found)
            seconds = round(time.perf_counter() - start, 1)
            row = {"target": target, "case": name, "problems": found, "seconds": seconds}
            if options.races:
                row |= zip(("synchronizations", "missed"), counts, strict=False)
            print(json.dumps(row), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
