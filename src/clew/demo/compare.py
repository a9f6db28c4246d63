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
    """What a process has left behind when it ended: in the store, and in the bank's ledger."""

    messages: list[str]
    """The messages of the thread, as JSON."""
    tokens: int
    files: list[str]
    """Each file of the workspace with a digest of its content, read from the store as on another machine."""
    payments: list[str]
    """The paid invoices, once for each payment."""
    bytes: int
    """The size of the store."""


class Row(msgspec.Struct, frozen=True):
    """A line of the report: how often something occurred in the undisturbed run, before the kill and after it, and how much
    of it was lost or repeated."""

    what: str
    undisturbed: int
    before: int
    after: int
    lost: int
    repeated: int


class Report(msgspec.Struct, frozen=True):
    """How the killed and resumed run compares with the undisturbed one, and what durability cost."""

    rows: tuple[Row, ...]
    extra_model_calls: int
    waited: float
    """Seconds that the undisturbed run waited for its writes to be durable."""
    seconds: float
    """Duration of the undisturbed run."""
    turns: int
    """Turns of the undisturbed run."""
    opened_after: float
    """Seconds from the start of the resuming process to its first event."""
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
    """Read what a run has left in its store and in the ledger."""
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
    """Compare the undisturbed process and what it left with the killed and the resumed one and what these left."""

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
    """Return a line of the report. Wanted items that were not found are lost; found items beyond these are repeated.

    The order of items counts unless `ordered` is False, which is for calls that are made at the same time.
    """
    if not ordered:
        wanted, found = sorted(wanted), sorted(found)
    matches = SequenceMatcher(None, wanted, found, autojunk=False).get_matching_blocks()
    same = sum(match.size for match in matches)
    return Row(what, len(wanted), len(before), len(found) - len(before), len(wanted) - same, len(found) - same)


def _amounts(what: str, wanted: int, before: int, found: int) -> Row:
    return Row(what, wanted, before, found - before, max(0, wanted - found), max(0, found - wanted))


def _files(folder: Path) -> list[str]:
    """Return each file below the folder with a digest of its content."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [f"{path.relative_to(folder)} {blake3(path.read_bytes()).hexdigest()}" for path in paths]
