#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Visits each page of the site of `make docs` in headless Chromium.

Fails for links to missing pages or headings, pictures that are not displayed, files that are not found,
errors on the console, pages that scroll sideways, and a search without results.

    scripts/check_docs.py [--shots FOLDER] [--only TEXT] [SITE]     SITE: build/docs/html by default

Needs Chromium (`apt install chromium`), which `make deps` does not install. With --shots, writes a picture of
each page that --only selects (by default, of the index) at two widths, light and dark.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

WIDTHS = (1280, 390)
FACTS = """(() => ({
  ids: [...document.querySelectorAll('[id]')].map(e => e.id),
  links: [...document.querySelectorAll('a[href]')].map(e => e.href),
  pictures: [...document.images].filter(e => e.complete && e.naturalWidth === 0).map(e => e.src),
  wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  results: document.querySelectorAll('ul.search li').length,
}))()"""


class Browser:
    """Chromium, by the DevTools protocol over a pipe. Not thread-safe."""

    def __init__(self, profile: str) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        if program is None:
            sys.exit("check_docs: chromium is not installed (apt install chromium)")
        read_end, self._write = os.pipe()
        self._read, write_end = os.pipe()
        options = "--headless --no-sandbox --disable-gpu --hide-scrollbars --remote-debugging-pipe"
        # Chromium reads commands from descriptor 3, and writes to 4.
        script = f'exec "$0" "$@" 3<&{read_end} 4>&{write_end}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, program, *options.split(), f"--user-data-dir={profile}"],
            pass_fds=(read_end, write_end),
            stderr=subprocess.DEVNULL,
        )
        os.close(read_end)
        os.close(write_end)
        self._buffer = b""
        self._last = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._session = None
        self.call("Browser.close")
        self._process.wait(timeout=30)

    def _messages(self) -> Iterator[dict[str, Any]]:
        while True:
            while b"\0" not in self._buffer:
                data = os.read(self._read, 1 << 20)
                if not data:
                    sys.exit("check_docs: chromium has ended")
                self._buffer += data
            line, self._buffer = self._buffer.split(b"\0", 1)
            yield json.loads(line)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        request: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._write, json.dumps(request).encode() + b"\0")
        for message in self._messages():
            if message.get("id") == self._last:
                if "error" in message:
                    sys.exit(f"check_docs: {method}: {message['error']['message']}")
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)
        raise AssertionError("unreachable")

    def visit(self, url: str) -> list[str]:
        """Loads a page. Returns the failures during that time."""
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=url)
        if not any(each.get("method") == "Page.loadEventFired" for each in self.events):
            for message in self._messages():
                self.events.append(message)
                if message.get("method") == "Page.loadEventFired":
                    break
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
        return [text for text in map(self._failure, self.events) if text]

    @staticmethod
    def _failure(event: dict[str, Any]) -> str | None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                return f"exception: {parameters['exceptionDetails'].get('text')}"
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                return f"console: {parameters['entry']['text']} {parameters['entry'].get('url')}"
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning"):
                return f"console: {parameters['args']}"
            case "Network.loadingFailed" if not parameters.get("canceled"):
                return f"not loaded: {parameters['errorText']}"
        return None

    def evaluate(self, expression: str) -> Any:
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        return answer["result"].get("value")

    def set_view(self, width: int, scheme: str) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def picture(self, file: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        file.write_bytes(base64.b64decode(data))


def check_links(site: Path, pages: dict[str, dict[str, Any]]) -> list[str]:
    problems = []
    for page, facts in pages.items():
        for link in sorted(set(facts["links"])):
            parts = urlsplit(link)
            if parts.scheme != "file":
                continue
            target = Path(unquote(parts.path))
            if not target.exists() or not target.is_relative_to(site):
                problems.append(f"{page}: link to {target}, which does not exist")
                continue
            name = str(target.relative_to(site))
            fragment = unquote(parts.fragment)
            if fragment and name in pages and fragment not in pages[name]["ids"]:
                problems.append(f"{page}: link to {name}#{fragment}, which does not exist")
    return problems


def visit_all(browser: Browser, site: Path, only: str) -> tuple[dict[str, Any], list[str]]:
    pages: dict[str, Any] = {}
    problems: list[str] = []
    for file in sorted(site.rglob("*.html")):
        page = str(file.relative_to(site))
        if page == "index.html" or only not in page or page.startswith("_"):
            continue
        for width in WIDTHS:
            browser.set_view(width, "light")
            problems += [f"{page}: {each}" for each in browser.visit(file.as_uri())]
            facts = browser.evaluate(FACTS)
            problems += [f"{page}: picture {each} is not displayed" for each in facts["pictures"]]
            if facts["wide"] > 0:
                problems.append(f"{page}: {facts['wide']} pixels too wide at {width}")
        pages[page] = facts
    return pages, problems


def check_search(browser: Browser, site: Path) -> list[str]:
    browser.visit((site / "search.html").as_uri() + "?q=timeline")
    for _ in range(100):
        if browser.evaluate(FACTS)["results"] > 0:
            return []
        browser.evaluate("new Promise(done => setTimeout(done, 100))")
    return ["search.html: no results for timeline"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--shots", type=Path, help="folder for pictures")
    parser.add_argument("--only", default="", help="only pages whose path contains this")
    parser.add_argument("site", nargs="?", type=Path, default=Path("build/docs/html"))
    options = parser.parse_args()
    site = options.site.resolve()
    if not (site / "index.html").exists():
        sys.exit(f"check_docs: {site} has no index.html (make docs)")
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(profile)
        pages, problems = visit_all(browser, site, options.only)
        if not options.only:
            problems += check_links(site, pages) + check_search(browser, site)
        if options.shots:
            options.shots.mkdir(parents=True, exist_ok=True)
            for page in pages if options.only else ["docs/README.html"]:
                for width in WIDTHS:
                    for scheme in ("light", "dark"):
                        browser.set_view(width, scheme)
                        browser.visit((site / page).as_uri())
                        name = page.removesuffix(".html").replace("/", "-")
                        browser.picture(options.shots / f"{name}-{width}-{scheme}.png")
        browser.close()
    for problem in problems:
        print(f"check_docs: {problem}", file=sys.stderr)
    print(f"check_docs: {len(pages)} pages, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
