"""A copy killed at any moment and run again: it ends right, and until then nobody sees half a thread."""

from __future__ import annotations

import itertools
import signal
import time
from pathlib import Path

import pytest

from clew.checkpointers import open_checkpointer
from clew.threads.heads import is_part
from tests.crash.processes import FULL, Speaker, url_of
from tests.sampling import dice, sampled
from tests.threads.moving import KEY, write_long
from tests.threads.ops.test_copy import assert_equal

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.crash]

KILLS = 20 if FULL else 5
FRAMES = 200
STEPS = 15
"""Parts that the copier makes of so many frames, as good as."""


def run(arguments: list[str]) -> float:
    """A copy from its first step to its end; how long it took."""
    with Speaker("tests.crash.copier", *arguments) as copier:
        assert copier.hear() == "start"
        began = time.monotonic()
        while copier.hear() != "done":
            continue
        assert copier.wait() == 0
        return time.monotonic() - began


def kill_one(arguments: list[str], steps: int, delay: float) -> None:
    """A copy that is killed this long after so many steps, or after its last."""
    with Speaker("tests.crash.copier", *arguments) as copier:
        assert copier.hear() == "start"
        for _ in range(steps):
            if copier.hear() == "done":
                break
        time.sleep(delay)
        copier.signal(signal.SIGKILL)
        copier.wait()


@pytest.mark.parametrize(
    ("kinds", "key"), sampled(itertools.product([("sqlite", "files"), ("files", "sqlite")], ["", KEY]), 2)
)
async def test_a_copy_killed_at_random_moments_and_run_again_ends_right(
    kinds: tuple[str, str], key: str, tmp_path: Path
) -> None:
    chance = dice(f"copies {kinds} {key}")
    source_url = url_of(kinds[0], tmp_path / "source")
    async with open_checkpointer(source_url) as source:
        await write_long(source, "t", FRAMES, 30_000)
        await write_long(source, "with blobs", 20, 80_000)
    longest = run([source_url, url_of(kinds[1], tmp_path / "whole"), key, "t"])
    kills = parts = 0
    while kills < KILLS or (parts == 0 and kills < 10 * KILLS):
        target_url = url_of(kinds[1], tmp_path / f"target {kills}")
        thread_id = chance.choice(["t", "t", "t", "with blobs"])
        arguments = [source_url, target_url, key, thread_id]
        async with open_checkpointer(source_url) as source, open_checkpointer(target_url, key=key or None) as target:
            for _ in range(chance.choice([1, 1, 2])):
                steps = chance.randrange(STEPS) if thread_id == "t" else 0
                kill_one(arguments, steps, chance.uniform(0, 3 * longest / STEPS))
                kills += 1
                head = await target.head(thread_id)
                if head is not None and is_part(head):
                    parts += 1
                elif head is not None:
                    await assert_equal(source, target, thread_id)
            run(arguments)
            await assert_equal(source, target, thread_id)
            assert [head.thread_id async for head in target.heads() if not is_part(head)] == [thread_id]
    print(f"{kinds}: {kills} kills within {longest:.2f} s, {parts} left a part")
    assert parts >= (KILLS // 4 if FULL else 1)
