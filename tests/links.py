"""The links of the documentation that lead elsewhere, asked for one by one.

    python tests/links.py

prints those that do not answer, or answer that there is nothing.  It needs the network, and so is
no test; links within the repository are compared by tests/project/test_docs.py, and those of the
site by the build of the site.  Exit status: 0 all answer, 1 some do not.
"""

from __future__ import annotations

import concurrent.futures
import pathlib
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

from repjax.verify.progress import Bar

ROOT = pathlib.Path(__file__).parents[1]
#: Folders in which others' pages lie.
_OTHERS = {".venv", "build", "node_modules", "site"}
_SECONDS = 30


def pages() -> list[pathlib.Path]:
    """Every page in Markdown of the repository."""
    found = ROOT.rglob("*.md")
    return sorted(
        path
        for path in found
        if not any(
            part in _OTHERS or (part.startswith(".") and part != ".github")
            for part in path.relative_to(ROOT).parts[:-1]
        )
    )


def links(page: pathlib.Path) -> Iterator[str]:
    """What a page links to, pictures included."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"\]\(([^)\s]+)\)", text)
    yield from re.findall(r"<(https?:[^>\s]+)>", text)


def wrong(link: str) -> str:
    """What is wrong with an address; nothing if it answers."""
    request = urllib.request.Request(link, headers={"User-Agent": "Mozilla/5.0 (links.py)"})
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS):
            return ""
    except (OSError, ValueError) as error:
        # Some refuse programs; the page is there.
        refused = isinstance(error, urllib.error.HTTPError) and error.code in (403, 405, 429)
        return "" if refused else str(error)


def main() -> int:
    where: dict[str, list[str]] = {}
    for page in pages():
        for link in links(page):
            # Addresses of this machine are examples.
            if re.match(r"https?://(?!127\.0\.0\.1|localhost)", link):
                where.setdefault(link, []).append(str(page.relative_to(ROOT)))
    found = {}
    with concurrent.futures.ThreadPoolExecutor(8) as pool, Bar(len(where)) as bar:
        for count, (link, answer) in enumerate(zip(where, pool.map(wrong, where), strict=True), 1):
            bar.show(count, link)
            if answer:
                found[link] = answer
    for link, answer in found.items():
        print(f"{link}: {answer}; in {', '.join(sorted({*where[link]}))}")
    print(f"{len(where) - len(found)} of {len(where)} links answer")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
