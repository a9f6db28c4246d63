"""Calls that make no progress are ended, on a clock that the test moves; those that move are not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from clew._runtime.aio import new_job, settle
from clew.checkpointers.patience import Patience, timeout_seconds
from clew.errors import InvalidInput, Unavailable
from tests.clock import Clock
from tests.limits import PATIENCE

pytestmark = pytest.mark.anyio

SECONDS = 100.0
NEARLY = 60.0
"""Less than `SECONDS`, and more than half of it."""


async def passes(clock: Clock, seconds: float) -> None:
    """Let all tasks begin, move the clock on by this, and give the loop the time to notice."""
    await asyncio.sleep(0)
    clock.advance(seconds)
    for _ in range(3):
        await asyncio.sleep(0.02)


async def after_a_late_check() -> None:
    """A check that comes late, as all do after a jump of the clock, is made again half a second later."""
    await asyncio.sleep(0.7)


async def ends(task: asyncio.Task[object]) -> BaseException | None:
    await asyncio.wait([task], timeout=PATIENCE)
    assert task.done(), "it does not end"
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def stuck(patience: Patience) -> asyncio.Task[object]:
    return asyncio.ensure_future(patience.limit(asyncio.Event().wait()))


async def test_a_call_without_progress_is_unavailable(clock: Clock) -> None:
    patience = Patience("the server", SECONDS)
    task = stuck(patience)
    await passes(clock, NEARLY)
    assert not task.done()
    await passes(clock, NEARLY)
    error = await ends(task)
    assert isinstance(error, Unavailable)
    assert "the server: no answer for 100 s" in str(error)


async def test_a_call_that_moves_goes_on_for_as_long_as_it_takes(clock: Clock) -> None:
    patience = Patience("the server", SECONDS)
    connection = patience.part()
    task = asyncio.ensure_future(patience.limit(connection.limit(asyncio.Event().wait())))
    for _ in range(5):
        await passes(clock, NEARLY)
        connection.moved()
    await after_a_late_check()
    assert not task.done()
    await passes(clock, 2 * SECONDS)
    assert isinstance(await ends(task), Unavailable)


async def test_a_sign_that_changes_is_progress(clock: Clock) -> None:
    received = 0
    patience = Patience("the server", SECONDS, sign=lambda: received)
    task = stuck(patience)
    for _ in range(5):
        received += 1
        await passes(clock, NEARLY)
        await after_a_late_check()
    assert not task.done()
    await passes(clock, 2 * SECONDS)
    assert isinstance(await ends(task), Unavailable)


async def test_a_queued_call_waits_while_the_queue_moves_and_ends_when_it_does_not(clock: Clock) -> None:
    patience = Patience("the server", SECONDS)
    queued = stuck(patience)
    for _ in range(4):
        await passes(clock, NEARLY)
        await patience.limit(asyncio.sleep(0))
    await after_a_late_check()
    assert not queued.done()
    await passes(clock, 2 * SECONDS)
    assert isinstance(await ends(queued), Unavailable)


async def test_a_dead_connection_is_noticed_while_others_move(clock: Clock) -> None:
    patience = Patience("the server", SECONDS)
    dead, alive = patience.part(), patience.part()
    task = asyncio.ensure_future(patience.limit(dead.limit(asyncio.Event().wait())))
    for _ in range(3):
        await passes(clock, NEARLY)
        alive.moved()
    assert isinstance(await ends(task), Unavailable)


async def test_an_upload_that_cannot_be_watched_has_more_time_and_no_longer_than_it_lasts(clock: Clock) -> None:
    patience = Patience("the server", SECONDS)
    connection = patience.part()

    async def upload() -> None:
        with connection.uploading(300 * 2**20):
            await asyncio.Event().wait()

    uploading = asyncio.ensure_future(patience.limit(connection.limit(upload())))
    other = stuck(patience)
    for _ in range(4):
        await passes(clock, NEARLY)
    await after_a_late_check()
    assert not uploading.done()
    assert not other.done()
    uploading.cancel()
    assert isinstance(await ends(other), Unavailable)


async def test_a_cancelled_call_is_cancelled_and_not_unavailable(clock: Clock) -> None:
    patience = Patience("the server", SECONDS)
    task = stuck(patience)
    await asyncio.sleep(0)
    task.cancel()
    assert isinstance(await ends(task), asyncio.CancelledError)


async def test_a_cancelled_caller_that_has_to_settle_ends_with_the_call(clock: Clock) -> None:
    patience = Patience("the server", SECONDS)
    task = asyncio.ensure_future(settle(patience.limit(asyncio.Event().wait())))
    await asyncio.sleep(0)
    task.cancel()
    await passes(clock, NEARLY)
    assert not task.done()
    await passes(clock, NEARLY)
    assert isinstance(await ends(task), asyncio.CancelledError)


async def test_a_job_that_cannot_be_cancelled_is_given_up_and_its_late_result_ignored(clock: Clock) -> None:
    patience = Patience("the server", SECONDS)
    job = new_job(None, asyncio.get_running_loop())
    task: asyncio.Task[object] = asyncio.ensure_future(patience.finish(job))
    await passes(clock, 2 * SECONDS)
    assert isinstance(await ends(task), Unavailable)
    job.outcome, job.error = "late", None
    job.settle()
    assert isinstance(job.exception(), Unavailable)


async def test_answers_that_came_while_this_process_was_stopped_are_read_first(clock: Clock) -> None:
    """After a jump of the clock the first check only looks again later."""
    patience = Patience("the server", SECONDS)
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(patience.limit(answer))
    await passes(clock, 100 * SECONDS)
    answer.set_result("in time")
    assert await task == "in time"


async def test_an_error_that_the_end_of_a_call_causes_is_its_cause(clock: Clock) -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("the driver closed the connection") from None

    task: asyncio.Task[object] = asyncio.ensure_future(Patience("the server", SECONDS).limit(work()))
    await passes(clock, 2 * SECONDS)
    error = await ends(task)
    assert isinstance(error, Unavailable)
    assert isinstance(error.__cause__, OSError)


async def test_two_limits_at_once_end_one_call_once(clock: Clock) -> None:
    patience = Patience("the server", SECONDS)
    task = asyncio.ensure_future(patience.limit(patience.part().limit(asyncio.Event().wait())))
    await passes(clock, 2 * SECONDS)
    assert isinstance(await ends(task), Unavailable)
    assert task.cancelling() == 0


@pytest.mark.parametrize("value", [0, -1, 3601, "soon", None, float("nan"), float("inf")])
def test_a_timeout_that_cannot_be_is_invalid(value: object) -> None:
    with pytest.raises(InvalidInput, match="timeout"):
        timeout_seconds(value)


@pytest.mark.parametrize("value", [1, 0.5, "30", "0.25", 3600])
def test_a_timeout_is_a_number_of_seconds(value: object) -> None:
    convert: Callable[[object], float] = timeout_seconds
    assert convert(value) == float(str(value))
