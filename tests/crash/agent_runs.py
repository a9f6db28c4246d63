"""Runs of the agent of `agent_desk` in processes of their own, and what they leave: on record, in files, in the world."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from clew import Thread
from clew.checkpointers import Checkpointer, Head, HeadQuery, open_checkpointer
from clew.log import Checkpoint
from clew.messages import Block, Message, Text, Tool, ToolResult
from clew.workspace import Workspace
from tests.crash.agent_desk import ANSWER, THREAD, TURNS
from tests.crash.agent_worker import Ended, Job
from tests.crash.processes import Speaker, url_of

__all__ = ["Desk", "Left", "Place", "Undisturbed", "check_same", "folder_in_memory"]


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """Where writing is quick, if there is such a place: what a process has written outlives its kill everywhere."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(prefix="clew-", dir=memory if os.access(memory, os.W_OK) else None) as made:
        yield Path(made)


class Place(msgspec.Struct, frozen=True):
    """Where a run has its store, its files and its world."""

    kind: str
    folder: Path

    @property
    def url(self) -> str:
        return url_of(self.kind, self.folder)

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def job(self, **more: object) -> Job:
        """A run here. If nothing is to happen to it, it may go on with what another has left, and waits for no outcome."""
        more.setdefault("in_order", "point" in more)
        return msgspec.convert({"url": self.url, "folder": str(self.folder), **more}, Job)

    def left(self) -> Left:
        return asyncio.run(_left(self))

    def head(self) -> Head | None:
        async def look() -> Head | None:
            async with open_checkpointer(self.url) as store:
                return await store.head(THREAD)

        return asyncio.run(look())


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """All that is there when a run has ended."""

    head: Head | None
    desk: Checkpoint
    clerk: Checkpoint
    clerks: int
    """Threads of the clerk."""
    requests: list[str]
    """What the models were asked."""
    files: dict[str, str]
    unsaved: str
    """How the files differ from the last snapshot on record."""

    @property
    def unaccounted(self) -> int:
        return self.desk.unaccounted + self.clerk.unaccounted

    @property
    def done(self) -> bool:
        return self.head is not None and self.head.status == "done"

    @property
    def lost(self) -> Counter[str]:
        """The requests whose responses are not on record."""
        recorded = [f"desk {turn + 1}" for turn in range(self.desk.turns)]
        recorded += [f"clerk {turn + 1}" for turn in range(self.clerk.turns)]
        recorded += ["desk summary"] if self.desk.messages != self.desk.history else []
        return Counter(self.requests) - Counter(recorded)

    @property
    def announced(self) -> int:
        """Requests that are on record as about to be made, and were not made any more."""
        asking = {asked.split(" ")[0] for asked in self.lost}
        return (self.desk.in_flight and "desk" not in asking) + (self.clerk.in_flight and "clerk" not in asking)

    @property
    def doubts(self) -> set[str]:
        """The calls that nobody can say of whether they took effect: the model is to be told."""
        return {call.call.id for call in self.desk.calls if call.call.name == "post" and call.status == "in_doubt"}


class Desk:
    """Runs one after the other, forked from a warm parent."""

    def __init__(self, parent: Speaker) -> None:
        self._parent = parent
        self.pid = 0
        """Of the process that runs now; 0 if none does."""

    @classmethod
    @contextmanager
    def ready(cls) -> Iterator[Desk]:
        with Speaker("tests.crash.agent_worker") as parent:
            desk = cls(parent)
            try:
                yield desk
            finally:
                if desk.pid:
                    os.kill(desk.pid, signal.SIGKILL)

    def start(self, job: Job) -> None:
        if self.pid:  # of a test that failed
            os.kill(self.pid, signal.SIGKILL)
            self.end()
        self._parent.say(msgspec.json.encode(job).decode())
        word, pid = self._parent.hear().split(" ")
        assert word == "pid"
        self.pid = int(pid)

    def hear(self) -> str:
        return self._parent.hear()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> tuple[int, Ended | None]:
        """The exit code, or the signal below zero; and how it ended, if it came to say so."""
        ended = None
        while not (said := self._parent.hear()).startswith("exit "):
            ended = msgspec.json.decode(said, type=Ended) if said.startswith("{") else None
        self.pid = 0
        return int(said.partition(" ")[2]), ended

    def run(self, job: Job) -> tuple[int, Ended | None]:
        self.start(job)
        return self.end()

    def finish(self, place: Place, **more: object) -> Ended:
        """A run that nothing happens to, from wherever the thread is to its end."""
        code, ended = self.run(place.job(**more))
        assert ended is not None, f"it ended with {code}: {place.lines('stderr')}"
        assert (ended.status, ended.output, ended.turns) == ("done", ANSWER, TURNS), f"{ended} {place.lines('stderr')}"
        assert ended.error == ""
        assert set(ended.drift) <= {"files", "limits"}
        head = place.head()
        assert head is not None
        assert head.lease is None, "the lease was not given back"
        return ended


async def _left(place: Place) -> Left:
    async with open_checkpointer(place.url) as store:
        head = await store.head(THREAD)
        clerks = [found.thread_id async for found in store.heads(HeadQuery(prefix=f"{THREAD}/"))]
        desk = Checkpoint() if head is None else await Thread.load(store, THREAD)
        return Left(
            head=head,
            desk=desk,
            clerk=await Thread.load(store, clerks[0]) if clerks else Checkpoint(),
            clerks=len(clerks),
            requests=place.lines("requests"),
            files=_files(place.folder / "files"),
            unsaved=await _unsaved(place.folder / "files", desk, store),
        )


async def _unsaved(folder: Path, desk: Checkpoint, store: Checkpointer) -> str:
    if desk.workspace is None:
        return "there is no snapshot"
    return (await Workspace(folder, store).diff(desk.workspace)).text()


def _files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


class Undisturbed:
    """A run that nothing happened to: what every other one is to come to."""

    def __init__(self, desk: Desk, place: Place) -> None:
        self.place = place
        self.counts = desk.finish(place, in_order=True).counts
        self.left = place.left()


def check_same(place: Place, wanted: Undisturbed, stopped: Left) -> None:
    """That a run which was stopped and gone on with came to what the other came to, and no effect happened twice; but for
    the results of calls in doubt when it stopped, which the model was told are not known."""
    left, right = place.left(), wanted.left
    assert _told_of(left.desk.history, right.desk.history) == stopped.doubts
    assert left.clerk.history == right.clerk.history
    assert (left.desk.view, left.desk.turns, left.desk.status) == (right.desk.view, right.desk.turns, "done")
    assert (left.clerks, left.clerk.status) == (1, "done")
    assert (left.desk.usage, left.desk.cost_usd) == (right.desk.usage, right.desk.cost_usd)
    assert (left.clerk.usage, left.clerk.cost_usd) == (right.clerk.usage, right.clerk.cost_usd)
    assert left.files == right.files
    assert left.unsaved == ""
    assert place.lines("too-early") == [], "a tool ran before the response that asked for it was on record"
    _check_effects(place, wanted.place, stopped.doubts)
    _check_requests(place, left, right, stopped)


def _told_of(history: tuple[Message, ...], wanted: tuple[Message, ...]) -> set[str]:
    """The calls of which the model was told that their outcome is not known. Everything else is the same."""
    assert len(history) == len(wanted)
    told: set[str] = set()
    for ours, theirs in zip(history, wanted, strict=True):
        if type(ours) is Tool and type(theirs) is Tool:
            told |= {_told(*pair) for pair in zip(ours.content, theirs.content, strict=True) if pair[0] != pair[1]}
        else:
            assert ours == theirs
    return told


def _told(result: Block, wanted: Block) -> str:
    """The call that this result is of, if it says that nobody knows; nothing else may differ."""
    assert isinstance(result, ToolResult), f"{result} is not {wanted}"
    assert isinstance(wanted, ToolResult), f"{result} is not {wanted}"
    [said] = result.content
    assert isinstance(said, Text), f"{result} is not {wanted}"
    assert said.text.startswith("It is not known whether post took effect"), f"{result} is not {wanted}"
    assert (result.call_id, result.is_error) == (wanted.call_id, True)
    return result.call_id


def _check_effects(place: Place, wanted: Place, doubts: set[str]) -> None:
    for name in ("charge", "stamp", "weigh"):
        assert sorted(place.lines(name)) == sorted(wanted.lines(name)), f"{name}: lost, or done twice"
    missing = Counter(wanted.lines("post")) - Counter(place.lines("post"))
    assert not Counter(place.lines("post")) - Counter(wanted.lines("post")), "post: done twice"
    assert missing.total() <= len(doubts), "post: lost"
    for name in ("note", "label"):
        keys: dict[str, set[str]] = {}
        for what, key in (said.split(" ") for said in place.lines(name)):
            keys.setdefault(what, set()).add(key)
        assert keys.keys() == {said.split(" ")[0] for said in wanted.lines(name)}
        assert all(len(of_one) == 1 for of_one in keys.values()), f"{name}: repeated under another key"


def _check_requests(place: Place, left: Left, right: Left, stopped: Left) -> None:
    """No response on record was asked for again; what was asked for and lost is asked for again, and counted."""
    under_way = max(map(int, place.lines("asking")), default=0)
    assert stopped.lost.total() <= min(under_way, 1), f"{dict(stopped.lost)} are lost, and {under_way} were under way"
    assert Counter(left.requests) == Counter(right.requests) + stopped.lost
    assert left.unaccounted == stopped.lost.total() + stopped.announced, f"lost: {dict(stopped.lost)}"
