"""What the three real coding agents use and cost, prompt by prompt, beside what the model's server counted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from clew import Budget, Thread, open_checkpointer
from clew.log import Usage
from clew.models.prices import cost_of
from clew.testing import RecordedRequest
from tests.e2e.desk import Desk, desk
from tests.servers.clis import is_main
from tests.servers.npm import NEWEST_CLAUDE

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("real-clis")]

_EACH = Usage(1000, 100, 300)
"""What the model says that each of its answers used."""
_PROMPTS = {
    "claude_code": ("RUN echo one", "second", "DELEGATE a part of it", "RUN echo four", "fifth"),
    "codex": ("RUN echo one", "second", "third", "RUN echo four", "fifth"),
    "opencode": ("RUN echo one", "second", "DELEGATE a part of it", "RUN echo four", "fifth"),
}


@pytest.mark.parametrize(
    ("provider", "version"),
    [("claude_code", ""), ("claude_code", NEWEST_CLAUDE), ("codex", ""), ("opencode", "")],
    ids=lambda value: value or "as pinned",
)
async def test_usage_and_cost_of_five_prompts_each_resumed_add_up_to_what_the_model_server_counted(
    provider: str, version: str, tmp_path: Path
) -> None:
    with desk(tmp_path, _EACH) as here:
        versions = {provider: version} if version else {}
        machines = [here.machine(**versions), here.machine("another machine", **versions)]
        handle = ""
        turns, calls = [], []
        async with open_checkpointer(here.url) as store:
            for number, prompt in enumerate(_PROMPTS[provider]):
                agent = here.agent(machines[number // 3], provider, store)
                session = agent.resume_session(handle) if handle else agent.start_session()
                before = len(_main(here))
                turns.append(await session.send(prompt))
                calls.append(_main(here)[before:])
                handle = session.resume_handle
            assert [turn.usage for turn in turns] == [_times(len(some)) for some in calls]
            state = await Thread.load(store, session.thread_id)
            assert state.usage == _times(len(_main(here)))
            if provider != "opencode":  # which knows no price of this model
                assert [turn.cost for turn in turns] == [pytest.approx(_cost(some)) for some in calls]
                assert state.cost_usd == pytest.approx(_cost(_main(here)))


def _main(here: Desk) -> list[RecordedRequest]:
    """The answers that were given so far; without the titles that opencode asks for, which it does not count."""
    return [record for record in here.calls if record.request is not None and is_main(record.request)]


def _times(calls: int) -> Usage:
    return Usage(*(count * calls for count in msgspec.structs.astuple(_EACH)))


def _cost(calls: list[RecordedRequest]) -> float:
    return sum(cost_of(record.body["model"], _EACH) or 0.0 for record in calls)


@pytest.mark.parametrize("version", ["", NEWEST_CLAUDE], ids=lambda value: value or "as pinned")
async def test_a_budget_for_three_prompts_lets_three_prompts_through(version: str, tmp_path: Path) -> None:
    with desk(tmp_path, _EACH) as here:
        machine = here.machine(**({"claude_code": version} if version else {}))
        async with open_checkpointer(here.url) as store:
            agent = here.agent(machine, "claude_code", store, budget=Budget(tokens=3 * 1100))
            session = agent.start_session()
            statuses = [(await session.send(f"prompt {number}")).status for number in range(4)]
            assert statuses == ["done", "done", "done", "interrupted"]
