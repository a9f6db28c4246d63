"""Interrupts, forks and the interpreter's exit: clew.sync never hangs, and never leaves anything half done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.sync.scripts import PATIENCE, START, hears_ctrl_c, run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and forks are those of POSIX")


@pytest.mark.parametrize("url", ["memory://", "sqlite:///c.db", "file:threads"])
@pytest.mark.parametrize("options", [(), ("-X", "dev")])
def test_an_interpreter_exits_at_once_with_a_store_and_a_thread_open(
    url: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    run(
        f"""
        store = open_checkpointer({url!r})
        thread = Thread.open(store, "t").__enter__()
        thread.append(*TURN)
        listing = Thread.list(store)
        next(listing)
        """,
        tmp_path,
        *options,
    )


def test_an_exit_does_not_wait_for_what_never_ends(tmp_path: Path) -> None:
    run(
        """
        import asyncio

        class Endless(AsyncStore):
            async def head(self, thread_id):
                started.set()
                while True:
                    try:
                        await asyncio.sleep(100)
                    except asyncio.CancelledError:
                        pass

        started = threading.Event()
        store = blocking(Endless)()
        threading.Thread(target=store.head, args=("t",), daemon=True).start()
        started.wait()
        """,
        tmp_path,
    )


def test_an_exit_lets_a_write_under_way_settle_and_closes_the_stores(tmp_path: Path) -> None:
    printed = run(
        """
        import asyncio

        class Slow(AsyncStore):
            async def append(self, *args, **kwargs):
                written = asyncio.Event()
                settling = asyncio.ensure_future(written.wait())
                started.set()
                try:
                    await asyncio.shield(settling)
                except asyncio.CancelledError:
                    asyncio.get_running_loop().call_later(0.3, written.set)
                    await settling
                    print("settled", flush=True)
                    raise

            async def close(self):
                print("closed", flush=True)

        started = threading.Event()
        store = blocking(Slow)()
        threading.Thread(target=lambda: Thread.open(store, "t").__enter__(), daemon=True).start()
        started.wait()
        """,
        tmp_path,
    )
    assert printed == ["settled", "closed"]


def test_a_call_after_the_end_says_so(tmp_path: Path) -> None:
    printed = run(
        """
        import atexit

        def late():
            try:
                store.head("t")
            except UsageError as error:
                print(error)

        atexit.register(late)
        from clew.sync import _portal  # already imported: its own handler was registered before
        atexit.unregister(_portal._stop)
        atexit.register(_portal._stop)
        store = MemoryCheckpointer()
        store.head("t")
        """,
        tmp_path,
    )
    assert printed == ["the interpreter is exiting and clew.sync has stopped. Make such calls earlier."]


@pytest.mark.parametrize("options", [(), ("-X", "dev")])
def test_a_forked_child_has_a_loop_of_its_own(options: tuple[str, ...], tmp_path: Path) -> None:
    printed = run(
        """
        import warnings

        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside a thread
        store = open_checkpointer("sqlite:///c.db")
        thread = Thread.open(store, "t").__enter__()
        thread.append(*TURN)
        listing = Thread.list(store)
        next(listing)
        child = os.fork()
        if child == 0:
            for use in (lambda: store.head("t"), lambda: thread.append(*TURN), lambda: thread.checkpoint,
                        lambda: Thread.load(store, "t"), lambda: next(listing)):
                try:
                    use()
                except UsageError as error:
                    assert f"forked child {os.getpid()}" in str(error), error
                    print("refused", flush=True)
            with open_checkpointer("sqlite:///c.db") as own:
                print(Thread.load(own, "t").turns, flush=True)
                with Thread.open(own, "child") as other:
                    other.append(*TURN)
            sys.exit()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        thread.append(*TURN)
        thread.__exit__(None, None, None)
        print(Thread.load(store, "t").turns, Thread.load(store, "child").turns)
        """,
        tmp_path,
        *options,
    )
    assert printed == ["refused"] * 5 + ["1", "2 1"]


def test_a_child_forked_while_others_call_does_not_hang(tmp_path: Path) -> None:
    printed = run(
        """
        import warnings

        warnings.simplefilter("ignore", DeprecationWarning)
        store = MemoryCheckpointer()
        stop = threading.Event()

        def busy():
            while not stop.is_set():
                store.head("t")

        threads = [threading.Thread(target=busy) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            child = os.fork()
            if child == 0:
                with MemoryCheckpointer() as own:
                    own.head("t")
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        stop.set()
        print("done")
        """,
        tmp_path,
    )
    assert printed == ["done"]


SLOW = """
import asyncio
from clew.checkpointers import SQLiteCheckpointer as AsyncSQLite

class Slow(AsyncSQLite):
    async def append(self, thread_id, frames, **kwargs):
        if slow:
            started.set()
            await settled(self.later(thread_id, frames, **kwargs))
        else:
            await super().append(thread_id, frames, **kwargs)

    async def later(self, thread_id, frames, **kwargs):
        while "cancelled" not in events:
            await asyncio.sleep(0.01)
        await super().append(thread_id, frames, **kwargs)
        events.append("settled")

async def settled(work):
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        events.append("cancelled")
        await task
        raise

slow, events, started = False, [], threading.Event()

def interrupt():
    started.wait()
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_ctrl_c_cancels_the_operation_and_is_raised_once_that_has_settled(tmp_path: Path) -> None:
    printed = run(
        SLOW
        + textwrap.dedent("""
        with blocking(Slow)("c.db") as store:
            with Thread.open(store, "t") as thread:
                slow = True
                threading.Thread(target=interrupt).start()
                try:
                    thread.append(*TURN)
                except KeyboardInterrupt:
                    events.append("interrupted")
                slow = False
                thread.append(*TURN)
            print(*events, Thread.load(store, "t").turns)
        """),
        tmp_path,
    )
    assert printed == ["cancelled settled interrupted 2"]


def test_ctrl_c_at_any_moment_leaves_the_next_call_working(tmp_path: Path) -> None:
    printed = run(
        """
        import random

        def interrupts():
            for _ in range(150):
                at_work.wait(1)
                at_work.clear()
                time.sleep(random.uniform(0, 0.004))
                os.kill(os.getpid(), signal.SIGINT)

        at_work = threading.Event()
        store = MemoryCheckpointer()
        store.head("t")
        sender = threading.Thread(target=interrupts)
        sender.start()
        caught = 0
        while sender.is_alive():
            try:
                at_work.set()
                while sender.is_alive():
                    store.head("t")
            except KeyboardInterrupt:
                caught += 1
        assert store.head("t") is None
        print(caught > 50)
        """,
        tmp_path,
    )
    assert printed == ["True"]


def test_a_thread_entered_just_when_ctrl_c_came_is_left_again(tmp_path: Path) -> None:
    printed = run(
        """
        import clew

        class Interrupted(clew.Thread):
            async def __aenter__(self):
                entered = await super().__aenter__()
                os.kill(os.getpid(), signal.SIGINT)  # the caller learns of it when this is done, or just before
                return entered

        with MemoryCheckpointer() as store:
            try:
                with blocking(Interrupted).open(store, "t"):
                    time.sleep(5)
            except KeyboardInterrupt:
                print("interrupted")
            print(store.head("t").lease)
        """,
        tmp_path,
    )
    assert printed == ["interrupted", "None"]


def test_sigint_kills_a_script_that_does_not_catch_it(tmp_path: Path) -> None:
    script = START + textwrap.dedent(
        """
        import asyncio

        class Waiting(AsyncStore):
            async def head(self, thread_id):
                print("waiting", flush=True)
                await asyncio.sleep(100)

        blocking(Waiting)().head("t")
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hears_ctrl_c,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
