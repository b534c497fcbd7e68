"""The site in a browser: it fits a phone, fetches nothing from elsewhere, and its search finds.

    mkdocs build && python tests/browser.py site

Chromium shows every page of the folder in frames as wide as a phone and as a desktop.  A server of
this process gives the pages, and a policy with them by which the browser reports whatever a page
asks of another host.  What a frame shows is measured by a script in the page around it, which posts
what it found.  The search is tried once more from the disk.  Exit status: 0 nothing is wrong, 1
something is, 2 there is no Chromium.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading

WIDTHS = {"phone": 390, "desktop": 1400}
#: A word that the search is to find, and where.
WORD, PAGE = "microbatches", "accuracy.html"
#: Seconds in which the browser is to have shown all pages.
LIMIT = 600
POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; report-uri /report"

#: Elements that reach beyond the page, and do not scroll within it; and the search.
_DRIVER = """<!doctype html><meta charset="utf-8"><body><script>
"use strict";
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
function* beyond(frame) {
  const {document, innerWidth} = frame.contentWindow;
  const fits = (e) => e.getBoundingClientRect().right <= innerWidth + 1;
  const scrolls = (e) => ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
  for (const each of document.querySelectorAll("body *")) {
    if (fits(each) || each.closest(".md-sidebar, .md-search, [hidden]")) continue;
    let around = each.parentElement;
    while (around && !(scrolls(around) && fits(around))) around = around.parentElement;
    if (!around)
      yield `${each.tagName.toLowerCase()} ${each.textContent.trim().split("\\n")[0].slice(0, 60)}`;
  }
}
async function show(page, width) {
  const frame = document.createElement("iframe");
  frame.width = width;
  frame.height = 900;
  document.body.append(frame);
  await new Promise((done) => { frame.onload = done; frame.src = page; });
  return frame;
}
async function search(frame, word) {
  const {document, Event} = frame.contentWindow;
  const field = document.querySelector("[data-md-component=search-query]");
  document.querySelector("#__search").click();
  field.focus();
  field.value = word;
  for (const name of ["focus", "keyup", "input"]) field.dispatchEvent(new Event(name));
  for (let n = 0; n < 200; n++, await wait(50)) {
    const found = [...document.querySelectorAll("a.md-search-result__link")].map((a) => a.href);
    if (found.length) return found;
  }
  return [];
}
async function main({pages, widths, word}) {
  const found = [];
  for (const page of pages)
    for (const width of widths) {
      const frame = await show(page, width);
      const [first] = beyond(frame);
      if (first) found.push(`${page}, ${width} pixels wide: beyond the page: ${first}`);
      frame.remove();
    }
  const results = word ? await search(await show("index.html", 1400), word) : [];
  await fetch("/done", {method: "POST", body: JSON.stringify({found, results})});
}
main(TASK);
</script>"""


class _Server(http.server.SimpleHTTPRequestHandler):
    """The site, the page around it, and what the browser posts."""

    def __init__(self, *arguments, driver: str, posted: queue.Queue, **keywords):
        self.driver, self.posted = driver, posted
        super().__init__(*arguments, **keywords)

    def end_headers(self):
        self.send_header("Content-Security-Policy", POLICY)
        super().end_headers()

    def do_GET(self):
        if self.path != "/driver":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.driver.encode())

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.posted.put((self.path, json.loads(body)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def find() -> str | None:
    """The browser."""
    return shutil.which("chromium") or shutil.which("google-chrome")


def look(site: pathlib.Path, browser: str, *, search: bool = True) -> list[str]:
    """What is wrong with the pages of a folder, as sentences."""
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    task = {"pages": pages, "widths": [*WIDTHS.values()], "word": WORD if search else ""}
    posted: queue.Queue = queue.Queue()
    driver = _DRIVER.replace("TASK", json.dumps(task))
    handler = functools.partial(_Server, directory=str(site), driver=driver, posted=posted)
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}")
        options += ("--remote-debugging-port=0",)  # which keeps it from ending with the first page
        process = subprocess.Popen(
            [browser, *options, f"http://127.0.0.1:{server.server_port}/driver"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        elsewhere = set()
        try:
            while (post := posted.get(timeout=LIMIT))[0] != "/done":
                report = post[1]["csp-report"]
                elsewhere.add(f"{report['document-uri']}: asks for {report['blocked-uri']}")
        finally:
            process.terminate()
            process.wait()
            server.shutdown()
    found = [*post[1]["found"], *sorted(elsewhere)]
    if search and not any(PAGE in link for link in post[1]["results"]):
        found.append(f"the search for {WORD!r} does not find {PAGE}: {post[1]['results']}")
    if search and PAGE not in (results := _search_from_the_disk(site, browser)):
        found.append(f"from the disk the search for {WORD!r} does not find {PAGE}: {results}")
    return found


def _search_from_the_disk(site: pathlib.Path, browser: str) -> set[str]:
    """The pages that the search finds where no server is."""
    page = f"{(site / 'index.html').resolve().as_uri()}?q={WORD}"
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000")
    shown = subprocess.run(
        [browser, *options, "--dump-dom", page], capture_output=True, text=True, check=True
    ).stdout
    links = re.findall(r'<a href="([^"?#]*)[^"]*" class="md-search-result__link"', shown)
    return {link.rpartition("/")[2] for link in links}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=pathlib.Path, help="what mkdocs build has written")
    site = parser.parse_args().site
    browser = find()
    if browser is None or not (site / "index.html").is_file():
        print(f"expected Chromium, and a site in {site}; mkdocs build makes it", file=sys.stderr)
        return 2
    found = look(site, browser)
    for line in found or ["nothing is wrong"]:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
