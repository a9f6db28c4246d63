"""Templates escape every value, miss none and keep only the white space that is meant; cookies and form proofs hold."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment, StrictUndefined, UndefinedError

from clew.server.inspector.login import Forms, Session, cookie_for, session_of, with_session
from clew.server.inspector.templates import JoinedLines, part, render
from clew.server.inspector.visits import Viewer

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


@given(st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=1), st.text())
def test_a_session_survives_its_cookie(token: str, namespace: str) -> None:
    sent = cookie_for(Session(token, namespace), secure=False).partition(";")[0].encode()
    found = session_of({b"cookie": b"other=1; " + sent})
    assert (found.token, found.namespace) == (token, namespace)


def test_a_cookie_is_kept_to_tls_where_there_is_tls() -> None:
    assert cookie_for(Session("t" * 16), secure=True).endswith("; Secure")
    assert "Secure" not in cookie_for(Session("t" * 16), secure=False)


@given(st.binary())
def test_a_senseless_cookie_is_no_session(cookie: bytes) -> None:
    found = with_session({b"cookie": b"clew_session=" + cookie})
    assert found.keys() <= {b"cookie", b"authorization", b"clew-namespace"}


def test_a_token_of_ones_own_goes_before_the_cookie() -> None:
    sent = cookie_for(Session("cookie-token-long"), secure=False).partition(";")[0].encode()
    assert with_session({b"cookie": sent, b"authorization": b"Bearer mine"})[b"authorization"] == b"Bearer mine"
    assert with_session({b"cookie": sent})[b"authorization"] == b"Bearer cookie-token-long"


def test_a_proof_holds_for_its_session_and_process_alone() -> None:
    forms, others = Forms(), Forms()
    mine: dict[bytes, bytes] = {}
    theirs = {b"cookie": cookie_for(Session("t" * 16), secure=False).partition(";")[0].encode()}
    assert forms.holds(mine, forms.proof(mine))
    assert not forms.holds(theirs, forms.proof(mine))
    assert not forms.holds(mine, others.proof(mine))
    assert not forms.holds({b"sec-fetch-site": b"cross-site"}, forms.proof(mine))
