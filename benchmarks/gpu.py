"""What repjax costs on a GPU, against plain XLA and against what the device can do.

    python benchmarks/gpu.py [--quick] [--minutes M] [--only PREFIX ...] [--kernels] [--output DIR]

Each case runs as plain JAX in float32 (precision HIGHEST) and, where there are matrix products,
also as XLA's default, which is TF32, and as repjax in each order.  Achieved bytes/s and flop/s are
those of the operands, results and products that the case has, whatever the implementation moves
and computes.  Ceilings are measured on the same device: bytes/s by negating a large array, flop/s
by the best plain HIGHEST product.

A figure is the time of one of many calls that are queued without waiting for each other: of the
least of several measurements of 2 N and of N calls the difference, so that what a measurement costs
by itself is left out, divided by N.  It cannot be less than the time to dispatch a program.
With --kernels, two more calls are traced, and the report has the kernels that took longest.

First comes a product whose bits are known, then what tells most: products, rows, training.  With
--output, writes DIR/speed.md and .json before and after every case, so that a run that is cut off,
by --minutes or otherwise, loses nothing, and they say which families of cases are left.  Exit
status: 0, or 1 if something failed or has other bits, 2 if the request cannot be met or cases are
left.  --platform cpu --quick tries the program out elsewhere.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import itertools
import json
import math
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import cpu
import gpt2
import jax
import numpy as np
import optax
import products
from cpu import values
from jax import lax

import repjax
from repjax.primitives import gpu
from repjax.primitives.core.interpret import interpret_closed
from repjax.primitives.core.tables import ACCUMULATIONS, CONTRACTIONS, Context
from repjax.primitives.kernels import in_kernels
from repjax.verify import conformance, vectors
from repjax.verify.prove import UsageError

HIGHEST, TF32 = "plain, HIGHEST", "plain, TF32"


class Case(NamedTuple):
    """A function, in several ways.

    Attributes:
      name: its family, a colon, and the rest.
      function: of arrays, in stock JAX.
      arguments: its operands.
      ways: names and the keywords of ``Context`` of repjax's; ``rows=False`` is without the
        kernels for rows.
      flops: multiplications and additions of its products; 0 if bytes are what counts.
      plain: the ways of plain JAX.
      whole: whether it is a program, with entry and exit, rather than an operation.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    ways: dict[str, dict[str, Any]] = {"repjax": {}}  # noqa: RUF012 (never changed)
    flops: int = 0
    plain: tuple[str, ...] = (HIGHEST,)
    whole: bool = False

    def bytes(self) -> int:
        """Of operands and results."""
        results = jax.eval_shape(self.function, *self.arguments)
        return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((self.arguments, results)))

    def programs(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """The ways, and what compiles each."""
        for way in self.plain:
            precision = "highest" if way == HIGHEST else "default"
            yield way, lambda precision=precision: self._plain(precision)
        for way, orders in self.ways.items():
            yield way, lambda orders=orders: self._reproducible(orders)

    def _plain(self, precision: str):
        with jax.default_matmul_precision(precision):
            return jax.jit(self.function).lower(*self.arguments).compile()

    def _reproducible(self, orders):
        orders = dict(orders)
        gpu.ROWS = orders.pop("rows", True)
        try:
            return self._compile(orders)
        finally:
            gpu.ROWS = True

    def _compile(self, orders):
        if self.whole:
            program = repjax.reproducible(self.function, **orders)
        else:
            jaxpr = jax.make_jaxpr(self.function)(*self.arguments)
            structure = jax.tree.structure(jax.eval_shape(self.function, *self.arguments))

            @jax.jit
            def program(*arguments):
                def operation(*operands):
                    context = Context(**orders, differentiable=False)
                    return interpret_closed(context, jaxpr, operands)

                results = in_kernels(operation, *jax.tree.leaves(arguments))
                return jax.tree.unflatten(structure, results)

        return program.lower(*self.arguments).compile()


# --- cases ------------------------------------------------------------------------------

SUMS = {order: {"accumulation": order} for order in ACCUMULATIONS}
ROWS = {"repjax": {}, "repjax, rows by XLA": {"rows": False}}
PRODUCTS = {order: {"contraction": order} for order in CONTRACTIONS}
BOTH = (HIGHEST, TF32)


def product_cases(quick: bool) -> Iterator[Case]:
    for n in (64, 128) if quick else (512, 1024, 2048, 4096, 8192):
        operands = values((n, n)), values((n, n), 1)
        yield Case(f"product: {n}x{n}x{n}", lax.dot, operands, PRODUCTS, 2 * n**3, BOTH)


def elementwise_cases(quick: bool) -> Iterator[Case]:
    for name, function, arguments in cpu.elementwise_cases([1 << 12 if quick else 1 << 26]):
        yield Case(f"elementwise: {name.removeprefix('elementwise ')}", function, arguments)


def reduction_cases(quick: bool) -> Iterator[Case]:
    shape = (64, 64) if quick else (8192, 8192)
    name = "x".join(map(str, shape))
    x = values(shape)
    for axis, what in ((1, "rows"), (0, "columns"), (None, "all")):
        orders = dict(SUMS)
        if axis == 1:
            orders["pairwise, by XLA"] = {"accumulation": "pairwise", "rows": False}
        if axis is None:
            del orders["sequential"]  # one chain of additions; below, of fewer
        yield Case(f"sum: {what} [{name}]", lambda x, axis=axis: x.sum(axis), (x,), orders)
    chain = values((1 << 8 if quick else 1 << 16,))
    only = {"sequential": SUMS["sequential"]}
    yield Case(f"sum: all [{chain.size}]", lambda x: x.sum(), (chain,), only)


def network_cases(quick: bool) -> Iterator[Case]:
    inputs = None
    if not quick:
        tokens = np.arange(32 * 256, dtype=np.int32).reshape(32, 256) % 100
        inputs = {
            "transformer": (cpu.Transformer(features=512), tokens),
            "ResNet": (cpu.ResNet(features=64), values((64, 32, 32, 3))),
        }
    lenet = itertools.islice(cpu.training_cases(), 2)
    for name, function, arguments in (*lenet, *cpu.network_cases(inputs)):
        ways = dict(PRODUCTS)
        if name.startswith("transformer"):
            ways["sequential, rows by XLA"] = {"contraction": "sequential", "rows": False}
        yield Case(f"training: {name}", function, arguments, ways, 0, BOTH, True)


def language_model_cases(quick: bool) -> Iterator[Case]:
    """A training step of GPT-2 small's shape.  In exact products it would take minutes."""
    shape = gpt2.SHAPES["small" if quick else "gpt2"]
    rows, length = (2, 32) if quick else (8, 1024)
    start, step = shape.trainer()
    params, state = jax.eval_shape(start, jax.random.key(0))
    params = jax.tree.map(lambda x: values(x.shape) * np.float32(0.02), params)
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), state)
    ways = {order: PRODUCTS[order] for order in ("sequential", "order_independent")}
    name = f"training: GPT-2 small's shape{', made small' * quick}, AdamW, {rows}x{length} tokens"
    yield Case(name, step, (params, state, shape.tokens(rows, length)), ways, 0, BOTH, True)


def contraction_cases(quick: bool) -> Iterator[Case]:
    last = ""
    convolutions = itertools.islice(products.convolutions(), 3 if quick else None)
    for name, function, arguments in (*convolutions, *_attention(quick)):
        last = last if name.startswith("its ") else name
        full = name if name == last else f"{last}: {name}"
        family = "attention" if last.startswith("scores") else "convolution"
        flops = _flops(function, arguments)
        yield Case(f"{family}: {full}", function, arguments, PRODUCTS, flops, BOTH)


def _attention(quick: bool):
    heads, length = (2, 16) if quick else (16, 1024)
    q, k = values((8, heads, length, 64)), values((8, heads, length, 64), 1)
    name = f"8x{heads}x[{length}x64x{length}]"
    yield f"scores {name}", lambda q, k: q @ k.swapaxes(2, 3), (q, k)
    p = values((8, heads, length, length))
    yield "its product with the values", lambda p, v: p @ v, (p, k)


def _flops(function, arguments) -> int:
    """Two for each product that the one contraction in a function needs; holes left out."""
    total = 0
    for equation in jax.make_jaxpr(function)(*arguments).jaxpr.eqns:
        shapes = [v.aval.shape for v in equation.invars]
        out = math.prod(equation.outvars[0].aval.shape)
        if equation.primitive.name == "dot_general":
            contracting = equation.params["dimension_numbers"][0][0]
            total += 2 * out * math.prod(shapes[0][d] for d in contracting)
        elif equation.primitive.name == "conv_general_dilated":
            outs = shapes[1][equation.params["dimension_numbers"].rhs_spec[0]]
            holes = math.prod(equation.params["lhs_dilation"])
            total += 2 * out * math.prod(shapes[1]) // outs // holes
    return total


def row_cases(quick: bool) -> Iterator[Case]:
    for shape in [(16, 64)] if quick else [(1 << 17, 256), (8192, 4096), (8192, 50257)]:
        name = "x".join(map(str, shape))
        x, scale = values(shape), values(shape[1:], 1)
        labels = np.arange(shape[0], dtype=np.int32) % shape[1]

        def layer_norm(x, scale):
            z = x - x.mean(-1, keepdims=True)
            return z * lax.rsqrt((z * z).mean(-1, keepdims=True) + 1e-6) * scale

        def pullback(x, scale, cotangent):
            return jax.vjp(layer_norm, x, scale)[1](cotangent)

        def cross_entropy(x, labels):
            return optax.softmax_cross_entropy_with_integer_labels(x, labels).mean()

        def softmax_pullback(x, cotangent):
            return jax.vjp(jax.nn.softmax, x)[1](cotangent)

        for what, function, arguments in (
            ("softmax", jax.nn.softmax, (x,)),
            ("softmax, pullback", softmax_pullback, (x, values(shape, 2))),
            ("layer norm", layer_norm, (x, scale)),
            ("layer norm, pullback", pullback, (x, scale, values(shape, 2))),
            ("cross-entropy", cross_entropy, (x, labels)),
            ("cross-entropy, gradient", jax.grad(cross_entropy), (x, labels)),
        ):
            yield Case(f"rows: {what} [{name}]", function, arguments, ROWS)


def other_cases(quick: bool) -> Iterator[Case]:
    table, count = values((16 if quick else 1 << 16, 64), 2), 64 if quick else 1 << 20
    index = np.asarray(np.random.default_rng(0).integers(0, len(table), count), np.int32)
    updates = values((count, 64), 3)
    name = f"{count} rows of 64 into {len(table)}"
    yield Case(f"scatter-add: {name}", lambda t, i, u: t.at[i].add(u), (table, index, updates))
    sizes = (64, 16, 8) if quick else (50257, 768, 8192)
    *_, (name, function, arguments) = cpu.vocabulary_cases(*sizes)
    yield Case(f"scatter-add: {name}", function, arguments)


# --- time -------------------------------------------------------------------------------


def queued(program, arguments, calls: int) -> float:
    """Seconds for so many calls, queued, until the last result is there."""
    start = time.perf_counter()
    for _ in range(calls):
        result = program(*arguments)
    jax.block_until_ready(result)
    return time.perf_counter() - start


def measure(program, arguments, seconds: float) -> dict[str, float]:
    """Seconds of one call; about ``seconds`` are spent on it, or three calls if they are long."""
    first = queued(program, arguments, 1)
    once = queued(program, arguments, 1)
    if once > seconds:
        return {"seconds": min(once, queued(program, arguments, 1)), "first": first, "calls": 1}
    calls = max(1, min(500, int(seconds / 12 / once)))
    few, many = (min(queued(program, arguments, n * calls) for _ in range(4)) for n in (1, 2))
    # Where noise hides the difference, the mean of all calls is an upper bound.
    best = (many - few if many > few else many / 2) / calls
    return {"seconds": best, "first": first, "calls": calls}


def kernel_times(program, arguments, calls: int = 2) -> list[dict[str, Any]]:
    """Of one call, each kernel's name, launches and seconds, by a trace; the longest first."""
    with tempfile.TemporaryDirectory(prefix="repjax_trace_") as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            queued(program, arguments, calls)
        (path,) = pathlib.Path(folder).rglob("perfetto_trace.json.gz")
        trace = json.loads(gzip.decompress(path.read_bytes()))
    return _kernels(trace["traceEvents"] if isinstance(trace, dict) else trace, calls)


def _kernels(events: list[dict[str, Any]], calls: int) -> list[dict[str, Any]]:
    """What the streams of the GPUs in a trace did."""
    names = {
        (x["name"], x["pid"], x.get("tid")): x["args"]["name"]
        for x in events
        if x.get("ph") == "M" and "name" in x["args"]
    }
    spent, launches = collections.Counter(), collections.Counter()
    for event in (x for x in events if x.get("ph") == "X"):
        device = names.get(("process_name", event["pid"], None), "")
        if "GPU" in device and "Stream" in names.get(
            ("thread_name", event["pid"], event["tid"]), ""
        ):
            spent[event["name"]] += event["dur"]
            launches[event["name"]] += 1
    return [
        {"name": name, "launches": launches[name] / calls, "seconds": microseconds / calls / 1e6}
        for name, microseconds in spent.most_common()
    ]


def ceilings(quick: bool, seconds: float) -> dict[str, float]:
    """What the device can do, and how long it takes to dispatch an empty program."""
    n = 1 << 14 if quick else 1 << 28
    x = values((n,))
    copy = jax.jit(lax.neg).lower(x).compile()
    empty = jax.jit(lax.neg).lower(x[:1]).compile()
    best = {"flop/s": 0.0}
    for size in (64,) if quick else (4096, 8192):
        operands = values((size, size)), values((size, size), 1)
        product = Case("", lax.dot, operands)._plain("highest")
        flops = 2 * size**3 / measure(product, operands, seconds)["seconds"]
        best["flop/s"] = max(best["flop/s"], flops)
    best["bytes/s"] = 8 * n / measure(copy, (x,), seconds)["seconds"]
    best["dispatch"] = measure(empty, (x[:1],), seconds)["seconds"]
    return best


# --- output -----------------------------------------------------------------------------


def markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    best = report["ceilings"]
    lines = ["# GPU", ""]
    lines += [f"{key}: {value}  " for key, value in report["environment"].items() if value]
    lines.append("")
    if "bytes/s" in best:
        lines.append(
            f"Measured ceilings: {best['bytes/s'] / 1e9:,.0f} GB/s, "
            f"{best['flop/s'] / 1e12:.2f} TFLOP/s in float32 (HIGHEST); "
            f"an empty program takes {best['dispatch'] * 1e6:.1f} us."
        )
    else:
        lines.append(f"Measured ceilings: none{', ' + best['error'] if best else ''}.")
    bits = {True: "the golden bits", False: "**other bits**", None: "not been computed"}
    lines += [
        "",
        f"A product of 2,048 has {bits[report['same']]}.",
        "",
        "Finished." if report["finished"] else f"**Unfinished**: {_left(report)}.",
    ]
    family = ""
    for name, row in report["cases"].items():
        if name.split(":")[0] != family:
            family = name.split(":")[0]
            lines += ["", f"## {family}", ""]
            lines += ["| case | way | ms | achieved | of ceiling | of plain's time |"]
            lines += ["|---|---|---:|---:|---:|---:|"]
        plain = row["ways"].get(HIGHEST, {}).get("seconds")
        for way, figures in row["ways"].items():
            cells = [name.split(": ", 1)[1], way]
            if "error" in figures:
                cells += [f"failed: {figures['error']}".replace("|", r"\|"), "", "", ""]
            else:
                t, unit = figures["seconds"], "flop/s" if row["flops"] else "bytes/s"
                rate = (row["flops"] or row["bytes"]) / t
                shown = f"{rate / 1e12:.2f} TFLOP/s" if row["flops"] else f"{rate / 1e9:,.0f} GB/s"
                training = name.startswith("training")
                cells += [f"{t * 1e3:.4g}", "" if training else shown]
                cells += ["" if training or unit not in best else f"{rate / best[unit]:.0%}"]
                cells += [f"{t / plain:.2f}" if plain else ""]
            lines.append("| " + " | ".join(cells) + " |")
    for name, row in report["cases"].items():
        for way, figures in row["ways"].items():
            if figures.get("kernels"):
                lines += ["", f"### Kernels of {name}, {way}", "", _of_kernels(figures["kernels"])]
    return "\n".join(lines) + "\n"


def _of_kernels(found: list[dict[str, Any]], shown: int = 12) -> str:
    """What takes longest, as a table, and what all take together."""
    whole = sum(x["seconds"] for x in found)
    launches = sum(x["launches"] for x in found)
    lines = ["| kernel | launches | ms | share |", "|---|---:|---:|---:|"]
    for x in [*found[:shown], {"name": "all", "launches": launches, "seconds": whole}]:
        ms, share = x["seconds"] * 1e3, x["seconds"] / whole
        lines.append(f"| {x['name'][:60]} | {x['launches']:g} | {ms:.3f} | {share:.0%} |")
    return "\n".join(lines)


def _left(report: dict[str, Any]) -> str:
    running = report["running"]
    families = ", ".join(report["left"])
    return f"{f'ended before or in {running}; ' if running else ''}left of {families}"


def find_device(platform: str):
    """The device; UsageError, of one sentence, if there is none."""
    if platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
    device = conformance.find_device()
    if platform == "gpu" and device.platform == "cpu":
        raise UsageError(
            "expected an NVIDIA GPU, received a CPU only; run benchmarks/cpu.py, or try this "
            "program out with --platform cpu --quick"
        )
    return device


#: In the order of what they tell.
FAMILIES = {
    "product": product_cases,
    "rows": row_cases,
    "training: GPT-2": language_model_cases,
    "training": network_cases,
    "sum": reduction_cases,
    "elementwise": elementwise_cases,
    "convolution and attention": contraction_cases,
    "scatter-add": other_cases,
}


def chosen(only: list[str]) -> dict[str, Callable[[bool], Iterator[Case]]]:
    """The families that may have cases whose names start so: to make all cases takes minutes."""

    def may_have(family: str) -> bool:
        starts = family.split(" and ")
        return any(a.startswith(b) or b.startswith(a) for a in starts for b in only)

    found = {family: cases for family, cases in FAMILIES.items() if may_have(family)}
    if not found:
        raise UsageError(f"--only: expected the start of a case's name, received {only}")
    return found


def smoke(device) -> bool:
    """Whether a product has the golden bits; says so, and what computes it."""
    case = vectors.smoke()
    golden = conformance.load()["digests"][case.name]
    row = conformance.check(case, golden, device)
    calls = conformance.kernels_or_why(case, device)
    print(f"smoke: {'same' if row['same'] else row['reason']}, it calls {calls}", flush=True)
    return row["same"]


def _failed(error: Exception) -> dict[str, str]:
    text = str(error).strip().splitlines() or [""]
    return {"error": f"{type(error).__name__}: {text[0][:200]}"}


def measure_ways(
    case: Case, seconds: float, deadline: float, kernels: bool = False
) -> dict[str, Any]:
    """The row of a case in the report: its ways, until the deadline, and their kernels."""
    row: dict[str, Any] = {"bytes": case.bytes(), "flops": case.flops, "ways": {}}
    # An array of the host, such as labels, would be copied to the device by every call.
    arguments = jax.device_put(case.arguments)
    for way, compile_program in case.programs():
        if time.monotonic() > deadline:
            break
        try:
            program = compile_program()
            row["ways"][way] = measure(program, arguments, seconds)
            if kernels:
                row["ways"][way]["kernels"] = kernel_times(program, arguments)
        except Exception as error:  # such as too little memory: the others are to run
            row["ways"][way] = _failed(error)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, short measurements")
    parser.add_argument(
        "--minutes", type=conformance.minutes, default=math.inf, help="begin no case after them"
    )
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose names start so")
    parser.add_argument("--kernels", action="store_true", help="what takes longest, by a trace")
    parser.add_argument("--platform", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--output", type=pathlib.Path, metavar="DIR", help="write DIR/speed.*")
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60 * arguments.minutes
    try:
        return _run(arguments, deadline)
    except UsageError as error:
        print(f"gpu.py: {error}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace, deadline: float) -> int:
    if arguments.platform == "cpu" and not arguments.quick:
        raise UsageError("--platform cpu expected --quick too; see benchmarks/cpu.py")
    families = chosen(arguments.only)
    device = find_device(arguments.platform)
    seconds = 0.02 if arguments.quick else 0.4
    report: dict[str, Any] = {
        "environment": conformance.environment(device),
        "same": None,
        "ceilings": {},
        "finished": False,
        "running": "smoke",
        "left": [*families],
        "cases": {},
    }

    def save(running: str = "") -> None:
        report["running"] = running
        if arguments.output:
            conformance.write(arguments.output / "speed", report, markdown(report))

    save("smoke")
    report["same"] = smoke(device)
    save("ceilings")
    try:
        report["ceilings"] = ceilings(arguments.quick, seconds)
    except Exception as error:  # the cases are to run
        report["ceilings"] = _failed(error)
    print(report["ceilings"], flush=True)
    for family, cases in families.items():
        for case in cases(arguments.quick):
            if not case.name.startswith(tuple(arguments.only)):
                continue
            save(case.name)
            row = measure_ways(case, seconds, deadline, arguments.kernels)
            if row["ways"]:
                report["cases"][case.name] = row
                ways = row["ways"].items()
                texts = {w: f.get("error") or f"{f['seconds'] * 1e3:.4g} ms" for w, f in ways}
                print(f"{case.name}: {texts}", flush=True)
            if time.monotonic() > deadline:
                break
        else:
            report["left"].remove(family)
            continue
        break
    else:
        report["finished"] = True
        case = None
    if report["finished"] and not report["cases"]:
        raise UsageError(f"--only: expected the start of a case's name, received {arguments.only}")
    save("" if report["finished"] else case.name)
    print("\n" + markdown(report))
    ways = [figures for row in report["cases"].values() for figures in row["ways"].values()]
    if not report["same"] or any("error" in x for x in (report["ceilings"], *ways)):
        return 1
    return 0 if report["finished"] else 2


if __name__ == "__main__":
    sys.exit(main())
