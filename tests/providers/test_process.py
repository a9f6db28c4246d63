"""How a provider's program is started and ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from clew.providers.base import Command
from clew.providers.process import run
from tests.limits import PATIENCE
from tests.providers.toy import toy_place

pytestmark = pytest.mark.anyio


async def test_a_program_whose_caller_is_cancelled_while_it_starts_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    real, started = asyncio.create_subprocess_exec, asyncio.Event()

    async def start_slowly(*command: str, **how: Any) -> asyncio.subprocess.Process:
        process = await real(*command, **how)
        async with asyncio.timeout(PATIENCE):
            while not pids.exists() or len(pids.read_text().split()) < 2:
                await asyncio.sleep(0.005)
        started.set()
        await asyncio.sleep(0.05)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_slowly)
    script = f"trap '' INT; sleep 1000 & echo $! >> {pids}; echo $$ >> {pids}; exec sleep 1000"
    running = asyncio.create_task(run(Command(("/bin/sh", "-c", script)), toy_place(tmp_path), lambda line: None))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not [pid for pid in pids.read_text().split() if Path(f"/proc/{pid}").exists()]
