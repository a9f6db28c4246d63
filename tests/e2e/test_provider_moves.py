"""The three real coding agents, and the built-in one: conversations carried from each to each."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Agent, open_checkpointer
from clew.testing import ScriptedModel
from clew.testing import call as ask_for
from clew.tools import run_command
from tests.e2e.desk import NAMES, desk, has_call, texts

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("real-clis")]

_TOUR = ("claude_code", "codex", "opencode", "claude_code", "opencode", "codex", "claude_code")
"""All six moves between three, each once, and back to where it began."""


async def test_a_conversation_goes_through_all_six_moves_with_every_call_and_result(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        machine = here.machine()
        async with open_checkpointer(here.url) as store:
            session = here.agent(machine, _TOUR[0], store).start_session()
            await session.send("RUN echo stop-0")
            for number, provider in enumerate(_TOUR[1:], start=1):
                session = await session.move_to(provider, model=machine.models[provider])  # type: ignore[assignment]
                turn = await session.send(f"RUN echo stop-{number}")
                assert turn.provider == provider
                assert f"stop-{number}" in (turn.output or "")
                asked = machine.asked[-1]
                for before in range(number + 1):
                    assert has_call(asked, f"echo stop-{before}", f"stop-{before}"), (provider, before)
            assert (await session.trajectory).num_turns == len(_TOUR)


@pytest.mark.parametrize("provider", NAMES)
async def test_a_conversation_goes_from_the_built_in_agent_to_a_provider_and_back(
    provider: str, tmp_path: Path
) -> None:
    with desk(tmp_path) as here:
        machine = here.machine()
        async with open_checkpointer(here.url) as store:
            model = ScriptedModel([ask_for("run_command", command="echo at-home"), "Done at home."])
            home = Agent(model, tools=[run_command], workspace=machine.cwd, checkpointer=store).start_session()
            await home.send("Begin at home")
            settings = {"env": machine.env, "cwd": machine.cwd, "permissions": "full"}
            out = await home.move_to(provider, model=machine.models[provider], **settings)
            await out.send("RUN echo away")
            asked = machine.asked[-1]
            assert has_call(asked, "echo at-home", "at-home")
            assert "Begin at home" in texts(asked)
            again = ScriptedModel(lambda request: "Back at home.")
            back = await out.move_to("clew", model=again, tools=[run_command], workspace=machine.cwd)
            assert (await back.send("And now?")).output == "Back at home."
            seen = again.requests[-1].messages
            assert has_call(seen, "echo away", "away")
            assert has_call(seen, "echo at-home", "at-home")
