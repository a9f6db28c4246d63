"""`python tools/check_site.py FOLDER`: find what a built site would load from other hosts, and links to missing files.

Exits with 1 if there is anything. Links that a reader follows by a click may lead anywhere; scripts, styles, fonts, pictures
and frames must be part of the site.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_ELSEWHERE = re.compile(r"(?:https?:)?//", re.IGNORECASE)
_IN_STYLE = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")
_HINTS = {"canonical", "alternate", "next", "prev", "author", "license"}
"""Relations of a <link> that no browser loads."""


class _Loads(HTMLParser):
    """Collects what a page makes a browser load, and the pages it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        if tag == "a":
            self.linked += [given["href"]] if "href" in given else []
        elif tag == "link":
            self.loaded += [] if set(given.get("rel", "").split()) <= _HINTS else [given.get("href", "")]
        else:
            self.loaded += [given[name] for name in ("src", "data", "poster") if name in given and tag != "input"]
            self.loaded += [part.split()[0] for part in given.get("srcset", "").split(",") if part.split()]
        self.loaded += in_style(given.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.loaded += in_style(data)


def in_style(text: str) -> list[str]:
    """Return the addresses that a style sheet loads."""
    return [one or other for one, other in _IN_STYLE.findall(text)]


def problems(site: Path) -> Iterator[str]:
    """Yield each thing that is loaded from another host or is not there."""
    for path in sorted(site.rglob("*.html")):
        page = _Loads()
        page.feed(path.read_text())
        base = site if path.name == "404.html" else path.parent
        yield from _wrong(path.relative_to(site), site, base, page.loaded, may_lead_away=False)
        yield from _wrong(path.relative_to(site), site, base, page.linked, may_lead_away=True)
    for path in sorted(site.rglob("*.css")):
        yield from _wrong(path.relative_to(site), site, path.parent, in_style(path.read_text()), may_lead_away=False)


def _wrong(page: Path, site: Path, base: Path, addresses: list[str], *, may_lead_away: bool) -> Iterator[str]:
    for address in addresses:
        if _ELSEWHERE.match(address):
            if not may_lead_away:
                yield f"{page} loads {address}"
        elif path := unquote(urlsplit(address).path):
            if urlsplit(address).scheme in ("data", "mailto"):
                continue
            target = site / path.lstrip("/") if path.startswith("/") else base / path
            if not target.exists():
                yield f"{page} names {address}, which is not there"


def main() -> int:
    site = Path(sys.argv[1])
    pages = list(site.rglob("*.html"))
    found = list(problems(site))
    for problem in found:
        print(problem)
    print(f"{len(pages)} pages: {f'{len(found)} problems' if found else 'everything they load is here'}")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
