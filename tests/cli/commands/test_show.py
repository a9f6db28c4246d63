"""`clew show`."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.log import MessageAdded, ProviderKey, Rewound, StateSet, StatusChanged, ToolOutcome
from clew.messages import Json, Text, Thinking, ToolCall, ToolResult, assistant, user
from tests.cli.command_line import Samples, clew, objects, terminal

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("store"))


def test_a_conversation_is_shown_in_its_order(samples: Samples) -> None:
    run = samples.clew("show", "trip")
    assert (run.returncode, run.stderr) == (0, "")
    expected = [
        "trip  Plan a trip to Paris.",
        "✓ done · planner · scripted · 5 turns · 7.7k tokens · $0.04 · 1 file",
        "started by process",
        "> Plan a trip to Paris.",
        "Turn 1 · ",
        "  A city first.",
        "  I will look it up.",
        '✓ look_up(city="Paris")',
        "    Paris: the river, the tower, the museum.",
        "Turn 2 · ",
        "    written",
        "Turn 3 · ",
        "✓ done · ",
        "↻ resumed by the same process · ",
        "> Add the tower.",
        "Turn 5 · ",
        "  The tower is in it now.",
        "✓ done · ",
    ]
    place = 0
    for words in expected:
        assert words in run.stdout[place:], words
        place = run.stdout.index(words, place) + len(words)
    assert "\x1b" not in run.stdout


def test_crashes_questions_failures_and_forks_are_marked_where_they_happened(samples: Samples) -> None:
    crashed = samples.clew("show", "report").stdout
    assert '! send_mail(to="ada@example.org") · in doubt' in crashed
    assert "ended without a word while it ran send_mail" in crashed.splitlines()[-1]
    assert "? waiting: Which passport do you travel with?" in samples.clew("show", "visa").stdout
    failed = samples.clew("show", "old").stdout
    assert failed.index("> Summarise the year.") < failed.index("✗ failed: ")
    assert "forked from turn 2 of trip" in samples.clew("show", "trip-b").stdout


def test_turns_are_chosen_by_number(samples: Samples) -> None:
    one = samples.clew("show", "trip", "--turn", "4").stdout
    assert [line[:6] for line in one.splitlines() if line.startswith("Turn")] == ["Turn 4"]
    assert "> Add the tower." in one
    some = samples.clew("show", "trip", "--turn", "2..3").stdout
    assert [line[:6] for line in some.splitlines() if line.startswith("Turn")] == ["Turn 2", "Turn 3"]
    (last,) = objects(samples.clew("show", "trip", "--turn", "5..", "--json"))
    assert [turn["number"] for turn in last["timeline"] if turn["type"] == "turn"] == [5]


def test_raw_messages_are_those_that_the_model_sees(samples: Samples) -> None:
    messages = objects(samples.clew("show", "trip", "--raw"))
    assert [message["role"] for message in messages] == [
        *("user", "assistant", "tool", "assistant", "tool", "assistant"),
        *("user", "assistant", "tool", "assistant"),
    ]
    fourth = objects(samples.clew("show", "trip", "--raw", "--turn", "4"))
    assert [message["role"] for message in fourth] == ["user", "assistant", "tool"]
    assert fourth[1]["content"][0]["name"] == "write_plan"


def test_entries_are_the_log_with_its_times(samples: Samples) -> None:
    entries = objects(samples.clew("show", "report", "--entries", "--json"))
    assert [entry["kind"] for entry in entries] == [
        *("lease", "started", "message", "state", "model-call", "spend", "message", "intent")
    ]
    assert [entry["frame"] for entry in entries] == sorted(entry["frame"] for entry in entries)
    assert entries[2]["entry"]["message"]["content"][0]["text"] == "Send the report to Ada."
    lines = samples.clew("show", "report", "--entries").stdout.splitlines()
    assert len(lines) == len(entries)
    assert "user: Send the report to Ada." in lines[2]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--turn", "soon"], "2..5"),
        (["--turn", "6"], "turns 1 to 5"),
        (["--turn", "0"], "turns 1 to 5"),
        (["--turn", "3..2"], "3..2"),
        (["--entries", "--raw"], "--entries"),
        (["--entries", "--turn", "1"], "--entries"),
    ],
)
def test_a_wrong_option_is_told_and_is_2(samples: Samples, options: list[str], named: str) -> None:
    run = samples.clew("show", "trip", *options)
    assert (run.returncode, run.stdout) == (2, "")
    assert named in run.stderr


async def test_long_results_are_cut_and_say_how_to_see_them_and_nothing_hostile_reaches_the_terminal(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'clew.db'}"
    long = "\n".join(f"line {number}" for number in range(100))
    async with open_checkpointer(url) as store, Thread.open(store, "long") as thread:
        call = ToolCall("c1", "sh", {"command": "ls " * 100, "deep": {1: "x"}})
        await thread.append(
            MessageAdded(user("Go \x1b[31m[bold]on[/bold]\x1b[0m.\nAnd on.")),
            MessageAdded(assistant(Thinking(long), "Yes.", call)),
            ToolOutcome(1, 0, ToolResult("c1", (Text(long + "\x1b]0;owned\x07"), Json({"ok": True})))),
            ProviderKey("claude_code", "the-secret-key"),
            StateSet("city", "Paris"),
            MessageAdded(user("Other.")),
            MessageAdded(assistant("Not so.")),
            Rewound(turn=1),
            StatusChanged("done"),
        )
    cut, full = clew("show", "long", store=url).stdout, clew("show", "long", "--full", store=url).stdout
    assert ("line 7\n" in cut, "line 8\n" in cut, "line 99\n" in full) == (True, False, True)
    assert cut.count("more lines: --turn 1 --full") == 2
    assert "> Go \\x1b[31m[bold]on[/bold]\\x1b[0m.\n  And on.\n" in cut
    assert "Turn 2 · rewound" in cut
    assert "rewound from turn 2 to turn 1" in cut
    with terminal("show", "long", store=url) as shell:
        assert shell.end() == 0
    assert "\x1b]" not in shell.shown + cut + full
    assert "the-secret-key" not in clew("show", "long", "--entries", "--json", store=url).stdout
