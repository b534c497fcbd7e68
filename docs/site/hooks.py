"""What MkDocs does not do by itself: the repository's own files as pages, and links to the rest.

The pages are written for readers on GitHub, too, where ``README.md`` is the first page and a link
may lead to any file of the repository.  On the site such a file is a page, or a link to GitHub.
"""

from __future__ import annotations

import pathlib
import posixpath
import re

import public_names
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPOSITORY = "https://github.com/repjax/repjax"
#: Pages of the site that are files outside of docs/.
OUTSIDE = {"index.md": "README.md", "changelog.md": "CHANGELOG.md"}
#: A link of Markdown, up to its end; code is left alone, because it has none of these.
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
#: A badge, with where it leads: a picture from elsewhere, which the site does without.
BADGE = re.compile(r"^\[!\[[^\]]*\]\(https?:[^)]*\)\]\([^)]*\)\n", re.MULTILINE)


def on_files(files, config):
    for page, path in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text()))
    try:
        reference = public_names.pages()
    except ValueError as error:
        raise PluginError(str(error)) from error
    for page, text in reference.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    if page.file.src_uri.startswith("reference/"):
        return markdown  # made for the site alone
    source = OUTSIDE.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    markdown = BADGE.sub("", markdown)
    return LINK.sub(lambda link: _led(link, source, page.file.src_uri, files), markdown)


def _led(link, source: str, page: str, files) -> str:
    """Where a link of a file of the repository leads on a page of the site."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
    inside = {path: name for name, path in OUTSIDE.items()}.get(target)
    inside = inside or target.removeprefix("docs/")
    if files.get_file_from_path(inside):
        return posixpath.relpath(inside, posixpath.dirname(page) or ".") + (link[2] or "")
    path = ROOT / target
    if not path.exists():
        raise PluginError(f"{source}: expected a file of the repository, received {link[0]}")
    return f"{REPOSITORY}/{'tree' if path.is_dir() else 'blob'}/main/{target}{link[2] or ''}"
