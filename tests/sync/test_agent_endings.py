"""Ctrl+C, the interpreter's exit and forks while a blocking agent works: on record, its lease given back, and no hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from clew.sync import Thread, open_checkpointer
from tests.sync.scripts import PATIENCE, START, hears_ctrl_c, run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and forks are those of POSIX")

AGENT = """
import asyncio
from clew.agent import ToolStarted
from clew.sync import Agent, tool
from clew.testing import ScriptedModel, call

@tool(effect="idempotent")
async def wait():
    await asyncio.sleep(0.3)  # until the main thread has heard of this, and waits again
    print("started", flush=True)
    await asyncio.sleep(100)

@tool(effect="none")
def wait_in_a_thread():
    time.sleep(0.3)
    print("started", flush=True)
    time.sleep(100)

def make_agent(which="wait"):
    return Agent(ScriptedModel([call(which), "Done."]), tools=[wait, wait_in_a_thread], checkpointer="sqlite:///c.db")

def state():
    with open_checkpointer("sqlite:///c.db") as store:
        head = store.head("t")
        return head.status, head.lease
"""


def interrupted(script: str, folder: Path, number: signal.Signals = signal.SIGINT) -> tuple[int, list[str], list[str]]:
    """How a script ends that is sent a signal as soon as its tool has started, with what it prints after that."""
    with subprocess.Popen(
        [sys.executable, "-c", START + AGENT + textwrap.dedent(script)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hears_ctrl_c,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        os.kill(process.pid, number)
        printed, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, printed.splitlines(), errors.splitlines()


@pytest.mark.parametrize(
    "waiting", ["agent.run('Go.', thread_id='t')", "list(agent.stream('Go.', thread_id='t'))", "next(run); list(run)"]
)
@pytest.mark.parametrize("which", ["wait", "wait_in_a_thread"])
def test_ctrl_c_is_on_record_and_the_lease_given_back_before_it_is_raised(
    which: str, waiting: str, tmp_path: Path
) -> None:
    code, printed, errors = interrupted(
        f"""
        agent = make_agent({which!r})
        if {"next" in waiting}:
            run = agent.stream("Go.", thread_id="t")
        try:
            {waiting}
        except KeyboardInterrupt:
            print(*state())
        """,
        tmp_path,
    )
    assert (code, printed, errors) == (0, ["interrupted None"], [])


def test_a_script_that_does_not_catch_ctrl_c_dies_of_it_with_all_on_record(tmp_path: Path) -> None:
    code, _, errors = interrupted("with make_agent() as agent: agent.run('Go.', thread_id='t')", tmp_path)
    assert (code, errors[-1]) == (-signal.SIGINT, "KeyboardInterrupt")
    with open_checkpointer(f"sqlite:///{tmp_path}/c.db") as store:
        state = Thread.load(store, "t")
        assert (state.status, [call.status for call in state.calls]) == ("interrupted", ["in_doubt"])


def test_a_handler_that_raises_does_as_ctrl_c_does(tmp_path: Path) -> None:
    code, printed, errors = interrupted(
        """
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
        agent = make_agent()
        try:
            agent.run("Go.", thread_id="t")
        finally:
            print(*state())
        """,
        tmp_path,
        signal.SIGTERM,
    )
    assert (code, printed, errors) == (143, ["interrupted None"], [])


def test_after_ctrl_c_the_same_agent_goes_on_with_the_thread(tmp_path: Path) -> None:
    code, printed, errors = interrupted(
        """
        @tool(effect="idempotent")
        async def wait():
            if sys.argv.append("again") or len(sys.argv) == 2:
                print("started", flush=True)
                await asyncio.sleep(100)
            return "at last"

        with make_agent() as agent:
            try:
                agent.run("Go.", thread_id="t")
            except KeyboardInterrupt:
                print(agent.run("Go.", thread_id="t").output)
        """,
        tmp_path,
    )
    assert (code, printed, errors) == (0, ["Done."], [])


@pytest.mark.parametrize("options", [(), ("-X", "dev")])
def test_an_interpreter_exits_cleanly_with_an_agent_that_was_not_closed(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    printed = run(
        AGENT
        + textwrap.dedent("""
        @tool
        def greet():
            return "hello"

        agent = Agent(ScriptedModel([call("greet"), "Done."]), tools=[greet], checkpointer="sqlite:///c.db")
        session = agent.start_session()
        print(session.run("Go.").output)
        """),
        tmp_path,
        *options,
    )
    assert printed == ["Done."]


@pytest.mark.parametrize("options", [(), ("-X", "dev")])
@pytest.mark.parametrize("which", ["wait", "wait_in_a_thread"])
def test_an_exit_in_the_middle_of_a_run_is_on_record_and_gives_its_lease_back(
    which: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    run(
        AGENT
        + textwrap.dedent(f"""
        going = make_agent({which!r}).stream("Go.", thread_id="t")
        while not isinstance(next(going), ToolStarted):
            pass
        """),
        tmp_path,
        *options,
    )
    with open_checkpointer(f"sqlite:///{tmp_path}/c.db") as store:
        head = store.head("t")
        assert head is not None
        assert (head.status, head.lease) == ("interrupted", None)


def test_an_exit_closes_what_an_agent_opened_once_its_run_has_been_stopped(tmp_path: Path) -> None:
    printed = run(
        AGENT
        + textwrap.dedent("""
        from clew.checkpointers import SQLiteCheckpointer

        async def close(self):
            print("closed", (await self.head("t")).status, flush=True)
            await really_close(self)

        really_close, SQLiteCheckpointer.close = SQLiteCheckpointer.close, close
        going = make_agent().stream("Go.", thread_id="t")
        while not isinstance(next(going), ToolStarted):
            pass
        """),
        tmp_path,
    )
    assert printed[-1:] == ["closed interrupted"]


def test_an_exit_does_not_wait_for_a_daemon_that_waits_for_a_run(tmp_path: Path) -> None:
    run(
        AGENT
        + textwrap.dedent("""
        going = make_agent().stream("Go.", thread_id="t")
        while not isinstance(next(going), ToolStarted):
            pass
        threading.Thread(target=list, args=(going,), daemon=True).start()
        """),
        tmp_path,
    )


def test_a_daemon_that_asks_for_an_event_while_the_interpreter_exits_prints_no_traceback(tmp_path: Path) -> None:
    run(
        AGENT
        + textwrap.dedent("""
        import atexit
        from clew.sync import _portal

        def late():
            exiting.set()
            daemon.join(0.3)  # without the wait for the interpreter's end it fails here, and says so on stderr

        def ask():
            exiting.wait()
            list(going)

        exiting = threading.Event()
        going = make_agent().stream("Go.", thread_id="t")
        while not isinstance(next(going), ToolStarted):
            pass
        daemon = threading.Thread(target=ask, daemon=True)
        daemon.start()
        atexit.unregister(_portal._stop)
        atexit.register(late)
        atexit.register(_portal._stop)  # handlers run from the last to the first
        """),
        tmp_path,
    )


def test_a_forked_child_is_refused_its_parents_agent_and_makes_one_of_its_own(tmp_path: Path) -> None:
    printed = run(
        AGENT
        + textwrap.dedent("""
        import warnings

        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside a thread

        def answering():
            return Agent(ScriptedModel(["One.", "Two."]), checkpointer="sqlite:///c.db")

        agent = answering()
        going, session = agent.stream("Go.", thread_id="t"), agent.start_session(thread_id="t")
        child = os.fork()
        if child == 0:
            for use in (lambda: agent.run("Go."), lambda: going.result, lambda: next(going), lambda: session.run("Go.")):
                try:
                    use()
                except UsageError as error:
                    assert f"forked child {os.getpid()}" in str(error), error
                    print("refused", flush=True)
            with answering() as own:
                print(own.run("Go.", thread_id="t").output, flush=True)
            sys.exit()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        list(going)
        print(going.result.output)
        """),
        tmp_path,
    )
    assert printed == ["refused"] * 4 + ["One.", "Two."]
