"""Posters and agents killed with SIGKILL at every append: each post is asked exactly once."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.agent.exchanges import exchanges_in
from clew.log import MessageAdded, StatusChanged
from clew.messages import assistant, user
from tests.crash.inbox_worker import POSTS, THREAD
from tests.crash.processes import FULL
from tests.limits import PATIENCE
from tests.sampling import dice
from tests.tally import count

pytestmark = [pytest.mark.slow, pytest.mark.crash]
STORES = {"sqlite": "sqlite:///{}/clew.db", "files": "file://{}/store"}


def work(url: str, role: str, point: str = ":0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.crash.inbox_worker", url, role, point],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def done(url: str, role: str) -> int:
    """Run it to its end, and return how many appends it made."""
    run = work(url, role)
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


def begin(folder: Path, kind: str) -> str:
    folder.mkdir()
    url = STORES[kind].format(folder)

    async def fill() -> None:
        async with open_checkpointer(url) as store, Thread.open(store, THREAD) as thread:
            await thread.append(MessageAdded(user("Hello.")), MessageAdded(assistant("Hi.")), StatusChanged("done"))

    asyncio.run(fill())
    return url


def check(url: str, *asked: str) -> None:
    """Every one of these prompts is in the conversation once, and answered."""

    async def look() -> None:
        async with open_checkpointer(url) as store:
            state = await Thread.load(store, THREAD)
            found = exchanges_in(state)
            assert sorted(each.prompt for each in found) == sorted(["Hello.", *asked])
            assert {each.status for each in found} == {"done"}
            async with Thread.open(store, THREAD) as thread:
                assert await thread.posts() == ()
            assert (await Thread.verify(store, THREAD)).sound

    asyncio.run(look())


def is_done(url: str) -> bool:
    async def look() -> bool:
        async with open_checkpointer(url) as store:
            found = exchanges_in(await Thread.load(store, THREAD))
            return found[-1].status == "done" and any(each.prompt == "Begin." for each in found)

    return asyncio.run(look())


def chosen(what: str, appends: int, most: int = 5) -> list[str]:
    points = [f"{place}:{number}" for number in range(1, appends + 1) for place in ("before", "after")]
    return points if FULL else sorted(dice(what).sample(points, min(most, len(points))))


@pytest.mark.parametrize("kind", STORES)
def test_a_poster_killed_at_any_append_and_run_again_posts_once(
    kind: str, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    appends = done(begin(tmp_path / "undisturbed", kind), "post")
    assert appends == 2
    for point in chosen(f"{kind} poster", appends, 4):
        with subtests.test(point):
            url = begin(tmp_path / point, kind)
            killed = work(url, "post", point)
            assert killed.returncode == -signal.SIGKILL
            count("times SIGKILL")
            done(url, "post")
            done(url, "resume")
            check(url, *POSTS.values())


@pytest.mark.parametrize("role", ["run", "resume"])
@pytest.mark.parametrize("kind", STORES)
def test_an_agent_killed_at_any_append_asks_each_post_once(
    kind: str, role: str, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    url = begin(tmp_path / "undisturbed", kind)
    done(url, "post")
    appends = done(url, role)
    asked = [*POSTS.values(), *(["Begin."] if role == "run" else [])]
    check(url, *asked)
    for point in chosen(f"{kind} {role}", appends):
        with subtests.test(point):
            url = begin(tmp_path / point, kind)
            done(url, "post")
            killed = work(url, role, point)
            count("times SIGKILL", killed.returncode == -signal.SIGKILL)
            assert killed.returncode in (-signal.SIGKILL, 0), killed.stderr
            done(url, "post")  # whoever posts again under the same ids posts nothing
            # killed right after its end, to run it again is to ask again
            done(url, "resume" if is_done(url) else role)
            check(url, *asked)
