"""`clew adopt`."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.messages import plain_text
from tests.cli.command_line import objects
from tests.cli.native_sessions import Machine

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_a_session_is_adopted_from_wherever_it_is(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    key = machine.keep("claude_code", "Paint the door.")
    adopted = machine.clew("adopt", key, "--as", "door", "--json")
    (told,) = objects(adopted)
    assert told == {
        "thread_id": "door",
        "provider": "claude_code",
        "id": key,
        "turns": 1,
        "resume": "clew resume door 'what to do next'",
    }
    async with open_checkpointer(machine.url) as store:
        state = await Thread.load(store, "door")
    assert plain_text(state.messages[0]) == "Paint the door."
    assert (state.limits["provider"], state.limits["cwd"]) == ("claude_code", str(machine.cwd))
    twice = machine.clew("adopt", key, "--as", "door")
    assert (twice.returncode, "a thread 'door' in this store already" in twice.stderr) == (2, True)
    unknown = machine.clew("adopt", "11111111-2222-4333-8444-555555555555")
    assert unknown.returncode == 3
    assert "List the sessions with: clew sessions" in unknown.stderr
    same = machine.keep("codex", "Another.", key="0199c0de-0000-7000-8000-000000000001")
    machine.keep("codex", "Yet another.", key="0199c0de-0000-7000-8000-000000000002")
    assert machine.clew("adopt", same[:8]).returncode == 2
