"""Every way of stopping that is no SIGKILL: on record, the lease given back, and gone on with as if nothing had happened."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.crash.agent_desk import TURNS
from tests.crash.agent_runs import Desk, Left, Place, Undisturbed, check_same, folder_in_memory
from tests.crash.processes import FULL, STORES
from tests.sampling import dice

pytestmark = [pytest.mark.crash, pytest.mark.slow]

T = TypeVar("T")
WITH_SIGNALS = {"handle_signals": True}
STOPPED = 130


class Runs:
    """Runs on one kind of store that are stopped and gone on with, each at a place of its own."""

    def __init__(self, desk: Desk, kind: str, folder: Path) -> None:
        self.desk = desk
        self._kind = kind
        self._folder = folder
        self._places = 0
        self.wanted = Undisturbed(desk, self.place())

    def place(self) -> Place:
        self._places += 1
        return Place(self._kind, self._folder / str(self._places))

    def points(self, *places: str, name: str) -> list[str]:
        counts = self.wanted.counts
        return self.some([f"{place}:{number + 1}" for place in places for number in range(counts[place])], name)

    def some(self, of: Iterable[T], name: str) -> list[T]:
        """One of these; all, if the whole matrix is wanted."""
        return list(of) if FULL else dice(f"{self._kind} {name}").sample(list(of), 1)

    def go_on(self, place: Place, left: Left, **more: object) -> None:
        """Run it to its end: that is the same as without the stop."""
        if not left.done:
            self.desk.finish(place, **more)
        check_same(place, self.wanted, left)
        shutil.rmtree(place.folder)


@pytest.fixture(scope="module", params=STORES)
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    with Desk.ready() as desk, folder_in_memory() as folder:
        yield Runs(desk, request.param, folder)


def stopped(place: Place) -> Left:
    """What a run that had the time to say so has left."""
    left = place.left()
    assert left.head is not None
    assert left.head.lease is None, "the lease was not given back"
    assert left.done or left.head.status == "interrupted"
    return left


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_ends_the_run_on_record_with_the_command_that_resumes_it(
    runs: Runs, number: int, subtests: pytest.Subtests
) -> None:
    for point in runs.points("request", "delta", "before-effect", "after-effect", "after-snapshot", name=str(number)):
        with subtests.test(point):
            place = runs.place()
            code, ended = runs.desk.run(place.job(point=point, signal=number, options=WITH_SIGNALS))
            assert (code, ended) == (STOPPED, None), place.lines("stderr")
            [said] = place.lines("stderr")
            assert said.endswith("-m tests.crash.agent_worker")
            runs.go_on(place, stopped(place))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_while_a_tool_refuses_to_end(
    runs: Runs, number: int, subtests: pytest.Subtests
) -> None:
    for point in runs.points("after-effect", name=f"twice {number}"):
        with subtests.test(point):
            place = runs.place()
            code, ended = runs.desk.run(place.job(point=point, act="refuse", signal=number, options=WITH_SIGNALS))
            assert (code, ended) == (STOPPED, None), place.lines("stderr")
            left = place.left()
            assert left.desk.status == "interrupted"
            runs.go_on(place, left)


def test_ctrl_c_under_asyncio_run_is_on_record_and_leaves_as_ever(runs: Runs, subtests: pytest.Subtests) -> None:
    for point in runs.points("request", "delta", "before-effect", "after-effect", "after-snapshot", name="ctrl c"):
        with subtests.test(point):
            place = runs.place()
            code, ended = runs.desk.run(place.job(point=point, signal=signal.SIGINT))
            assert (code, ended) == (-signal.SIGINT, None), place.lines("stderr")
            assert place.lines("stderr")[-1] == "KeyboardInterrupt"
            runs.go_on(place, stopped(place))


def test_sigterm_that_nobody_handles_ends_the_process_and_harms_nothing(runs: Runs, subtests: pytest.Subtests) -> None:
    for point in runs.points("request", "delta", "after-effect", name="term"):
        with subtests.test(point):
            place = runs.place()
            assert runs.desk.run(place.job(point=point, signal=signal.SIGTERM)) == (-signal.SIGTERM, None)
            runs.go_on(place, place.left())


def test_an_exception_out_of_the_model_is_on_record_and_the_same_run_goes_on(
    runs: Runs, subtests: pytest.Subtests
) -> None:
    asked = [line for line in runs.wanted.place.lines("requests") if not line.endswith("summary")]
    of_desk = [f"request:{number}" for number, line in enumerate(asked, 1) if line.startswith("desk")]
    assert len(of_desk) == TURNS
    for point in runs.some(of_desk, "exception"):
        with subtests.test(point):
            place = runs.place()
            code, ended = runs.desk.run(place.job(point=point, act="raise"))
            assert ended is not None, place.lines("stderr")
            assert (code, ended.error, ended.reason) == (0, "RuntimeError", "the model broke")
            left = place.left()
            assert left.head is not None
            assert left.head.lease is None
            assert (left.desk.status, left.desk.reason) == ("failed", "RuntimeError: the model broke")
            runs.go_on(place, left)


def test_a_run_out_of_turns_goes_on_with_more(runs: Runs, subtests: pytest.Subtests) -> None:
    for turns in runs.some(range(1, TURNS), "turns"):
        with subtests.test(str(turns)):
            place = runs.place()
            _, ended = runs.desk.run(place.job(options={"max_turns": turns}))
            assert ended is not None, place.lines("stderr")
            assert (ended.status, ended.reason, ended.turns) == ("interrupted", f"max_turns: {turns}", turns)
            runs.go_on(place, stopped(place), resume=True)


@pytest.mark.parametrize("what", ["tokens", "usd"])
def test_a_run_out_of_budget_goes_on_with_more(runs: Runs, what: str, subtests: pytest.Subtests) -> None:
    all_of_it = spent(runs.wanted.left, what)
    for part in runs.some(range(1, TURNS), what):
        limit = all_of_it * part / TURNS
        with subtests.test(str(limit)):
            place = runs.place()
            budget = {what: round(limit) if what == "tokens" else limit}
            _, ended = runs.desk.run(place.job(budget=budget))
            assert ended is not None, place.lines("stderr")
            assert ended.status == "interrupted"
            assert ended.reason.startswith("budget: ")
            left = stopped(place)
            assert budget[what] <= spent(left, what) < all_of_it
            runs.go_on(place, left, resume=True)


def spent(left: Left, what: str) -> float:
    if what == "usd":
        assert left.desk.cost_usd is not None
        return left.desk.cost_usd
    return left.desk.usage.input_tokens + left.desk.usage.output_tokens


@pytest.mark.slow
def test_a_run_out_of_time_goes_on_with_more(runs: Runs) -> None:
    place = runs.place()
    _, ended = runs.desk.run(place.job(budget={"seconds": 1e-6}))
    assert ended is not None, place.lines("stderr")
    assert (ended.status, ended.turns) == ("interrupted", 1)
    assert ended.reason.startswith("budget: ")
    assert ended.reason.endswith("seconds")
    runs.go_on(place, stopped(place), resume=True)


@pytest.mark.slow
def test_time_that_was_worked_before_a_crash_counts_after_it(runs: Runs) -> None:
    place = runs.place()
    [point] = random.Random(0).sample([f"after-effect:{number}" for number in range(5, 25)], 1)
    assert runs.desk.run(place.job(point=point)) == (-signal.SIGKILL, None)
    left = place.left()
    assert left.desk.seconds > 0
    asked = place.lines("requests")
    _, ended = runs.desk.run(place.job(budget={"seconds": left.desk.seconds}, resume=True))
    assert ended is not None, place.lines("stderr")
    assert (ended.status, place.lines("requests")) == ("interrupted", asked), (
        "it goes on with time that it does not have"
    )
    runs.go_on(place, left, resume=True)
