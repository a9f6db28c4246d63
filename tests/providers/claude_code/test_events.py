"""What the program prints, in Clew's vocabulary; the lines are those of the real one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from clew.errors import ProviderLimited
from clew.log import Usage
from clew.messages import Text, Thinking, ToolCall, ToolResult
from clew.providers.claude_code.events import ClaudeReader
from clew.providers.events import Delta, Failed, Failure, Finished, Other, ProviderEvent, Response, Result, Retry
from clew.providers.prompt import error_of
from tests.providers.claude_code.homes import PRINTED


def happenings(lines: list[bytes], status: int = 0, stderr: str = "") -> list[ProviderEvent]:
    reader = ClaudeReader()
    return [*(said for line in lines for said in reader.read(line)), *reader.end(status, stderr)]


def replay(name: str, status: int = 0) -> list[ProviderEvent]:
    return happenings((PRINTED / f"{name}.jsonl").read_bytes().splitlines(keepends=True), status)


def last_words(said: list[ProviderEvent]) -> list[ProviderEvent]:
    return [one for one in said if isinstance(one, (Finished, Failed))]


def failure(said: list[ProviderEvent]) -> Failed:
    (last,) = last_words(said)
    assert isinstance(last, Failed)
    return last


def test_a_turn_is_its_words_its_blocks_its_results_and_one_last_word() -> None:
    said = replay("tool-call")

    blocks = [block for one in said if isinstance(one, Response) for block in one.blocks]
    assert [type(block) for block in blocks] == [Thinking, Text, ToolCall, Text]
    assert isinstance(blocks[0], Thinking)
    assert blocks[0].signature
    assert blocks[2] == ToolCall("toolu_1_1", "Bash", {"command": "echo hello-out; pwd", "description": "d"})
    results = [one.result for one in said if isinstance(one, Result)]
    assert results == [ToolResult("toolu_1_1", (Text("hello-out\n/home/user/work"),))]
    assert last_words(said) == [
        Finished("The answer is 4.", Usage(input_tokens=55985, output_tokens=20), 0.168255, "claude-sonnet-4-5")
    ]
    assert isinstance(said[-1], Finished)


def test_words_come_as_they_are_written_thinking_apart() -> None:
    said = replay("tool-call")
    assert "".join(one.text for one in said if isinstance(one, Delta) and not one.thinking) == "I look.The answer is 4."
    assert "".join(one.text for one in said if isinstance(one, Delta) and one.thinking) == "hm"


def test_the_parts_of_one_response_have_one_id() -> None:
    responses = [one for one in replay("tool-call") if isinstance(one, Response)]
    assert len({one.id for one in responses[:3]}) == 1
    assert responses[3].id not in {"", responses[0].id}


def test_what_a_sub_agent_does_is_of_the_call_that_started_it() -> None:
    said = replay("sub-agent")
    children = [(type(one).__name__, one.child) for one in said if isinstance(one, (Response, Result))]
    assert children == [
        ("Response", ""),
        ("Response", "toolu_1_1"),
        ("Result", "toolu_1_1"),
        ("Result", ""),
        ("Response", ""),
    ]


def test_usage_and_cost_count_sub_agents_too() -> None:
    (last,) = last_words(replay("sub-agent"))
    assert isinstance(last, Finished)
    assert last.usage == Usage(input_tokens=86752, output_tokens=37)
    assert last.cost_usd == 0.260811


def test_cached_tokens_are_part_of_the_input() -> None:
    models = {"m": {"inputTokens": 5, "outputTokens": 2, "cacheReadInputTokens": 100, "cacheCreationInputTokens": 30}}
    line = {"type": "result", "subtype": "success", "result": "x", "modelUsage": models, "total_cost_usd": 1}
    (last,) = last_words(happenings([json.dumps(line).encode()]))
    assert isinstance(last, Finished)
    assert last.usage == Usage(input_tokens=135, output_tokens=2, cache_read_tokens=100, cache_write_tokens=30)


@pytest.mark.parametrize(
    ("printed", "kind"),
    [
        ("status-400", "failed"),
        ("status-401", "login"),
        ("status-403", "login"),
        ("status-404", "failed"),
        ("status-429", "limit"),
        ("status-500", "failed"),
        ("no-credit", "limit"),
        ("not-logged-in", "login"),
        ("too-long", "context"),
        ("connection-reset", "failed"),
        ("no-session", "session"),
        ("unknown-command", "failed"),
    ],
)
def test_an_error_is_a_failure_and_no_answer(printed: str, kind: Failure) -> None:
    said = replay(printed, 1)
    assert failure(said).kind == kind
    assert failure(said).reason
    assert not [one for one in said if isinstance(one, (Response, Delta))]


RESETS = 1_778_565_600


@pytest.mark.parametrize(
    ("status", "words", "until"),
    [
        ("rejected", "You've hit your limit · resets 2pm (Asia/Shanghai)", RESETS),
        ("allowed", "You've hit your limit · resets 2pm (Asia/Shanghai)", None),
        ("allowed", f"Claude AI usage limit reached|{RESETS}", RESETS),
        ("allowed", "Claude AI usage limit reached|999999999999", None),
    ],
)
def test_a_limit_says_when_it_ends_if_the_program_does(status: str, words: str, until: int | None) -> None:
    limit = {"type": "rate_limit_event", "rate_limit_info": {"status": status, "resetsAt": RESETS}}
    ended = {"type": "result", "subtype": "success", "is_error": True, "api_error_status": 429, "result": words}
    failed = failure(happenings([json.dumps(line).encode() for line in (limit, ended)], 1))
    assert failed.until == (None if until is None else datetime.fromtimestamp(until, UTC))
    error = error_of("claude_code", failed, "", "k")
    assert isinstance(error, ProviderLimited)
    assert error.until == failed.until


@pytest.mark.parametrize("strange", ["soon", None, True, 1e300, -(10**30), {}])
def test_a_strange_end_of_a_limit_is_no_end(strange: object) -> None:
    limit = {"type": "rate_limit_event", "rate_limit_info": {"status": "rejected", "resetsAt": strange}}
    ended = {"type": "result", "subtype": "success", "is_error": True, "api_error_status": 429, "result": "x"}
    assert failure(happenings([json.dumps(line).encode() for line in (limit, ended)], 1)).until is None


def test_a_failure_says_what_it_cost_all_the_same() -> None:
    failed = failure(replay("interrupted-in-a-tool"))
    assert failed.usage == Usage(input_tokens=27966, output_tokens=11)
    assert failed.cost_usd == 0.084063


def test_a_call_that_was_interrupted_has_no_outcome() -> None:
    """The program says that the user did not want it, when in truth it had begun."""
    said = replay("interrupted-in-a-tool")
    assert failure(said).kind == "stopped"
    assert not [one for one in said if isinstance(one, Result)]


def test_prose_about_rate_limits_is_an_answer() -> None:
    text = "API Error: 429 rate_limit. No conversation found. Unknown command: /x"
    line = {"type": "result", "subtype": "success", "is_error": False, "num_turns": 1, "result": text}
    (last,) = last_words(happenings([json.dumps(line).encode()]))
    assert isinstance(last, Finished)
    assert last.text == text


def test_a_retry_says_why_and_when() -> None:
    (retry,) = [one for one in replay("status-429", 1) if isinstance(one, Retry)]
    assert retry.reason == "rate_limit (status 429)"
    assert 0.5 < retry.seconds < 0.7


def test_of_several_results_the_last_one_counts() -> None:
    first = {"type": "result", "subtype": "success", "result": "It runs in the background.", "total_cost_usd": 1}
    second = {"type": "result", "subtype": "success", "result": "It is done.", "total_cost_usd": 3}
    (last,) = last_words(happenings([json.dumps(line).encode() for line in (first, second)]))
    assert isinstance(last, Finished)
    assert (last.text, last.cost_usd) == ("It is done.", 3)


@pytest.mark.parametrize("status", [-9, -15, 143, 137])
def test_a_program_that_was_killed_was_stopped(status: int) -> None:
    assert failure(happenings([], status)).kind == "stopped"


def test_without_a_result_the_standard_error_is_the_reason() -> None:
    failed = failure(happenings([], 1, "error: unknown option '--nonsense'\n"))
    assert failed == Failed("failed", "error: unknown option '--nonsense'")


def test_an_end_without_a_word_is_a_failure_even_with_status_0() -> None:
    assert failure(happenings([], 0)).kind == "failed"


@pytest.mark.parametrize(
    "line",
    [
        b"Warning: something\n",
        b"\xff\xfe\n",
        b"[1, 2]\n",
        b'{"type":"tomorrow"}\n',
        b'{"type":"assistant","message":{"role":"assistant","content":7}}\n',
        b'{"type":"assistant"}\n',
        b'{"type":"user","message":null}\n',
        b'{"type":"result"}\n',
        b"[" * 100_000,
        b'{"type":"system","subtype":"api_retr',
    ],
)
def test_a_strange_line_is_kept_and_never_an_error(line: bytes) -> None:
    assert [type(one) for one in ClaudeReader().read(line)] == [Other]


def test_half_a_surrogate_pair_does_not_cost_the_line() -> None:
    line = rb'{"type":"assistant","message":{"role":"assistant","id":"m","content":[{"type":"text","text":"a\ud83d"}]}}'
    (said,) = ClaudeReader().read(line)
    assert isinstance(said, Response)
    assert said.blocks == (Text("a?"),)


def test_every_capture_ends_in_one_last_word() -> None:
    for path in PRINTED.glob("*.jsonl"):
        assert len(last_words(replay(path.stem))) == 1, Path(path).name
