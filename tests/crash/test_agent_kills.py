"""An agent killed with SIGKILL at every point of its run, and run again: nothing is lost, and nothing happens twice."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping

import pytest

from tests.crash.agent_points import LOOSE, PLACES
from tests.crash.agent_runs import Desk, Place, Undisturbed, check_same, folder_in_memory
from tests.crash.processes import FULL, STORES
from tests.sampling import dice
from tests.tally import count

pytestmark = [pytest.mark.slow, pytest.mark.crash]


def points(kind: str, counts: Mapping[str, int]) -> list[str]:
    """All points that an undisturbed run came by; unless the whole matrix is wanted, one of each place."""
    found: list[str] = []
    for where in PLACES:
        numbers = range(1, counts[where] + 1)
        chosen = numbers if FULL else dice(f"{kind} {where}").sample(numbers, 1)
        found += [f"{where}:{number}" for number in chosen]
    return found


@pytest.mark.parametrize("kind", STORES)
def test_an_agent_killed_anywhere_and_run_again_ends_as_if_nothing_had_happened(
    kind: str, subtests: pytest.Subtests
) -> None:
    with Desk.ready() as desk, folder_in_memory() as folder:
        wanted = Undisturbed(desk, Place(kind, folder / "undisturbed"))
        assert wanted.counts.keys() == set(PLACES)
        check_same(wanted.place, wanted, wanted.left)
        for point in points(kind, wanted.counts):
            with subtests.test(point):
                kill_and_go_on(desk, Place(kind, folder / point), point, wanted)


def kill_and_go_on(desk: Desk, place: Place, point: str, wanted: Undisturbed) -> None:
    where = point.partition(":")[0]
    code, ended = desk.run(place.job(point=point))
    count("times SIGKILL", code == -signal.SIGKILL)
    assert code == -signal.SIGKILL or (ended is not None and where in LOOSE), place.lines("stderr")
    left = place.left()
    if where == "between-outcomes":
        assert {"done"} < {call.status for state in (left.desk, left.clerk) for call in state.calls}
    if not left.done:  # else it was killed right after its end, and to run it again is to ask again
        desk.finish(place)
    check_same(place, wanted, left)
    shutil.rmtree(place.folder)
