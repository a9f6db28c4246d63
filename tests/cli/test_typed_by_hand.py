"""A session of a provider that was used by hand, gone on with by the built-in agent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from clew.checkpointers import open_checkpointer
from clew.messages import plain_text
from clew.providers import adopt
from clew.testing import ModelServer
from tests.cli.command_line import clew
from tests.providers.claude_code.homes import keep, key_of, machine

pytestmark = pytest.mark.slow


def test_a_resume_by_the_built_in_agent_knows_what_was_typed_in_the_program_itself(tmp_path: Path) -> None:
    claude, url = machine(tmp_path), f"sqlite:///{tmp_path}/clew.db"
    path = keep(claude, "two-turns")

    async def adopted() -> str:
        async with open_checkpointer(url) as store:
            return await adopt(key_of("two-turns"), store, provider="claude_code", place=claude.place)

    thread_id = asyncio.run(adopted())
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    last = next(row for row in reversed(rows) if row.get("type") == "assistant")
    typed = [
        {"type": "user", "message": {"role": "user", "content": "Typed by hand."}, "uuid": "by-hand-1"},
        {"type": "assistant", "message": {**last["message"], "id": "msg_by_hand"}, "uuid": "by-hand-2"},
    ]
    with path.open("a") as file:
        parent = last["uuid"]
        for row in typed:
            file.write(json.dumps({**row, "parentUuid": parent, "timestamp": "2026-11-16T12:00:00.000Z"}) + "\n")
            parent = row["uuid"]
    with ModelServer(lambda request: "I know.", strict=False) as server:
        env = {**server.env(), "HOME": str(claude.place.home)}
        run = clew(
            "resume",
            thread_id,
            "What did I type?",
            "--provider",
            "clew",
            "--model",
            "anthropic:claude-sonnet-4-5",
            "--trust",
            store=url,
            env=env,
        )
        assert run.returncode == 0, run.stderr
        request = server.requests[-1].request
        assert request is not None
        assert [plain_text(message) for message in request.messages].count("Typed by hand.") == 1
