"""The three real coding agents, resumed: by another process, from another folder, on another machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import open_checkpointer
from tests.e2e.desk import NAMES, desk, has_call, texts
from tests.providers.worker import descendants, worker

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("real-clis")]


@pytest.mark.parametrize("provider", NAMES)
async def test_a_session_is_resumed_by_another_process_from_another_folder_and_on_another_machine(
    provider: str, tmp_path: Path
) -> None:
    with desk(tmp_path) as here:
        first = here.machine()
        job = here.job(first, provider, "RUN echo forty-two", system_prompt="Be kind.")
        with worker(first.place(), here.url, **job) as one:
            handle = one.wait_for("handle")["handle"]
            assert "forty-two" in one.wait_for("turn")["output"]
            assert descendants(one.pid) == []
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        again = here.job(first, provider, "Second prompt", handle=handle, system_prompt="Be kind.")
        with worker(first.place(elsewhere), here.url, **again) as two:
            two.wait_for("turn")
        assert has_call(first.asked[-1], "echo forty-two", "forty-two")
        assert "Second prompt" in texts(first.asked[-1])

        other = here.machine("another machine")
        async with open_checkpointer(here.url) as store:
            session = here.agent(other, provider, store, system_prompt="Be kind.").resume_session(handle)
            turn = await session.send("Third prompt")
            assert "Third prompt" in (turn.output or "")
            asked = other.asked[-1]
            assert has_call(asked, "echo forty-two", "forty-two")
            assert [texts(asked).count(words) for words in ("Second prompt", "Third prompt")] == [2, 1]
            found = await session.trajectory()
            assert found.num_exchanges == 3
            assert found.exchanges[0].tool_uses[0].output.strip().endswith("forty-two")
            assert all(turn.usage is not None and turn.usage.input_tokens > 0 for turn in found.exchanges)
