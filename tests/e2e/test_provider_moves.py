"""The three real coding agents, and the built-in one: conversations carried from each to each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clew import Agent, Session, open_checkpointer
from clew.messages import Thinking
from clew.testing import ModelServer, Response, ScriptedModel, say, think
from clew.testing import call as ask_for
from clew.tools import run_command
from tests.e2e.desk import NAMES, Desk, desk, has_call, texts
from tests.servers.clis import answering

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
            assert (await session.trajectory()).num_exchanges == len(_TOUR)


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


@pytest.mark.slow
@pytest.mark.parametrize("way", ["opencode", "codex", "clew"])
async def test_signed_thinking_comes_back_to_the_model_it_is_of_or_is_listed_as_lost(way: str, tmp_path: Path) -> None:
    script: list[Response] = [[think("Deep in thought"), say("One.")], "Two.", "Three."]
    asked = [script[0], script[2]] if way == "clew" else script
    with ModelServer(answering(asked), strict=False) as server:
        here = Desk(tmp_path, server)
        machine = here.machine()
        async with open_checkpointer(here.url) as store:
            session: Session = here.agent(machine, "claude_code", store).start_session()
            (signed,) = [block for block in (await session.send("First")).blocks if isinstance(block, Thinking)]
            assert signed.signature
            settings: dict[str, Any] = {"model": machine.models.get(way, "")}
            if way == "clew":
                settings = {"model": ScriptedModel(lambda request: "Two.")}
            session = await session.move_to(way, **settings)
            lost = [loss for loss in getattr(session, "losses", ()) if loss.what == "thinking"]
            await session.send("Second")
        async with open_checkpointer(here.url) as store:
            back = here.agent(machine, "claude_code", store).resume_session(session.resume_handle)
            await back.send("Third")
    given = [block for message in machine.asked[-1] for block in message.content if isinstance(block, Thinking)]
    assert bool(lost) == (way == "codex")
    assert given == ([] if lost else [Thinking(signed.text, signed.signature)])
