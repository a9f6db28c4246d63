"""Compare a killed and resumed run with an undisturbed one: what was lost, and what was done twice."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from blake3 import blake3

from clew import Thread
from clew.agent import TurnFinished
from clew.checkpointers import SQLiteCheckpointer
from clew.demo.job import THREAD, Asked, Began, Places
from clew.demo.process import Process
from clew.workspace import Workspace

__all__ = ["Report", "Row", "Seen", "compare", "look", "make_row"]


class Seen(msgspec.Struct, frozen=True):
    """What a run of the demo has left behind: in its store, and in the ledger, the bank's list of payments."""

    messages: list[str]
    """The messages of the thread, as JSON."""
    tokens: int
    files: list[str]
    """The files of the workspace, each as its path and a digest of its content. They are restored from the store, as
    another machine would do."""
    payments: list[str]
    """The paid invoices. An invoice that was paid twice is there twice."""
    bytes: int
    """The size of the store in bytes."""


class Row(msgspec.Struct, frozen=True):
    """A line of the demo's report about one kind of thing, such as payments. Says how many there are in the run that
    was not disturbed, how many came before and how many after the kill in the run that was killed and resumed, and how
    many were lost or repeated there."""

    what: str
    undisturbed: int
    before: int
    after: int
    lost: int
    repeated: int


class Report(msgspec.Struct, frozen=True):
    """The result of the demo, which does the same work in two runs: one is not disturbed, the other is killed and
    resumed. Says what the second run lost or did twice, and how long the first run waited for the disk."""

    rows: tuple[Row, ...]
    extra_model_calls: int
    waited: float
    """Seconds that the undisturbed run waited until its writes were safe on the disk."""
    seconds: float
    """Duration of the undisturbed run."""
    turns: int
    """Turns of the undisturbed run."""
    opened_after: float
    """Seconds from the start of the process that resumes to its first event."""
    bytes: int
    files: int
    messages: int

    @property
    def lost(self) -> int:
        return sum(row.lost for row in self.rows)

    @property
    def repeated(self) -> int:
        return sum(row.repeated for row in self.rows)

    @property
    def is_whole(self) -> bool:
        return not self.lost and not self.repeated


async def look(places: Places) -> Seen:
    """Read what one run of the demo has left at these paths: the thread and its files from the store, and the payments
    from the ledger, the file in which the demo's bank lists them."""
    async with SQLiteCheckpointer(places.store) as store:
        state = await Thread.load(store, THREAD)
        files: list[str] = []
        if state.workspace is not None:
            with TemporaryDirectory(dir=places.store.parent.parent) as made:
                await Workspace(places.files, store).restore(state.workspace, into=made)
                files = _files(Path(made))
    ledger = places.ledger.read_text().splitlines() if places.ledger.exists() else []
    return Seen(
        messages=[msgspec.json.encode(message).decode() for message in state.messages],
        tokens=state.usage.input_tokens + state.usage.output_tokens,
        files=files,
        payments=[line.rsplit(" ", 1)[0] for line in ledger],
        bytes=sum(path.stat().st_size for path in places.store.parent.iterdir()),
    )


def compare(
    undisturbed: Process, wanted: Seen, killed: Process, at_kill: Seen, resumed: Process, found: Seen
) -> Report:
    """Compare the run of the demo that was killed and resumed with the run that was not disturbed. `undisturbed`,
    `killed` and `resumed` are the three processes of the demo.

    `wanted` is what the undisturbed process left behind, `at_kill` what the killed process left, and `found` what the
    resumed process left.
    """

    def said(what: str, kind: Any, *, ordered: bool = True) -> Row:
        whole, first, second = (list(map(str, process.all(kind))) for process in (undisturbed, killed, resumed))
        return make_row(what, whole, first, first + second, ordered=ordered)

    calls = said("model calls", Asked)
    rows = (
        said("turns", TurnFinished),
        calls,
        said("tools run", Began, ordered=False),
        make_row("payments in the ledger", wanted.payments, at_kill.payments, found.payments),
        make_row("messages on record", wanted.messages, at_kill.messages, found.messages),
        make_row("files in the store", wanted.files, at_kill.files, found.files),
        _amounts("tokens on record", wanted.tokens, at_kill.tokens, found.tokens),
    )
    result = undisturbed.result
    assert result is not None  # noqa: S101 - the caller has checked this
    return Report(
        rows=rows,
        extra_model_calls=calls.before + calls.after - calls.undisturbed,
        waited=result.waited,
        seconds=result.seconds,
        turns=result.turns,
        opened_after=resumed.opened_after,
        bytes=found.bytes,
        files=len(found.files),
        messages=len(found.messages),
    )


def make_row(
    what: str, wanted: Sequence[str], before: Sequence[str], found: Sequence[str], *, ordered: bool = True
) -> Row:
    """Return a line of the report about the items called `what`, such as payments. `wanted` are the items of the
    undisturbed run. `found` are those of the killed and resumed run, and `before` the part of them that was there
    before the kill.

    Items in `wanted` without an equal in `found` count as lost, and items in `found` without an equal in `wanted` as
    repeated. The order of items counts, unless `ordered` is False, which is for calls made at the same time.
    """
    if not ordered:
        wanted, found = sorted(wanted), sorted(found)
    matches = SequenceMatcher(None, wanted, found, autojunk=False).get_matching_blocks()
    same = sum(match.size for match in matches)
    return Row(what, len(wanted), len(before), len(found) - len(before), len(wanted) - same, len(found) - same)


def _amounts(what: str, wanted: int, before: int, found: int) -> Row:
    return Row(what, wanted, before, found - before, max(0, wanted - found), max(0, found - wanted))


def _files(folder: Path) -> list[str]:
    """Return a text for each file in the folder and below it, sorted by path: the file's path, a space, and the digest
    of its content."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [f"{path.relative_to(folder)} {blake3(path.read_bytes()).hexdigest()}" for path in paths]
