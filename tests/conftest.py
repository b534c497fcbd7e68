"""What concerns all tests."""

from __future__ import annotations

#: They take minutes in processes of their own: begun first, none is left alone at the end.
LONG = ("test_settings.py::test_setting[", "test_structure.py::test_wheel", "test_halves.py::")


def pytest_collection_modifyitems(items) -> None:
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONG))
