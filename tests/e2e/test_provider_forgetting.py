"""Real coding agents that answer and do not keep it: versions that are too old, and a full disk."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew import open_checkpointer
from clew.errors import ProviderOutdated
from clew.providers import check_providers
from clew.providers.claude_code import ClaudeCode
from tests.e2e.desk import desk, texts

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("real-clis")]

_OLD = [("claude_code", "2.1.75", "2.1.90"), ("opencode", "1.15.0", "1.18.3")]


@pytest.mark.parametrize(("provider", "version", "oldest"), _OLD)
async def test_a_real_program_that_is_too_old_is_refused_by_name_and_doctor_says_so(
    provider: str, version: str, oldest: str, tmp_path: Path
) -> None:
    with desk(tmp_path) as here:
        machine = here.machine(**{provider: version})
        with pytest.raises(
            ProviderOutdated, match=f"{version} .* versions before {oldest} .* npm install -g .*@latest"
        ):
            await here.agent(machine, provider, "memory://").start_session().send("hello")
        assert machine.asked == []
        (health,) = await check_providers(provider, live=True, place=machine.place())
        assert (health.outdated, health.ready, version in health.problem) == (True, False, True)


async def test_a_version_that_writes_each_resumed_prompt_elsewhere_forgets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClaudeCode, "oldest", "")
    with desk(tmp_path) as here:
        machine = here.machine(claude_code="2.1.75")
        async with open_checkpointer(here.url) as store:
            session = here.agent(machine, "claude_code", store).start_session()
            turns = [await session.send(prompt) for prompt in ("first", "second", "third", "fourth")]
            assert "did not keep this exchange" in turns[1].reason
            told = texts(machine.asked[-1])
            assert [told.count(f"Answer to: {word}") for word in ("first", "second", "third")] == [1, 1, 1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own, which is soon full."""
    folder = tmp_path / "here" / "home" / ".codex" / "sessions"
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk can be mounted by root alone")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_an_answer_that_codex_could_not_write_to_a_full_disk_is_not_taken_as_kept(
    small_disk: Path, tmp_path: Path
) -> None:
    with desk(tmp_path) as here:
        machine = here.machine()
        async with open_checkpointer(here.url) as store:
            session = here.agent(machine, "codex", store).start_session()
            await session.send("first")
            filler = small_disk / "filler"
            with filler.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * 512)
                except OSError:
                    pass
            turn = await session.send("second")
            assert "did not keep this exchange" in turn.reason
            filler.unlink()
            await session.send("third")
            told = texts(machine.asked[-1])
            assert [told.count(f"Answer to: {word}") for word in ("first", "second")] == [1, 1]
