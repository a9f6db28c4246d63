"""What a prompt cost, by totals that are of the run in older versions, and of the whole session in newer ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clew.log import Usage
from clew.providers.claude_code import ClaudeCode
from clew.providers.claude_code.events import ClaudeReader, Meter
from clew.providers.events import Failed, Finished
from tests.providers.claude_code.homes import machine, project

KEY = "00000000-0000-4000-8000-000000000000"


def models(tokens: int, small: int = 0) -> dict[str, Any]:
    said = {"claude-sonnet-4-5": {"inputTokens": tokens, "outputTokens": tokens // 10, "cacheReadInputTokens": 0}}
    return said | ({"claude-haiku-4-5": {"inputTokens": small, "outputTokens": small // 10}} if small else {})


def session(claude: ClaudeCode, *totals: int) -> Path:
    """A session whose file holds these totals, one after the other, and a dollar for each hundred tokens."""
    said = {"type": "user", "uuid": "u1", "message": {"role": "user", "content": "hello"}, "sessionId": KEY}
    path = project(claude) / f"{KEY}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(said) + "\n")
    for total in totals:
        keep(path, total)
    return path


def keep(path: Path, total: int) -> None:
    row = {"type": "cost-state", "totalCostUSD": total / 100, "modelUsage": models(total), "sessionId": KEY}
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def result(total: int, main: int, small: int = 0, **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": main, "output_tokens": main // 10}
    printed = {"type": "result", "subtype": "success", "is_error": False, "result": "yes", "usage": usage}
    return {**printed, "total_cost_usd": (total + small) / 100, "modelUsage": models(total, small), **more}


def ended(claude: ClaudeCode, printed: dict[str, Any], meter: Meter | None = None) -> Finished | Failed:
    reader = ClaudeReader(meter or Meter(claude.place, KEY))
    list(reader.read(json.dumps(printed).encode()))
    (last,) = reader.end(0, "")
    assert isinstance(last, Finished | Failed)
    return last


def test_totals_of_the_session_are_told_without_what_it_had_used_before(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    session(claude, 100, 200)
    last = ended(claude, result(total=300, main=100))
    assert (last.usage, last.cost_usd) == (Usage(100, 10), 1.0)


def test_totals_of_the_session_count_what_sub_agents_and_the_small_model_used(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    session(claude, 100)
    last = ended(claude, result(total=400, main=100, small=50))
    assert (last.usage, last.cost_usd) == (Usage(350, 35), 3.5)


def test_totals_of_the_run_by_an_older_program_are_told_as_they_are(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    session(claude)
    assert ended(claude, result(total=100, main=100)).usage == Usage(100, 10)
    session(claude, 60)
    assert ended(claude, result(total=100, main=100)).usage == Usage(100, 10), "a newer program was here before it"
    session(claude, 1000)
    assert ended(claude, result(total=100, main=100)).usage == Usage(100, 10)


def test_a_prompt_that_was_killed_and_left_no_totals_changes_nothing_for_the_next(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = session(claude, 100)
    with path.open("a") as file:
        file.write(
            '{"type":"user","uuid":"u2","parentUuid":"u1","message":{"role":"user","content":"killed"}}\n{"type":"as'
        )
    assert ended(claude, result(total=200, main=100)).usage == Usage(100, 10)


def test_a_prompt_that_ended_without_a_result_costs_what_the_session_kept_since(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = session(claude, 100)
    for total, expected in [(250, Usage(150, 15)), (250, None)]:
        reader = ClaudeReader(Meter(claude.place, KEY))
        keep(path, total)
        (last,) = reader.end(143, "")
        assert isinstance(last, Failed)
        assert (last.kind, last.usage) == ("stopped", expected)


def test_a_prompt_that_was_stopped_before_a_response_was_whole_is_not_free(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    session(claude, 100)
    stopped: dict[str, Any] = {
        "subtype": "error_during_execution",
        "is_error": True,
        "terminal_reason": "aborted_streaming",
    }
    last = ended(claude, result(total=100, main=0, **stopped))
    assert (last.usage, last.cost_usd) == (None, None)


def test_a_new_session_has_used_nothing_before(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    meter = Meter(claude.place, KEY)
    session(claude, 100)
    assert ended(claude, result(total=100, main=100), meter).usage == Usage(100, 10)
