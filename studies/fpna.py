"""The study of floating-point non-associativity, with repjax beside plain JAX.

    python studies/fpna.py --quick
    python studies/fpna.py --data /path/with/cora.npz --output studies/results
    python studies/fpna.py --pictures docs/studies --output studies/results

S. Shanmugavelu et al., "Impacts of floating-point non-associativity on reproducibility for HPC and
deep learning applications", 2024, measure how far GPUs' results differ from run to run, because
atomic additions come in another order each time.  Here the order is drawn: the terms of each sum
are permuted, which is how the paper begins, too (Table 1).  What is defined without an order has
the same bits each time, and Vs, Vermv and Vc are 0.

Parts (--part; all without it)::

    sums        figures 1 and 2 and Table 1: Vs of permuted sums, and max |Vs| against n
    operations  Table 5: Vermv and Vc of nine operations
    ratios      figures 3 to 5: scatter_reduce and index_add, against the ratio of sizes
    graph       Table 7: GraphSAGE on Cora, training and inference, each deterministic or not

With --output FOLDER the numbers are written to FOLDER/fpna-PART.json, and a part that is
interrupted goes on where it was; --pictures FOLDER draws what is there.  Standard output is a
function of the options and the data; progress goes to standard error.
"""

from __future__ import annotations

import argparse
import functools
import math
import pathlib
import statistics
import sys
from collections.abc import Callable
from typing import Any

import fpna_pictures
import jax
import jax.numpy as jnp
import numpy as np
import optax
import rows
from jax import lax

import repjax
from data import DataError, Graph, cora
from repjax.models import GraphSAGE
from repjax.verify import variability

DRAWS = {
    "uniform(0, 10)": lambda rng, shape: 10 * rng.random(shape),
    "normal(0, 1)": lambda rng, shape: rng.standard_normal(shape),
}
#: The orders of repjax, and plain JAX.
ORDERS = ("pairwise", "sequential", "order_independent", "exact")
WAYS = ("plain", *ORDERS)


def program(way: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as plain JAX compiles it, or with repjax's order of sums and products."""
    if way == "plain":
        return jax.jit(function)
    contraction = "sequential" if way == "pairwise" else way
    return repjax.reproducible(function, accumulation=way, contraction=contraction)


def generator(*words: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(list(words)))


def vs(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """1 - |other / reference|, from the difference, which is exact or nearly so, in float64."""
    reference, other = np.abs(np.float64(reference)), np.abs(np.float64(other))
    return (reference - other) / reference


# --- sums -----------------------------------------------------------------------------


def tree(x: np.ndarray) -> np.ndarray:
    """Sums over the last axis, halves added to each other, as a block of threads does."""
    while x.shape[-1] > 1:
        half = -(-x.shape[-1] // 2)
        x, rest = x[..., :half].copy(), x[..., half:]
        x[..., : rest.shape[-1]] += rest
    return x[..., 0]


def one_after_the_other(x: np.ndarray) -> np.ndarray:
    return np.add.accumulate(x, -1)[..., -1]


def blocks(draw: str, seed: int, n: int, count: int) -> list[float]:
    """Vs of the paper's SPA: blocks of 64 in a tree, and their sums added in any order, float64."""
    rng = generator(seed, n)
    partial = tree(DRAWS[draw](rng, (-(-n // 64), 64)))
    found = []
    while len(found) < count:
        shape = (min(count - len(found), 1000), len(partial))  # what memory holds easily
        permuted = rng.permuted(np.broadcast_to(partial, shape), axis=1)
        found += vs(tree(partial), one_after_the_other(permuted)).tolist()
    return found


def permuted(draw: str, seed: int, n: int, count: int) -> dict[str, list[float]]:
    """Vs of sums of permuted numbers: float64 as in Table 1, and float32 in each way."""
    rng = generator(seed, n)
    x = DRAWS[draw](rng, n)
    narrow = x.astype(np.float32)
    functions = {way: _sum_of(way) for way in WAYS}
    first = {way: np.float32(f(narrow)) for way, f in functions.items()}
    wide = one_after_the_other(x)
    found: dict[str, list[float]] = {"float64": [], **{way: [] for way in WAYS}}
    for _ in range(count):
        order = rng.permutation(n)
        found["float64"].append(float(vs(wide, one_after_the_other(x[order]))))
        for way, f in functions.items():
            found[way].append(float(vs(first[way], np.float32(f(narrow[order])))))
    return found


@functools.cache
def _sum_of(way: str):
    return program(way, jnp.sum)


def divergence(values: np.ndarray, bins: int = 40) -> float:
    """The Kullback-Leibler divergence of numbers against the normal distribution, in nats.

    It is that with their mean and deviation; the shares are those of ``bins`` bins between +-4
    deviations, and of the two outside.
    """
    mean, deviation = float(values.mean()), float(values.std())
    if deviation == 0:
        return 0.0
    edges = np.linspace(-4, 4, bins + 1)
    counts = np.bincount(np.searchsorted(edges, (values - mean) / deviation), minlength=bins + 2)
    below = [0.0, *((1 + math.erf(e / math.sqrt(2))) / 2 for e in edges), 1.0]
    total = 0.0
    for count, p, q in zip(counts.tolist(), below[:-1], below[1:], strict=True):
        share = count / len(values)
        total += share * math.log(share / (q - p)) if count else 0.0
    return total


def power(sizes: list[int], largest: list[float]) -> tuple[float, float] | None:
    """beta and alpha of largest = beta * n**alpha by least squares of logarithms; None of zeros."""
    points = [(math.log(n), math.log(v)) for n, v in zip(sizes, largest, strict=True) if v > 0]
    if len(points) < 2:
        return None
    alpha, beta = statistics.linear_regression(*zip(*points, strict=True))
    return math.exp(beta), alpha


def sums(quick: bool, kept: pathlib.Path | None) -> dict[str, Any]:
    n, arrays, count = (10_000, 2, 50) if quick else (1_000_000, 100, 1000)
    few, fewer = (2, 20) if quick else (20, 50)
    sizes = [100, 1000] if quick else [100, 316, 1000, 3162, 10_000, 31_623, 100_000, 316_228, n]

    def row(item):
        kind, draw, seed, size = item
        if kind == "blocks":
            return blocks(draw, seed, size, count)
        if kind == "one array":
            return blocks(draw, seed, size, 10 * count)
        found = permuted(draw, seed, size, fewer)
        if kind == "power":
            return {way: max(map(abs, values)) for way, values in found.items()}
        return found

    items = [("blocks", draw, seed, n) for draw in DRAWS for seed in range(arrays)]
    items += [("one array", draw, 0, n) for draw in DRAWS]
    items += [("permuted", draw, seed, n) for draw in DRAWS for seed in range(few)]
    items += [("power", draw, 1, size) for draw in DRAWS for size in sizes]
    of = {"what": "sums", "n": n, "arrays": arrays, "count": count, "few": few, "fewer": fewer}
    found = dict(zip(items, rows.rows(kept, of, items, row), strict=True))

    histograms, powers = {}, {}
    for draw in DRAWS:
        values = {
            "float64, blocks": [v for s in range(arrays) for v in found["blocks", draw, s, n]],
            "float64, blocks, one array": found["one array", draw, 0, n],
        }
        for way in ("float64", *WAYS):
            name = "float64, permuted" if way == "float64" else f"float32, {way}"
            values[name] = [v for s in range(few) for v in found["permuted", draw, s, n][way]]
        histograms[draw] = {name: summary(np.array(v)) for name, v in values.items()}
        powers[draw] = {}
        for way in ("float64", *WAYS):
            largest = [found["power", draw, 1, size][way] for size in sizes]
            powers[draw][way] = {"largest": largest, "power": power(sizes, largest)}
    return {"n": n, "sizes": sizes, "histograms": histograms, "powers": powers}


def summary(values: np.ndarray, bins: int = 60) -> dict[str, Any]:
    """What a histogram shows: counts between the mean +-4 deviations, and the divergence."""
    mean, deviation = float(values.mean()), float(values.std())
    counts, _ = np.histogram(values, bins, (mean - 4 * deviation, mean + 4 * deviation or 1.0))
    return {
        "count": len(values),
        "different": int((values != 0).sum()),
        "mean": mean,
        "deviation": deviation,
        "largest": float(np.abs(values).max()),
        "divergence": divergence(values),
        "histogram": counts.tolist() if deviation else [],
    }


def show_sums(found: dict[str, Any]) -> None:
    print(f"Vs of sums of {found['n']} permuted numbers")
    print(f"{'':38}{'sums':>8}{'not 0':>8}{'deviation':>12}{'max |Vs|':>12}{'KL':>9}")
    for draw, ways in found["histograms"].items():
        for way, s in ways.items():
            print(
                f"{draw + ', ' + way:38}{s['count']:8}{s['different']:8}"
                f"{s['deviation']:12.2e}{s['largest']:12.2e}{s['divergence']:9.3f}"
            )
    print("max |Vs| = beta * n**alpha")
    for draw, ways in found["powers"].items():
        for way, values in ways.items():
            fit = values["power"]
            text = f"beta {fit[0]:.2e}, alpha {fit[1]:.2f}" if fit else "0 for every n"
            print(f"  {draw + ', ' + way:36}{text}")


# --- operations -----------------------------------------------------------------------


def _transposed(dimensions: int):
    """A transposed convolution; the terms that are permuted are those of the input's channels."""

    def make(rng, channels, window, stride, padding):
        size = (64, 12, 6)[dimensions - 1]
        x = rng.standard_normal((2, channels, *[size] * dimensions)).astype(np.float32)
        w = rng.standard_normal((3, channels, *[window] * dimensions)).astype(np.float32)
        pads = [(window - 1 - padding,) * 2] * dimensions

        def convolve(x, w):
            return lax.conv_general_dilated(
                x, w, (1,) * dimensions, pads, lhs_dilation=(stride,) * dimensions
            )

        return convolve, channels, lambda order: (x[:, order], w[:, order])

    settings = [(c, k, s, p) for c in (8, 64) for k in (3, 5) for s in (1, 2) for p in (0, 1)]
    return make, settings


def _cumsum(rng, n, block):
    """Sums up to the ends of blocks, in each of which the numbers are permuted."""
    x = rng.standard_normal(n).astype(np.float32).reshape(-1, block)
    return (
        lambda x: jnp.cumsum(x.ravel())[block - 1 :: block],
        block,
        lambda order: (x[:, order],),
    )


def _updates(reduce, unique=False):
    """A scatter of ``n`` rows into ``ratio * n`` rows; pairs of index and row are permuted."""

    def make(rng, n, ratio, width):
        out = max(1, round(n * ratio))
        index = rng.permutation(n) if unique else rng.integers(0, out, n)
        x = rng.standard_normal((n, width)).astype(np.float32)
        size = n if unique else out
        function = functools.partial(reduce, size)
        return function, n, lambda order: (index[order], x[order])

    settings = [(n, r, w) for n in (100, 2000) for r in (0.1, 0.5, 1.0) for w in (1, 16)]
    return make, settings


def _zeros(size, x):
    return jnp.zeros((size, x.shape[1]), x.dtype)


def index_add(size, index, x):
    return _zeros(size, x).at[index].add(x)


def _index_put(size, index, x):
    """By two indices: rows and columns."""
    rows_, columns = jnp.repeat(index, x.shape[1]), jnp.tile(jnp.arange(x.shape[1]), len(index))
    return _zeros(size, x).at[rows_, columns].add(x.ravel())


def _scatter_add(size, index, x):
    """An index for each element, as torch.scatter_add has them."""
    return jax.vmap(lambda x: jnp.zeros((size,), x.dtype).at[index].add(x), 1, 1)(x)


def _copy(size, index, x):
    return _zeros(size, x).at[index].set(x)


def _mean(size, index, x):
    counts = jnp.zeros((size,), x.dtype).at[index].add(np.float32(1))
    return index_add(size, index, x) / jnp.maximum(counts, 1)[:, None]


def _largest(size, index, x):
    return jnp.full((size, x.shape[1]), -np.inf, x.dtype).at[index].max(x)


def _product(size, index, x):
    return jnp.ones((size, x.shape[1]), x.dtype).at[index].mul(x)


#: Makers of (function, elements to permute, operands of an order), and their settings.  The last
#: word says what defines the result: its terms alone, or their order.
OPERATIONS = {
    "ConvTranspose1d": (*_transposed(1), "terms"),
    "ConvTranspose2d": (*_transposed(2), "terms"),
    "ConvTranspose3d": (*_transposed(3), "terms"),
    "cumsum": (_cumsum, [(n, b) for n in (1024, 65536) for b in (16, 256)], "terms"),
    "index_add": (*_updates(index_add), "terms"),
    "index_copy": (*_updates(_copy, unique=True), "terms"),
    "index_put, accumulating": (*_updates(_index_put), "terms"),
    "scatter, unique": (*_updates(_copy, unique=True), "terms"),
    "scatter, adding": (*_updates(_scatter_add), "terms"),
    "scatter_reduce, sum": (*_updates(index_add), "terms"),
    "scatter_reduce, mean": (*_updates(_mean), "terms"),
    "scatter_reduce, amax": (*_updates(_largest), "terms"),
    "scatter_reduce, prod": (*_updates(_product), "order"),
    "scatter, repeated": (*_updates(_copy), "order"),
}


def operation(name: str, setting, count: int) -> dict[str, dict[str, float]]:
    """Of each way the mean and the largest Vermv and Vc of permutations."""
    make, _, _ = OPERATIONS[name]
    function, n, operands = make(generator(7, len(setting)), *setting)
    found = {}
    for way in WAYS:
        compiled, rng = program(way, function), generator(8)
        first = np.asarray(compiled(*operands(np.arange(n))))
        measured = [
            variability.measure(name, first, np.asarray(compiled(*operands(rng.permutation(n)))))
            for _ in range(count)
        ]
        vermv, vc = [m.vermv for m in measured], [float(m.vc) for m in measured]
        found[way] = {
            "vermv": statistics.fmean(vermv),
            "most vermv": max(vermv),
            "vc": statistics.fmean(vc),
            "most vc": max(vc),
        }
    return found


def operations(quick: bool, kept: pathlib.Path | None) -> dict[str, Any]:
    count = 3 if quick else 100
    items = [
        (name, setting)
        for name, (_, settings, _) in OPERATIONS.items()
        for setting in (settings[:1] if quick else settings)
    ]
    of = {"what": "settings of operations", "count": count}
    found = rows.rows(kept, of, items, lambda item: operation(*item, count))
    table: dict[str, Any] = {}
    for name, (_, _, defined) in OPERATIONS.items():
        measured = [r for (n, _), r in zip(items, found, strict=True) if n == name]
        table[name] = {"defined by": defined, "settings": len(measured)}
        for way in WAYS:
            table[name][way] = {
                "min vermv": min(m[way]["vermv"] for m in measured),
                "max vermv": max(m[way]["vermv"] for m in measured),
                "min vc": min(m[way]["vc"] for m in measured),
                "max vc": max(m[way]["vc"] for m in measured),
            }
    return {"permutations": count, "operations": table}


def show_operations(found: dict[str, Any]) -> None:
    print(f"max Vermv (max Vc) over settings, means of {found['permutations']} permutations")
    print(f"{'':26}" + "".join(f"{way:>20}" for way in WAYS))
    for name, ways in found["operations"].items():
        texts = []
        for way in WAYS:
            vermv, vc = ways[way]["max vermv"], ways[way]["max vc"]
            texts.append(f"{vermv:.2e} ({vc:.3f})" if vc else "0")
        print(f"{name:26}" + "".join(f"{text:>20}" for text in texts))


# --- ratios ---------------------------------------------------------------------------

RATIOS = [round(0.1 * k, 1) for k in range(1, 11)]


def ratio(item, count: int) -> dict[str, dict[str, list[float]]]:
    """Vermv and Vc of an operation, a size and a ratio, of each permutation."""
    name, n, ratio_ = item
    width = n if name == "index_add" else 1
    reduce = _mean if name == "scatter_reduce, mean" else index_add
    rng = generator(9, n, round(10 * ratio_))
    size = max(1, round(n * ratio_))
    index, x = rng.integers(0, size, n), rng.standard_normal((n, width)).astype(np.float32)
    found = {}
    for way in ("plain", "pairwise"):
        compiled = program(way, functools.partial(reduce, size))
        first, orders = np.asarray(compiled(index, x)), generator(10)
        measured = []
        for _ in range(count):
            order = orders.permutation(n)
            measured.append(
                variability.measure(name, first, np.asarray(compiled(index[order], x[order])))
            )
        found["repjax" if way == "pairwise" else way] = {
            "vermv": [m.vermv for m in measured],
            "vc": [float(m.vc) for m in measured],
        }
    return found


def ratios(quick: bool, kept: pathlib.Path | None) -> dict[str, Any]:
    count = 3 if quick else 100
    sizes = {
        "scatter_reduce, sum": [100] if quick else [500, 1000, 2000, 4000, 8000],
        "scatter_reduce, mean": [100] if quick else [2000],
        "index_add": [20] if quick else [25, 50, 100, 200, 400],
    }
    chosen = RATIOS[::5] if quick else RATIOS
    items = [(name, n, r) for name, all_n in sizes.items() for n in all_n for r in chosen]
    of = {"what": "ratios", "count": count}
    found = rows.rows(kept, of, items, lambda item: ratio(item, count))
    points = []
    for (name, n, r), ways in zip(items, found, strict=True):
        point = {"operation": name, "n": n, "ratio": r}
        for way, measures in ways.items():
            point[way] = {
                measure: [statistics.fmean(v), statistics.stdev(v)]
                for measure, v in measures.items()
            }
        points.append(point)
    return {"permutations": count, "points": points}


def show_ratios(found: dict[str, Any]) -> None:
    print(f"mean Vermv and Vc of {found['permutations']} permutations, by ratio of output to input")
    for p in found["points"]:
        texts = [f"{w} {p[w]['vermv'][0]:.2e} {p[w]['vc'][0]:.4f}" for w in ("plain", "repjax")]
        print(f"  {p['operation']:22}{p['n']:6}{p['ratio']:5}  " + ", ".join(texts))


# --- graph ----------------------------------------------------------------------------

EPOCHS = 10


class Training:
    """GraphSAGE on Cora: 10 epochs of Adam with rate 0.01, features divided by their sum.

    The nondeterministic kernel is a new order of the edges in each step, and in inference.
    """

    def __init__(self, graph: Graph, way: str):
        self.graph = graph
        self.x = jnp.asarray(graph.features / graph.features.sum(1, keepdims=True))
        self.model, optimizer = GraphSAGE(graph.classes), optax.adam(0.01)
        self.optimizer = optimizer

        def step(params, state, x, edges, key):
            def loss(params):
                rngs = {"dropout": key}
                logits = self.model.apply(params, x, edges, train=True, rngs=rngs)
                labels = graph.labels[graph.train]
                losses = optax.softmax_cross_entropy_with_integer_labels(
                    logits[graph.train], labels
                )
                return losses.mean()

            value, gradients = jax.value_and_grad(loss)(params)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, value

        self.step = program(way, step)
        self.apply = program(way, self.model.apply)
        initialize = program(way, self.model.init)
        self.params = initialize(jax.random.key(0), self.x, graph.edges)

    def edges(self, rng: np.random.Generator | None):
        """The edges, in another order if there is a generator."""
        if rng is None:
            return self.graph.edges
        return self.graph.edges[:, rng.permutation(self.graph.edges.shape[1])]

    def predict(self, params: Any, rng: np.random.Generator | None) -> np.ndarray:
        """The logits of all papers."""
        return np.asarray(self.apply(params, self.x, self.edges(rng)))

    def train(self, rng: np.random.Generator | None) -> tuple[Any, list[np.ndarray], float]:
        """The parameters, all weights after each epoch, and the last loss."""
        params, state = self.params, self.optimizer.init(self.params)
        history, loss = [], None
        for epoch in range(EPOCHS):
            key = jax.random.fold_in(jax.random.key(1), epoch)
            params, state, loss = self.step(params, state, self.x, self.edges(rng), key)
            history.append(np.concatenate([np.ravel(x) for x in jax.tree.leaves(params)]))
        return params, history, float(loss)


@functools.cache
def _trainings(folder: str):
    """Of each way: the training, and what it gives in the order of the file."""
    graph, found = cora(folder), {}
    for way in ("plain", "pairwise"):
        training = Training(graph, way)
        params, history, _ = training.train(None)
        logits = training.predict(params, None)
        found[way] = training, history, logits
    return found


def models(folder: str, k: int) -> dict[str, Any]:
    """The k-th models of the four conditions, in both ways, against the deterministic one."""
    found = {}
    for way, (training, history, logits) in _trainings(folder).items():
        for trained in ("D", "ND"):
            rng = generator(11, k) if trained == "ND" else None
            params, weights, loss = training.train(rng)
            per_epoch = [
                variability.measure("weights", a, b) for a, b in zip(history, weights, strict=True)
            ]
            for inferred in ("D", "ND"):
                order = generator(12, k) if inferred == "ND" else None
                outputs = training.predict(params, order)
                m = variability.measure("logits", logits, outputs)
                found[f"{way} {trained} {inferred}"] = {"vermv": m.vermv, "vc": float(m.vc)}
            found[f"{way} {trained}"] = {
                "digest": repjax.digest(params),
                "loss": loss,
                "vermv": [m.vermv for m in per_epoch],
                "vc": [float(m.vc) for m in per_epoch],
            }
    return found


def graph(quick: bool, kept: pathlib.Path | None, folder: pathlib.Path) -> dict[str, Any]:
    count = 2 if quick else 1000
    of = {"what": "models", "epochs": EPOCHS}
    found = rows.rows(kept, of, range(count), lambda k: models(str(folder), k), every=5)

    def spread(values):
        return [statistics.fmean(values), statistics.pstdev(values)]

    table, weights = {}, {}
    for way, name in (("plain", "plain"), ("pairwise", "repjax")):
        for condition in ("D D", "D ND", "ND D", "ND ND"):
            rows_ = [r[f"{way} {condition}"] for r in found]
            table[f"{name}, {condition}"] = {
                measure: spread([r[measure] for r in rows_]) for measure in ("vermv", "vc")
            }
        for trained in ("D", "ND"):
            rows_ = [r[f"{way} {trained}"] for r in found]
            weights[f"{name}, {trained}"] = {
                "different models": len({r["digest"] for r in rows_}),
                "losses": spread([r["loss"] for r in rows_]),
                "different losses": len({r["loss"] for r in rows_}),
                "vermv": [spread([r["vermv"][e] for r in rows_]) for e in range(EPOCHS)],
                "vc": [spread([r["vc"][e] for r in rows_]) for e in range(EPOCHS)],
            }
    return {"models": count, "conditions": table, "weights": weights}


def show_graph(found: dict[str, Any]) -> None:
    print(f"GraphSAGE on Cora, {found['models']} models: training, inference, mean (deviation)")
    for condition, m in found["conditions"].items():
        vermv, vc = m["vermv"], m["vc"]
        print(
            f"  {condition:16}Vermv {vermv[0]:.2e} ({vermv[1]:.2e})  Vc {vc[0]:.3f} ({vc[1]:.3f})"
        )
    for condition, w in found["weights"].items():
        first, last = w["vermv"][0][0], w["vermv"][-1][0]
        print(
            f"  {condition:16}{w['different models']} different models, Vermv of weights "
            f"{first:.2e} after epoch 1, {last:.2e} after {EPOCHS}, Vc {w['vc'][-1][0]:.3f}"
        )


PARTS = {
    "sums": (sums, show_sums),
    "operations": (operations, show_operations),
    "ratios": (ratios, show_ratios),
    "graph": (graph, show_graph),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=PARTS, help="a part of the study")
    parser.add_argument("--quick", action="store_true", help="small sizes and few permutations")
    parser.add_argument("--data", type=pathlib.Path, help="cora.npz, or its folder, for graph")
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", help="of the results")
    parser.add_argument("--pictures", type=pathlib.Path, metavar="FOLDER", help="draw them here")
    options = parser.parse_args(arguments)
    try:
        if options.pictures:
            if options.output is None:
                raise DataError("expected --output FOLDER with the results to draw, received none")
            fpna_pictures.draw(options.output, options.pictures)
            return 0
        rows.require_folder(options.output)
        for name in options.part or PARTS:
            part, show = PARTS[name]
            if name == "graph":
                if options.data is None:
                    raise DataError(
                        "expected --data with the folder of cora.npz for graph, received none; "
                        "give it, or choose others with --part"
                    )
                part = functools.partial(part, folder=options.data)
            kept = options.output and options.output / f"fpna-{name}.state.json"
            found = part(options.quick, kept)
            show(found)
            if options.output:
                rows.write(options.output / f"fpna-{name}.json", f"fpna-{name}", found)
                kept.unlink(missing_ok=True)
    except (DataError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
