"""A traced run of a writer, and the power cut at any point of it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from clew.checkpointers import open_checkpointer
from clew.errors import ClewError
from tests.crash.disk import Disk, Everything, Survival
from tests.crash.processes import url_of
from tests.crash.strace import Event, events, traced_writer
from tests.crash.work import Ledger, check, go_on
from tests.crash.writer import Job

__all__ = ["Run", "cut", "open_image", "said"]

CHANGES = (
    "write",
    "pwrite64",
    "ftruncate",
    "fsync",
    "fdatasync",
    "rename",
    "link",
    "unlink",
    "mkdir",
    "openat",
    "open",
)


class Run:
    """A writer that ran under strace, on an empty disk or on one that an earlier power cut left."""

    def __init__(
        self,
        kind: str,
        folder: Path,
        *,
        operations: int,
        tasks: int = 1,
        sabotage: str = "",
        seed: int = 7,
        start: Path | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.kind = kind
        self.root = folder / "disk"
        self._start = folder / "start"
        self._ledger = ledger or Ledger()
        if start is None:
            self._start.mkdir(parents=True)
        else:
            shutil.copytree(start, self._start)
        shutil.copytree(self._start, self.root)
        job = Job(
            url=url_of(kind, self.root),
            seed=seed,
            tasks=tasks,
            operations=operations,
            reopen_after=operations // 3 + 1,
            checkpoint_pages=40,
            sabotage=sabotage,
        )
        log = folder / "strace.log"
        traced_writer(job, log)
        self.events = list(events(log))
        log.unlink()

    def points(self) -> tuple[list[int], list[int], list[int]]:
        """Where the power may be cut: after each acknowledgement, wherever something happens to the disk, and there
        wherever the log has bytes that are not synced."""
        after, between, dirty = [], [], []
        for place, disk, _ in self.replay():
            event = self.events[place]
            if said(event).startswith("ack "):
                after.append(place)
            elif event.call.name in CHANGES and disk.concerns(event.call):
                between.append(place)
                if any(node.pending and ("/threads/" in path or "-wal" in path) for path, node in disk.paths().items()):
                    dirty.append(place)
        return after, between, dirty

    def faithful(self) -> bool:
        """Whether the model ends with the very files that the real disk has."""
        *_, (_, disk, _) = self.replay()
        files = {str(path): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}
        return files == {path: Everything().content(node) for path, node in disk.paths().items()}

    def replay(self) -> Iterator[tuple[int, Disk, Ledger]]:
        """The disk and what had been acknowledged, after each event."""
        disk, ledger = Disk(self.root, self._start), self._ledger.copy()
        for place, event in enumerate(self.events):
            disk.apply(event)
            if line := said(event):
                ledger.feed(line)
            yield place, disk, ledger


def said(event: Event) -> str:
    """The line that the writer begins to say here, or nothing."""
    if event.call.name == "write" and event.result is None and event.call.number(0) == 1:
        return event.call.strings[0].decode().rstrip("\n")
    return ""


async def cut(run: Run, points: set[int], survivals: list[Callable[[], Survival]], to: Path) -> tuple[int, list[str]]:
    """Cut the power at these points, with each of these outcomes, and open what is left: how often, and what is wrong."""
    images = 0
    wrong: list[str] = []
    for place, disk, ledger in run.replay():
        for survive in survivals if place in points else ():
            image = to / f"{run.kind}-{images}"
            disk.image(survive(), image)
            found = await open_image(run.kind, image, ledger.copy(), random.Random(place))
            wrong += [f"image {images} after event {place}, {survive().name}: {problem}" for problem in found]
            images += 1
            shutil.rmtree(image)
    return images, wrong


async def open_image(kind: str, image: Path, ledger: Ledger, dice: random.Random) -> list[str]:
    """What is wrong with a store that went through a power cut; it must also go on, on every thread."""
    try:
        async with open_checkpointer(url_of(kind, image)) as store:
            wrong = await check(store, ledger)
            threads = [*ledger.settled, "another"]
            return wrong or await go_on(store, ledger, dice, threads) or await check(store, ledger)
    except ClewError as error:
        return [f"the store does not open: {error!r}"]
