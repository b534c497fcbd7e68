"""The site: it is built without a warning, needs no network, and a broken link fails it."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from helpers.paths import ROOT

#: What the site is made of.
SOURCES = ("mkdocs.yml", "README.md", "CHANGELOG.md", "docs")


def _build(source: pathlib.Path, site: pathlib.Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-f", source / "mkdocs.yml", "-d", site],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path):
    """The sources of the site, to be changed; their links lead to files of the repository."""
    for path in ROOT.iterdir():
        if path.name not in SOURCES and not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    for name in SOURCES:
        path = ROOT / name
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / name)
    return tmp_path


def test_site_is_built_and_needs_no_network(tmp_path):
    result = _build(ROOT, tmp_path)
    assert result.returncode == 0, result.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert {"index.html", "changelog.html", "numerics.html"} <= {page.name for page in pages}
    loaded = r"<(?:script|img|iframe|link rel=\"(?:stylesheet|preload)\")[^>]*(?:src|href)=\"?http"
    assert [page for page in pages if re.search(loaded, page.read_text())] == []
    assert "add_each" in (tmp_path / "reference" / "repjax.exact.html").read_text()
    assert 'href="numerics.html#exact"' in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    "link", ["nnx.md#nowhere", "nowhere.md", "../examples/nowhere.py", "../README.md#nowhere"]
)
def test_a_link_to_nowhere_fails_the_site(copy, tmp_path_factory, link):
    with (copy / "docs" / "glossary.md").open("a") as page:
        page.write(f"\n[x]({link})\n")
    result = _build(copy, tmp_path_factory.mktemp("site"))
    assert result.returncode != 0
    assert "nowhere" in result.stderr


def test_a_page_that_is_not_in_the_navigation_fails_the_site(copy, tmp_path_factory):
    (copy / "docs" / "lost.md").write_text("# Lost\n")
    result = _build(copy, tmp_path_factory.mktemp("site"))
    assert result.returncode != 0
    assert "lost.md" in result.stderr
