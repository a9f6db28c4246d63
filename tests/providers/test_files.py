"""Files that are whole or not at all, however many write them, and are copied only where they have changed."""

from __future__ import annotations

import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from clew.providers.files import bring, make_folder, put, put_if_changed, remembered, sweep


def test_what_is_written_is_for_its_owner_alone_with_the_folders_that_were_missing(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    put(tmp_path / "a" / "b" / "file", b"data")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path, *tmp_path.rglob("*"))}
    assert modes == {tmp_path.name: 0o755, "a": 0o700, "b": 0o700, "file": 0o600}
    make_folder(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_what_says_the_same_already_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    put_if_changed(path, b"data")
    first = path.stat().st_ino
    put_if_changed(path, b"data")
    assert path.stat().st_ino == first
    put_if_changed(path, b"date")
    assert path.read_bytes() == b"date"


def test_writers_of_the_same_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "folder" / "target"
    source.write_bytes(b"x" * 2_000_000)
    together = Barrier(4)

    def write(_: int) -> None:
        for _ in range(10):
            together.wait()
            target.unlink(missing_ok=True)
            together.wait()
            bring(source, target)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert target.read_bytes() == source.read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"new")
    target.write_bytes(b"old")

    def fail(_: Path, draft: Path) -> None:
        draft.write_bytes(b"half")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        bring(source, target, fail)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"source": b"new", "target": b"old"}


def test_a_copy_is_made_again_only_when_its_original_has_changed(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"one")
    os.utime(source, (1_700_000_000, 1_700_000_000))
    assert [bring(source, target), bring(source, target)] == [True, False]
    source.write_bytes(b"two")
    assert bring(source, target)
    assert target.read_bytes() == b"two"


def test_a_change_within_the_same_tick_of_the_clock_as_a_copy_is_not_missed(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"one")
    now = time.time_ns()
    os.utime(source, ns=(now, now))
    bring(source, target)
    source.write_bytes(b"two")
    os.utime(source, ns=(now, now))
    assert bring(source, target)
    assert target.read_bytes() == b"two"


def test_what_a_killed_writer_left_is_swept_away_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    left, fresh = (tmp_path / f".file.clew-{digit * 16}" for digit in "ab")
    for path in (left, fresh, tmp_path / ".file.clew-notes", tmp_path / "file"):
        path.write_bytes(b"x")
        os.utime(path, (1_700_000_000, 1_700_000_000))
    os.utime(fresh)
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {fresh.name, ".file.clew-notes", "file"}


def test_what_was_learned_about_a_file_holds_until_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(b"one")
    assert [remembered(path, lambda: "1"), remembered(path, lambda: "2")] == ["1", "1"]
    path.write_bytes(b"longer")
    assert remembered(path, lambda: "3") == "3"
