"""The tables of measurements in the documentation, made of the files in benchmarks/results and, for
docs/studies.md, in studies/results.

    python benchmarks/tables.py

Writes anew what README.md and the pages of docs have between ``<!-- results: NAME -->`` and
``<!-- end of results -->``: the table that the function of that name in :data:`TABLES` makes.
No other figure of speed stands in these pages; tests/project/test_docs.py compares the tables.
"""

from __future__ import annotations

import json
import pathlib
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import study_tables

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
STUDIES = ROOT / "studies" / "results"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])

#: The runs of benchmarks/products.py, by the kernel that they are of.
PRODUCTS = {
    "AVX-512 with VNNI": "products",
    "AVX-512": "products-avx512",
    "AMX": "products-amx",
}
#: The runs of benchmarks/speed.py: of all cases, on an AMD processor; on one without AVX-512;
#: before, on an Intel processor with AMX; and beside other processes.
SPEED = {"speed": "--minutes 5"}
SPEED_AVX2 = {"speed-avx2": "--minutes 5"}
SPEED_AMX = {"speed-amx": "--minutes 5"}
SPEED_BUSY = {"speed-busy": "--busy 2 --minutes 2 --only networks recurrent"}
#: The runs of benchmarks/gpt2.py that take the time, one for each CPU.
GPT2 = ("gpt2-speed", "gpt2-speed-amx")
#: The runs of benchmarks/exact.py, by the kernel that they are of.
EXACT = {"AVX-512": "exact", "AMX": "exact-amx"}
ORDERS = ("sequential", "order_independent", "order_independent, HIGHEST")

#: The cases of benchmarks/cpu.py that reduce rows or columns.
_ROWS = ("reduce_", "variance", "softmax", "layer norm")

Row = dict[str, str]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def read(name: str) -> list[list[Row]]:
    """The tables of a file of results: of each its rows, as cells by the title of the column.

    Of titles that occur twice, such as ``ratio``, each has that of the column before in front.
    """
    tables = []
    for block in re.findall(r"(?:^\|.*\n)+", (RESULTS / f"{name}.md").read_text(), re.MULTILINE):
        titles, _, *rows = map(cells, block.splitlines())
        titles = [
            f"{before}: {title}" if titles.count(title) > 1 else title
            for before, title in zip(["", *titles], titles, strict=False)
        ]
        tables.append([dict(zip(titles, row, strict=True)) for row in rows])
    return tables


def cases(name: str, *starts: str) -> dict[str, Row]:
    """The rows of a file's first table whose names start so, by name."""
    return {row["case"]: row for row in read(name)[0] if row["case"].startswith(starts or "")}


def heading(name: str) -> dict[str, str]:
    """What a file of results says in front of its tables: device, versions, kernel."""
    return dict(re.findall(r"^([\w ]+): (.*?)  $", (RESULTS / f"{name}.md").read_text(), re.M))


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    marks = ["---"] + ["---:"] * (len(titles) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in [titles, marks, *rows])


def span(values: Iterable[str | float]) -> str:
    """The smallest and the largest."""
    values = sorted(map(float, values))
    return f"{values[0]:.2f} to {values[-1]:.2f}"


# --- the cases of benchmarks/speed.py ---------------------------------------------------

#: The most that the ratios of cases may be: means over training steps and over all, and any one.
MEAN_OF_STEPS, MEAN, MOST = 1.0, 1.2, 2.0
_EIGENVALUES = ("eigh", "SVD")  # which are slower than this


def _mean(rows: Iterable[Row]) -> float:
    return statistics.geometric_mean(float(row["ratio"]) for row in rows)


def _bar(row: Row) -> float:
    return float(row["bar"] or MOST)


def _shown(row: Row) -> str:
    return f"{row['case'].partition(': ')[2]}: {row['ratio']}"


def groups_of(rows: Sequence[Row]) -> str:
    """By group the mean, the extremes and the cases over their bars; and over all groups."""
    named: dict[str, list[Row]] = {}
    for row in rows:
        named.setdefault(row["case"].partition(": ")[0], []).append(row)
    lines = []
    for name, found in named.items():
        by_ratio = sorted(found, key=lambda row: float(row["ratio"]))
        over = sum(float(row["ratio"]) > _bar(row) for row in found)
        base = found[0]["compared with"]
        title = name if base == "plain JAX" else f"{name}, beside {base}"
        cells = [f"{_mean(found):.2f}", _shown(by_ratio[0]), _shown(by_ratio[-1])]
        lines.append([title, str(len(found)), *cells, str(over)])
    plain = [row for row in rows if row["compared with"] == "plain JAX"]
    steps = [row for row in plain if "training step" in row["case"]]
    for title, found, bar in (
        ("**all training steps**", steps, MEAN_OF_STEPS),
        ("**all beside plain JAX**", plain, MEAN),
    ):
        if found:
            mean = _mean(found)
            verdict = "" if mean <= bar else ", **misses it**"
            over = sum(float(row["ratio"]) > _bar(row) for row in found)
            cells = [f"{mean:.2f} (bar {bar:.2f}{verdict})", "", "", str(over)]
            lines.append([title, str(len(found)), *cells])
    above = [row for row in plain if float(row["ratio"]) > MOST]
    above = [row for row in above if not any(name in row["case"] for name in _EIGENVALUES)]
    slowest = max(above, key=lambda row: float(row["ratio"]), default=None)
    title = f"**above {MOST:.2f} times, except eigenvalues**"
    lines.append([title, str(len(above)), "", "", _shown(slowest) if slowest else "", ""])
    titles = ["cases", "number", "geometric mean", "fastest", "slowest", "over their bars"]
    return table(titles, lines)


def over_bars(rows: Sequence[Row]) -> str:
    """The cases over their bars, those that are furthest over them first."""
    over = [row for row in rows if float(row["ratio"]) > _bar(row)]
    over.sort(key=lambda row: float(row["ratio"]) / _bar(row), reverse=True)
    cells = ([row["case"], row["compared with"], row["ratio"], f"{_bar(row):.2f}"] for row in over)
    return table(["case over its bar", "compared with", "ratio", "bar"], cells)


def _speed() -> list[Row]:
    return read("speed")[0]


# --- the tables -------------------------------------------------------------------------


def _text(name: str) -> str:
    return (RESULTS / f"{name}.md").read_text()


def _link(name: str) -> str:
    return f"[{name}](../benchmarks/results/{name}.md)"


def measured() -> str:
    """Which file was measured on what."""
    programs = {"cpu": "cpu", **dict.fromkeys(PRODUCTS.values(), "products")}
    programs |= {name: name for name in ("devices", "training", "scaling", "pytorch")}
    programs |= dict.fromkeys(EXACT.values(), "exact")
    programs |= dict.fromkeys((*GPT2, "gpt2-bits"), "gpt2")
    rows = []
    for name, program in programs.items():
        info = heading(name)
        kernel = info.get("products", "").removeprefix("compiled kernel, ")
        part = name.split("-")[1] + " " if program == "gpt2" else ""
        command = f"python benchmarks/{program}.py {part}--output benchmarks/results/{name}"
        if name == "scaling":
            command += " --picture docs/scaling.png"
        if name in PRODUCTS.values():
            command = f"REPJAX_NATIVE={kernel} {command}"
        rows.append([_link(name), info["cpu"], info["jax"], f"`{command}`"])
    for name, options in (SPEED | SPEED_AVX2 | SPEED_AMX | SPEED_BUSY).items():
        info = heading(name)
        command = f"python benchmarks/speed.py {options} --output benchmarks/results/{name}"
        *busy, cores = info["other work"].split(", ")
        others = float(cores.removesuffix(" cores")) > 0.1
        beside = f", {cores} of other work beside it" if others and not busy else ""
        beside += f", beside {busy[0]}" if busy else ""
        unmeasured = re.findall("^Not run:\n\n((?:- .*\n)+)", _text(name), re.M)
        if unmeasured:
            beside += f", {unmeasured[0].count(chr(10))} cases not run"
        rows.append([_link(name), info["cpu"] + beside, info["jax"], f"`{command}`"])
    return table(["results", "CPU", "jax", "command"], rows).replace("---:", "---")


def summary() -> str:
    """Ratios by family of operations: the fastest, the median and the slowest case."""
    steps = [row for name, row in cases("cpu").items() if "training step" in name]
    families = {
        "training steps": [row["ratio"] for row in steps],
        "training steps: the first call, which traces and compiles": [
            float(row["repjax, s"]) / float(row["first call: plain, s"]) for row in steps
        ],
        "training steps, split over 2 devices": [
            row["ratio"] for name, row in cases("devices").items() if "2 devices" in name
        ],
        **{
            f"matrix products and convolutions, `{order}`".replace(", HIGHEST`", "`, `HIGHEST`"): [
                row[f"{order}: ratio"] for row in cases("products").values()
            ]
            for order in ORDERS
        },
        "elementwise operations and functions": [
            row["ratio"] for row in cases("cpu", "elementwise").values()
        ],
        "sums, extrema, softmax, layer norm": [
            row["ratio"] for row in cases("cpu", *_ROWS).values()
        ],
    }
    return table(
        ["time as a ratio to plain JAX", "fastest case", "median", "slowest case"],
        (
            [name, *(f"{f(list(map(float, ratios))):.2f}" for f in (min, statistics.median, max))]
            for name, ratios in families.items()
        ),
    )


def _cases(*starts: str, first_call: bool = False) -> str:
    titles = ["plain, ms", "repjax, ms", "ratio"]
    titles += ["first call: plain, s", "repjax, s"] if first_call else []
    return table(
        ["case", *titles],
        ([name, *(row[title] for title in titles)] for name, row in cases("cpu", *starts).items()),
    )


def programs() -> str:
    starts = ("LeNet-5", "transformer", "ResNet", "larger", "language", "dispatch")
    return _cases(*starts, first_call=True)


def large_classes() -> str:
    return _cases("cross-entropy", "embeddings")


def linear_algebra() -> str:
    return _cases("Cholesky", "LU", "QR", "eigh", "SVD", "solve")


def fourier() -> str:
    return _cases("rfft", "fft2", "complex")


def _by_size(sizes: dict[str, str], *starts: str) -> str:
    """The ratios of operations that were measured in two sizes."""
    found = cases("cpu", *starts)
    names = dict.fromkeys(name.rpartition(" [")[0] for name in found)
    rows = ([name, *(found[f"{name} [{size}]"]["ratio"] for size in sizes)] for name in names)
    return table(["ratio to plain JAX", *sizes.values()], rows)


def elementwise() -> str:
    sizes = {"65536": "65,536 elements", "16777216": "16,777,216 elements"}
    return _by_size(sizes, "elementwise").replace("| elementwise ", "| ")


def rows() -> str:
    sizes = {"64x1024": "64 rows of 1,024", "16384x1024": "16,384 rows of 1,024"}
    return _by_size(sizes, *_ROWS)


def products() -> str:
    """The range of the ratios, by kind of product and kernel."""
    kinds = {
        "matrix products, attention": ("dot", "attention"),
        "of these, square ones of 1,024 and 2,048": ("dot 1024x1024", "dot 2048x2048"),
        "convolutions, with both gradients": ("ResNet", "1x1", "LeNet"),
    }
    rows = []
    for kind, starts in kinds.items():
        for kernel, name in PRODUCTS.items():
            found = cases(name, *starts).values()
            spans = (span(row[f"{order}: ratio"] for row in found) for order in ORDERS)
            rows.append([kind, kernel, *spans])
    return table(["ratio to plain JAX", "kernel", *ORDERS], rows).replace("---:", "---", 1)


def devices() -> str:
    rows: dict[str, list[str]] = {}
    for ratios in read("devices"):  # of time and of memory
        for row in ratios:
            network, way = re.split(r", \d devices, ", row["case"])
            rows.setdefault(f"{network}, `{way}`", []).append(row["ratio"])
    titles = ["ratio to plain JAX on the same devices", "2 devices", "8 devices"]
    titles += ["memory of one of 2", "memory of one of 8"]
    return table(titles, ([name, *ratios] for name, ratios in rows.items()))


def gpt2() -> str:
    titles = ["plain", "repjax", "ratio"]
    rows = [
        [name, heading(file)["cpu"], *(row[t] for t in titles)]
        for file in GPT2
        for name, row in cases(file).items()
    ]
    return table(["GPT-2 small's shape", "CPU", *titles], rows)


def gpt2_bits() -> str:
    """The settings in which the digests were compared, by model."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for model, name in {"124 million": "gpt2-bits", "34,000": "gpt2-small-bits"}.items():
        for row in read(name)[0]:
            key = (model, f"`{row['setting']}`", row["machine"], row["jax"])
            digests = found.setdefault(key, {what: row[what] for what in ("drawn", "trained")})
            digests[row["tokens"]] = row["sampled"]
    titles = ["parameters", "setting", "machine", "jax", "drawn", "trained"]
    columns = {"drawn": "", "trained": "", "2": "", "32": ""}
    rows = [[*key, *(columns | digests).values()] for key, digests in found.items()]
    return table([*titles, "2 tokens", "32 tokens"], rows).replace("---:", "---")


def scaling() -> str:
    """By case, at its largest size: the roof, and what threads gain."""
    found = json.loads((RESULTS / "scaling.json").read_text())["rows"]
    most = max(row["threads"] for row in found)
    rows = []
    for name in dict.fromkeys(row["case"] for row in found):
        here = [row for row in found if row["case"] == name]
        n = min(max(row["n"] for row in here if row["threads"] == t) for t in (1, most))
        one, many = (next(r for r in here if (r["n"], r["threads"]) == (n, t)) for t in (1, most))
        ms = [f"{one[way] * 1e3:.2f}" if one[way] else "" for way in ("roof", "plain", "repjax")]
        gains = [f"{one[way] / many[way]:.2f}" for way in ("plain", "repjax")]
        rows.append([f"{name}, n = {n:,}", *ms, *gains])
    titles = ["case", "roof, ms", "plain, ms", "repjax, ms"]
    return table([*titles, f"{most} threads: plain", f"{most} threads: repjax"], rows)


def errors() -> str:
    """The largest errors of products."""
    titles = ["plain", "plain, TF32 inputs", "float64, rounded", *ORDERS]
    return table(
        ["data", *titles],
        (
            [row["data"], *(row[title].split(" / ")[0] for title in titles)]
            for row in read("products")[1]
        ),
    )


def speed_groups() -> str:
    """Every case of benchmarks/speed.py, by group."""
    return groups_of(_speed())


def speed_groups_avx2() -> str:
    """The same on a processor without AVX-512."""
    return groups_of(read("speed-avx2")[0])


def speed_groups_amx() -> str:
    """The same on another processor, with an earlier state of the kernels."""
    return groups_of(read("speed-amx")[0])


def speed_groups_busy() -> str:
    """Training steps and recurrent networks beside other processes that compute."""
    return groups_of(read("speed-busy")[0])


def speed_over_bars() -> str:
    """Those of them that miss their bars."""
    return over_bars(_speed())


def exact_times() -> str:
    """Products, sums and training steps in the default orders and in the order exact."""
    runs = {kernel: cases(name) for kernel, name in EXACT.items()}
    titles = {"default": "default / plain", "exact": "exact / plain"}
    rows = (
        [case, *(run[case][title] for run in runs.values() for title in titles.values())]
        for case in runs["AVX-512"]
    )
    return table(["case", *(f"{kernel}, {order}" for kernel in runs for order in titles)], rows)


def exact_errors() -> str:
    """Errors of products beside those of exact ones."""
    rows = read("exact")[1]
    return table([*rows[0]], (row.values() for row in rows))


def pytorch() -> str:
    """Milliseconds in PyTorch, plain JAX, repjax's orders, RepDL and ``repjax.repdl``."""
    rows = read("pytorch")[0]
    return table([*rows[0]], (row.values() for row in rows))


def training() -> str:
    """The accuracy on examples held out."""
    ways, accuracy = ("plain", *ORDERS), {}
    for row in read("training")[0]:
        accuracy.setdefault(f"{row['network']}, seed {row['seed']}", []).append(row["accuracy"])
    return table(["network and data", *ways], ([name, *row] for name, row in accuracy.items()))


# --- the studies, by studies/*.py --------------------------------------------------------


def _study(name: str) -> dict[str, Any]:
    return json.loads((STUDIES / f"{name}.json").read_text())


def _chen() -> Iterator[tuple[str, dict[str, Any]]]:
    """The studies of Chen et al. that were run, by name, those of images first."""
    order = (
        "lenet1",
        "lenet5",
        "lenet5-50",
        "devices",
        "resnet38",
        "resnet56",
        "resnet56-epochs",
        "resnet56-long",
        "wrn-28-10",
        "elec_equip",
        "sunspots",
        "co2",
    )
    for name in order:
        if (STUDIES / f"chen-{name}.json").exists():
            yield name, _study(f"chen-{name}")


def chen_runs() -> str:
    """What was run in each study of Chen et al."""
    rows = []
    for name, found in _chen():
        study, setups = found["study"], found["setups"]
        pairs = [pair for setup in setups.values() for pair in setup["pairs"]]
        platforms = sorted({x for pair in pairs for x in pair["platforms"]})
        examples = study["limit"] or {"fashion-mnist": 60_000, "digits": 1_442}.get(study["data"])
        epochs = sorted({n for pair in pairs for n in pair["epochs"]})
        steps = sorted({pair["steps"] for pair in pairs})
        rows.append(
            [
                f"[{name}](../studies/results/chen-{name}.json)",
                f"{study['network']}, {study['data']}",
                f"{examples:,}" if examples else "70 % of the series",
                str(study["batch"] or {"forecaster": 32}.get(study["network"], 128)),
                *(f"{x[0]:,} to {x[-1]:,}" if len(x) > 1 else f"{x[0]:,}" for x in (epochs, steps)),
                str(sum(len(setup["curves"]) for setup in setups.values())),
                ", ".join(f"`{x}`" for x in platforms),
            ]
        )
    titles = ["study", "network, data", "training examples", "batch", "epochs", "steps"]
    return table([*titles, "runs", "platforms"], rows).replace("---:", "---")


def chen() -> str:
    """By study and setup: how many pairs are the same, and how far others are apart."""
    rows = []
    for name, found in _chen():
        for setup, result in found["setups"].items():
            x = result["summary"]
            epochs = sum(max(pair["epochs"]) for pair in result["pairs"])
            if "accuracy" in x:
                largest = [
                    f"{100 * x[key]['largest']:.2f} %"
                    for key in ("accuracy", "accuracy of classes")
                ]
            else:
                largest = [f"{x['mean absolute error']['largest']:.3g} (error)", ""]
            rows.append(
                [
                    f"{name}, {setup}",
                    f"{x['identical bits']} of {x['pairs']}",
                    f"{x['identical by the criteria']} of {x['pairs']}",
                    f"{x['losses']} of {epochs}",
                    f"{x['predictions']['largest']:.0f}",
                    *largest,
                ]
            )
    titles = ["study, setup", "pairs with the same bits", "the same by the criteria"]
    titles += ["losses that differ", "most predictions that differ", "accuracy", "of a class"]
    return table(titles, rows)


#: Times of training without and with what makes it deterministic: hours on a Tesla P100, table 3 of
#: Chen et al. 2022; and seconds on an H100, section V of Shanmugavelu et al. 2024.
_TIMES = {
    "lenet1": (0.017, 0.023),
    "lenet4": (0.019, 0.027),
    "lenet5": (0.021, 0.028),
    "resnet38": (1.243, 1.561),
    "resnet56": (1.752, 2.179),
    "wrn-28-10": (7.08, 14.979),
    "graphsage": (0.18, 0.48),
}


def cost() -> str:
    rows = []
    for name, x in _study("cost")["networks"].items():
        papers = _TIMES.get(name)
        rows.append(
            [
                name,
                f"{x['parameters']:,}",
                str(x["batch"]),
                *(f"{1e3 * x['step'][way]:.2f}" for way in ("plain", "repjax")),
                f"{x['ratio']:.2f}",
                f"{papers[1] / papers[0]:.2f}" if papers else "not stated",
            ]
        )
    titles = ["network", "parameters", "batch", "plain, ms", "repjax, ms", "ratio"]
    return table([*titles, "the papers' ratio, on a GPU"], rows)


def cost_measured() -> str:
    x = _study("cost")
    where = f"{x['cores']} cores, jax {x['jax']}, {x['cpu products']}, {x['date']}"
    return f"Measured on {where}; load before: {x['load before']}. {x['note']}".strip()


TABLES: dict[str, Callable[[], str]] = {
    function.__name__: function
    for function in (
        *(measured, summary, programs, large_classes, linear_algebra, fourier, elementwise),
        *(rows, products, devices, errors, exact_times, exact_errors, training, gpt2, gpt2_bits),
        *(chen_runs, chen, cost, cost_measured, pytorch),
        *(speed_groups, speed_groups_avx2, speed_groups_amx, speed_groups_busy),
        *(speed_over_bars, scaling),
    )
} | {name: lambda f=f: table(*f()) for name, f in study_tables.TABLES.items()}


def filled(page: str) -> str:
    """The text of a page with its tables made anew."""
    return re.sub(
        r"(<!-- results: (\w+) -->\n\n).*?(<!-- end of results -->)",
        lambda match: f"{match[1]}{TABLES[match[2]]()}\n\n{match[3]}",
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(filled(path.read_text()))
