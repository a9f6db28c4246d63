"""Sessions that travel: out of a home, into a folder, into another home."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from clew.errors import Corrupt, InvalidInput
from clew.providers.claude_code import ClaudeCode
from tests.providers.claude_code.homes import keep, key_of, machine, project, tree

KEY = key_of("sub-agent")
OTHER = "00000000-0000-4000-8000-000000000000"


def exported(claude: ClaudeCode, tmp_path: Path, key: str = KEY) -> Path:
    assert claude.export(key, tmp_path / "folder")
    return tmp_path / "folder"


def test_a_session_leaves_with_its_sub_agents_outputs_and_tasks_under_names_of_no_machine(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "sub-agent")
    (path.with_suffix("") / "tool-results").mkdir()
    (path.with_suffix("") / "tool-results" / "b1.txt").write_text("long")
    tasks = claude.place.home / ".claude" / "tasks" / KEY
    tasks.mkdir(parents=True)
    (tasks / "1.json").write_text("{}")
    (tasks / ".lock").write_text("")

    found = tree(exported(claude, tmp_path))

    assert found["session.jsonl"] == path.read_bytes()
    assert set(found) == {
        "session.jsonl",
        "session/subagents/agent-a5a172e6b6e0daf17.jsonl",
        "session/subagents/agent-a5a172e6b6e0daf17.meta.json",
        "session/tool-results/b1.txt",
        "tasks/1.json",
    }


def test_outputs_that_a_turn_in_another_folder_left_in_its_project_come_too(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    keep(claude, "sub-agent")
    outputs = project(claude, "-home-user-other") / KEY / "tool-results"
    outputs.mkdir(parents=True)
    (outputs / "b2.txt").write_text("long")
    folder = exported(claude, tmp_path)
    assert (folder / "session" / "tool-results" / "b2.txt").read_text() == "long"
    assert claude.standing(KEY, folder) == "same"


def test_a_session_that_is_not_here_is_not_exported(tmp_path: Path) -> None:
    assert machine(tmp_path).export(KEY, tmp_path / "folder") is False
    assert not (tmp_path / "folder").exists()


def test_a_torn_end_stays_behind_and_the_file_is_not_touched(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "sub-agent")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"type":"assis')
    assert (exported(claude, tmp_path) / "session.jsonl").read_bytes() == whole
    assert path.read_bytes() == whole + b'{"type":"assis'


def test_a_last_row_that_lacks_its_line_end_alone_is_whole(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "sub-agent")
    whole = path.read_bytes()
    path.write_bytes(whole.removesuffix(b"\n"))
    assert (exported(claude, tmp_path) / "session.jsonl").read_bytes() == whole


def test_a_torn_row_that_became_a_line_travels_on_and_a_copy_from_before_is_a_beginning_of_it(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "sub-agent")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"type":"assis')
    before = exported(claude, tmp_path)
    path.write_bytes(whole + b'{"type":"assis\n{"type":"mode"}\n')
    assert claude.standing(KEY, before) == "ahead"
    assert claude.export(KEY, tmp_path / "after")
    assert (tmp_path / "after" / "session.jsonl").read_bytes() == path.read_bytes()
    path.write_bytes(whole + b'{"type":"assis')
    assert claude.standing(KEY, tmp_path / "after") == "behind"
    assert claude.read(tmp_path / "after").messages == claude.read(before).messages


def test_a_session_with_a_damaged_row_travels_and_only_reading_it_tells_of_the_line(tmp_path: Path) -> None:
    old, new = machine(tmp_path / "old"), machine(tmp_path / "new")
    path = keep(old, "sub-agent")
    lines = path.read_bytes().splitlines(keepends=True)
    number = next(at for at, line in enumerate(lines) if b'"type":"assistant"' in line)
    lines[number] = b"\xff" + lines[number]
    path.write_bytes(b"".join(lines))
    folder = exported(old, tmp_path)
    assert (old.standing(KEY, folder), new.standing(KEY, folder)) == ("same", "absent")
    new.install_session(KEY, folder)
    assert new.standing(KEY, folder) == "same"
    with pytest.raises(Corrupt, match=rf"session\.jsonl, line {number + 1} is damaged"):
        new.read(folder)


@pytest.mark.attack
def test_a_link_in_a_folder_is_not_followed(tmp_path: Path) -> None:
    old, new = machine(tmp_path / "old"), machine(tmp_path / "new")
    path = keep(old, "sub-agent")
    folder = exported(old, tmp_path)
    (folder / "session" / "stolen.txt").symlink_to(path)
    new.install_session(KEY, folder)
    assert not list(new.place.home.rglob("stolen.txt"))
    (folder / "session.jsonl").unlink()
    (folder / "session.jsonl").symlink_to(path)
    with pytest.raises(Corrupt, match="no session of Claude Code"):
        new.install_session(KEY, folder)


def test_what_has_not_changed_is_not_copied_again(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "sub-agent")
    folder = exported(claude, tmp_path)
    before = {name: (folder / name).stat().st_ino for name in tree(folder)}
    with path.open("ab") as file:
        file.write(b'{"type":"mode"}\n')
    exported(claude, tmp_path)
    changed = {name for name, inode in before.items() if (folder / name).stat().st_ino != inode}
    assert changed == {"session.jsonl"}
    assert (folder / "session.jsonl").read_bytes() == path.read_bytes()


def test_what_is_gone_leaves_the_folder_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "sub-agent")
    folder = exported(claude, tmp_path)
    (folder / "notes.txt").write_text("mine")
    (path.with_suffix("") / "subagents" / "agent-a5a172e6b6e0daf17.meta.json").unlink()
    exported(claude, tmp_path)
    assert set(tree(folder)) == {
        "session.jsonl",
        "session/subagents/agent-a5a172e6b6e0daf17.jsonl",
        "notes.txt",
    }


def test_a_session_arrives_in_the_project_of_the_folder_it_is_to_go_on_in(tmp_path: Path) -> None:
    old = machine(tmp_path / "old")
    keep(old, "sub-agent")
    folder = exported(old, tmp_path)

    new = machine(tmp_path / "new")
    assert new.standing(KEY, folder) == "absent"
    new.install_session(KEY, folder)

    assert new.standing(KEY, folder) == "same"
    (path,) = (new.place.home / ".claude" / "projects").glob(f"*/{KEY}.jsonl")
    assert path.parent.name == "".join(c if c.isalnum() else "-" for c in str(new.place.cwd.resolve()))
    assert set(tree(path.with_suffix(""))) == set(tree(folder / "session"))


def test_what_arrives_is_for_its_owner_alone(tmp_path: Path) -> None:
    old, new = machine(tmp_path / "old"), machine(tmp_path / "new")
    keep(old, "sub-agent")
    new.install_session(KEY, exported(old, tmp_path))
    for path in (new.place.home / ".claude").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_session_comes_where_the_configuration_says(tmp_path: Path) -> None:
    old = machine(tmp_path / "old")
    keep(old, "sub-agent")
    new = machine(tmp_path / "new", CLAUDE_CONFIG_DIR=str(tmp_path / "elsewhere"))
    new.install_session(KEY, exported(old, tmp_path))
    assert list((tmp_path / "elsewhere" / "projects").glob(f"*/{KEY}.jsonl"))
    assert not list(new.place.home.iterdir())


def test_a_session_under_another_key_says_so_in_all_its_rows_and_stands_beside_the_one_it_was_taken_from(
    tmp_path: Path,
) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "sub-agent")
    before = path.read_bytes()
    folder = exported(claude, tmp_path)
    claude.install_session(OTHER, folder)
    assert (claude.standing(OTHER, folder), claude.standing(KEY, folder)) == ("same", "same")
    assert path.read_bytes() == before
    assert claude.export(OTHER, tmp_path / "copy")
    assert not any(f'"sessionId":"{KEY}"'.encode() in data for data in tree(tmp_path / "copy").values())
    assert claude.read(tmp_path / "copy").messages == claude.read(folder).messages


def test_a_session_under_another_key_that_went_on_is_ahead_of_the_one_it_was_taken_from(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    keep(claude, "sub-agent")
    folder = exported(claude, tmp_path)
    claude.install_session(OTHER, folder)
    (copy,) = project(claude).parent.glob(f"*/{OTHER}.jsonl")
    copy.write_bytes(copy.read_bytes() + b'{"type":"mode"}\n')
    assert claude.standing(OTHER, folder) == "ahead"


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (lambda whole: whole, "same"),
        (lambda whole: whole + b'{"type":"to', "same"),
        (lambda whole: whole[: whole.rindex(b"\n", 0, -1) + 1], "behind"),
        (lambda whole: whole + b'{"type":"mode"}\n', "ahead"),
        (lambda whole: whole.replace(b"MAINPROMPT", b"OTHERWORDS"), "apart"),
    ],
)
def test_how_a_session_stands_to_a_kept_one_is_told_by_its_bytes(tmp_path: Path, here: object, expected: str) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "sub-agent")
    folder = exported(claude, tmp_path)
    assert callable(here)
    path.write_bytes(here(path.read_bytes()))
    assert claude.standing(KEY, folder) == expected


def test_a_sub_agents_rows_that_are_not_here_leave_a_session_behind(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "sub-agent")
    folder = exported(claude, tmp_path)
    (path.with_suffix("") / "subagents" / "agent-a5a172e6b6e0daf17.jsonl").unlink()
    assert claude.standing(KEY, folder) == "behind"


def test_a_session_that_is_behind_is_brought_up_to_date_where_it_is(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "sub-agent")
    folder = exported(claude, tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])
    claude.install_session(KEY, folder)
    assert path.read_bytes() == whole
    assert list(project(claude).parent.glob("*/*.jsonl*")) == [path]


@pytest.mark.parametrize("more", [b'{"type":"mode"}\n', None])
def test_a_session_that_the_folder_does_not_contain_is_kept_aside(tmp_path: Path, more: bytes | None) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "sub-agent")
    folder = exported(claude, tmp_path)
    changed = path.read_bytes() + more if more else path.read_bytes().replace(b"MAINPROMPT", b"OTHERWORDS")
    path.write_bytes(changed)

    claude.install_session(KEY, folder)

    assert claude.standing(KEY, folder) == "same"
    assert not path.exists()
    assert path.with_name(f"{KEY}.jsonl.aside-1").read_bytes() == changed
    assert path.with_name(f"{KEY}.aside-1").is_dir()


def test_what_is_aside_already_is_not_overwritten(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "sub-agent")
    folder = exported(claude, tmp_path)
    path.with_name(f"{KEY}.jsonl.aside-1").write_text("first")
    path.write_bytes(path.read_bytes() + b'{"type":"mode"}\n')
    claude.install_session(KEY, folder)
    assert path.with_name(f"{KEY}.jsonl.aside-1").read_text() == "first"
    assert path.with_name(f"{KEY}.jsonl.aside-2").exists()


def test_a_folder_of_something_else_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(Corrupt, match="no session of Claude Code"):
        machine(tmp_path).install_session(KEY, tmp_path / "folder")


def test_a_session_is_found_by_its_key_the_beginning_of_it_and_its_path(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "sub-agent")
    relative = os.path.relpath(path, claude.place.cwd)
    home = f"~/{path.relative_to(claude.place.home)}"
    for session in (KEY, KEY[:8], KEY[:4], str(path), relative, home):
        assert claude.find(session) == KEY
    for session in (OTHER, "abcd", "no such", "", str(path.with_name(f"{OTHER}.jsonl"))):
        assert claude.find(session) is None


def test_the_beginning_of_several_keys_is_refused(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "sub-agent")
    path.with_name(f"{KEY[:-4]}0000.jsonl").write_bytes(path.read_bytes())
    with pytest.raises(InvalidInput, match="the beginning of 2 session ids"):
        claude.find(KEY[:8])


def test_a_path_outside_of_the_projects_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / f"{KEY}.jsonl").write_text("{}\n")
    with pytest.raises(InvalidInput, match="CLAUDE_CONFIG_DIR"):
        machine(tmp_path).find(str(tmp_path / f"{KEY}.jsonl"))


def test_of_one_key_in_two_projects_the_one_written_last_counts(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    old, new = keep(claude, "sub-agent", "-a"), keep(claude, "sub-agent", "-b")
    new.write_bytes(new.read_bytes() + b'{"type":"mode"}\n')
    os.utime(old, (1, 1))
    assert (exported(claude, tmp_path) / "session.jsonl").read_bytes() == new.read_bytes()
