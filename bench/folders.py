"""Snapshots of a folder of files and their restore, beside what the system's own tools take for the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

from bench.corpus import Corpus
from bench.results import Limit, Result, at_most, spread
from bench.scale import Scale, own_cache, progress, scratch
from bench.show import micros
from clew.checkpointers import SQLiteCheckpointer
from clew.workspace import SnapshotRef, Workspace

__all__ = ["folders", "make_tree"]

_TAR, _WALK, _COPY, _RESTIC = "tar and zstd -3 -T2, synced", "scandir + lstat", "cp -a", "restic backup"
_FIRST, _SAME, _ONE = "first snapshot", "snapshot, nothing changed", "snapshot, one file changed"
_EMPTY, _BACK = "restore into an empty folder", "restore, one file changed"
_PAIRS: tuple[tuple[str, str, Limit | None], ...] = (
    (_FIRST, _TAR, at_most(1.5)),
    (_SAME, _WALK, at_most(3.0)),
    (_ONE, _WALK, at_most(3.5)),
    (_EMPTY, _COPY, at_most(2.5)),
    (_BACK, _WALK, at_most(4.0)),
    (_FIRST, _RESTIC, at_most(1.0)),
)
_FILES_IN_FOLDER = 50
_TEXT = 12_000_000
"""Bytes of text that files are cut from, each at a place of its own."""


async def folders(scale: Scale) -> list[Result]:
    times: dict[str, list[float]] = {}
    with scratch() as folder, own_cache(folder / "cache"):
        tree = folder / "tree"
        size = make_tree(tree, scale.files, scale.files_bytes)
        for repeat in range(scale.repeats):
            progress(f"folders: {scale.files} files, {size / 1e6:.0f} MB, repeat {repeat + 1} of {scale.repeats}")
            here = folder / str(repeat)
            here.mkdir()
            for name, taken in (await _measure(tree, here, Random(repeat))).items():
                times.setdefault(name, []).append(taken)
            shutil.rmtree(here)
    return [
        Result(
            f"{scale.files:,} files: {ours} / {other}",
            micros(sorted(times[ours])[len(times[ours]) // 2]),
            micros(sorted(times[other])[len(times[other]) // 2]),
            spread([mine / theirs for mine, theirs in zip(times[ours], times[other], strict=True)]),
            limit,
        )
        for ours, other, limit in _PAIRS
        if other in times
    ]


async def _measure(tree: Path, here: Path, dice: Random) -> dict[str, float]:
    """Each way once, ours and the other's in an order drawn anew; all files have been read before, by all of them."""
    times: dict[str, float] = {_WALK: _time(lambda: walk(tree))}
    async with SQLiteCheckpointer(here / "clew.db") as store:
        workspace = Workspace(tree, store)
        ways: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            (_FIRST, workspace.snapshot),
            *((name, _awaited(way)) for name, way in _others(tree, here).items()),
        ]
        dice.shuffle(ways)
        first: SnapshotRef | None = None
        for name, way in ways:
            start = time.perf_counter()
            found = await way()
            times[name] = time.perf_counter() - start
            first = found if isinstance(found, SnapshotRef) else first
        assert first is not None
        same = await _timed(times, _SAME, workspace.snapshot)
        if same.digest != first.digest:
            raise AssertionError("the second snapshot of an unchanged folder is not the first")
        times[_WALK] = min(times[_WALK], _time(lambda: walk(tree)))
        changed = next(tree.rglob("*.txt"))
        before = changed.read_bytes()
        changed.write_bytes(before + b"and one line more\n")
        await _timed(times, _ONE, workspace.snapshot)
        changed.write_bytes(b"something else\n")
        await _timed(times, _BACK, lambda: workspace.restore(first))
        if changed.read_bytes() != before:
            raise AssertionError("the file that was restored is not the one that was there")
        copies = [
            (_EMPTY, lambda: workspace.restore(first, into=here / "restored")),
            (_COPY, _awaited(_copy(tree, here))),
        ]
        dice.shuffle(copies)
        for name, way in copies:
            await _timed(times, name, way)
        if walk(here / "restored") != walk(tree):
            raise AssertionError("what was restored has not as many files as there were")
    return times


async def _timed(times: dict[str, float], name: str, way: Callable[[], Awaitable[object]]) -> SnapshotRef:
    start = time.perf_counter()
    found = await way()
    times[name] = time.perf_counter() - start
    return found if isinstance(found, SnapshotRef) else SnapshotRef("")


def _time(way: Callable[[], object]) -> float:
    start = time.perf_counter()
    way()
    return time.perf_counter() - start


def _awaited(way: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    async def run() -> object:
        return way()

    return run


def _others(tree: Path, here: Path) -> dict[str, Callable[[], object]]:
    """The tools that are on this machine."""
    ways: dict[str, Callable[[], object]] = {}
    if shutil.which("zstd") and shutil.which("tar"):
        ways[_TAR] = lambda: _tar(tree, here / "tree.tar.zst")
    if shutil.which("restic"):
        env = {**os.environ, "RESTIC_PASSWORD": "bench", "RESTIC_REPOSITORY": str(here / "restic")}
        subprocess.run(["restic", "init", "-q"], env=env, check=True)
        command = ["restic", "backup", "-q", "--no-cache", "--compression", "auto", str(tree)]
        ways[_RESTIC] = lambda: subprocess.run(command, env=env, check=True)
    return ways


def _tar(tree: Path, target: Path) -> None:
    with target.open("wb") as out:
        with subprocess.Popen(["tar", "c", "-C", str(tree), "."], stdout=subprocess.PIPE) as tar:
            subprocess.run(["zstd", "-3", "-T2", "-q", "-c"], stdin=tar.stdout, stdout=out, check=True)
        if tar.returncode:
            raise AssertionError("tar failed")
        os.fsync(out.fileno())


def _copy(tree: Path, here: Path) -> Callable[[], object]:
    return lambda: subprocess.run(["cp", "-a", str(tree), str(here / "copied")], check=True)


def walk(tree: Path) -> int:
    """The least that it takes to look at every file: how many there are."""
    waiting, count = [os.fspath(tree)], 0
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                os.lstat(entry.path)
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return count


def make_tree(tree: Path, files: int, size: int) -> int:
    """A folder of text files, some small and few large, as projects have them. Returns its size."""
    dice = Random(11)
    text = "\n".join(turn.json() for turn in Corpus(11).conversation(max(40, min(_TEXT, size) // 3_300))).encode()
    wanted = [min(dice.lognormvariate(0, 1.25), 40) for _ in range(files)]
    scale = size / sum(wanted)
    total = 0
    for number, share in enumerate(wanted):
        folder = tree / f"part {number // (_FILES_IN_FOLDER * 20):02d}" / f"{number // _FILES_IN_FOLDER:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        length = min(int(share * scale), len(text) // 2)
        start = dice.randrange(len(text) - length)
        (folder / f"{number:05d}.txt").write_bytes(b"%d\n" % number + text[start : start + length])
        total += length
    return total
