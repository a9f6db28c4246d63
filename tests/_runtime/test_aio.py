"""Work that must be brought to its end is, however often the one who waits for it is cancelled."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import weakref

import pytest

from clew._runtime import aio
from clew._runtime.aio import WorkerPool, cancel_and_wait, settle
from tests.limits import PATIENCE

pytestmark = pytest.mark.anyio


class Work:
    """Something that goes on until it is let go."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.ended = False
        self._error = error

    async def run(self) -> str:
        self.began.set()
        await self.may_end.wait()
        self.ended = True
        if self._error is not None:
            raise self._error
        return "result"


async def cancelled_times(waiter: asyncio.Task[object], times: int) -> None:
    """Cancel a task so often, each time once it has heard of the last."""
    for _ in range(times):
        waiter.cancel()
        for _ in range(5):
            await asyncio.sleep(0)


async def test_without_a_cancel_the_result_or_the_error_comes_through() -> None:
    work = Work()
    work.may_end.set()
    assert await settle(work.run()) == "result"
    broken = Work(ValueError("broken"))
    broken.may_end.set()
    with pytest.raises(ValueError, match="broken"):
        await settle(broken.run())


@pytest.mark.parametrize("times", [1, 2, 3, 10])
async def test_the_work_is_brought_to_its_end_however_often_its_waiter_is_cancelled(times: int) -> None:
    work = Work()
    waiter = asyncio.ensure_future(settle(work.run()))
    await work.began.wait()
    await cancelled_times(waiter, times)
    assert not waiter.done()
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert work.ended


async def test_work_whose_waiter_is_cancelled_before_its_first_step_is_done_all_the_same() -> None:
    work = Work()
    work.may_end.set()

    async def wait() -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await settle(work.run())

    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(wait())
    assert work.ended


async def test_an_error_of_the_work_is_the_cause_of_the_cancellation() -> None:
    work = Work(ValueError("broken"))
    waiter = asyncio.ensure_future(settle(work.run()))
    await work.began.wait()
    await cancelled_times(waiter, 2)
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await waiter
    assert repr(caught.value.__cause__) == "ValueError('broken')"


async def test_a_task_made_elsewhere_is_waited_for_too() -> None:
    work = Work()
    task = asyncio.ensure_future(work.run())
    waiter = asyncio.ensure_future(settle(task))
    await work.began.wait()
    await cancelled_times(waiter, 3)
    assert not task.done()
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert task.result() == "result"


async def test_a_timeout_around_it_is_a_timeout_once_the_work_has_ended() -> None:
    work = Work()

    async def wait() -> None:
        async with asyncio.timeout(0):
            await settle(work.run())

    waiter = asyncio.ensure_future(wait())
    await work.began.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiter.done()
    work.may_end.set()
    with pytest.raises(TimeoutError):
        await waiter
    assert work.ended


async def test_a_cancel_beside_a_timeout_is_a_cancel() -> None:
    work = Work()

    async def wait() -> None:
        async with asyncio.timeout(0):
            await settle(work.run())

    waiter = asyncio.ensure_future(wait())
    await work.began.wait()
    await cancelled_times(waiter, 2)
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert work.ended


async def test_a_timeout_inside_the_work_fires() -> None:
    async def late() -> str:
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed out"
        raise AssertionError

    assert await settle(late()) == "timed out"


async def test_a_task_group_raises_its_error_once_the_work_has_ended() -> None:
    work = Work()

    async def fail() -> None:
        await work.began.wait()
        raise ValueError("a neighbour broke")

    async def let_go() -> None:
        await work.began.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not work.ended
        work.may_end.set()

    async def together() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(settle(work.run()))
            group.create_task(fail())

    helper = asyncio.ensure_future(let_go())
    with pytest.raises(ExceptionGroup) as caught:
        await together()
    assert work.ended
    assert [str(error) for error in caught.value.exceptions] == ["a neighbour broke"]
    await helper


@pytest.mark.parametrize("times", [1, 2, 3, 10])
async def test_cancelled_tasks_are_waited_for_however_often_the_waiter_is_cancelled(times: int) -> None:
    work, told = Work(), 0

    async def stubborn() -> None:
        nonlocal told
        running = asyncio.ensure_future(work.run())
        while not running.done():
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                told += 1

    task = asyncio.ensure_future(stubborn())
    await work.began.wait()
    waiter = asyncio.ensure_future(cancel_and_wait([task]))
    await asyncio.sleep(0)
    await cancelled_times(waiter, times)
    assert not waiter.done()
    assert told == 1 + times, "each cancel is passed on, so that a cleanup that hangs can be broken off"
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert task.done()


async def test_what_became_of_cancelled_tasks_is_dropped() -> None:
    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while it cleaned up")

    tasks = [asyncio.ensure_future(fail()), asyncio.ensure_future(asyncio.sleep(60))]
    await asyncio.sleep(0)
    await cancel_and_wait(tasks)
    assert all(task.done() for task in tasks)
    await cancel_and_wait([])


SCRIPT = """
import asyncio, signal
from clew._runtime.aio import settle

def ctrl_c():
    asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)

async def finish():
    print("settling", flush=True)
    ctrl_c()
    for _ in range(10):
        await asyncio.sleep(0)
    print("settled", flush=True)

async def main():
    try:
        ctrl_c()
        await asyncio.Event().wait()
    finally:
        await settle(finish())

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
def test_a_second_ctrl_c_under_asyncio_run_waits_for_what_is_to_be_settled() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert ended.stdout == "settling\nsettled\n", ended.stderr
    assert ended.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert ended.returncode == -signal.SIGINT


async def test_a_result_is_the_callers_alone_while_the_os_thread_that_made_it_is_slow_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Result:
        pass

    deliver, may_go_on = aio.deliver, threading.Event()

    def slow(jobs: tuple[aio.Job, ...]) -> None:
        deliver(jobs)
        may_go_on.wait(PATIENCE)

    monkeypatch.setattr(aio, "deliver", slow)
    pool = WorkerPool("test", 1, lambda: None, lambda _: None)
    try:
        result = await pool.run(lambda _: Result(), asyncio.get_running_loop())
        seen = weakref.ref(result)
        del result
        assert seen() is None, "its memory is free"
    finally:
        may_go_on.set()
        pool.stop()


async def test_an_error_keeps_nothing_of_what_was_read_before_it_was_raised() -> None:
    class Read:
        pass

    seen: list[weakref.ref[Read]] = []

    def work(_: None) -> None:
        def inner() -> None:
            read = Read()
            seen.append(weakref.ref(read))
            raise MemoryError

        try:
            inner()
        except MemoryError as error:
            raise OSError("no memory") from error

    pool = WorkerPool("test", 1, lambda: None, lambda _: None)
    try:
        with pytest.raises(OSError, match="no memory") as caught:
            await pool.run(work, asyncio.get_running_loop())
        assert [read() for read in seen] == [None]
        assert [entry.name for entry in caught.traceback][-1] == "work", "where it was raised is still told"
    finally:
        pool.stop()
