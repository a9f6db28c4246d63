"""The three real coding agents: their files after a stop, on another machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clew import open_checkpointer
from clew.errors import ClewError
from tests.e2e.desk import NAMES, desk, texts
from tests.limits import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("real-clis")]


@pytest.mark.parametrize("stop", ["400", "cancel"])
@pytest.mark.parametrize("provider", NAMES)
async def test_files_of_a_stopped_prompt_are_there_on_another_machine(provider: str, stop: str, tmp_path: Path) -> None:
    note = tmp_path / "files" / "note"
    with desk(tmp_path) as here:
        async with open_checkpointer(here.url) as store:
            agent = here.agent(here.machine(), provider, store, cwd=None, workspace=note.parent)
            session = agent.start_session()
            await session.send("First prompt")
            if stop == "400":
                with pytest.raises(ClewError, match="no more"):
                    await session.send("BREAK echo kept > note")
            else:
                running = asyncio.ensure_future(session.send("RUN echo kept > note; sleep 600"))
                async with asyncio.timeout(PATIENCE):
                    while not (note.exists() and note.read_text()):
                        await asyncio.sleep(0.02)
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            other = here.machine("another machine")
            elsewhere = tmp_path / "elsewhere"
            again = here.agent(other, provider, store, cwd=None, workspace=elsewhere)
            turn = await again.resume_session(session.thread_id).send("Second prompt")
            assert (elsewhere / "note").read_text() == "kept\n"
            assert turn.drift.keys().isdisjoint({"files", "files_turn"})
            assert "files of the workspace" not in texts(other.asked[-1])
