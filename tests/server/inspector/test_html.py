"""Markup is made in one place, and whatever else there is is text; cookies and proofs are worth what they say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clew.server.inspector.html import Html, el, join
from clew.server.inspector.login import Forms, Session, cookie_for, session_of, with_session


@given(st.text(), st.text())
def test_text_and_attributes_are_escaped(text: str, value: str) -> None:
    made = el("p", text, title=value)
    inside = made.removeprefix("<p").removesuffix("</p>")
    assert inside.count("<") == 0
    assert inside.count(">") == 1
    assert inside.count('"') == 2


def test_children_may_be_markup_text_numbers_nothing_or_several_of_them() -> None:
    made = el("p", Html("<b>"), "<i>", 3, None, [el("br"), ["&"]], class_="a", data_x_y="1", hidden=True, id=None)
    assert made == '<p class="a" data-x-y="1" hidden><b>&lt;i&gt;3<br/>&amp;</p>'
    assert join() == ""


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
