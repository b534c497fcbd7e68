"""The site: it is built without a warning, needs no network, and a broken link fails it."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import browser
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


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    result = _build(ROOT, folder)
    assert result.returncode == 0, result.stderr
    return folder


def test_site_needs_no_network(site):
    pages = list(site.rglob("*.html"))
    assert {"index.html", "changelog.html", "numerics.html"} <= {page.name for page in pages}
    loaded = r"<(?:script|img|iframe|link rel=\"(?:stylesheet|preload)\")[^>]*(?:src|href)=\"?http"
    assert [page for page in pages if re.search(loaded, page.read_text())] == []
    assert "add_each" in (site / "reference" / "repjax.exact.html").read_text()
    assert 'href="numerics.html#exact"' in (site / "index.html").read_text()
    assert "parting.svg" in (site / "index.html").read_text()


@pytest.fixture
def chromium():
    return browser.find() or pytest.skip("needs Chromium")


def test_pages_in_a_browser(site, chromium):
    """On a phone and on a desktop: nothing is cut off, nothing fetched; the search finds."""
    assert browser.look(site, chromium) == []


def test_what_is_wrong_in_a_browser_is_noticed(tmp_path, chromium):
    wide, scrolled = '<p style="width: 900px">wide</p>', '<div style="overflow-x: auto">'
    (tmp_path / "bad.html").write_text(f"{wide}<img src='https://example.com/x.png'>")
    (tmp_path / "index.html").write_text(f"{scrolled}{wide}</div>")
    cut, fetched = browser.look(tmp_path, chromium, search=False)
    assert cut == "bad.html, 390 pixels wide: beyond the page: p wide"
    assert fetched.endswith("bad.html: asks for https://example.com/x.png")


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
