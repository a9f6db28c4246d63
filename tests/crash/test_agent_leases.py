"""Two processes run an agent on one thread: one works, the other is told so; and one that slept too long changes nothing."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from clew.checkpointers import Head, open_checkpointer
from tests.crash.agent_desk import ANSWER, THREAD
from tests.crash.agent_runs import Desk, Place, Undisturbed, check_same, folder_in_memory
from tests.crash.agent_worker import Ended
from tests.crash.processes import STORES

pytestmark = pytest.mark.crash

LEASE = 0.5
PATIENCE = 60.0


class Two:
    """Two processes, and an undisturbed run on the same kind of store."""

    def __init__(self, first: Desk, second: Desk, kind: str, folder: Path) -> None:
        self.first = first
        self.second = second
        self._kind = kind
        self._folder = folder
        self.wanted = Undisturbed(first, self.place("undisturbed"))

    def place(self, name: str) -> Place:
        return Place(self._kind, self._folder / name)

    def put_first_to_sleep(self, place: Place, point: str, **more: object) -> None:
        """Let the first run up to this point, and sleep there."""
        self.first.start(place.job(point=point, act="sleep", **more))
        assert self.first.hear() == "sleeps"
        deadline = time.monotonic() + PATIENCE
        while Path(f"/proc/{self.first.pid}/stat").read_text().rpartition(") ")[2][0] != "T":
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def run_second(self, place: Place, **more: object) -> Ended:
        code, ended = self.second.run(place.job(**more))
        assert ended is not None, f"it ended with {code}: {place.lines('stderr')}"
        return ended


@pytest.fixture(scope="module", params=STORES)
def two(request: pytest.FixtureRequest) -> Iterator[Two]:
    with ExitStack() as stack:
        first, second = stack.enter_context(Desk.ready()), stack.enter_context(Desk.ready())
        yield Two(first, second, request.param, stack.enter_context(folder_in_memory()))


def on_record(place: Place) -> tuple[list[bytes], Head | None]:
    async def read() -> tuple[list[bytes], Head | None]:
        async with open_checkpointer(place.url) as store:
            return await store.read(THREAD), await store.head(THREAD)

    return asyncio.run(read())


def test_while_one_runs_the_other_is_told_who_and_changes_nothing_and_can_run_once_it_is_done(two: Two) -> None:
    place = two.place("busy")
    two.put_first_to_sleep(place, "after-effect:3")
    before = on_record(place)
    refused = two.run_second(place)
    assert refused.error == "ThreadBusy"
    assert f"process {two.first.pid} on " in refused.reason
    assert on_record(place) == before
    two.first.signal(signal.SIGCONT)
    _, ended = two.first.end()
    assert ended is not None
    assert (ended.status, ended.output) == ("done", ANSWER)
    check_same(place, two.wanted, place.left())
    again = two.run_second(place, resume=True)
    assert (again.error, again.status, again.output) == ("", "done", ANSWER)


@pytest.mark.parametrize(
    ("point", "doubts"),
    [
        pytest.param("after-effect:2", set(), id="in a tool that knows what it did"),
        pytest.param("before-effect:13", {"5.1"}, id="in a tool that nobody can ask"),
        pytest.param("after-effect:13", {"5.1"}, id="in a tool that nobody can ask, and that is done"),
        pytest.param("request:7", set(), id="in a call of the model"),
        pytest.param("delta:20", set(), id="while the model speaks"),
    ],
)
@pytest.mark.slow
def test_a_process_that_slept_past_its_lease_is_told_and_changes_nothing(
    two: Two, point: str, doubts: set[str]
) -> None:
    place = two.place(point)
    two.put_first_to_sleep(place, point, lease=LEASE)
    left = place.left()
    assert left.doubts == doubts
    deadline = time.monotonic() + PATIENCE
    while (ended := two.run_second(place)).error == "ThreadBusy":
        assert time.monotonic() < deadline
        time.sleep(LEASE / 10)
    assert (ended.error, ended.status) == ("", "done"), place.lines("stderr")
    before = on_record(place)
    two.first.signal(signal.SIGCONT)
    _, lost = two.first.end()
    assert lost is not None, place.lines("stderr")
    assert lost.error == "LeaseLost"
    assert on_record(place) == before
    check_same(place, two.wanted, left)
