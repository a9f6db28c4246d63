"""The way from a public call down to the disk or the program is straight: counted as the interpreter goes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from clew import Thread
from clew.checkpointers import MemoryCheckpointer, SQLiteCheckpointer
from clew.log import MessageAdded
from clew.messages import user
from tests.providers.toy import toy_place
from tests.providers.toys import toy_agent

pytestmark = pytest.mark.anyio

MOST_FUNCTIONS = 20
"""Functions of Clew from `send` to the start of a provider's program."""


Stack = list[tuple[str, str]]
"""Functions of Clew that wait for one another: module and name, the outermost first."""


@contextmanager
def _stacks_at(*functions: str) -> Iterator[dict[str, list[Stack]]]:
    """Collect the stack at every call of each of these functions.

    A coroutine that awaits another is on the stack of that one, so the way through `await` is seen whole.
    """
    stacks: dict[str, list[Stack]] = {function: [] for function in functions}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_qualname in stacks:
            stacks[frame.f_code.co_qualname].append(list(_ours(frame))[::-1])

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield stacks
    finally:
        sys.setprofile(before)


def _ours(frame: FrameType | None) -> Iterator[tuple[str, str]]:
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("clew."):
            yield module, frame.f_code.co_qualname
        frame = frame.f_back


async def test_an_append_enters_each_module_once_on_its_way_to_the_disk(tmp_path: Path) -> None:
    async with SQLiteCheckpointer(tmp_path / "clew.db") as store, Thread.open(store, "thread") as thread:
        await thread.append(MessageAdded(user("One.")))
        with _stacks_at("Engine.submit") as stacks:
            await thread.append(MessageAdded(user("Two.")))
    [stack] = stacks["Engine.submit"]
    modules = [module for module, _ in groupby(stack, key=lambda function: function[0])]
    assert modules == [
        "clew.threads.thread",
        "clew.threads.writer",
        "clew.checkpointers.sqlite.store",
        "clew.checkpointers.sqlite.engine",
    ]


async def test_a_prompt_to_a_provider_passes_few_functions_on_its_way_to_the_program(tmp_path: Path) -> None:
    """The run has a task of its own, and so has the start of the process: what leads to each task counts, and what it
    passes."""
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    with _stacks_at(*(names := ("Run._start", "start_process", "create_subprocess_exec"))) as stacks:
        await session.send("say hello")
    passed = [function for name in names for function in stacks[name][0]]
    assert {"clew.providers.session", "clew.providers.prompt", "clew.providers.process"} <= {one for one, _ in passed}
    assert len(passed) <= MOST_FUNCTIONS, passed
