"""The three real coding agents, used by hand between our prompts: what was said then is on record, and goes along."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.agent.prompts import is_prompt
from clew.messages import plain_text
from clew.providers import ProviderSession
from clew.testing import ScriptedModel
from tests.e2e.desk import NAMES, Desk, desk, has_call, texts
from tests.limits import PATIENCE
from tests.providers.worker import descendants, is_running, wait_until, worker
from tests.servers.clis import Machine
from tests.servers.npm import NEWEST_CLAUDE

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("real-clis")]

_NEXT = {"claude_code": "codex", "codex": "opencode", "opencode": "claude_code"}


def by_hand(machine: Machine, provider: str, key: str, prompt: str) -> None:
    """What a user runs who goes on with a session himself, in the folder that it was begun in."""
    commands: dict[str, Sequence[str]] = {
        "claude_code": ("claude", "-p", "--dangerously-skip-permissions", "--resume", key),
        "codex": (
            "codex",
            "exec",
            "resume",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            key,
        ),
        "opencode": ("opencode", "run", "--auto", "--session", key),
    }
    argv = [*commands[provider], *(["-"] if provider == "codex" else [])]
    done = subprocess.run(
        argv,
        input=prompt.encode(),
        env=machine.env,
        cwd=machine.cwd,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


def key_of(session: ProviderSession) -> str:
    return str(json.loads(session.resume_handle)["resume_key"])


async def on_record(here: Desk, thread_id: str) -> list[str]:
    """The prompts on record, in their order."""
    async with open_checkpointer(here.url) as store:
        history = (await Thread.load(store, thread_id)).history
    return [plain_text(message) for message in history if is_prompt(message)]


@pytest.mark.parametrize(
    ("provider", "versions"),
    [*((name, {}) for name in NAMES), ("claude_code", {"claude_code": NEWEST_CLAUDE})],
    ids=str,
)
async def test_what_was_typed_by_hand_is_on_record_once_and_goes_along_wherever_the_conversation_goes(
    provider: str, versions: dict[str, str], tmp_path: Path
) -> None:
    with desk(tmp_path) as here:
        machine = here.machine(**versions)
        async with open_checkpointer(here.url) as store:
            session = here.agent(machine, provider, store).start_session()
            await session.send("first, by us")
            by_hand(machine, provider, key_of(session), "RUN echo by-hand")
            await session.send("third, by us")
            assert has_call(machine.asked[-1], "echo by-hand", "by-hand")
            expected = ["first, by us", "RUN echo by-hand", "third, by us"]
            assert await on_record(here, session.thread_id) == expected
            turn = (await session.trajectory()).exchanges[1]
            assert (turn.status, "itself" in turn.reason, turn.tool_uses[0].output.strip()[-7:]) == (
                "done",
                True,
                "by-hand",
            )
            handle = session.resume_handle

        mark = machine.cwd / "mark"
        job = here.job(machine, provider, f"RUN echo on > {mark}; sleep 987", handle=handle)
        with worker(machine.place(), here.url, **job) as running:
            wait_until(mark.exists, "its command runs", 60)
            below = descendants(running.pid)
            os.kill(running.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, below)), "nothing of it runs any more")

        other = here.machine("another machine", **versions)
        async with open_checkpointer(here.url) as store:
            session = here.agent(other, provider, store).resume_session(handle)
            await session.send("fifth, by us")
            assert has_call(other.asked[-1], "echo by-hand", "by-hand")
            words = await on_record(here, session.thread_id)
            assert [words.count(prompt) for prompt in (*expected, "fifth, by us")] == [1, 1, 1, 1]
            assert words[:3] == expected


@pytest.mark.parametrize("provider", NAMES)
async def test_what_was_typed_by_hand_after_our_last_prompt_goes_along_on_a_move(provider: str, tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        machine = here.machine()
        async with open_checkpointer(here.url) as store:
            session = here.agent(machine, provider, store).start_session()
            await session.send("first, by us")
            by_hand(machine, provider, key_of(session), "RUN echo by-hand")
            name = _NEXT[provider]
            moved = await session.move_to(name, model=machine.models[name])
            assert isinstance(moved, ProviderSession)
            await moved.send("third, elsewhere")
            assert has_call(machine.asked[-1], "echo by-hand", "by-hand")
            by_hand(machine, name, key_of(moved), "fourth, by hand")
            model = ScriptedModel(lambda request: "At home.")
            home = await moved.move_to("clew", model=model)
            await home.send("fifth, at home")
            seen = model.requests[-1].messages
            assert has_call(seen, "echo by-hand", "by-hand")
            prompts = ["first, by us", "RUN echo by-hand", "third, elsewhere", "fourth, by hand", "fifth, at home"]
            assert await on_record(here, session.thread_id) == prompts
            assert texts(seen).count("Answer to: fourth, by hand") == 1
