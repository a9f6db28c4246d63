"""The cache: trusted no further than it can be, private, whole or ignored."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from clew._runtime.clock import Moment
from clew.checkpointers import MemoryCheckpointer, SealedCheckpointer, SQLiteCheckpointer
from clew.log.keys import Keyring
from clew.workspace import statcache
from clew.workspace.statcache import Record, StatCache, drop, is_settled, load, save

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND + 123_456_789


@pytest.fixture
def store(tmp_path: Path) -> SQLiteCheckpointer:
    return SQLiteCheckpointer(tmp_path / "c.db")


def some(digest: str = "ab" * 32) -> StatCache:
    record = Record(b"facts", digest, ("cd" * 32,), b"nodes", bytes.fromhex("ef" * 32), 1, 2)
    return StatCache({b"caf\xe9/x": record}, "12" * 32, Moment.now())


def only_file(cache: Path) -> Path:
    (path,) = (cache / "workspaces").iterdir()
    return path


def test_what_was_saved_is_loaded(store: SQLiteCheckpointer) -> None:
    cache = some()
    save("/ws", store, cache)
    assert load("/ws", store) == cache


def test_what_was_dropped_is_not_loaded(store: SQLiteCheckpointer, cache: Path) -> None:
    save("/ws", store, some())
    save("/other", store, some())
    drop(Path("/ws"), store)
    drop(Path("/ws"), store)
    drop(Path("/ws"), MemoryCheckpointer())
    assert load("/ws", store) == StatCache()
    assert load("/other", store) != StatCache()


def test_the_cache_is_private(store: SQLiteCheckpointer, cache: Path) -> None:
    save("/ws", store, some())
    path = only_file(cache)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_cache_that_others_may_write_is_ignored(store: SQLiteCheckpointer, cache: Path) -> None:
    save("/ws", store, some())
    only_file(cache).chmod(0o666)
    assert load("/ws", store) == StatCache()


@pytest.mark.parametrize("place", [0, 30, 60, -1])
def test_a_damaged_cache_is_ignored(store: SQLiteCheckpointer, cache: Path, place: int) -> None:
    save("/ws", store, some())
    data = bytearray(only_file(cache).read_bytes())
    data[place] ^= 1
    only_file(cache).write_bytes(data)
    assert load("/ws", store) == StatCache()


def test_a_cache_that_was_cut_short_is_ignored(store: SQLiteCheckpointer, cache: Path) -> None:
    save("/ws", store, some())
    data = only_file(cache).read_bytes()
    for size in (0, 10, 40, len(data) - 1):
        only_file(cache).write_bytes(data[:size])
        assert load("/ws", store) == StatCache()


def test_a_cache_of_another_boot_is_ignored(store: SQLiteCheckpointer, monkeypatch: pytest.MonkeyPatch) -> None:
    save("/ws", store, some())
    monkeypatch.setattr(statcache, "boot", lambda: "another")
    assert load("/ws", store) == StatCache()


def test_where_the_boot_is_not_known_nothing_is_kept(
    store: SQLiteCheckpointer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statcache, "boot", lambda: "")
    save("/ws", store, some())
    assert list(cache.iterdir()) == []


def test_folders_stores_namespaces_and_keys_have_caches_of_their_own(tmp_path: Path, store: SQLiteCheckpointer) -> None:
    save("/ws", store, some())
    namespaced = SQLiteCheckpointer(tmp_path / "c.db", "other")
    sealed = SealedCheckpointer(SQLiteCheckpointer(tmp_path / "c.db"), Keyring(bytes(32)))
    assert load("/other", store) == StatCache()
    for other in (namespaced, sealed, SQLiteCheckpointer(tmp_path / "d.db")):
        assert load("/ws", other) == StatCache()


def test_a_cache_under_anothers_name_is_ignored(store: SQLiteCheckpointer, cache: Path) -> None:
    save("/ws", store, some())
    first = only_file(cache)
    save("/other", store, some("99" * 32))
    (second,) = set(first.parent.iterdir()) - {first}
    os.replace(first, second)
    assert load("/other", store) == StatCache()


def test_a_store_in_memory_leaves_nothing_on_the_disk(cache: Path) -> None:
    save("/ws", MemoryCheckpointer(), some())
    assert list(cache.iterdir()) == []


def test_a_place_that_cannot_be_written_is_no_error(store: SQLiteCheckpointer, cache: Path) -> None:
    (cache / "workspaces").write_text("in the way")
    save("/ws", store, some())
    assert load("/ws", store) == StatCache()


def test_caches_that_nobody_uses_go(store: SQLiteCheckpointer, cache: Path) -> None:
    save("/ws", store, some())
    path = only_file(cache)
    half, stranger = path.with_name(f"{path.name}.{'0' * 16}.tmp"), path.with_name("notes")
    half.touch()
    stranger.touch()
    long_ago = time.time() - 40 * 86_400
    for old in (path, half, stranger):
        os.utime(old, (long_ago, long_ago))
    save("/other", store, some())
    assert not path.exists()
    assert not half.exists()
    assert stranger.exists()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("CLEW_CACHE", "/c", "/c/workspaces"), ("XDG_CACHE_HOME", "/x", "/x/clew/workspaces")],
)
def test_where_caches_are_kept(monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str) -> None:
    monkeypatch.delenv("CLEW_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv(name, value)
    assert statcache.cache_folder() == Path(expected)


def test_a_file_changed_long_before_it_was_read_is_settled() -> None:
    assert is_settled(NOW - SECOND, NOW - SECOND, NOW)


@pytest.mark.parametrize("which", ["mtime", "ctime"])
def test_a_file_changed_about_when_it_was_read_is_not(which: str) -> None:
    times = {"mtime": NOW - 10 * SECOND, "ctime": NOW - 10 * SECOND, which: NOW - 19_000_000}
    assert not is_settled(times["mtime"], times["ctime"], NOW)


def test_times_in_whole_seconds_are_coarser() -> None:
    whole = NOW // SECOND * SECOND - SECOND
    assert not is_settled(whole, whole, NOW)
    assert is_settled(whole - SECOND, whole - SECOND, NOW)


def test_another_machines_clock_may_be_off() -> None:
    assert not is_settled(NOW - 59 * SECOND, NOW - 59 * SECOND, NOW, elsewhere=True)
    assert is_settled(NOW - 61 * SECOND, NOW - 61 * SECOND, NOW, elsewhere=True)


def test_a_time_to_come_is_never_settled() -> None:
    assert not is_settled(NOW + SECOND, NOW - SECOND, NOW)


def test_a_moment_is_as_old_as_the_clock_that_says_more() -> None:
    wall, steady = time.time(), time.monotonic()
    assert Moment(wall - 100, steady).age() >= 100
    assert Moment(wall, steady - 100).age() >= 100
    assert Moment(wall + 100, steady).age() == float("inf")
