"""Errors are read by many: what a vendor quotes of a conversation is not in them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.messages import File, Json, Opaque, Text, Thinking, ToolCall, ToolResult, assistant, tool, user
from clew.models.redaction import shown
from tests.models.asking import ask

SECRET = "purple elephants march at dawn"


@pytest.mark.parametrize(
    "request_",
    [
        ask(SECRET),
        ask("Hello", system=SECRET),
        ask(assistant(Thinking(SECRET))),
        ask(assistant(ToolCall("c", "t", {"deep": [{"er": SECRET}]}))),
        ask(assistant(ToolCall("c", "t", {SECRET: 1}))),
        ask(tool(ToolResult("c", (Text(SECRET),)))),
        ask(tool(ToolResult("c", (Json({"a": SECRET}),)))),
        ask(user(Opaque("anthropic", {"type": "x", "a": SECRET}))),
        ask(user(File(SECRET, "text/plain", b"x"))),
    ],
)
def test_a_quotation_is_taken_out_wherever_it_comes_from(request_: object) -> None:
    text = shown(f"Bad content: {SECRET.upper()}, and so on", request_)  # type: ignore[arg-type]
    assert text == "Bad content: …, and so on"


def test_a_quotation_is_found_however_it_is_escaped_or_cut() -> None:
    request = ask('He said: "purple\nelephants"\tmarch é dawn')
    for quoted in (json.dumps("purple\nelephants\tmarch"), "purple  elephants'] mar…", "PURPLE_ELEPHANTS"):
        assert "lephant" not in shown(f"Invalid: {quoted}", request).lower()


def test_one_word_in_quotes_is_taken_out_too() -> None:
    assert shown("Invalid value: 'hunter2'. Use 'auto'.", ask("my password is hunter2")) == (
        "Invalid value: '…'. Use 'auto'."
    )


def test_words_of_the_vendor_stay() -> None:
    message = "messages.3.content.0: tool_use ids were found without tool_result blocks"
    assert shown(message, ask("What is a tool?", system="Use tools.")) == message


@pytest.mark.parametrize(
    "key",
    ["sk-proj-abcdef123456", "sk-ant-api03-xyz_789-AAAA", "Bearer eyJhbGciOi.J9", "sk-ab****wxyz", "gsk_abcdefgh1234"],
)
def test_keys_are_taken_out(key: str) -> None:
    text = shown(f"Incorrect API key provided: {key}. You can find yours online.", ask())
    assert key not in text
    assert key[-4:] not in text
    assert text.startswith("Incorrect API key provided: …")


def test_the_key_in_use_is_taken_out_whatever_it_looks_like() -> None:
    assert "swordfish" not in shown("No such key: swordfish", ask(), ["swordfish", ""])


def test_a_long_message_is_cut() -> None:
    text = shown("word " * 1000, ask())
    assert len(text) <= 240
    assert text.endswith("…")


@given(
    st.text(min_size=1), st.text(alphabet=st.characters(categories=["Ll", "Nd"]), min_size=12, max_size=40), st.text()
)
def test_no_long_quotation_survives(before: str, secret: str, after: str) -> None:
    text = shown(f"{before} {secret} {after}", ask(f"It is {secret}, you know."))
    assert secret not in text
