"""Threads for people: what a reader needs is there, and nothing in the conversation breaks the page."""

from __future__ import annotations

import base64
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.log import (
    Checkpoint,
    MessageAdded,
    ModelCallStarted,
    ProviderKey,
    Rewound,
    StateSet,
    StatusChanged,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    Usage,
    WorkspaceSnapshot,
    fold,
)
from clew.messages import File, Image, Json, Opaque, Text, Thinking, ToolCall, ToolResult, assistant, tool, user
from clew.threads.views.render import to_json, to_markdown
from tests import strategies


def sample() -> Checkpoint:
    look, shell = ToolCall("c1", "look", {"city": "Paris"}), ToolCall("c2", "sh", "not json")
    return fold(
        [
            ThreadStarted("trip", "openai:gpt-5", "Be brief.", {}, {}, ("mother", 2)),
            MessageAdded(user("Plan a trip.", Image("image/png", bytes(5000)), File("a.pdf", "application/pdf", b"x"))),
            MessageAdded(assistant(Thinking("hmm"), "Gladly.", look, shell), Usage(1200, 80), 0.0042),
            MessageAdded(
                tool(ToolResult("c1", (Text("sun"), Json({"ok": True}))), ToolResult("c2", (Text("no"),), True))
            ),
            MessageAdded(user("And Oslo?")),
            MessageAdded(assistant("Cold.")),
            Rewound(turn=1),
            MessageAdded(user("Book it.")),
            MessageAdded(assistant(ToolCall("c3", "book", {}), ToolCall("c4", "pay", {}), ToolCall("c5", "wait", {}))),
            ToolOutcome(6, 0, ToolResult("c3", (Text("booked"),))),
            ToolIntent(6, 1, "k"),
            StateSet("city", "Paris"),
            StateSet("raw", {1: b"abc"}),
            ProviderKey("claude_code", "the-secret-handle"),
            WorkspaceSnapshot("d" * 64, 3, 1000),
            ModelCallStarted(),
            ModelCallStarted(),
            StatusChanged("waiting", "for a person"),
        ]
    )


def test_a_reader_finds_what_there_is_to_know() -> None:
    page = to_markdown(sample(), thread_id="trip-1")
    for line in [
        "# Plan a trip.",
        "| Thread | `trip-1` |",
        "| Status | waiting: for a person |",
        "| Model | openai:gpt-5 |",
        "| Turns | 2 |",
        "| Tokens | 1,200 in, 80 out |",
        "| Cost | $0.0042, and 1 lost model call(s) |",
        "| Forked from | `mother`, turn 2 |",
        "## System prompt",
        "## 1 · User",
        "*[Image: image/png, 4.9 KiB]*",
        "*[File: a.pdf, application/pdf, 1 byte]*",
        "> **Thinking**",
        "**Call** `look`",
        "**Result** of `look`",
        "**Error** of `sh`",
        "## 5 · Assistant",
        "- `book`: done",
        "- `pay`: in doubt",
        "- `wait`: not started",
        "booked",
    ]:
        assert line in page.split("\n"), f"{line} is not in:\n{page}"


def test_what_was_rewound_is_shown_on_demand_and_marked() -> None:
    assert "Cold." not in to_markdown(sample())
    page = to_markdown(sample(), history=True)
    assert "## 5 · Assistant (no longer part of the conversation)\n\nCold." in page
    assert "## 7 · Assistant\n" in page
    assert "history" not in json.loads(to_json(sample()))
    history = json.loads(to_json(sample(), history=True))["history"]
    assert [message["current"] for message in history] == [True, True, True, False, False, True, True]


def test_json_has_the_same_keys_for_every_thread() -> None:
    whole, empty = json.loads(to_json(sample(), thread_id="t")), json.loads(to_json(Checkpoint()))
    assert list(whole) == list(empty)
    assert whole["parent"] == {"thread_id": "mother", "turn": 2}
    assert whole["workspace"] == {"digest": "d" * 64, "files": 3, "size": 1000}
    assert whole["messages"][0]["role"] == "user"
    assert whole["messages"][0]["content"][0] == {"type": "text", "text": "Plan a trip.", "extra": None}
    assert base64.b64decode(whole["messages"][0]["content"][1]["data"]) == bytes(5000)
    assert whole["state"] == {"city": "Paris", "raw": {"1": "YWJj"}}
    assert [call["status"] for call in whole["open_calls"]] == ["done", "in_doubt", "not_started"]
    assert whole["usage"]["input_tokens"] == 1200


def test_handles_of_outside_agents_are_in_neither() -> None:
    for text in (to_markdown(sample(), history=True), to_json(sample(), history=True)):
        assert "the-secret-handle" not in text


@pytest.mark.parametrize(
    "text", ["```", "````\nx\n```", "~~~ js", "a\n``` \nb\n````", "<!-- never closed", "<pre>\n\n", "# Big"]
)
def test_text_stays_in_its_place(text: str) -> None:
    page = to_markdown(
        fold(
            [
                MessageAdded(user(text)),
                MessageAdded(assistant(ToolCall("c", "t", text))),
                MessageAdded(tool(ToolResult("c", (Text(text),)))),
                MessageAdded(user("the end")),
            ]
        )
    )
    assert headings(page) == ["## 1 · User", "## 2 · Assistant", "## 3 · Tools", "## 4 · User"]
    assert not re.search(r"^\s*<(!--|pre)", outside_fences(page), re.MULTILINE)


def outside_fences(page: str) -> str:
    """The page without fenced code, as CommonMark has it."""
    kept, fence = [], ""
    for line in page.split("\n"):
        found = re.match(r" {0,3}(`{3,}|~{3,})(.*)", line)
        if found and not fence and not (found[1][0] == "`" and "`" in found[2]):
            fence = found[1]
        elif found and fence and found[1].startswith(fence) and not found[2].strip():
            fence = ""
        elif not fence:
            kept.append(line)
    assert not fence, "a fence is open at the end"
    return "\n".join(kept)


def headings(page: str) -> list[str]:
    return [line for line in outside_fences(page).split("\n") if re.match("## ", line)]


@given(st.lists(strategies.entries, max_size=12), st.text(max_size=20))
def test_every_log_can_be_rendered(entries: list[object], thread_id: str) -> None:
    state = fold(entries)  # type: ignore[arg-type]
    for history in (False, True):
        page = to_markdown(state, thread_id=thread_id, history=history)
        shown = len(state.history) if history else len(state.messages)
        assert (
            len([line for line in headings(page) if re.match(r"## \d+ · (System|User|Assistant|Tools)", line)]) == shown
        )
        document = json.loads(to_json(state, thread_id=thread_id, history=history))
        assert len(document["messages"]) == len(state.messages)


def test_what_this_version_does_not_know_is_said_to_be_there() -> None:
    page = to_markdown(fold([MessageAdded(user(Opaque("future_ai", {"x": 1})))]))
    assert "*[Something of future\\_ai that this version does not know]*" in page
