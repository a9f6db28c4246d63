"""Templates escape every value, miss none and keep only the white space that is meant; cookies and form proofs hold."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment, StrictUndefined, UndefinedError

from clew.server.auth import ANYBODY
from clew.server.inspector.login import Sessions, browser_of, cookie_for, new_id
from clew.server.inspector.templates import JoinedLines, part, render
from clew.server.inspector.visits import Viewer
from tests.clock import Clock

TEMPLATES = [file for file in (files("clew.server.inspector") / "templates").iterdir() if file.name.endswith(".html")]


@given(st.text(), st.text())
def test_text_and_attributes_are_escaped(text: str, value: str) -> None:
    made = str(part("parts.html", "tags", [(text, value)])).removeprefix("<span").removesuffix("</span>")
    assert made.count("<") == 0
    assert made.count(">") == 1
    hidden = str(part("parts.html", "proof", Viewer(csrf=value)))
    assert (hidden.count("<"), hidden.count(">"), hidden.count('"')) == (1, 1, 6)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_no_template_turns_escaping_off(template: Traversable) -> None:
    text = template.read_text()
    assert not re.search(r"\|\s*safe\b|autoescape|Markup", text)
    assert not re.search(r"""\s[a-z-]+=(\{|')""", text), "a value in an attribute stands in double quotes"


def test_a_value_that_a_template_misses_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="title"):
        render("error.html", viewer=None)


def test_line_breaks_and_indentation_of_a_template_do_not_reach_the_page() -> None:
    source = """
    <p class="a"
      id="b">
      one
      two {{ three
      }}
      <b>four</b>
    </p>
    """
    made = Environment(extensions=[JoinedLines], autoescape=True).from_string(source).render(three="3\n3")
    assert made == '<p class="a" id="b">one two 3\n3<b>four</b></p>'


def test_an_error_in_a_template_names_its_line() -> None:
    environment = Environment(extensions=[JoinedLines], undefined=StrictUndefined, autoescape=True)
    template = environment.from_string("<p>\n\n  {{ missing }}\n</p>")
    with pytest.raises(UndefinedError) as caught:
        template.render()
    assert [entry.lineno + 1 for entry in caught.traceback if str(entry.path) == "<template>"][-1] == 3


def test_a_cookie_is_kept_to_tls_where_there_is_tls() -> None:
    assert cookie_for("x" * 43, secure=True).endswith("; Secure")
    assert "Secure" not in cookie_for("x" * 43, secure=False)


@given(st.binary())
def test_a_senseless_cookie_is_no_id(cookie: bytes) -> None:
    found = browser_of({b"cookie": b"clew_session=" + cookie})
    assert found == "" or found.encode() == cookie.strip()[:43]


def test_a_proof_holds_for_its_browser_and_process_alone() -> None:
    sessions, others = Sessions(), Sessions()
    mine, theirs = new_id(), new_id()
    assert sessions.holds(mine, {}, sessions.proof(mine))
    assert not sessions.holds(theirs, {}, sessions.proof(mine))
    assert not sessions.holds(mine, {}, others.proof(mine))
    assert not sessions.holds(mine, {b"sec-fetch-site": b"cross-site"}, sessions.proof(mine))


def test_a_session_ends_after_a_day_without_use_and_after_a_week(clock: Clock) -> None:
    sessions = Sessions()
    browser = sessions.start(ANYBODY, "inner")
    for _ in range(6):
        clock.advance(23 * 3600)
        assert sessions.find(browser) is not None
    clock.advance(25 * 3600)
    assert sessions.find(browser) is None
    browser = sessions.start(ANYBODY, "")
    for _ in range(8):
        clock.advance(22 * 3600)
        last = sessions.find(browser)
    assert last is None


def test_a_token_has_only_so_many_sessions() -> None:
    sessions = Sessions()
    made = [sessions.start(ANYBODY, "") for _ in range(150)]
    assert [sessions.find(browser) is not None for browser in made] == [False] * 50 + [True] * 100
