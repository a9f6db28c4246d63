"""A snapshot or a restore killed at any moment: what a thread names stays, no file is torn, and a second run ends right."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from clew import Thread
from clew.checkpointers import Checkpointer, open_checkpointer
from clew.threads.ops.gc import gc
from clew.workspace import SnapshotRef, Workspace
from clew.workspace.folders import TEMPORARY
from tests.crash.processes import FULL, STORES, Speaker, url_of
from tests.crash.workspace_worker import THREAD, Job
from tests.sampling import dice
from tests.tally import count
from tests.workspace.trees import change, facts, grow, remove

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.crash,
    pytest.mark.skipif(os.open not in os.supports_dir_fd, reason="restores need names relative to open folders"),
]

KILLS = 50 if FULL else 6
HITS = KILLS // 2 if FULL else 1
"""Kills that come before the end; of a few, chance decides how many."""
HALF_WAY = KILLS // 8 if FULL else 0
"""Restores that have changed something and not yet all, of those; a few kills may miss them all."""
COLLECTED = 20 if FULL else 3
NEW_STORE_EVERY = 10
PLAIN_FILES = 100
MEASURED = 2
"""Runs that nobody interrupts, to know how long one takes."""

Facts = Mapping[bytes, tuple[object, ...]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))


class Workers:
    """Workers one after the other, forked from a warm parent."""

    def __init__(self, parent: Speaker) -> None:
        self._parent = parent

    @classmethod
    @contextmanager
    def ready(cls) -> Iterator[Workers]:
        with Speaker("tests.crash.workspace_worker") as parent:
            yield cls(parent)

    def run(self, job: Job) -> float:
        """One that nobody interrupts; how long it took from its start."""
        self._start(job)
        word, took = self._parent.hear().split(" ")
        assert (word, self._parent.hear()) == ("done", "exit 0")
        return float(took)

    def kill(self, job: Job, delay: float) -> float | None:
        """One that is killed this long after its start; how long it took, if that was too late."""
        pid = self._start(msgspec.structs.replace(job, stay=True))
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
        count("times SIGKILL")
        said = self._parent.hear().split(" ")
        took = float(said[1]) if said[0] == "done" else None
        if said[0] == "done":
            said = self._parent.hear().split(" ")
        assert said == ["exit", str(-signal.SIGKILL)]
        return took

    def _start(self, job: Job) -> int:
        self._parent.say(msgspec.json.encode(job).decode())
        word, pid = self._parent.hear().split(" ")
        assert word == "pid"
        assert self._parent.hear() == "start"
        return int(pid)


class Moments:
    """When to kill: moments from all of the time that it takes, in no order."""

    def __init__(self, seed: str, count: int) -> None:
        chance = dice(seed)
        self._parts = [(number + chance.random()) / count for number in range(count)]
        chance.shuffle(self._parts)
        self.longest = 0.0
        self.hits = 0

    def strike(self, workers: Workers, job: Job) -> None:
        delay = self._parts.pop() * self.longest
        took = workers.kill(job, delay)
        if took is None:
            self.hits += 1
        else:
            self.longest = took


class Scene:
    """A folder and a store, with a thread that names the last snapshot of which it is known that it was whole."""

    def __init__(self, kind: str, place: Path, seed: str) -> None:
        self.url = url_of(kind, place / "store")
        self.folder = place / "work"
        self._place = place
        self._dice = dice(seed)
        self._looks = 0
        self.named = ""
        self.was: Facts = {}
        self.folder.mkdir(parents=True)
        grow(self.folder / "odd", self._dice.getrandbits(32), names=30)
        self._write(PLAIN_FILES)

    def disturb(self) -> None:
        """What a user does: much is written, and something of every kind is added, removed, replaced and renamed."""
        change(self.folder / "odd", self._dice.getrandbits(32), steps=15)
        self._write(PLAIN_FILES // 2)
        for path in self._dice.sample(sorted((self.folder / "plain").glob("*/*")), k=5):
            path.unlink()

    def _write(self, count: int) -> None:
        for _ in range(count):
            path = self.folder / "plain" / f"{self._dice.randrange(8)}" / f"{self._dice.randrange(PLAIN_FILES // 4)}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._dice.randbytes(self._dice.randrange(1, 40_000)))
        (self.folder / "large").write_bytes(self._dice.randbytes(2_000_000))

    def snapshot_job(self) -> Job:
        return Job(url=self.url, folder=str(self.folder))

    def restore_job(self, *, warm: bool) -> Job:
        return Job(url=self.url, folder=str(self.folder), restore=self.named, warm=warm)

    async def keep(self, store: Checkpointer) -> None:
        """Take a snapshot and let the thread name it."""
        ref = await Workspace(self.folder, store).snapshot()
        assert ref.skipped == ()
        async with Thread.open(store, THREAD) as thread:
            await thread.append(ref.entry())
        self.named, self.was = ref.digest, facts(self.folder)

    async def check_named(self, store: Checkpointer) -> None:
        """What the thread names is the last snapshot that was known to be whole, or the one that was interrupted just
        then; and it is there, exactly."""
        named = (await Thread.load(store, THREAD)).workspace
        assert named is not None
        if named.digest != self.named:
            self.named, self.was = named.digest, facts(self.folder)
        assert differing(await self.elsewhere(store, named.digest), self.was) == []

    async def elsewhere(self, store: Checkpointer, ref: SnapshotRef | str) -> Facts:
        """What a snapshot holds, restored into an empty folder."""
        self._looks += 1
        other = self._place / f"look {self._looks}"
        await Workspace(self.folder, store).restore(ref, into=other, setuid=True)
        found = facts(other)
        for path in other.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
        remove(os.fsencode(other))
        return found


def differing(found: Facts, expected: Facts) -> list[bytes]:
    return sorted(path for path in found.keys() | expected.keys() if found.get(path) != expected.get(path))


def is_temporary(path: bytes) -> bool:
    return TEMPORARY.fullmatch(path.rpartition(b"/")[2]) is not None


def harm(now: Facts, old: Facts, new: Facts) -> list[str]:
    """What a restore from old to new may not leave behind, wherever it is stopped: something that is neither, or nothing
    where something was and something is to be."""
    wrong = []
    for path, told in now.items():
        if told[0] != stat.S_IFDIR and not is_temporary(path):
            before, after = old.get(path, ()), new.get(path, ())
            same_content = _content(before) == _content(after)  # then its mode may be set, and its time not yet
            if told[:5] not in (before[:5], after[:5]) and not (same_content and _content(told) == _content(after)):
                wrong.append(f"{path!r} is neither what it was nor what it is to be")
    for path in old.keys() & new.keys():
        if path not in now and stat.S_IFDIR not in (old[path][0], new[path][0]):
            wrong.append(f"{path!r} is lost")
    return wrong


def _content(told: tuple[object, ...]) -> tuple[object, ...]:
    return (told[0], *(told[3:5] if told[0] == stat.S_IFREG else told[2:3])) if told else ()


@pytest.mark.parametrize("kind", STORES)
async def test_a_snapshot_killed_at_any_moment_leaves_the_last_one_whole(kind: str, tmp_path: Path) -> None:
    moments = Moments(f"snapshots in {kind}", KILLS)
    named = 0
    with Workers.ready() as workers:
        for number in range(KILLS):
            if number % NEW_STORE_EVERY == 0:
                scene = Scene(kind, tmp_path / str(number), f"{kind} {number}")
                moments.longest = await measure_snapshots(workers, scene)
            scene.disturb()
            before = scene.named
            moments.strike(workers, scene.snapshot_job())
            async with open_checkpointer(scene.url) as store:
                await scene.check_named(store)
                named += scene.named != before
                if number % 2:
                    await scene.keep(store)
                    await scene.check_named(store)
    print(f"{kind}: {KILLS} kills within {moments.longest:.3f} s, {moments.hits} under way, {named} named nevertheless")
    assert moments.hits >= HITS


async def measure_snapshots(workers: Workers, scene: Scene) -> float:
    async with open_checkpointer(scene.url) as store:
        await scene.keep(store)
        took = []
        for _ in range(MEASURED):
            scene.disturb()
            took.append(workers.run(scene.snapshot_job()))
        await scene.check_named(store)
    return max(took)


@pytest.mark.parametrize("kind", STORES)
async def test_a_restore_killed_at_any_moment_tears_nothing_and_ends_right_the_next_time(
    kind: str, tmp_path: Path
) -> None:
    """Two of three know the folder already: more of their time goes into changing it."""
    cold, warm = KILLS // 3, KILLS - KILLS // 3
    moments = {True: Moments(f"{kind} warm", warm), False: Moments(f"{kind} cold", cold)}
    half_way, leftovers = 0, 0
    with Workers.ready() as workers:
        for number in range(KILLS):
            if number % NEW_STORE_EVERY == 0:
                scene = Scene(kind, tmp_path / str(number), f"{kind} {number}")
                for is_warm in moments:
                    moments[is_warm].longest = await measure_restores(workers, scene, is_warm)
            scene.disturb()
            old = facts(scene.folder)
            is_warm = number % 3 != 2
            moments[is_warm].strike(workers, scene.restore_job(warm=is_warm))
            now = facts(scene.folder)
            assert harm(now, old, scene.was) == []
            half_way += bool(differing(now, old)) and bool(differing(now, scene.was))
            leftovers += any(map(is_temporary, now))
            async with open_checkpointer(scene.url) as store:
                await scene.check_named(store)
                await restore_again(scene, store, now)
                if number % 4 == 3:
                    scene.disturb()
                    await scene.keep(store)
    hits = sum(some.hits for some in moments.values())
    spans = " and ".join(f"{some.longest:.3f}" for some in moments.values())
    print(f"{kind}: {KILLS} kills within {spans} s, {hits} under way, {half_way} half-way, {leftovers} with leftovers")
    assert hits >= HITS
    assert half_way >= HALF_WAY


async def measure_restores(workers: Workers, scene: Scene, warm: bool) -> float:
    async with open_checkpointer(scene.url) as store:
        if not scene.named:
            await scene.keep(store)
    took = []
    for _ in range(MEASURED):
        scene.disturb()
        took.append(workers.run(scene.restore_job(warm=warm)))
        assert differing(facts(scene.folder), scene.was) == []
    return max(took)


async def restore_again(scene: Scene, store: Checkpointer, now: Facts) -> None:
    """It ends right, leaves nothing of ours, and has kept what the first one left."""
    restored = await Workspace(scene.folder, store).restore(scene.named, setuid=True)
    assert differing(facts(scene.folder), scene.was) == []
    assert restored.before_restore is not None
    kept = await scene.elsewhere(store, restored.before_restore)
    assert differing(kept, {path: told for path, told in now.items() if not is_temporary(path)}) == []


@pytest.mark.parametrize("kind", STORES)
async def test_gc_right_after_a_killed_snapshot_takes_nothing_that_the_thread_names(kind: str, tmp_path: Path) -> None:
    moments = Moments(f"gc in {kind}", COLLECTED)
    collected = 0
    scene = Scene(kind, tmp_path, f"{kind} gc")
    with Workers.ready() as workers:
        moments.longest = await measure_snapshots(workers, scene)
        for _ in range(COLLECTED):
            scene.disturb()
            async with open_checkpointer(scene.url) as store:  # one that nobody names, and that the cache knows of
                await Workspace(scene.folder, store).snapshot()
            scene.disturb()
            moments.strike(workers, scene.snapshot_job())
            async with open_checkpointer(scene.url) as store:
                collected += (await gc(store, grace=timedelta(0))).deleted
                await scene.check_named(store)
                await scene.keep(store)
                await scene.check_named(store)
    print(f"{kind}: {COLLECTED} kills, {moments.hits} under way, {collected} blobs collected")
    assert moments.hits > 0
    assert collected > 0
