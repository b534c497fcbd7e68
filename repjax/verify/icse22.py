"""Result files of the experiments of Chen et al. 2022, as runs.

Such a file has lines ``overall_acc,NUMBER``, ``loss,[NUMBERS]``, ``time,[NUMBERS]``, one
``CLASS,ACCURACY`` for each class, and then one predicted class a line.  Numbers are Python's
shortest texts of float64, so they say the bits.  The labels of the test data are not there.
"""

from __future__ import annotations

import ast
import pathlib

import numpy as np

from repjax.verify.runs import Epoch, Evaluation, Number, Record, RunError

#: Limits of what is read.
MOST_BYTES = 1 << 26


def read(path) -> Record:
    """Read one file.

    Raises:
      RunError: it has another form.
      OSError: it cannot be read.
    """
    path = pathlib.Path(path)
    if path.stat().st_size > MOST_BYTES:
        raise RunError(f"{path}: expected at most {MOST_BYTES} bytes")
    accuracies: dict[str | None, str] = {}
    losses: list[float] | None = None
    predictions: list[int] = []
    for number, line in enumerate(path.read_bytes().decode(errors="replace").splitlines(), 1):
        key, comma, value = line.partition(",")
        try:
            if key == "loss":
                losses = [float(x) for x in ast.literal_eval(value)]
            elif key == "overall_acc":
                accuracies[None] = _number(value)
            elif comma and key != "time":
                accuracies[str(int(key))] = _number(value)
            elif not comma:
                predictions.append(int(key))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            raise RunError(
                f"{path}: expected a result file of Chen et al. 2022, received line {number}, "
                f"{line[:40]!r}"
            ) from error
    if losses is None or None not in accuracies or not predictions:
        raise RunError(
            f"{path}: expected a result file of Chen et al. 2022, with overall_acc, loss and "
            "predictions; received a file without some of them, perhaps cut short"
        )
    return Record(
        str(path),
        epochs=[Epoch(Number.of("a loss", x), {}) for x in losses],
        evaluations=[Evaluation(None, np.array(predictions), accuracies=accuracies)],
        is_finished=True,
    )


def _number(text: str) -> str:
    float(text)
    return text
