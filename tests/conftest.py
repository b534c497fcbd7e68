"""What concerns all tests: which run where.

==============================  ==========================================================
tests                           run
==============================  ==========================================================
all others                      by ``pytest``, which is the README's test command, with the
                                oldest JAX; with the newest; with the one in the middle
of ``OF_ONE_VERSION``           not with the newest, nor the one in the middle: they hardly
                                depend on JAX
of ``NOT_IN_THE_MIDDLE``        not with the one in the middle, whose internals they do not
                                need
``SLOW``                        with the newest alone, by ``pytest -m ""``: they take long, and
                                what is quick has the same code, on other data or settings
==============================  ==========================================================

``.ci/run`` runs all of these.
"""

from __future__ import annotations

import pytest

OF_ONE_VERSION = (
    *("amx", "data", "digest", "elementary", "example", "fuzz", "gpu_benchmark", "native"),
    *("order_independent", "partition", "prove", "special", "spectral", "two_arguments"),
)
NOT_IN_THE_MIDDLE = (
    *("elementwise", "gpu_kernels", "halves", "integers", "lenet", "library", "linalg", "narrow"),
    *("options", "ptx", "ptx_emulator", "repdl", "rows", "rows_on_cpu", "samplers", "scatter"),
    *("window", "x64"),
)
#: Parts of the names of tests.
SLOW = ()
#: They take minutes in processes of their own: begun first, none is left alone at the end.
LONG = ("test_settings.py::test_setting[", "test_structure.py::test_wheel", "test_halves.py::")


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        file = item.path.stem.removeprefix("test_")
        if any(name in item.nodeid for name in SLOW):
            item.add_marker(pytest.mark.slow)
        if file in OF_ONE_VERSION:
            item.add_marker(pytest.mark.of_one_version)
        if file in NOT_IN_THE_MIDDLE:
            item.add_marker(pytest.mark.not_in_the_middle)
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONG))
