"""The command line: each command says what it is for, with an example."""

from __future__ import annotations

import re

import pytest

from repjax.__main__ import main


def shown(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_every_command_has_an_example(capsys):
    names = re.findall(r"^    (\w+)(?: |$)", shown(capsys), re.M)
    assert {"compare", "bisect", "explain", "replay", "verify", "report"} < {*names}
    for name in names:
        _, _, example = shown(capsys, name).partition("\nexample")
        assert f"repjax {name} " in example, name


def test_no_command(capsys):
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2 and "required: COMMAND" in capsys.readouterr().err
