"""The story in the guides: its commands run as they stand, in order, with a model that answers as the story says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from clew import Thread, open_checkpointer
from clew.log import Checkpoint
from clew.messages import Tool, ToolResult, User, plain_text
from clew.models.base import ModelRequest
from clew.server.inspector.templates import thread_url
from clew.testing import ModelServer, Response, call
from tests.cli.command_line import environment, path_with_clew
from tests.limits import PATIENCE

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell and SIGKILL"),
]

STORY = Path(__file__).parents[2] / "docs" / "story.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOOLS, RUN, UNDER_WAY, KILL, LOOK, RESUME, AFTER, FORK, SERVE = range(9)
"""The blocks, by what they are for."""


def answer(request: ModelRequest) -> Response:
    """An agent that pays back, asks the warehouse and tells Ada; or offers the voucher that it is told of."""
    asked = next(plain_text(message) for message in reversed(request.messages) if isinstance(message, User))
    if "voucher" in asked:
        return "Ada is offered a voucher over 40 euros."
    results = [block for message in request.messages if isinstance(message, Tool) for block in message.content]
    if not results:
        return call("refund", order="A-17")
    if len(results) == 1:
        return call("delivery_date", item="lamp")
    last = results[-1]
    assert isinstance(last, ToolResult)
    return f"Order A-17 is paid back. Ada's new lamp comes {_words(last)}."


def _words(result: ToolResult) -> str:
    return " ".join(getattr(part, "text", "") for part in result.content).strip()


class Told:
    """The story while it is told: what each block said, and the folder it happens in."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "shop"
        self.folder.mkdir()
        self._said = root / "said"
        self._said.mkdir()

    def script(self) -> str:
        """All blocks, to the letter, in one shell, which ends at the first that fails."""
        blocks = BLOCK.findall(STORY.read_text())
        assert len(blocks) == SERVE + 1
        lines = ["set -e"]
        for number, block in enumerate(blocks):
            lines.append(f"{{\n{block}\n}} > {self._said}/{number}.out 2> {self._said}/{number}.err")
        return "\n".join(lines) + "\n"

    def out(self, block: int) -> str:
        return (self._said / f"{block}.out").read_text()

    def err(self, block: int) -> str:
        path = self._said / f"{block}.err"
        return path.read_text() if path.exists() else ""

    def everything(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(self._said.iterdir()))

    async def load(self, thread_id: str) -> Checkpoint:
        async with open_checkpointer(f"sqlite:///{self.folder / 'clew.db'}") as store:
            return await Thread.load(store, thread_id)


@contextmanager
def telling(root: Path, server: ModelServer) -> Iterator[tuple[Told, str]]:
    """The story up to its last command, which still runs: the link that it prints."""
    told = Told(root)
    (root / "story.sh").write_text(told.script())
    env = environment(
        None, {**server.env(), "PATH": path_with_clew(root / "bin"), "HOME": str(root), "CLEW_SERVE_TOKENS": ""}
    )
    shell = subprocess.Popen(["bash", str(root / "story.sh")], cwd=told.folder, env=env, start_new_session=True)
    try:
        yield told, _link(shell, told)
        os.killpg(shell.pid, signal.SIGINT)
        assert shell.wait(PATIENCE) == 0, told.everything()
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()


def _link(shell: subprocess.Popen[Any], told: Told) -> str:
    end = time.monotonic() + PATIENCE
    while "listening" not in told.err(SERVE) or not (found := re.search(r"browser: (\S+)\n", told.out(SERVE))):
        assert shell.poll() is None, told.everything()
        assert time.monotonic() < end, told.everything()
        time.sleep(0.05)
    return found[1]


@pytest.mark.slow
async def test_a_task_that_was_killed_goes_on_and_its_fork_stands_beside_it(tmp_path: Path) -> None:
    with ModelServer(answer) as server, telling(tmp_path, server) as (told, link):
        paths = ["/", thread_url("lamp"), thread_url("lamp-voucher")]
        with httpx.Client(base_url=link.partition("/login")[0], follow_redirects=True) as browser:
            browser.get(link).raise_for_status()
            threads, lamp, voucher = (browser.get(path).raise_for_status().text for path in paths)
    assert told.out(UNDER_WAY) == "A-17\n"
    assert re.search(r"^lamp +interrupted", told.out(LOOK), re.MULTILINE)
    assert "ended without a word" in told.out(LOOK)
    assert "clew resume lamp" in told.out(LOOK)
    assert told.out(RESUME) == "Order A-17 is paid back. Ada's new lamp comes on Friday.\n"
    assert told.out(AFTER).startswith("A-17\n")
    assert (told.folder / "refunds.txt").read_text() == "A-17\n"
    assert told.out(FORK).startswith("lamp-voucher\nAda is offered a voucher over 40 euros.\n")
    state, fork = await told.load("lamp"), await told.load("lamp-voucher")
    assert (state.status, state.turns, fork.status, fork.turns) == ("done", 3, "done", 2)
    assert fork.parent == ("lamp", 1)
    assert server.calls == 4  # three responses, none of them bought twice, and the fork's
    assert all(f'href="{path}"' in threads for path in paths[1:])
    assert "comes on Friday" in lamp
    assert "without a word" in lamp
    assert "voucher over 40 euros" in voucher
    assert "comes on Friday" not in voucher
