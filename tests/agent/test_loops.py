"""Agents where they cannot work: on a second event loop, after close, in a forked child. The error names the right thing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clew import Thread, open_checkpointer
from clew.agent import Agent
from clew.errors import UsageError
from clew.testing import ScriptedModel, call
from clew.tools import tool
from tests.limits import PATIENCE
from tests.providers.toy import toy_place
from tests.providers.toys import toy_agent

KINDS = ["built-in", "provider"]
STORES = [None, "memory://", "sqlite:///{}/clew.db", "file:{}/store"]


def _agent(kind: str, folder: Path, store: Any = None) -> Any:
    if kind == "provider":
        return toy_agent(toy_place(folder / "machine"), store, name="ada")
    return Agent(ScriptedModel(["Hi."] * 5), name="ada", checkpointer=store)


def _all_uses(agent: Any) -> list[Callable[[], Any]]:
    """Everything that works on a thread, by the agent or one of its sessions."""
    session = agent.start_session(thread_id="t")
    return [
        lambda: agent.run("say x", thread_id="t"),
        lambda: agent.resume("say x"),
        lambda: agent.resume(thread_id="t"),
        lambda: session.send("say x"),
        lambda: session.resume(),
        lambda: session.trajectory(),
        lambda: session.move_to("toy"),
        lambda: agent.resume_session("t").send("say x"),
    ]


def _run(use: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        return await use()

    return asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("store", STORES)
def test_on_a_second_event_loop_it_is_the_agent_that_is_named_with_the_ways_out(
    kind: str, store: str | None, tmp_path: Path
) -> None:
    agent = _agent(kind, tmp_path, store and store.format(tmp_path))
    _run(lambda: agent.run("say hi", thread_id="t"))
    for use in _all_uses(agent):
        with pytest.raises(
            UsageError, match=r"this agent was first used on another event loop\..*asyncio\.run.*clew\.sync"
        ):
            _run(use)
    _run(agent.aclose)
    for use in _all_uses(agent):
        with pytest.raises(UsageError, match=r"this agent is closed\. Make another\."):
            _run(use)


def test_a_store_that_another_event_loop_used_is_named_where_it_is_the_store_that_was_used(tmp_path: Path) -> None:
    store = open_checkpointer(f"sqlite:///{tmp_path}/clew.db")
    _run(lambda: _agent("built-in", tmp_path, store).run("Hi.", thread_id="t"))
    for use in (
        lambda: _agent("built-in", tmp_path, store).run("Hi.", thread_id="t"),
        lambda: Thread.load(store, "t"),
    ):
        with pytest.raises(UsageError, match=r"SQLite checkpointer .* first used on another event loop.*asyncio\.run"):
            _run(use)
    _run(store.close)


def test_a_run_of_an_event_loop_that_has_ended_says_so_and_how_to_go_on(tmp_path: Path) -> None:
    agent = _agent("built-in", tmp_path, f"sqlite:///{tmp_path}/clew.db")
    run = agent.run("Hi.", thread_id="t")
    _run(lambda: anext(run))
    for use in (lambda: run, lambda: anext(run)):
        with pytest.raises(UsageError, match=r"interrupted when that ended.*agent\.resume\(thread_id='…'\)"):
            _run(use)
    _run(run.aclose)
    _run(agent.aclose)


def test_the_result_of_a_run_that_is_done_may_be_asked_for_on_any_event_loop(tmp_path: Path) -> None:
    run = _agent("built-in", tmp_path).run("Hi.", thread_id="t")
    assert _run(lambda: run) is _run(lambda: run) is run.result


@contextmanager
def _loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_goes_on_in_the_event_loop_of_another_thread_is_neither_waited_for_nor_stopped_from_here(
    kind: str, tmp_path: Path
) -> None:
    @tool(effect="idempotent")
    async def wait() -> None:
        await asyncio.sleep(600)

    url = f"sqlite:///{tmp_path}/clew.db"
    agent = _agent(kind, tmp_path, url)
    if kind == "built-in":
        agent = Agent(ScriptedModel([call("wait"), "Done."]), tools=[wait], checkpointer=url)
    with _loop_in_a_thread() as loop:
        session = agent.start_session(thread_id="t")
        run = session.send("call c1 Bash\nsleep 600")

        async def begin() -> None:
            await anext(run)

        asyncio.run_coroutine_threadsafe(begin(), loop).result()
        for use in (lambda: run, lambda: anext(run), run.aclose, session.cancel, session.end, agent.aclose):
            with pytest.raises(UsageError, match="goes on in another event loop"):
                _run(use)
        with pytest.raises(UsageError, match="this agent was first used on another event loop"):
            _run(lambda: agent.run("Hi."))
        assert not run._task.done()
        asyncio.run_coroutine_threadsafe(agent.aclose(), loop).result()
        assert run._task.done()


_FORKED = """
import asyncio, os, sys
from pathlib import Path
from clew.errors import UsageError
from tests.agent.test_loops import _agent, _all_uses, _run

kind, folder = sys.argv[1], Path(sys.argv[2])
url = f"sqlite:///{folder}/clew.db"
used, unused = _agent(kind, folder, url), _agent(kind, folder, url)
_run(lambda: used.run("say hi", thread_id="t"))
child = os.fork()
if child:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    _run(used.aclose)
    sys.exit(code)
try:
    for use in _all_uses(used):
        try:
            _run(use)
        except UsageError as error:
            assert f"this agent was first used in process {os.getppid()}" in str(error), error
            assert "Make agents of its own in the child." in str(error), error
        else:
            raise AssertionError("it was not refused")
    _run(used.aclose)
    assert _run(lambda: unused.run("say hi", thread_id="u")).status == "done"
    _run(unused.aclose)
except BaseException as error:
    print(f"{type(error).__name__}: {error}", flush=True)
    os._exit(1)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork on Windows")
@pytest.mark.parametrize("kind", KINDS)
def test_in_a_forked_child_a_used_agent_is_named_and_one_that_was_only_made_works(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _FORKED, kind, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
