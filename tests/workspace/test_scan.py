"""The walk: what it finds, what it leaves out and says so, and that it never leaves the folder."""

from __future__ import annotations

import os
import random
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pathspec import GitIgnoreSpec

from clew import Workspace
from clew.checkpointers import MemoryCheckpointer
from clew.errors import InvalidInput
from clew.workspace import ignore as _ignoring
from clew.workspace import manifest as limits
from clew.workspace import scan as scanning
from clew.workspace.manifest import Limits
from clew.workspace.pack import Stopped
from clew.workspace.scan import Root, Scan, scan
from tests.limits import processor_time


def look(
    folder: Path, *, limits: Limits | None = None, ignore: tuple[str, ...] = (), own: tuple[Path, ...] = ()
) -> Scan:
    with Root(folder) as root:
        return scan(root, limits or Limits(), ignore, own)


def paths(found: Scan) -> list[str]:
    """All names of the walk, folders with a slash behind them."""
    return sorted(
        os.fsdecode(folder.at(fact[0])) + ("/" if stat.S_ISDIR(fact[1]) else "")
        for folder in found.folders
        for fact in folder.facts
    )


def skipped(found: Scan) -> dict[str, str]:
    return {one.path: one.reason for one in found.skipped}


def make(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_every_folder_comes_before_those_in_it_and_is_sorted_by_bytes(tmp_path: Path) -> None:
    make(tmp_path, "b/z", "b/a/x", "ä", "a", "B", "b.txt")
    found = look(tmp_path)
    assert [folder.path for folder in found.folders] == [b"", b"b", b"b/a"]
    assert [fact[0] for fact in found.folders[0].facts] == [b"B", b"a", b"b", b"b.txt", "ä".encode()]
    assert [below.path for below in found.folders[0].folders] == [b"b"]


def test_an_empty_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert paths(look(tmp_path)) == ["empty/"]


def test_links_are_found_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "to-folder").symlink_to("/etc")
    (tmp_path / "to-nothing").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to(".")
    assert paths(look(tmp_path)) == ["loop", "to-folder", "to-nothing"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems want UTF-8")
def test_names_that_are_not_utf8_are_found(tmp_path: Path) -> None:
    os.close(os.open(os.fsencode(tmp_path) + b"/caf\xe9", os.O_CREAT, 0o600))
    assert look(tmp_path).folders[0].facts[0][0] == b"caf\xe9"


def test_special_files_are_skipped_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        found = look(tmp_path)
    assert paths(found) == []
    assert skipped(found) == {"pipe": "a FIFO", "socket": "a socket"}


def test_a_path_in_a_report_can_always_be_printed(tmp_path: Path) -> None:
    os.mkfifo(os.fsencode(tmp_path) + b"/caf\xe9\n")
    assert skipped(look(tmp_path)) == {"caf\\xe9\\x0a": "a FIFO"}


def test_files_over_the_limit_are_skipped_and_holes_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 200_001)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10_000_000)
    found = look(tmp_path, limits=Limits(file_bytes=200_000))
    assert skipped(found) == {"large": "larger than the limit of 200000 bytes"}
    assert paths(found) == ["sparse"]


def test_more_names_than_the_limit_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "a", "b", "d/e")
    assert len(paths(look(tmp_path, limits=Limits(names=4)))) == 4
    with pytest.raises(InvalidInput, match="more than 3 names"):
        look(tmp_path, limits=Limits(names=3))


def test_ignored_names_do_not_count_for_the_limit(tmp_path: Path) -> None:
    make(tmp_path, "a", "b.o", "c.o")
    assert paths(look(tmp_path, limits=Limits(names=1), ignore=("*.o",))) == ["a"]


@pytest.mark.parametrize("at_once", [1, 7, 65_536])
def test_names_are_not_dropped_because_ignored_ones_use_up_the_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(scanning, "_AT_ONCE", at_once)
    kept = {f"d/keep{number}" for number in range(20)}
    make(
        tmp_path, *kept, *(f"d/{number}.log" for number in range(200)), *(f"d/sub{number}.log/x" for number in range(5))
    )
    (tmp_path / "d/.clewignore").write_text("*.log\n")
    found = look(tmp_path, limits=Limits(names=22))
    assert paths(found) == sorted(["d/", "d/.clewignore", *kept])
    assert set(skipped(found).values()) == {"ignored"}
    assert len(found.skipped) == 205
    assert [fact[0] for fact in found.folders[1].facts] == sorted(fact[0] for fact in found.folders[1].facts)
    with pytest.raises(InvalidInput, match="more than 21 names"):
        look(tmp_path, limits=Limits(names=21))


def test_folders_too_deep_to_be_restored_are_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DEEPEST", 3)
    make(tmp_path, "a/b/c/file", "a/b/c/d/file", "a/b/other/d/file")
    found = look(tmp_path)
    assert paths(found) == ["a/", "a/b/", "a/b/c/", "a/b/c/file", "a/b/other/"]
    reason = "deeper than 2000 folders, or its path is longer than 32768 bytes"
    assert skipped(found) == dict.fromkeys(("a/b/c/d", "a/b/other/d"), reason)


def test_what_ignore_names_is_left_out_and_reported(tmp_path: Path) -> None:
    make(tmp_path, "keep.py", "a.pyc", "d/b.pyc", "build/x/y", "d/build")
    found = look(tmp_path, ignore=("*.pyc", "build/"))
    assert paths(found) == ["d/", "d/build", "keep.py"]
    assert skipped(found) == dict.fromkeys(("a.pyc", "d/b.pyc", "build"), "ignored")


def test_an_ignore_file_counts_from_its_own_folder_down(tmp_path: Path) -> None:
    make(tmp_path, "a.log", "täg/a.log", "täg/d/a.log", "täg/only", "täg/d/only", "only", "other/a.log")
    (tmp_path / "täg/.clewignore").write_text("*.log\n/only\n")
    assert paths(look(tmp_path)) == sorted(
        ["a.log", "only", "other/", "other/a.log", "täg/", "täg/.clewignore", "täg/d/", "täg/d/only"]
    )


def test_a_deeper_ignore_file_overrules_those_above_it(tmp_path: Path) -> None:
    make(tmp_path, "a.log", "d/a.log", "d/e/a.log")
    (tmp_path / ".clewignore").write_text("*.log\n")
    (tmp_path / "d/.clewignore").write_text("!a.log\n")
    assert paths(look(tmp_path)) == [".clewignore", "d/", "d/.clewignore", "d/a.log", "d/e/", "d/e/a.log"]


def test_a_line_that_is_no_pattern_is_passed_over_in_a_file_and_refused_from_a_caller(tmp_path: Path) -> None:
    make(tmp_path, "a.log", "b")
    (tmp_path / ".clewignore").write_text("[z-a]\n*.log\n")
    assert paths(look(tmp_path)) == [".clewignore", "b"]
    with pytest.raises(InvalidInput, match=r"not a \.gitignore pattern"):
        look(tmp_path, ignore=("[z-a]",))


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("*a" * 120 + "*b", "a" * 255),
        ("*?*a" * 60 + "b", "a" * 255),
        ("**/a/" * 60 + "b", "a/" * 100 + "a"),
        ("*[!b]*/" * 60 + "**/*a*a*b", "aaaa/" * 100 + "a" * 200),
    ],
)
def test_no_pattern_holds_the_process_up(tmp_path: Path, pattern: str, name: str) -> None:
    make(tmp_path, name)
    (tmp_path / ".clewignore").write_text(pattern + "\n")
    with processor_time(20):
        assert name in paths(look(tmp_path))


def test_a_pattern_with_many_stars_is_what_it_is_in_gitignore() -> None:
    chance = random.Random(7)

    def segment() -> str:
        return chance.choice(["**", "*", "".join(chance.choice("aab*?") for _ in range(chance.randrange(1, 7)))])

    for _ in range(2000):
        pattern = "/".join(segment() for _ in range(chance.randrange(1, 6))) + chance.choice(["", "/"])
        theirs, ours = GitIgnoreSpec.from_lines([pattern]), _ignoring._compiled([pattern])
        for _ in range(10):
            path = "/".join("".join(chance.choices("ab", k=chance.randrange(1, 4))) for _ in range(4))
            assert ours.check_file(path).include == theirs.check_file(path).include, (pattern, path)


def test_a_pattern_counts_in_folders_of_any_name_and_a_set_takes_no_slash(tmp_path: Path) -> None:
    make(tmp_path, "line\nbreak/x.log", "ab/c", "a[b")
    assert paths(look(tmp_path, ignore=("*.log", "a[!x]c", "*[[]*"))) == ["ab/", "ab/c", "line\nbreak/"]


def test_too_many_and_too_long_patterns_are_passed_over_in_a_file_and_refused_from_a_caller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path, "first", "last", "long")
    many, long = [*(f"x{number}" for number in range(4999)), "first", "last"], "l" + "?" * 5000
    (tmp_path / ".clewignore").write_text("\n".join(["# a comment", "", long, *many[1:]]))
    assert paths(look(tmp_path)) == [".clewignore", "last", "long"]
    assert "only the first 5000 are used" in caplog.text
    assert "not a pattern" in caplog.text
    for patterns in (many, [long]):
        with pytest.raises(InvalidInput, match="ignore= has"):
            look(tmp_path, ignore=tuple(patterns))


def test_an_ignore_file_that_is_a_link_does_not_count(tmp_path: Path) -> None:
    make(tmp_path, "ws/a", "rules")
    (tmp_path / "rules").write_text("*\n")
    (tmp_path / "ws/.clewignore").symlink_to(tmp_path / "rules")
    assert paths(look(tmp_path / "ws")) == [".clewignore", "a"]


def test_own_files_are_left_out_wherever_they_lie(tmp_path: Path) -> None:
    make(tmp_path, "ws/a", "ws/store/c.db", "ws/store/c.db-wal", "ws/files/x/y", "ws/store/mine")
    (tmp_path / "way").symlink_to(tmp_path / "ws/store")
    own = (tmp_path / "way/c.db", tmp_path / "way/c.db-wal", tmp_path / "way/c.db-shm", tmp_path / "ws/files")
    found = look(tmp_path / "ws", own=own)
    assert paths(found) == ["a", "store/", "store/mine"]
    assert set(skipped(found)) == {"files", "store/c.db", "store/c.db-wal"}


def test_another_name_of_an_own_file_is_left_out_too(tmp_path: Path) -> None:
    make(tmp_path, "ws/a", "c.db")
    os.link(tmp_path / "c.db", tmp_path / "ws/copy.db")
    found = look(tmp_path / "ws", own=(tmp_path / "c.db",))
    assert paths(found) == ["a"]


def test_a_workspace_in_the_stores_own_folder_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "store/ws/a")
    for folder in (tmp_path / "store/ws", tmp_path / "store"):
        with pytest.raises(InvalidInput, match="keeps its own files"):
            look(folder, own=(tmp_path / "store",))


def test_what_an_interrupted_restore_left_is_no_part_of_the_workspace(tmp_path: Path) -> None:
    make(tmp_path, ".clew-0123456789abcdef.tmp", ".clew-notes.tmp")
    found = look(tmp_path)
    assert paths(found) == [".clew-notes.tmp"]
    assert set(skipped(found)) == {".clew-0123456789abcdef.tmp"}


def test_a_folder_is_never_taken_for_what_an_interrupted_restore_left(tmp_path: Path) -> None:
    make(tmp_path, ".clew-0123456789abcdef.tmp/precious")
    assert paths(look(tmp_path)) == [".clew-0123456789abcdef.tmp/", ".clew-0123456789abcdef.tmp/precious"]


def test_names_of_one_file_say_which_is_the_first(tmp_path: Path) -> None:
    make(tmp_path, "b/one", "single")
    os.link(tmp_path / "b/one", tmp_path / "a-two")
    os.link(tmp_path / "b/one", tmp_path / "c-three")
    os.link(tmp_path / "single", tmp_path.with_name(tmp_path.name + "-outside"))
    firsts = {folder.at(fact[0]): fact[6] for folder in look(tmp_path).folders for fact in folder.facts}
    assert firsts == {b"a-two": b"a-two", b"b/one": b"a-two", b"c-three": b"a-two", b"b": b"", b"single": b""}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_reported_by_the_system(tmp_path: Path) -> None:
    make(tmp_path, "secret/x", "a")
    (tmp_path / "secret").chmod(0)
    found = look(tmp_path)
    (tmp_path / "secret").chmod(0o700)
    assert (paths(found), skipped(found)) == (["a"], {"secret": "permission denied"})


def test_a_folder_that_may_not_be_read_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "secret/x", "a")
    opened = Root.open

    def refuse(self: Root, path: bytes, flags: int) -> int:
        if path == b"secret":
            raise PermissionError(13, "Permission denied")
        return opened(self, path, flags)

    monkeypatch.setattr(Root, "open", refuse)
    found = look(tmp_path)
    assert (paths(found), skipped(found)) == (["a"], {"secret": "permission denied"})


def test_a_folder_that_becomes_a_link_during_the_walk_does_not_lead_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "ws/d/e/inside", "outside/e/stolen")
    opened = Root.open

    def swap(self: Root, path: bytes, flags: int) -> int:
        if path == b"d/e":
            (tmp_path / "ws/d").rename(tmp_path / "moved")
            (tmp_path / "ws/d").symlink_to(tmp_path / "outside")
        return opened(self, path, flags)

    monkeypatch.setattr(Root, "open", swap)
    found = look(tmp_path / "ws")
    assert paths(found) == ["d/"]
    assert skipped(found) == {"d/e": scanning.CHANGED}


def test_paths_longer_than_the_system_takes_are_walked(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("n" * 250, dir_fd=here)
        below = os.open("n" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=here))
    os.close(here)
    found = look(tmp_path)
    assert len(found.folders) == 21
    assert len(found.folders[-1].path) > 5000
    assert found.folders[-1].facts[0][0] == b"file"
    subprocess.run(["rm", "-rf", tmp_path / ("n" * 250)], check=True)


def test_a_walk_can_be_stopped(tmp_path: Path) -> None:
    def stop() -> None:
        raise Stopped

    with Root(tmp_path) as root, pytest.raises(Stopped):
        scan(root, Limits(), (), (), stop)


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "nothing"):
        with pytest.raises(InvalidInput, match=name):
            Root(tmp_path / name)


def test_patterns_are_only_imported_when_there_are_some(tmp_path: Path) -> None:
    make(tmp_path, "a")
    code = (
        "import asyncio, sys, clew; from clew.checkpointers import MemoryCheckpointer;"
        f"asyncio.run(clew.Workspace({str(tmp_path)!r}, MemoryCheckpointer()).snapshot());"
        "sys.exit('pathspec' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs a file system that keeps any time")
@pytest.mark.anyio
async def test_a_time_that_cannot_be_kept_is_reported_and_stops_nothing() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        (folder / "far").write_text("x")
        (folder / "near").write_text("y")
        (folder / "within").mkdir()
        (folder / "within" / "file").write_text("z")
        for path in (folder / "far", folder / "within", folder):
            os.utime(path, ns=(2**65, 2**65))
        async with MemoryCheckpointer() as store:
            ref = await Workspace(folder, store).snapshot()
        assert ref.files == 2
        assert [skipped.path for skipped in ref.skipped] == ["far"]
