"""A turn of an agent costs the same at the start of a thread and at the end of a long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.agent import Agent, Compacted
from clew.checkpointers import MemoryCheckpointer
from clew.log import Checkpoint, Fold
from clew.messages import plain_text
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call
from clew.tools import ToolContext, tool

pytestmark = pytest.mark.anyio


@tool(effect="once")
async def write(name: str, ctx: ToolContext) -> str:
    """Write a file."""
    assert ctx.workspace is not None
    (ctx.workspace / name).write_text(name)
    ctx.state["last"] = name
    return "written"


def _script(turns: int) -> list[Response]:
    return [*(call("write", name=f"{number}.txt") for number in range(turns)), "Done."]


@pytest.mark.parametrize("is_compacted", [True, False])
async def test_no_turn_copies_the_history_of_the_thread(
    is_compacted: bool, store: MemoryCheckpointer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    checkpoint = Fold.checkpoint

    def count(self: Fold) -> Checkpoint:
        made.append(self.turns)
        return checkpoint(self)

    monkeypatch.setattr(Fold, "checkpoint", count)
    counts = []
    for turns in (4, 40):
        made.clear()
        answers = iter(_script(turns))

        def script(request: ModelRequest) -> Response:
            is_summary = plain_text(request.messages[0]).startswith("Below is a conversation")
            return "They were written." if is_summary else next(answers)  # noqa: B023 - used within this repeat

        agent = Agent(
            ScriptedModel(script),
            tools=[write],
            checkpointer=store,
            workspace=tmp_path / "files",
            max_turns=100,
            context_window=150 if is_compacted else None,
        )
        events = [event async for event in agent.run("Write.", thread_id=f"{turns} turns")]
        counts.append(len(made))
    assert any(isinstance(event, Compacted) for event in events) == is_compacted
    assert counts[0] == counts[1]
