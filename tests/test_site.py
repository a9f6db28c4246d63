"""The check of the built site finds what it would load from elsewhere; and every guide is on the site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import check_site

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example/a.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/css">',
        '<img src="http://elsewhere.example/p.png">',
        '<img srcset="a.png 1x, https://elsewhere.example/p.png 2x">',
        "<style>@import 'https://fonts.example/css';</style>",
        '<p style="background: url(https://elsewhere.example/p.png)">',
        '<a href="missing.html">',
    ],
)
def test_what_a_page_loads_from_elsewhere_or_lacks_is_found(html: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    (tmp_path / "page.html").write_text(html)
    assert len(list(check_site.problems(tmp_path))) == 1


def test_fonts_of_a_style_sheet_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text("@font-face { src: url('https://fonts.example/f.woff2') }")
    assert list(check_site.problems(tmp_path)) == ["style.css loads https://fonts.example/f.woff2"]


def test_links_that_a_reader_follows_may_lead_away(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<link rel="canonical" href="https://clew.example/page"><a href="https://elsewhere.example">there</a>'
        '<a href="page.html#part">here</a><img src="data:image/png;base64,AA==">'
    )
    assert list(check_site.problems(tmp_path)) == []


def test_every_guide_is_in_the_navigation_of_the_site() -> None:
    listed = set(re.findall(r"- ([a-z-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert {guide.name for guide in (ROOT / "docs").glob("*.md")} <= listed
