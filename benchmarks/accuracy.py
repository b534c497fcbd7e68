"""How accurate repjax and plain JAX are: the tables of ``docs/accuracy.md``.

    python benchmarks/accuracy.py [FUNCTION ...] [--sample N] [--only TABLE ...] [--write FILE]

Both are compiled for two instruction sets, given the same evenly spaced inputs and compared
with the oracle of ``python -m repjax prove``.  Eigenvalues and singular values are compared with
those in float64.  Prints three Markdown tables: certificates, functions and spectra; --write puts
them into a file, between its ``<!-- table -->`` marks.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import pathlib
import sys

import jax
import numpy as np

import repjax
from repjax.verify import oracle, prove

ISAS = {"AVX512": "AVX-512", "SSE4_2": "SSE4.2"}
MARK = "<!-- table -->"
PROOFS = pathlib.Path(__file__).parent.parent / "docs" / "proofs"


def plain(name):
    """The stock function, if there is one; jax.lax has not got all of them."""
    return getattr(jax.lax, name, None) or getattr(jax.numpy, name, None)


@functools.cache
def compiled(name):
    return jax.jit(plain(name)), jax.jit(getattr(repjax.lax, name))


def patterns(block: range) -> np.ndarray:
    """A block's inputs, canonical, so that none is subnormal."""
    bits = np.arange(block.start, block.stop, block.step, np.uint64).astype(np.uint32)
    return oracle.canonical_input(bits)


def results(name: str, block: range) -> list[np.ndarray]:
    """In a child: the bits of the results of plain JAX and of repjax."""
    inputs = np.resize(patterns(block), prove.BLOCK).view(np.float32)
    return [np.asarray(f(inputs)).view(np.uint32)[: len(block)] for f in compiled(name)]


class Error:
    """The misrounded inputs and the largest error of one implementation so far."""

    def __init__(self):
        self.misrounded = 0
        self.largest = 0.0

    def add(self, bits: np.ndarray, wanted: oracle.Expected, scale: float) -> None:
        self.misrounded += int((oracle.canonical_result(bits) != wanted.bits).sum())
        exact, result = wanted.reference, bits.view(np.float32).astype(np.float64)
        # Below, canonical results are not the nearest numbers, and XLA flushes.
        measured = (np.abs(exact) >= 2.0**-125) & (np.abs(exact) < 2.0**128)
        measured &= np.abs(exact) >= scale * 2.0**-14  # closer to a zero it is not exact enough
        # Just below 2**128 infinity is right, but not so many ulps away.
        measured &= (bits != wanted.bits) | np.isfinite(result)
        with np.errstate(all="ignore"):
            ulps = np.abs(result - exact) / np.exp2(np.frexp(exact)[1].astype(np.float64) - 24)
        ulps = np.where(np.isnan(ulps), np.inf, ulps)[measured]
        self.largest = max(self.largest, float(ulps.max(initial=0)))

    def cells(self) -> str:
        return f"{show(self.largest)} | {self.misrounded:,}"


def show(ulps: float) -> str:
    if not math.isfinite(ulps):
        return "infinite"
    return f"{ulps:.3f}" if ulps < 10 else f"{ulps:,.0f}" if ulps < 1e6 else f"{ulps:.1e}"


def measure(name: str, walk: range, pools) -> str:
    """One row of the table."""
    function = oracle.function(name)
    ours, stock, different = Error(), {isa: Error() for isa in pools}, 0
    for i in range(0, len(walk), prove.BLOCK):
        block = walk[i : i + prove.BLOCK]
        running = {isa: pool.submit(results, name, block) for isa, pool in pools.items()}
        found = {isa: future.result() for isa, future in running.items()}
        inputs = patterns(block)
        for j in range(0, len(block), prove.CHUNK):
            part = slice(j, j + prove.CHUNK)
            wanted = oracle.expected(function, inputs[part])
            for isa, (plain_bits, our_bits) in found.items():
                stock[isa].add(plain_bits[part], wanted, function.scale)
                ours.add(our_bits[part], wanted, function.scale)
        first, *others = (oracle.canonical_result(bits) for bits, _ in found.values())
        different += sum(int((first != other).sum()) for other in others)
    cells = [f"`{name}`", ours.cells(), *(e.cells() for e in stock.values()), f"{different:,}"]
    return f"| {' | '.join(cells)} |"


def measurements(names: list[str], walk: range):
    """The lines of the first table."""
    heads = [f"{label}: {cell}" for label in ISAS.values() for cell in ("error", "misrounded")]
    yield f"| function | repjax: error | misrounded | {' | '.join(heads)} | bits differ |"
    yield "|---|" + "--:|" * (len(heads) + 3)
    with prove.workers("SSE4_2", 1) as low, prove.workers("AVX512", 1) as high:
        for name in names:
            yield measure(name, walk, {"AVX512": high, "SSE4_2": low})


def certificates():
    """The lines of the second table."""
    yield "| function | proven with | settled by MPFR | reference's error, ulp64 | results |"
    yield "|---|---|--:|--:|---|"
    found = [json.loads(path.read_text()) for path in sorted(PROOFS.glob("*.json"))]
    found = [c for c in found if c["inputs"]["count"] == 2**32]
    for name in sorted({c["function"] for c in found}):
        same = [c for c in found if c["function"] == name]
        where = ", ".join(sorted({f"{c['isa']} (jax {c['versions']['jax']})" for c in same}))
        digests = ", ".join(sorted({f"`{c['results']['sha256'][:16]}`" for c in same}))
        error = max(c["audit"]["largest_reference_error_ulp64"] for c in same)
        mpfr = max(c["settled"]["by_mpfr"] for c in same)
        yield f"| `{name}` | {where} | {mpfr:,} | {error:.2f} | {digests} |"


def spectra():
    """The lines of the third table."""
    names = ("largest error of a value", "of the vectors' products", "of the decomposition")
    yield f"| matrix | {' | '.join(f'repjax: {n} | plain JAX: {n}' for n in names)} |"
    yield "|---|" + "--:|" * 6
    for n in (16, 64, 256):
        for label, decompose, a in matrices(n):
            pairs = zip(
                *(errors(f, a) for f in (repjax.reproducible(decompose), jax.jit(decompose))),
                strict=True,
            )
            cells = [f"{x:.2f}" for pair in pairs for x in pair]
            yield f"| {label}, {n}x{n} | {' | '.join(cells)} |"


def matrices(n: int):
    """Labels, decompositions into (left vectors, values, right ones), and matrices."""
    random = np.random.default_rng(n)
    x = random.standard_normal((n, n))
    q, _ = np.linalg.qr(x)
    powers = 10.0 ** -np.linspace(0, 8, n)

    def eigh(a):
        values, vectors = jax.numpy.linalg.eigh(a)
        return vectors, values, vectors.T

    def svd(a):
        return jax.numpy.linalg.svd(a, full_matrices=False)

    for label, decompose, a in [
        ("eigenvalues: symmetric", eigh, x + x.T),
        ("of a Gram matrix", eigh, x.T @ x / n),
        ("1 and 2, each n / 2 times", eigh, (q * (1.0 + np.arange(n) % 2)) @ q.T),
        ("singular values: normal", svd, x),
        ("rows from 1 to 1e-8", svd, powers[:, None] * x),
        ("of half the rank", svd, x[:, : n // 2] @ x[: n // 2]),
    ]:
        a = a.astype(np.float32)
        yield label, decompose, np.tril(a) + np.tril(a, -1).T if decompose is eigh else a


def errors(decompose, a) -> list[float]:
    """Largest errors, in units of 2**-24 and, but those of the vectors, of the largest value."""
    left, values, right = (np.asarray(x).astype(np.float64) for x in decompose(a))
    wide = a.astype(np.float64)
    if np.array_equal(left, right.T):
        exact = np.linalg.eigvalsh(wide)
    else:
        exact = np.linalg.svd(wide, compute_uv=False)
    scale = np.abs(exact).max()
    unit = np.eye(len(values))
    products = max(np.abs(v - unit).max() for v in (left.T @ left, right @ right.T))
    rest = np.linalg.norm(left * values @ right - wide, 2)
    return [x * 2.0**24 for x in (np.abs(values - exact).max() / scale, products, rest / scale)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("functions", nargs="*", help="default: all that plain JAX has")
    parser.add_argument(
        "--sample", type=int, default=2**26, help="about how many inputs (default: %(default)s)"
    )
    parser.add_argument("--write", type=pathlib.Path, help="a file to put the tables into")
    parser.add_argument("--only", nargs="+", choices=("certificates", "functions", "spectra"))
    arguments = parser.parse_args()
    names = arguments.functions or list(filter(plain, prove.available()))
    walk = prove.make_walk(sample=arguments.sample)
    tables = {
        "certificates": certificates(),
        "functions": measurements(names, walk),
        "spectra": spectra(),
    }
    for i, (kind, lines) in enumerate(tables.items()):
        if arguments.only and kind not in arguments.only:
            continue
        table = []
        for line in lines:
            print(line, flush=True)
            table.append(line)
        print()
        if arguments.write:
            write(arguments.write, i, "\n".join(table))


def write(path: pathlib.Path, i: int, table: str) -> None:
    """Put a table between the two marks of number ``i`` of a file."""
    parts = path.read_text().split(MARK)
    if len(parts) != 7:
        sys.exit(
            f"{path}: expected 6 marks {MARK}, received {len(parts) - 1}; see docs/accuracy.md"
        )
    parts[2 * i + 1] = f"\n\n{table}\n\n"
    path.write_text(MARK.join(parts))


if __name__ == "__main__":
    main()
