"""The tables of docs/studies.md about sums: of studies/fpna.py, workaround.py and repdl.py.

Each function gives titles and rows of what a file in studies/results says.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

STUDIES = pathlib.Path(__file__).parent.parent / "studies" / "results"
Table = tuple[list[str], list[list[str]]]
WAYS = ("plain", "pairwise", "sequential", "order_independent", "exact")
#: Of plain JAX and the two ways of repjax in docs.
NAMES = {"plain": "plain JAX", "repjax": "repjax", "sequential": "repjax"}
#: Vermv of Table 5 of the study of floating-point non-associativity, on an H100: smallest and
#: largest over all hyperparameters.
PAPER = {
    "ConvTranspose1d": "1.5e-07 to 2.4e-06",
    "ConvTranspose2d": "1.3e-07 to 4.5e-06",
    "ConvTranspose3d": "0 to 1.3e-06",
    "cumsum": "0 to 5.2e-07",
    "index_add": "0 to 5.0e-06",
    "index_copy": "3.6e-08 to 2.1e-06",
    "index_put": "0 to 1.7e-06",
    "scatter": "0 to 3.8e-06",
    "scatter_reduce": "0 to 3.4e-06",
}


def read(name: str) -> dict[str, Any]:
    return json.loads((STUDIES / f"{name}.json").read_text())


def _number(x: float) -> str:
    return f"{x:.2e}" if x else "0"


def fpna_sums() -> Table:
    rows = []
    for draw, ways in read("fpna-sums")["histograms"].items():
        for way, s in ways.items():
            rows.append(
                [
                    f"{draw}: {way}",
                    f"{s['count']:,}",
                    f"{s['different']:,}",
                    _number(s["deviation"]),
                    _number(s["largest"]),
                    f"{s['divergence']:.3f}" if s["different"] else "",
                ]
            )
    titles = ["numbers: sums", "sums", "Vs not 0", "deviation of Vs", "largest Vs"]
    return [*titles, "KL against normal"], rows


def fpna_powers() -> Table:
    powers = read("fpna-sums")["powers"]
    rows = []
    for way in ("float64", *WAYS):
        fits = [powers[draw][way]["power"] for draw in powers]
        texts = [f"{f[0]:.1e} * n^{f[1]:.2f}" if f else "0 for every n" for f in fits]
        rows.append([f"float32, {way}" if way != "float64" else "float64, sequential", *texts])
    return ["sum", *powers], rows


def fpna_operations() -> Table:
    rows, paper = [], dict(PAPER)
    for name, ways in read("fpna-operations")["operations"].items():
        texts = []
        for way in WAYS:
            m = ways[way]
            text = f"{_number(m['min vermv'])} to {_number(m['max vermv'])}; {m['max vc']:.2f}"
            texts.append(text if m["max vc"] else "0")
        rows.append([name, ways["defined by"], *texts, paper.pop(name.partition(",")[0], "")])
    titles = [f"repjax, {way}" if way != "plain" else "plain JAX" for way in WAYS]
    return ["operation", "defined by its", *titles, "the paper's Vermv"], rows


def fpna_models() -> Table:
    found = read("fpna-graph")
    paper = {
        "D D": "0; 0",
        "D ND": "2.63e-06 (1.2e-07); 0.12 (0.2)",
        "ND D": "4.27e-06 (2.1e-07); 0.16 (0.2)",
        "ND ND": "5.08e-06 (2.3e-07); 0.21 (0.4)",
    }
    words = {"D": "one order", "ND": "any order"}
    rows = []
    for condition, of_paper in paper.items():
        texts = []
        for way in ("plain", "repjax"):
            m = found["conditions"][f"{way}, {condition}"]
            (vermv, spread), (vc, spread_of_vc) = m["vermv"], m["vc"]
            text = f"{vermv:.2e} ({spread:.1e}); {vc:.2f} ({spread_of_vc:.2f})"
            texts.append(text if vc else "0; 0")
        rows.append([*(words[word] for word in condition.split()), *texts, of_paper])
    return ["training", "inference", "plain JAX", "repjax", "the paper's, on a GPU"], rows


def workaround_sums() -> Table:
    found = read("workaround")
    by_platform = found["sums by platform"].values()
    rows = []
    for name, s in found["sums"].items():
        other = s["other orders"]
        rows.append(
            [
                name,
                f"{s['same order']['mean']:.6f}",
                f"{s['same order']['max-min']:g}",
                f"{other['max-min']:g}",
                f"{other['different']}",
                str(len({sums[name] for sums in by_platform})),
            ]
        )
    times, platforms = found["times"], len(by_platform)
    titles = ["sum", "in the order of the array", f"max-min of {times} times"]
    titles += [
        f"max-min in {times} orders",
        "different ones",
        f"different on {platforms} platforms",
    ]
    return titles, rows


def workaround_training() -> Table:
    found = read("workaround")
    epochs = len(found["trainings"][0]["epochs"])
    rows = []
    for t in found["trainings"]:
        last = t["epochs"][-1]
        correct = [str(line["correct"]) for line in t["epochs"]]
        loss = f"{float.fromhex(last['loss']):.8f}"
        digest = last["digest"].removeprefix("sha256:")[:12]
        rows.append(
            [f"{NAMES[t['way']]}, {t['form']}", f"`{t['platform']}`", *correct, loss, digest]
        )
    titles = [f"correct, epoch {k}" for k in range(epochs)]
    return ["network", "platform", *titles, "last loss", "digest of the weights"], rows


def workaround_pairs() -> Table:
    rows = []
    for p in read("workaround")["pairs"]:
        first = p["first loss that differs"]
        rows.append(
            [
                f"{NAMES[p['way']]}: two {p['between']}, {p['of']}",
                f"step {first}" if first else "never",
                _number(p["vermv"][-1]),
                f"{p['vc'][-1]:.2f}" if p["vc"][-1] else "0",
            ]
        )
    return ["two trainings", "losses part in", "Vermv of the last weights", "Vc"], rows


def repdl_readme() -> Table:
    found = read("repdl")
    readme = {
        "the initial model": "2a2d133895b1684e55d0f152ead2914b55adc551d9790a4b4585309b79c60362",
        "the trained model": "31ee86a7f75dbd76bac22f209617eb7349f93b0ede116dba924f328cac3013f1",
        "the logits": "0ca34dcd37105b4af690c46a62407b4b9b097d1063864c6d99f4309aeb4bca3e",
    }
    itself = (
        readme["the initial model"],
        "b0f858c6885e8a64df0930de08901ca5d4f7962339ed146e8e9f183d2b41134d",
        "005b615a6939b67f3bf2e8c4e5e9d4debea08ffc8065ccbd8819145d359cb8d1",
    )
    ours = (found["initial"], found["trained"], found["logits"])
    rows = [
        [name, *(f"`{text[:16]}...`" for text in texts)]
        for name, *texts in zip(readme, readme.values(), itself, ours, strict=True)
    ]
    rows.append(["accuracy", "0.9804", "0.8668", f"{found['accuracy']}"])
    titles = ["RepDL's README, MNIST", "RepDL itself, Fashion-MNIST"]
    return ["hash of", *titles, f"studies/repdl.py, {found['data']}"], rows


TABLES = {
    f.__name__: f
    for f in (
        *(fpna_sums, fpna_powers, fpna_operations, fpna_models),
        *(workaround_sums, workaround_training, workaround_pairs, repdl_readme),
    )
}
