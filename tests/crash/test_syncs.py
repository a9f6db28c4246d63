"""What the system is asked for before an append is acknowledged: the bytes synced, and the names that lead to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from blake3 import blake3

from clew.checkpointers.heads import thread_key
from tests.crash.disk import Disk
from tests.crash.power import Run, said
from tests.crash.processes import STORES
from tests.crash.work import Op

pytestmark = [pytest.mark.slow, pytest.mark.crash]

STORE = Path("made/for/it")
SPACE = STORE / blake3(b"").hexdigest()


class Syncs:
    """The acknowledgements of a run that did one thing after the other, and those that came too early."""

    def __init__(self, run: Run) -> None:
        self.checked = 0
        self.wrong: list[str] = []
        for place, disk, _ in run.replay():
            word, _, rest = said(run.events[place]).partition(" ")
            if word == "start":
                disk.written.clear()
            elif word == "kept" and run.kind == "files":
                self._expect_safe(disk, run.root / SPACE / "blobs" / rest[:2] / rest)
            elif word == "ack":
                self.checked += 1
                self._check(run, disk, Op.parse(rest))

    def _check(self, run: Run, disk: Disk, op: Op) -> None:
        """SQLite's WAL, or the thread's own file: written to, and synced since. The names above it are safe, too."""
        if run.kind == "sqlite":
            file = run.root / STORE / "clew.db-wal"
            self._expect_safe(disk, run.root / STORE / "clew.db", synced=False)
        else:
            key = thread_key(op.thread)
            file = run.root / SPACE / "threads" / key[:2] / key
            self._expect_safe(disk, run.root / STORE / "clew-store")
        if run.kind == "files" and op.kind == "delete":
            if not disk.is_gone(file):
                self.wrong.append(f"{op}: its file may come back")
        elif disk.node(file) not in disk.written:
            self.wrong.append(f"{op}: nothing was written")
        else:
            self._expect_safe(disk, file)

    def _expect_safe(self, disk: Disk, file: Path, *, synced: bool = True) -> None:
        node = disk.node(file)
        if synced and (node is None or node.pending):
            self.wrong.append(f"{file} was not synced since its last write")
        if not disk.is_safe(file):
            self.wrong.append(f"the name {file} was not synced")


@pytest.mark.parametrize("kind", STORES)
def test_every_append_is_synced_between_its_last_write_and_its_acknowledgement(kind: str, tmp_path: Path) -> None:
    syncs = Syncs(Run(kind, tmp_path, operations=60))
    assert syncs.wrong == []
    assert syncs.checked == 60


@pytest.mark.parametrize("kind", STORES)
def test_a_sync_that_is_not_made_is_missed(kind: str, tmp_path: Path) -> None:
    syncs = Syncs(Run(kind, tmp_path, operations=10, sabotage="sync no files"))
    assert sum("since its last write" in problem for problem in syncs.wrong) >= 10


@pytest.mark.parametrize("kind", STORES)
def test_a_folder_that_is_not_synced_is_missed(kind: str, tmp_path: Path) -> None:
    syncs = Syncs(Run(kind, tmp_path, operations=10, sabotage="sync no folders"))
    assert sum("the name" in problem for problem in syncs.wrong) >= 10
