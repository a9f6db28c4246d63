"""A model's Markdown on a page: readable, and never more than text, whatever it says."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.server.inspector.markdown import markdown
from tests.limits import processor_time

pytestmark = pytest.mark.attack

ALLOWED: dict[str, set[str]] = {
    **{tag: {"class"} for tag in ("p", "pre", "div", "span")},
    **{tag: set() for tag in ("code", "strong", "em", "blockquote", "hr", "table", "thead", "tbody", "tr", "th", "td")},
    "a": {"href", "rel", "target"},
}


class Elements(HTMLParser):
    """Collects the elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def check(text: str) -> Elements:
    """Fail if the text became an element or a link that could do anything."""
    made = Elements(str(markdown(text)))
    for tag, attributes in made.found:
        assert tag in ALLOWED, f"{tag} of {text!r}"
        assert attributes.keys() <= ALLOWED[tag]
        if tag == "a":
            assert re.match(r"(?i)(https?://|mailto:)", attributes["href"] or "")
            assert "noopener" in (attributes["rel"] or "")
    return made


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "[click](JaVaScRiPt:alert(1))",
    "[click](data:text/html,<script>1</script>)",
    "[click](vbscript:x) [a](file:///etc/passwd) [b](//evil.example) [c](/logout)",
    '[x](https://a.example/"onmouseover="alert(1))',
    "[x](https://a.example/'><script>)",
    "![pixel](https://evil.example/track.png)",
    "![x](data:image/svg+xml,<svg/onload=alert(1)>)",
    "`<b>`\n```html\n<script>alert(1)</script>\n```",
    "# <h1 onclick=x>\n- <li>\n> <q>\n| <td> | b |\n|---|---|\n| <i> | [x](javascript:1) |",
    "<https://a.example> &lt;script&gt; &#x6a;avascript:",
    "[<img src=x>](https://a.example)",
    "**<b>** *<i>* \x00 \u202e",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_markdown_is_shown_as_text(text: str) -> None:
    made = check(text)
    for word in re.findall(r"<[a-z]+", text):
        assert word in made.text


def test_a_picture_from_elsewhere_is_a_link_and_is_not_fetched() -> None:
    [(tag, attributes)] = [found for found in check("![a cat](https://x.example/cat.png)").found if found[0] != "p"]
    assert (tag, attributes["href"]) == ("a", "https://x.example/cat.png")


def test_markdown_is_readable() -> None:
    page = markdown(
        "# Plan\n\nFirst **this**, then `that`.\n\n1. one\n   - two\n\n> so\n\n"
        "```py\nx = 1\n\ny\n```\n| a | b |\n|--|--|\n| 1 | 2 |"
    )
    assert page == (
        '<p class="md-heading">Plan</p><p class="md-text">First <strong>this</strong>, then <code>that</code>.</p>'
        '<div class="md-item md-0"><span class="md-mark">1.</span><span>one</span></div>'
        '<div class="md-item md-1"><span class="md-mark">•</span><span>two</span></div><blockquote>so</blockquote>'
        '<pre class="code">x = 1\n\ny</pre><div class="md-table"><table><thead><tr><th>a</th><th>b</th></tr></thead>'
        "<tbody><tr><td>1</td><td>2</td></tr></tbody></table></div>"
    )


@given(st.text(st.sampled_from("ab<>&\"'`*_[]()!#-|>:/\\ \n\t0.~") | st.characters(), max_size=200))
def test_no_text_becomes_more_than_the_known_elements(text: str) -> None:
    check(text)


@pytest.mark.parametrize(
    "piece",
    [
        "[",
        "![",
        "[a](",
        "`",
        "```\n",
        "~~~\n```\n",
        "*",
        "**",
        "**a",
        "# ",
        "#",
        "> ",
        "- ",
        "|",
        "|-",
        "https://",
        " ",
        "\t",
    ],
)
def test_no_text_takes_long(piece: str) -> None:
    with processor_time(10):
        markdown(piece * (200_000 // len(piece)))
        markdown("a|b\n" + piece * 50_000 + "x")
        markdown("# " + piece * 50_000 + "x")


def test_a_long_line_that_looks_like_a_rule_is_not_looked_through_for_each_line_after_it() -> None:
    looked = 0

    def count(line: str) -> bool:
        nonlocal looked
        looked += len(line)
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clew.server.inspector.markdown._is_rule", count)
        markdown("- " * 5000 + "x\n" + "a\n" * 5000)
    assert looked < 10 * 20_000
    assert "<hr>" not in markdown("- " * 5000 + "x")
