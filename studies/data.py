"""The data of the studies, and where it comes from.

=====================  ==============================================================
data                   it comes with
=====================  ==============================================================
Fashion-MNIST          Debian's package ``dataset-fashion-mnist``, or a folder
MNIST's test images    a folder with ``t10k-*`` files; its training set is not needed
digits                 scikit-learn
three time series      statsmodels
Cora                   a file ``cora.npz``, or the folder that has it
=====================  ==============================================================

Pixels stay 8-bit integers, and are read as ``examples/train_digits.py`` reads them.  Where a set is
not there, :class:`DataError` says in one sentence how to get it.
"""

from __future__ import annotations

import importlib
import pathlib
import sys
import typing
import zipfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))
import train_digits
from train_digits import Data, Split, batches

__all__ = ["CORA", "FASHION_MNIST", "SERIES", "Data", "DataError", "Graph", "Split", "batches"]

#: Where Debian's package puts Fashion-MNIST.
FASHION_MNIST = pathlib.Path("/usr/share/datasets/fashion-mnist")
#: statsmodels' names of the series, and of the column that is one.
SERIES = {"elec_equip": None, "co2": "co2", "sunspots": "SUNACTIVITY"}
#: The file of :func:`cora`; larger ones are refused.
CORA, MOST_BYTES = "cora.npz", 1 << 26

DataError = train_digits.UserError


def fashion_mnist(size: int = 28, folder: str | pathlib.Path | None = None) -> Data:
    """Fashion-MNIST: 60,000 training and 10,000 test images, centred in (size, size).

    Args:
      size: height and width; a border of the background is added to 28.
      folder: with the four IDX files; where Debian puts them without it.

    Raises:
      DataError: the files are missing, or are no IDX files.
    """
    folder = pathlib.Path(folder or FASHION_MNIST)
    if not folder.is_dir():
        raise DataError(
            f"expected Fashion-MNIST in {folder}, received no such folder; install Debian's "
            "package dataset-fashion-mnist, or give a folder with its four IDX files"
        )
    return train_digits.load_idx(folder, size)._replace(name="Fashion-MNIST")


def mnist_test(folder: str | pathlib.Path, size: int = 28) -> Split:
    """MNIST's 10,000 test images and labels, of ``t10k-*`` files in a folder."""
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise DataError(
            f"expected a folder with MNIST's test images, received {folder}; "
            "put t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz there"
        )
    return train_digits.load_idx_split(folder, "t10k", size)


def digits(size: int = 28) -> Data:
    """scikit-learn's 1,797 digits, each pixel repeated, centred in (size, size)."""
    return train_digits.load_digits(size)._replace(name="scikit-learn's digits")


def series(name: str) -> np.ndarray:
    """A time series of statsmodels: float64 (n,), its missing numbers left out.

    ``elec_equip``: 257 months of new orders of electrical equipment; ``co2``: 2,225 weeks at Mauna
    Loa; ``sunspots``: 309 years.
    """
    if name not in SERIES:
        raise DataError(f"expected one of {', '.join(SERIES)}, received {name!r}; choose one")
    try:
        module = importlib.import_module(f"statsmodels.datasets.{name}")
    except ImportError:
        raise DataError(
            "expected statsmodels, which holds the time series, but it is not installed; run "
            "`pip install statsmodels`"
        ) from None
    table = module.load().data
    numbers = table[SERIES[name]] if SERIES[name] else table.iloc[:, 0]
    return numbers.dropna().to_numpy(np.float64)


class Graph(typing.NamedTuple):
    """A citation graph.

    Attributes:
      features: float32 (nodes, words), 0 or 1: which words a paper has.
      labels: int32 (nodes,): its subject.
      edges: int32 (2, links): from and to, each link in both directions, in the order of the file,
        all of one direction first.
      train, test: int32: the nodes whose labels are learned, and tested.
    """

    features: np.ndarray
    labels: np.ndarray
    edges: np.ndarray
    train: np.ndarray
    test: np.ndarray

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1


#: The arrays of the file: their types and numbers of axes.
_ARRAYS = {
    "features_packed": ("uint8", 2),
    "features": ("int32", 0),
    "labels": ("int8", 1),
    "edges": ("int32", 2),
    "test": ("int32", 1),
}
#: The usual training set: 20 papers of each of the 7 subjects.
_TRAINED = 140


def cora(path: str | pathlib.Path) -> Graph:
    """Cora: 2,708 papers of 7 subjects, 1,433 words, 5,278 links, of a file ``cora.npz``.

    The file holds ``features_packed``, bits as ``np.packbits(axis=1)`` makes them, their number
    ``features``, ``labels``, ``edges`` (5278, 2) without directions or loops, and ``test``.

    Raises:
      DataError: there is no such file, or it holds something else.
    """
    path = pathlib.Path(path)
    path = path / CORA if path.is_dir() else path
    if not path.is_file():
        raise DataError(
            f"expected {CORA}, received no file {path}; make it of the public Cora citation graph "
            "as studies/data.py says, and give its folder"
        )
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"expected at most {MOST_BYTES} bytes, received {path}; give {CORA}")
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("no npz file")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in _ARRAYS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, MemoryError) as error:
        raise DataError(
            f"expected the arrays {', '.join(_ARRAYS)} in {path}, received another file "
            f"({error}); give {CORA}"
        ) from None
    found = {name: (x.dtype.name, x.ndim) for name, x in arrays.items()}
    if found != _ARRAYS:
        raise DataError(f"expected {_ARRAYS} in {path}, received {found}; give {CORA}")
    words, nodes = int(arrays["features"]), len(arrays["labels"])
    links, test, packed = arrays["edges"], arrays["test"], arrays["features_packed"]
    if (
        packed.shape != (nodes, -(-words // 8))
        or links.shape[1:] != (2,)
        or nodes < _TRAINED
        or not all(x.size and x.min() >= 0 and x.max() < nodes for x in (links, test))
        or arrays["labels"].min() < 0
    ):
        raise DataError(
            f"expected links and test papers among {nodes} papers of {words} words in {path}, "
            f"received others; give {CORA}"
        )
    return Graph(
        features=np.unpackbits(packed, axis=1, count=words).astype(np.float32),
        labels=arrays["labels"].astype(np.int32),
        edges=np.concatenate([links, links[:, ::-1]]).T.copy(),
        train=np.arange(_TRAINED, dtype=np.int32),
        test=test,
    )
