"""Conversations taken from a home, compared with one, and put into one."""

from __future__ import annotations

import gc
import os
import stat
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zstandard

from clew.errors import Corrupt, InvalidInput
from clew.providers.base import Program
from clew.providers.codex import Codex
from clew.providers.codex.events import Meter
from clew.providers.codex.rollout import meta_of
from clew.providers.codex.storage import names
from tests.providers.codex.kept import FIXTURES, at_home, keep, rollout_line

OTHER_KEY = "01a1e046-0000-7000-8000-000000000002"


def kept(folder: Path) -> bytes:
    return (folder / "rollout.jsonl").read_bytes()


def grow(path: Path, text: str) -> None:
    with path.open("ab") as file:
        file.write(rollout_line("response_item", {"type": "message", "role": "user", "content": text}))


def exported(codex: Codex, key: str, folder: Path) -> Path:
    assert codex.export(key, folder)
    return folder


def test_an_export_is_the_rollout_with_its_sub_agents_and_without_its_torn_end(tmp_path: Path) -> None:
    key, _ = keep(tmp_path, "rollout-tools.jsonl", torn=b'{"timestamp":"20')
    child, _ = keep(tmp_path, "rollout-agent.jsonl")
    keep(tmp_path, "rollout-compacted.jsonl")
    folder = exported(at_home(tmp_path), key, tmp_path / "folder")
    files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    assert files == [f"agents/{child}.jsonl", "rollout.jsonl"]
    original = (FIXTURES / "rollout-tools.jsonl").read_bytes().splitlines()
    copied = kept(folder).splitlines()
    assert [row for row in copied if row in original] == [row for row in original if b'"model_provider' not in row]
    assert len(copied) == len(original)
    assert b'"model_provider' not in kept(folder)


def test_an_export_of_what_did_not_change_reads_nothing_and_of_what_grew_keeps_its_beginning(tmp_path: Path) -> None:
    key, path = keep(tmp_path, "rollout-tools.jsonl")
    child, _ = keep(tmp_path, "rollout-agent.jsonl")
    codex = at_home(tmp_path)
    folder = exported(codex, key, tmp_path / "folder")
    before = {file: file.stat().st_ino for file in folder.rglob("*.jsonl")}
    codex.export(key, folder)
    assert {file: file.stat().st_ino for file in folder.rglob("*.jsonl")} == before
    first = kept(folder)
    grow(path, "more")
    codex.export(key, folder)
    assert kept(folder).startswith(first)
    assert len(kept(folder)) > len(first)
    assert (folder / "agents" / f"{child}.jsonl").stat().st_ino == before[folder / "agents" / f"{child}.jsonl"]


def test_there_is_nothing_to_export_of_a_key_that_is_not_here(tmp_path: Path) -> None:
    codex = at_home(tmp_path)
    assert not codex.export(OTHER_KEY, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    with pytest.raises(InvalidInput, match="is not a session id of Codex"):
        codex.export("../../etc", tmp_path / "folder")


def test_a_packed_rollout_is_exported_unpacked(tmp_path: Path) -> None:
    key, path = keep(tmp_path, "rollout-tools.jsonl")
    folder = exported(at_home(tmp_path), key, tmp_path / "folder")
    path.with_name(path.name + ".zst").write_bytes(zstandard.compress(path.read_bytes()))
    path.unlink()
    assert kept(exported(at_home(tmp_path), key, tmp_path / "again")) == kept(folder)
    assert at_home(tmp_path).standing(key, folder) == "same"


def test_the_standing_is_told_by_what_comes_after_the_common_beginning(tmp_path: Path) -> None:
    key, path = keep(tmp_path, "rollout-tools.jsonl")
    codex = at_home(tmp_path)
    assert at_home(tmp_path / "fresh").standing(key, exported(codex, key, tmp_path / "a")) == "absent"
    assert codex.standing(key, tmp_path / "a") == "same"
    grow(path, "here")
    assert codex.standing(key, tmp_path / "a") == "ahead"
    exported(codex, key, tmp_path / "b")
    grow(path, "further")
    exported(codex, key, tmp_path / "c")
    keep(tmp_path, "rollout-tools.jsonl")
    assert codex.standing(key, tmp_path / "b") == "behind"
    grow(path, "another way")
    assert codex.standing(key, tmp_path / "c") == "apart"


def test_a_session_is_put_in_place_for_its_owner_alone_and_exports_as_it_was(tmp_path: Path) -> None:
    key, _ = keep(tmp_path, "rollout-tools.jsonl")
    child, _ = keep(tmp_path, "rollout-agent.jsonl")
    folder = exported(at_home(tmp_path), key, tmp_path / "folder")
    there = at_home(tmp_path / "there")
    there.install_session(key, folder)
    (session,) = there.sessions()
    assert session.path == tmp_path / f"there/.codex/sessions/2026/11/15/{session.path.name}"
    assert stat.S_IMODE(session.path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "there/.codex").stat().st_mode) == 0o700
    again = exported(there, key, tmp_path / "again")
    assert {file.name: file.read_bytes() for file in again.rglob("*.jsonl")} == {
        file.name: file.read_bytes() for file in folder.rglob("*.jsonl")
    }
    assert there.find(child) == child


def test_what_is_there_of_the_same_key_is_kept_aside(tmp_path: Path) -> None:
    key, path = keep(tmp_path, "rollout-tools.jsonl")
    codex = at_home(tmp_path)
    folder = exported(codex, key, tmp_path / "folder")
    grow(path, "only here")
    old = path.read_bytes()
    codex.install_session(key, folder)
    (aside,) = path.parent.glob("*.kept")
    assert aside.read_bytes() == old
    assert path.read_bytes() == kept(folder)
    codex.install_session(key, folder)
    assert len(list(path.parent.glob("*.kept"))) == 1
    assert [session.key for session in codex.sessions()] == [key]


def test_a_packed_one_that_is_there_gives_way_and_is_kept_aside(tmp_path: Path) -> None:
    key, path = keep(tmp_path, "rollout-tools.jsonl")
    codex = at_home(tmp_path)
    folder = exported(codex, key, tmp_path / "folder")
    packed = path.with_name(path.name + ".zst")
    packed.write_bytes(zstandard.compress(path.read_bytes()[:-1] + b"\n" + rollout_line("event_msg", {})))
    path.unlink()
    codex.install_session(key, folder)
    assert path.read_bytes() == kept(folder)
    assert [file.name.endswith(".kept") for file in sorted(path.parent.iterdir())] == [False, True]


def test_a_session_can_be_put_in_place_under_another_key(tmp_path: Path) -> None:
    key, _ = keep(tmp_path, "rollout-tools.jsonl")
    codex = at_home(tmp_path)
    folder = exported(codex, key, tmp_path / "folder")
    codex.install_session(OTHER_KEY, folder)
    assert codex.standing(OTHER_KEY, folder) == "same"
    assert sorted(session.key for session in codex.sessions()) == sorted([key, OTHER_KEY])
    again = codex.read(exported(codex, OTHER_KEY, tmp_path / "again"))
    assert again.messages == codex.read(folder).messages
    assert kept(tmp_path / "again").count(key.encode()) == 0


def test_a_session_with_a_damaged_line_travels_and_only_reading_it_tells_of_the_line(tmp_path: Path) -> None:
    key, path = keep(tmp_path, "rollout-tools.jsonl")
    rows = path.read_bytes().splitlines(keepends=True)
    rows[5] = b"\xff" + rows[5]
    path.write_bytes(b"".join(rows))
    codex, other = at_home(tmp_path), at_home(tmp_path / "there")
    folder = exported(codex, key, tmp_path / "folder")
    assert (codex.standing(key, folder), other.standing(key, folder)) == ("same", "absent")
    other.install_session(key, folder)
    assert other.standing(key, folder) == "same"
    with pytest.raises(Corrupt, match=r"rollout\.jsonl, line 6 is damaged"):
        other.read(folder)


@pytest.mark.attack
def test_a_link_in_a_folder_is_not_followed(tmp_path: Path) -> None:
    key, path = keep(tmp_path, "rollout-tools.jsonl")
    child, agent = keep(tmp_path, "rollout-agent.jsonl")
    folder = exported(at_home(tmp_path), key, tmp_path / "folder")
    (folder / "agents" / f"{child}.jsonl").unlink()
    (folder / "agents" / f"{child}.jsonl").symlink_to(agent)
    there = at_home(tmp_path / "there")
    there.install_session(key, folder)
    assert there.find(child) is None
    (folder / "rollout.jsonl").unlink()
    (folder / "rollout.jsonl").symlink_to(path)
    with pytest.raises(Corrupt, match="holds no session of Codex"):
        there.install_session(key, folder)


def test_a_folder_of_something_else_is_not_put_in_place(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(Corrupt, match="holds no session of Codex"):
        at_home(tmp_path).install_session(OTHER_KEY, tmp_path / "folder")


def test_a_session_is_found_by_key_beginning_name_and_path(tmp_path: Path) -> None:
    key, path = keep(tmp_path, "rollout-tools.jsonl")
    other, _ = keep(tmp_path, "rollout-compacted.jsonl")
    (tmp_path / ".codex/session_index.jsonl").write_text(f'{{"id":"{other}","thread_name":"the short one"}}\n')
    codex = at_home(tmp_path)
    assert [codex.find(meant) for meant in (key, key[:10], key[:10].upper(), str(path))] == [key] * 4
    assert codex.find("the short one") == other
    assert codex.find("ffff") is None
    assert codex.find(f"~/{path.relative_to(tmp_path)}") == key
    assert codex.find(os.path.relpath(path, codex.place.cwd)) == key
    assert codex.find(str(tmp_path / "absent.jsonl")) is None
    with pytest.raises(InvalidInput, match="may mean 2 sessions"):
        codex.find(key[:3])
    with pytest.raises(InvalidInput, match="no session is given"):
        codex.find(" ")


def test_a_path_that_codex_does_not_look_at_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="but is not in"):
        at_home(tmp_path).find(str(FIXTURES / "rollout-tools.jsonl"))
    (tmp_path / "notes.jsonl").write_text("{}\n")
    with pytest.raises(Corrupt, match="is not a session of Codex"):
        at_home(tmp_path).find(str(tmp_path / "notes.jsonl"))


def test_sessions_are_listed_newest_first_without_sub_agents(tmp_path: Path) -> None:
    key, path = keep(tmp_path, "rollout-tools.jsonl")
    other, older = keep(tmp_path, "rollout-compacted.jsonl")
    keep(tmp_path, "rollout-agent.jsonl")
    os.utime(older, (1000, 1000))
    newest, last = at_home(tmp_path).sessions()
    assert (newest.key, newest.path, newest.size) == (key, path, path.stat().st_size)
    assert (newest.title, newest.exchanges, newest.cwd) == ("Look around, then patch.", 2, "/home/user/project")
    assert newest.created_at is not None
    assert newest.updated_at is not None
    assert (last.key, last.title, last.exchanges) == (other, "one", 2)


def test_of_a_long_session_only_the_ends_are_read(tmp_path: Path) -> None:
    """It is longer than any memory: a hole, for the most part."""
    key, path = keep(tmp_path, "rollout-tools.jsonl")
    with path.open("ab") as file:
        file.truncate(2**40)
    archived = tmp_path / ".codex/archived_sessions"
    archived.mkdir()
    path.rename(archived / path.name)
    (session,) = at_home(tmp_path).sessions()
    assert (session.key, session.title, session.exchanges) == (key, "Look around, then patch.", None)


def test_a_packed_rollout_that_is_damaged_hides_no_other_session(tmp_path: Path) -> None:
    key, path = keep(tmp_path, "rollout-tools.jsonl")
    damaged = path.with_name(path.name.replace(key, OTHER_KEY) + ".zst")
    for data in (b"", b"not packed", zstandard.compress(path.read_bytes())[:-20]):
        damaged.write_bytes(data)
        assert {session.key for session in at_home(tmp_path).sessions()} == {key, OTHER_KEY}
        with path.open("ab") as rollout:
            rollout.write(rollout_line("event_msg", {"names": OTHER_KEY}))
        assert at_home(tmp_path).export(key, tmp_path / "folder")
        assert at_home(tmp_path).check(Program(Path("/opt/codex"), "0.166.0")).limited_until is None


def test_a_home_without_codex_has_no_sessions(tmp_path: Path) -> None:
    assert list(at_home(tmp_path).sessions()) == []
    assert at_home(tmp_path).find("01a1") is None


def packed(path: Path, tail: bytes, times: int) -> Path:
    """Replace a rollout by a compressed one that goes on with `tail`, so many times. The parts are frames of their own."""
    target = path.with_name(path.name + ".zst")
    one = zstandard.compress(tail * (2**20 // len(tail)))
    target.write_bytes(zstandard.compress(path.read_bytes()) + one * times)
    path.unlink()
    return target


@contextmanager
def memory(most: int) -> Iterator[None]:
    """Fail if the block takes more than `most` bytes at any moment."""
    gc.collect()
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= most
    finally:
        tracemalloc.stop()


@pytest.mark.attack
def test_a_packed_rollout_of_a_few_kilobytes_that_unpacks_to_gigabytes_costs_little_and_is_refused(
    tmp_path: Path,
) -> None:
    key, path = keep(tmp_path, "rollout-tools.jsonl")
    bomb = packed(path, b"x", 2048)
    assert bomb.stat().st_size < 200_000
    codex = at_home(tmp_path)
    with memory(64 * 2**20):
        (session,) = codex.sessions()
        assert (session.key, session.title, session.exchanges) == (key, "Look around, then patch.", None)
        with pytest.raises(Corrupt, match=r"unpacks to more than 40 times its size.*zstd -d --rm"):
            codex.export(key, tmp_path / "folder")
        with pytest.raises(Corrupt, match="unpacks to more than 40 times"):
            Meter(tmp_path / ".codex", key)


@pytest.mark.attack
def test_a_packed_rollout_of_millions_of_short_lines_takes_a_few_times_what_it_unpacks_to(tmp_path: Path) -> None:
    key, path = keep(tmp_path, "rollout-tools.jsonl")
    packed(path, b"{}\n", 1)
    codex = at_home(tmp_path)
    with memory(8 * 2**20):
        folder = exported(codex, key, tmp_path / "folder")
        assert len(codex.read(folder).messages) > 2
        Meter(tmp_path / ".codex", key)


@pytest.mark.attack
def test_the_first_line_of_a_rollout_is_looked_for_only_so_far(tmp_path: Path) -> None:
    _, path = keep(tmp_path, "rollout-tools.jsonl")
    path.write_bytes(b"[" * 40 * 2**20)
    with memory(24 * 2**20), pytest.raises(Corrupt, match="is not a session of Codex"):
        meta_of(path)


def test_an_index_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "session_index.jsonl")
    assert names(tmp_path) == {}
