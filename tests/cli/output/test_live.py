"""What a run looks like while it runs."""

from __future__ import annotations

import io

from rich.console import Console

from clew.agent import (
    Compacted,
    Event,
    Retrying,
    TextDelta,
    ThinkingDelta,
    ToolFinished,
    ToolInDoubt,
    ToolReplayed,
    ToolStarted,
    TurnStarted,
)
from clew.cli.output.live import Ended, LiveView
from clew.messages import Image, Json, Text, ToolResult


def shown(*events: Event, ended: Ended | None = None, apart: bool = False) -> tuple[list[str], str]:
    """The lines of the view, and the answer that is apart from it."""
    out, answer = io.StringIO(), io.StringIO()
    view = LiveView(Console(file=out, width=40), answer if apart else None)
    for event in events:
        view.show(event)
    if ended is not None:
        view.end(ended)
    return out.getvalue().splitlines(), answer.getvalue()


def done(output: str, **more: object) -> Ended:
    return Ended("t", "done", "clew resume t", output=output, **more)  # type: ignore[arg-type]


def test_words_are_shown_once_though_they_are_the_answer_too() -> None:
    lines, _ = shown(TurnStarted(1), TextDelta("Hel"), TextDelta("lo."), ended=done("Hello."))
    assert lines[0] == "Hello."
    assert "Hello." not in "".join(lines[1:])


def test_an_answer_from_the_record_is_shown_though_nobody_said_it_now() -> None:
    assert shown(ended=done("Hello."))[0][0] == "Hello."


def test_apart_from_the_view_is_the_answer_alone() -> None:
    lines, answer = shown(
        TurnStarted(1),
        TextDelta("I look."),
        ToolStarted("look", "c", {}),
        TurnStarted(2),
        TextDelta("Hello."),
        ended=done("Hello."),
        apart=True,
    )
    assert answer == "Hello.\n"
    assert lines[:2] == ["I look.", "● look()"]
    assert not any("Hello" in line for line in lines)


def test_words_that_a_failed_call_had_streamed_are_void() -> None:
    lines, _ = shown(TextDelta("Hal"), Retrying(2, 3.0, "the stream broke"), TextDelta("Hello."), apart=True)
    assert lines == ["… the stream broke; attempt 2 in 3 s"]


def test_results_are_a_line_each_and_say_where_they_come_from() -> None:
    text = ToolResult("a", (Text("one\n\x1b[2Jtwo"), Json({"n": 1}), Image(data=b"x")))
    failed = ToolResult("b", (Text("x" * 500),), is_error=True)
    lines, _ = shown(
        ToolFinished("look", "a", text), ToolReplayed("send", "b", failed), ToolFinished("no", "c", ToolResult("c"))
    )
    assert lines[0] == '  ↳ look: one \\x1b[2Jtwo {"n":1} [image]'
    assert lines[1].startswith("  ✗ send: xxx")
    assert lines[1].endswith("x… · from the record")
    assert lines[2] == "  ↳ no: (nothing)"


def test_what_is_not_as_usual_is_said() -> None:
    doubt, compacted = ToolInDoubt("send", "c", "run again"), Compacted(3)
    lines, _ = shown(ThinkingDelta("Hm"), doubt, compacted)
    assert lines[0] == "Hm"
    assert lines[1] == "! send was begun before, and its outcome is not known: run again"
    assert "a summary stands for what came before" in lines[2]


def test_at_the_end_it_says_what_turned_out_to_be_other_than_on_record() -> None:
    drift = {"files": ("a", "b"), "tools": (["x", "y"], ["y", "z"]), "changed tools": (["y"], ["y"])}
    lines, _ = shown(ended=done("Hello.", drift=drift, turns=1, input_tokens=1200, cost_usd=None, seconds=12.0))
    assert lines[1:4] == [
        "Its files were changed since the last turn; they are on record as they are now.",
        "Tools that have changed: y.",
        "New tools: z.",
    ]
    assert lines[4:] == ["✓ done · 1 turn · 1.2k tokens · ? · 12s", "To go on: clew resume t"]
