"""What Codex prints, read to what happened."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.log import Usage
from clew.messages import Block, Json, Text, Thinking, ToolCall, ToolResult
from clew.providers.base import Job
from clew.providers.codex.events import CALLS, CodexReader
from clew.providers.events import Failed, Finished, Other, ProviderEvent, Response, Result, Retry
from tests.providers.codex.kept import keep, lines, rollout_line

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "content"]), inner),
    max_leaves=6,
)
FIELDS = (
    "text",
    "command",
    "exit_code",
    "status",
    "items",
    "changes",
    "result",
    "receiver_thread_ids",
    "agents_states",
)
KEY = "01a1e046-0000-7000-8000-000000000001"


def heard(
    rows: Sequence[bytes], tmp_path: Path, status: int = 0, stderr: str = "", key: str = KEY
) -> list[ProviderEvent]:
    reader = CodexReader(tmp_path / ".codex", Job(prompt="x", key=key))
    return [*(one for row in rows for one in reader.read(row)), *reader.end(status, stderr)]


def said(happenings: Sequence[ProviderEvent]) -> list[Block]:
    return [block for one in happenings if isinstance(one, Response) for block in one.blocks]


def event(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, **fields}).encode() + b"\n"


def test_items_are_blocks_and_results_in_their_order(tmp_path: Path) -> None:
    happened = heard(lines("stdout-tools.jsonl"), tmp_path)
    results = {one.result.call_id: one.result for one in happened if isinstance(one, Result)}
    calls = [block for block in said(happened) if isinstance(block, ToolCall)]
    assert said(happened)[:2] == [Thinking("I should look."), Text("Let me look.")]
    assert [(made.name, made.arguments) for made in calls] == [
        ("exec_command", {"cmd": "echo hi there; exit 3"}),
        ("apply_patch", {"changes": [{"path": "/home/user/project/hello.txt", "kind": "add"}]}),
        ("mcp__e__echo", {"text": "hey"}),
        ("mcp__e__fail", {}),
        ("web_search", {"type": "search", "query": "weather in Paris"}),
    ]
    command, patch, echo, fail, search = (results[made.id] for made in calls)
    assert command == ToolResult(command.call_id, (Text("hi there\n"), Text("exit code 3")), is_error=True)
    assert patch == ToolResult(patch.call_id, (Text("completed"),))
    assert echo == ToolResult(echo.call_id, (Text("echo hey"),))
    assert fail == ToolResult(fail.call_id, (Text("it failed"),), is_error=True)
    assert search == ToolResult(search.call_id)
    assert happened[-1] == Finished("It rains.", Usage(63780, 121, 0, 0, 3))


def test_what_comes_before_a_result_is_one_response(tmp_path: Path) -> None:
    happened = heard(lines("stdout-tools.jsonl"), tmp_path)
    ids = [one.id for one in happened if isinstance(one, Response)]
    assert ids[0] == ids[1] == ids[2]
    assert len(set(ids[2:])) == len(ids[2:])


def test_calls_of_two_runs_have_different_ids(tmp_path: Path) -> None:
    runs = [said(heard(lines("stdout-tools.jsonl"), tmp_path)) for _ in range(2)]
    first, second = ({block.id for block in run if isinstance(block, ToolCall)} for run in runs)
    assert not first & second


def test_usage_is_of_this_turn_alone_with_what_its_sub_agents_used(tmp_path: Path) -> None:
    """The rollouts are cut where the second turn began, and whole when it has ended."""
    key, path = keep(tmp_path, "rollout-tools.jsonl")
    whole = path.read_bytes()
    turns = [at for at, row in enumerate(whole.splitlines()) if b'"task_started"' in row]
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[: turns[1]]))
    reader = CodexReader(tmp_path / ".codex", Job(prompt="x", key=key))
    path.write_bytes(whole)
    keep(tmp_path, "rollout-agent.jsonl")
    happened = [one for row in lines("stdout-agents.jsonl") for one in reader.read(row)]
    (ended,) = reader.end(0, "")
    child = next(json.loads(row)["payload"] for row in lines("rollout-agent.jsonl") if b"token_usage_record" in row)
    totals = [json.loads(lines(name)[-1])["usage"] for name in ("stdout-tools.jsonl", "stdout-agents.jsonl")]
    counts = [totals[1][name] - totals[0][name] + child["usage"][name] for name in ("input_tokens", "output_tokens")]
    expected = Usage(*counts)
    assert child["usage"]["input_tokens"] > 0
    assert isinstance(ended, Finished)
    assert (ended.usage, ended.model) == (expected, "gpt-5.5")
    assert ended.cost_usd == pytest.approx((expected.input_tokens * 5 + expected.output_tokens * 30) / 1e6)
    spawned = [block for block in said(happened) if isinstance(block, ToolCall)]
    assert [made.name for made in spawned] == ["spawn_agent", "wait"]
    answer = [one.result.content for one in happened if isinstance(one, Result)][-1]
    assert isinstance(answer[0], Json)
    assert "Child answer." in str(answer[0].value)


def test_each_state_of_a_plan_is_a_call_of_its_own(tmp_path: Path) -> None:
    def plan(kind: str, done: bool) -> bytes:
        return event(kind, item={"id": "item_1", "type": "todo_list", "items": [{"text": "look", "completed": done}]})

    happened = heard([plan("item.started", False), plan("item.updated", True), plan("item.completed", True)], tmp_path)
    calls = [block for block in said(happened) if isinstance(block, ToolCall)]
    assert [made.arguments for made in calls] == [
        {"plan": [{"step": "look", "status": "pending"}]},
        {"plan": [{"step": "look", "status": "completed"}]},
    ]
    assert [one.result.call_id for one in happened if isinstance(one, Result)] == [made.id for made in calls]


def test_warnings_and_what_is_unknown_are_kept_and_no_error(tmp_path: Path) -> None:
    warning = {"id": "item_0", "type": "error", "message": "Model metadata not found."}
    rows = [b"not json\n", b"\n", event("item.completed", item=warning), event("news", x=1), b'{"type":"item.started"}']
    happened = heard([*rows, event("turn.completed", usage={"input_tokens": 1})], tmp_path)
    assert [type(one) for one in happened] == [Other, Other, Other, Other, Finished]
    assert happened[0] == Other("not json")


@given(
    kind=st.sampled_from(["item.started", "item.updated", "item.completed", "turn.completed", "turn.failed", "error"]),
    item=st.dictionaries(st.sampled_from(FIELDS), JSON),
    what=st.sampled_from([*CALLS, "agent_message", "reasoning", "error"]) | JSON,
    other=JSON,
)
def test_no_line_is_too_strange_to_be_read(kind: str, item: dict[str, Any], what: Any, other: Any) -> None:
    item = {"id": "item_1", "type": what, **item}
    rows = [event(kind, item=item, usage=other, error=other, message=other), event(kind, item=other)]
    ended = heard(rows, Path("/nowhere"), 1)[-1]
    assert isinstance(ended, Finished | Failed)


def test_an_attempt_that_is_made_again_is_told(tmp_path: Path) -> None:
    happened = heard([event("error", message="Reconnecting... 1/5 (stream disconnected)")], tmp_path, status=1)
    assert happened[0] == Retry("Reconnecting... 1/5 (stream disconnected)")


@pytest.mark.parametrize(
    ("message", "info", "kind"),
    [
        ("unexpected status 401 Unauthorized: no", {"http_connection_failed": {"http_status_code": 401}}, "login"),
        ("exceeded retry limit, last status: 429 Too Many Requests", None, "limit"),
        ("unexpected status 500 Internal Server Error", None, "failed"),
        ("You've hit your usage limit.", "usage_limit_exceeded", "limit"),
        ("rate limit exceeded: Rate limit reached.", "rate_limit_exceeded", "limit"),
        ("Codex ran out of room", "context_window_exceeded", "context"),
        ('{"error":{"message":"Too long.","code":"context_length_exceeded"}}', "other", "context"),
        ("Missing environment variable: `X_KEY`.", "other", "login"),
        ("the model said: unauthorized, rate limit", "other", "failed"),
    ],
)
def test_a_turn_that_failed_is_of_the_kind_that_its_codes_say(
    tmp_path: Path, message: str, info: Any, kind: str
) -> None:
    key, path = keep(tmp_path, "rollout-compacted.jsonl")
    reader = CodexReader(tmp_path / ".codex", Job(prompt="x", key=key))
    with path.open("ab") as rollout:
        rollout.write(rollout_line("event_msg", {"type": "task_complete", "error": {"codex_error_info": info}}))
    assert not list(reader.read(event("turn.failed", error={"message": message})))
    (failed,) = reader.end(1, "")
    assert isinstance(failed, Failed)
    assert failed.kind == kind
    assert failed.reason in message


@pytest.mark.parametrize(
    ("message", "used", "until"),
    [
        ("You've hit your usage limit. Try again at 3:04 PM.", 100, 4_000_000_000),
        ("You've hit your usage limit. Try again at 3:04 PM.", 99.5, None),
        ('{"error":{"type":"usage_limit_reached","message":"No.","resets_at":4000000001}}', 100, 4_000_000_001),
        ('{"error":{"type":"usage_limit_reached","message":"No.","resets_at":"soon"}}', "?", None),
    ],
)
def test_a_limit_says_when_it_ends_if_codex_does(tmp_path: Path, message: str, used: Any, until: int | None) -> None:
    key, path = keep(tmp_path, "rollout-compacted.jsonl")
    reader = CodexReader(tmp_path / ".codex", Job(prompt="x", key=key))
    window = {"used_percent": used, "resets_at": 4_000_000_000}
    limits = {"primary": window, "secondary": {"used_percent": 1, "resets_at": 5_000_000_000}}
    with path.open("ab") as rollout:
        rollout.write(rollout_line("event_msg", {"type": "token_count", "info": None, "rate_limits": limits}))
        error = {"codex_error_info": "usage_limit_exceeded"}
        rollout.write(rollout_line("event_msg", {"type": "task_complete", "error": error}))
    assert not list(reader.read(event("turn.failed", error={"message": message})))
    (failed,) = reader.end(1, "")
    assert isinstance(failed, Failed)
    assert failed.kind == "limit"
    assert failed.until == (None if until is None else datetime.fromtimestamp(until, UTC))


def test_what_a_failed_turn_used_is_told(tmp_path: Path) -> None:
    key, path = keep(tmp_path, "rollout-tools.jsonl")
    reader = CodexReader(tmp_path / ".codex", Job(prompt="x", key=key))
    total = json.loads(lines("stdout-agents.jsonl")[-1])["usage"]
    total = {**total, "input_tokens": total["input_tokens"] + 1000, "output_tokens": total["output_tokens"] + 10}
    with path.open("ab") as rollout:
        rollout.write(rollout_line("turn_context", {"model": "gpt-5.5"}))
        rollout.write(rollout_line("event_msg", {"type": "token_count", "info": {"total_token_usage": total}}))
    list(reader.read(event("turn.failed", error={"message": "no"})))
    (failed,) = reader.end(1, "")
    assert isinstance(failed, Failed)
    assert failed == Failed("failed", "no", Usage(1000, 10), failed.cost_usd)
    assert failed.cost_usd == pytest.approx(0.0053)


@pytest.mark.parametrize(
    ("status", "stderr", "failed"),
    [
        (
            1,
            "2026 ERROR codex_core: noise\nError: thread/resume: thread/resume failed: no rollout found for thread id x "
            "(code -32600)\n",
            Failed("session", "no rollout found for thread id x"),
        ),
        (
            1,
            "Error: thread/resume: thread/resume failed: This chat uses openai, but your current provider is fake. Switch "
            'to openai to continue. (code -32600), data: {"type":"modelProviderMismatch"}\n',
            Failed("failed", "This chat uses openai, but your current provider is fake. Switch to openai to continue."),
        ),
        (-9, "", Failed("stopped", "ended by signal 9")),
        (101, "WARNING: x\npanicked\n", Failed("stopped", "ended with status 101 before its turn did: panicked")),
        (0, "", Failed("stopped", "ended with status 0 before its turn did")),
    ],
)
def test_a_program_that_ended_without_a_turn_says_why(tmp_path: Path, status: int, stderr: str, failed: Failed) -> None:
    assert heard([], tmp_path, status, stderr) == [failed]


def test_a_program_that_is_killed_while_it_answers_was_stopped(tmp_path: Path) -> None:
    happened = heard(lines("stdout-tools.jsonl")[:-1], tmp_path, status=-9)
    assert happened[-1] == Failed("stopped", "ended by signal 9")
