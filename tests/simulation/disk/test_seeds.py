"""The file store keeps its promises under every seed, and the simulation finds bugs that the store had or could have had."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from clew._runtime import files
from clew.checkpointers.files import log as log_module
from clew.checkpointers.files.blobs import BlobFiles
from clew.checkpointers.files.envelope import HEADER
from clew.checkpointers.files.locks import FileLocks
from clew.checkpointers.files.log import Log
from clew.checkpointers.files.queue import QueueMarkers
from clew.checkpointers.files.root import Root
from clew.checkpointers.files.store import FileCheckpointer
from tests.crash.disk import Nothing
from tests.sampling import only_in_full
from tests.simulation.disk.work import STORE, Run, simulate
from tests.simulation.history import Broken
from tests.simulation.loop import Machine
from tests.simulation.seeds import FIRST, PARTS, simulate_all, simulate_for_a_while

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system calls are those of Linux")

PART = 100


def test_the_store_keeps_its_promises() -> None:
    simulate_all(simulate, range(FIRST, FIRST + 20))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_the_store_keeps_its_promises_under_a_thousand_seeds(part: int) -> None:
    simulate_all(simulate, range(FIRST + part * PART, FIRST + (part + 1) * PART))


@only_in_full
@pytest.mark.parametrize("part", range(PARTS))
def test_the_store_keeps_its_promises_under_as_many_seeds_as_there_is_time_for(part: int) -> None:
    simulate_for_a_while(simulate, part)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 3))
def test_one_seed_gives_one_trace(seed: int) -> None:
    assert simulate(seed) == simulate(seed)


@pytest.mark.slow
def test_one_seed_gives_one_trace_in_every_process() -> None:
    code = (
        "from tests.simulation.disk.work import simulate\n"
        f"print(*[line for seed in range({FIRST}, {FIRST} + 20) for line in simulate(seed)], sep='\\n')"
    )
    traces = set()
    for hashes in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": hashes}, capture_output=True, check=True
        )
        traces.add(blake3(done.stdout).hexdigest())
        assert done.stdout.count(b"\n") > 1000
    assert len(traces) == 1


def test_a_run_meets_every_kind_of_fault() -> None:
    lines = "\n".join(line for seed in range(60) for line in simulate(seed))
    for what in ("is killed", "the power is cut; it left some", "fails to sync", "fails to write", "cut off"):
        assert what in lines


# What the simulation finds: mends taken out, and bugs planted


def found(most: int = 1000) -> str:
    """Return what is broken under the first seed that finds something, or "" if none does."""
    for seed in range(most):
        try:
            simulate(seed)
        except Broken as broken:
            print(str(broken).partition("\n")[0][:300])
            return str(broken).partition("\n")[0]
    return ""


def test_it_finds_an_append_that_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "sync", lambda fd: None)
    assert found()


def test_it_finds_names_that_are_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "sync_folder", lambda path: None)
    assert found()


@pytest.mark.slow
def test_it_finds_a_torn_end_that_is_taken_for_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "_has_gaps", lambda *given: False)
    assert "Corrupt" in found()


@pytest.mark.slow
def test_it_finds_a_torn_end_that_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Log.refresh

    def refresh(log: Log, fd: int) -> int:
        sound(log, fd)
        return log.end

    monkeypatch.setattr(Log, "refresh", refresh)
    assert found()


@pytest.mark.slow
def test_it_finds_a_record_that_is_not_checked_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that ends inside its last record is taken as it is."""

    def load(log: Log, fd: int, header: Any) -> None:
        data = log_module._read(fd, header.offset, header.length)
        encoded = data[HEADER + 4 * header.frames + 32 * header.refs :][: header.head]
        log._settle(header, encoded, log_module._decode_head(encoded).log_id)

    monkeypatch.setattr(Log, "_load", load)
    assert found()


def test_it_finds_appends_without_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileLocks, "lock", lambda locks, fd, path, *, shared: None)
    assert found()


@pytest.mark.slow
def test_it_finds_a_file_that_was_deleted_while_its_lock_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.checkpointers.files.threads._is_at", lambda fd, path: True)
    assert found()


@pytest.mark.slow
def test_it_finds_folders_above_the_store_whose_names_are_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that an earlier process has made and not synced."""
    monkeypatch.setattr(files, "sync_path", lambda folder: files.sync_folder(folder.parent))
    assert re.search("is gone|lacks", found())


@pytest.mark.slow
def test_it_finds_an_existing_folder_that_is_trusted_to_be_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Root.keep

    def keep(root: Root, *folders: Path) -> None:
        sound(root, *[folder for folder in folders if not folder.is_dir()])

    monkeypatch.setattr(Root, "keep", keep)
    assert found()


@pytest.mark.slow
def test_it_finds_blobs_whose_names_are_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rename of a blob without the sync of its folder."""
    monkeypatch.setattr(BlobFiles, "_make_durable", lambda blobs, inodes: None)
    assert found()


@pytest.mark.slow
def test_it_finds_an_append_that_says_nothing_of_a_failed_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = files.sync

    def sync(fd: int) -> None:
        try:
            sound(fd)
        except OSError:
            sound(fd)  # which writes nothing: the system takes it for written

    monkeypatch.setattr(files, "sync", sync)
    assert found()


# One run step by step


class Plan:
    """Processes that append to one thread, one after the other, each with a fault at the next sync of a file."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._fault = ""
        run.names = ["t0"]
        run.queues = False
        run.calls.before = self._before

    async def append(self, process: Machine, store: FileCheckpointer, fault: str = "") -> None:
        """Append in this process. Faults: "kill" it before the sync, "cut" the power there, "fail" the sync."""
        self._fault = fault
        task = self._run.loop.start(process, self._run._append(store, "t0"))
        while not task.done() and not process.is_dead:
            await asyncio.wait([task], timeout=1)

    def _before(self, process: Machine, kind: str) -> None:
        fault, self._run.calls.rate = self._fault, 0.0
        if kind == "sync" and fault:
            self._fault = ""
            if fault == "fail":
                self._run.calls.rate = 1.0
            elif fault == "kill":
                self._run._kill(process)
            else:
                self._run._cut_power()


async def fail_a_sync_after_a_kill(run: Run) -> None:
    """Kill a process before it syncs its append, let the sync of the next process fail once, then cut the power."""
    plan, first, second = Plan(run), run._new_process(), run._new_process()
    store = FileCheckpointer(STORE)
    await plan.append(first, store)
    await plan.append(first, store, "kill")
    store = FileCheckpointer(STORE)
    for fault in ("fail", "", ""):
        await plan.append(second, store, fault)
    run._kill(second)
    run.calls.disk.cut_power(run.dice, Nothing())
    await run.loop.start(run._new_process(), run._last())


async def cut_the_power_after_a_kill(run: Run) -> None:
    """Kill a process before it syncs its append, cut the power before the next one has synced its own, several times."""
    plan = Plan(run)
    for _ in range(30):
        await plan.append(run._new_process(), FileCheckpointer(STORE))
        await plan.append(run._new_process(), FileCheckpointer(STORE), "kill")
        await plan.append(run._new_process(), FileCheckpointer(STORE), "cut")
        await run.loop.start(run._new_process(), run._last())


def test_a_failed_sync_drops_nothing_that_a_killed_process_wrote_before_acknowledged_appends() -> None:
    simulate(1, main=fail_a_sync_after_a_kill)


def test_a_power_cut_during_an_append_after_that_of_a_killed_process_leaves_a_sound_log() -> None:
    simulate(1, main=cut_the_power_after_a_kill)


def test_it_finds_what_a_failed_sync_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "_write_again", lambda log, fd: os.fsync(fd))
    with pytest.raises(Broken, match="Corrupt"):
        simulate(1, main=fail_a_sync_after_a_kill)


def test_it_finds_a_marker_of_a_queued_thread_that_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(queue: QueueMarkers, key: str) -> None:
        queue._root.keep(queue._folder)
        os.close(os.open(queue._folder / key, os.O_WRONLY | os.O_CREAT, 0o600))

    monkeypatch.setattr(QueueMarkers, "add", add)
    assert "the queue is" in found()


def test_it_finds_an_append_after_a_record_that_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was killed has written it."""
    sound = Log.add

    def add(log: Log, *given: Any) -> None:
        log._safe = log.end
        sound(log, *given)

    monkeypatch.setattr(Log, "add", add)
    with pytest.raises(Broken, match="Corrupt"):
        simulate(1, main=cut_the_power_after_a_kill)


async def cut_the_power_after_a_killed_maker(run: Run) -> None:
    """Kill a process that has just marked a new store and not synced it, and cut the power when the next one has made the
    folder of its namespace and not synced that."""
    planned = ["rename", "sync names", "make", "sync names"]
    first, second = run._new_process(), run._new_process()

    def before(process: Machine, kind: str) -> None:
        if planned and kind == planned[0]:
            planned.pop(0)
            if len(planned) == 2:
                run._kill(first)
            elif not planned:
                run._cut_power()

    run.calls.before = before
    for process in (first, second):
        run.loop.start(process, run._append(FileCheckpointer(STORE), "t0"))
        await asyncio.sleep(1)
    assert second.is_dead
    await run.loop.start(run._new_process(), run._last())


def kill_makers() -> None:
    for seed in range(40):
        simulate(seed, main=cut_the_power_after_a_killed_maker)


def test_a_power_cut_after_a_killed_maker_leaves_a_store_that_can_be_opened() -> None:
    kill_makers()


def test_it_finds_a_namespace_that_outlives_the_mark_of_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Root.keep

    def keep(root: Root, *folders: Path) -> None:
        if not root.space.is_dir():
            root.space.mkdir()
        sound(root, *folders)

    monkeypatch.setattr(Root, "keep", keep)
    with pytest.raises(Broken, match="not a Clew store"):
        kill_makers()
