"""The file tools: what they do, and that nothing leads them out of the workspace."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.tools import ToolContext, ToolError, edit_file, list_files, read_file, write_file
from clew.tools.builtin import files as files_module
from clew.tools.builtin.files import locate, write_bytes
from clew.workspace.folders import TEMPORARY


@pytest.fixture
def ctx(tmp_path: Path) -> ToolContext:
    (tmp_path / "ws").mkdir()
    (tmp_path / "secret").write_text("secret")
    return ToolContext(workspace=tmp_path / "ws")


def home(ctx: ToolContext) -> Path:
    assert ctx.workspace is not None
    return ctx.workspace


def put(ctx: ToolContext, path: str, content: str | bytes) -> Path:
    place = home(ctx) / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content.encode() if isinstance(content, str) else content)
    return place


def uses(ctx: ToolContext, path: str) -> list[Callable[[], Any]]:
    return [
        lambda: read_file(path, ctx),
        lambda: write_file(path, "new", ctx),
        lambda: edit_file(path, "secret", "new", ctx),
        lambda: list_files(ctx, path=path),
    ]


@pytest.mark.parametrize("path", ["../secret", "a/../../secret", "/etc/passwd", "a\0b", "", "..", "/"])
def test_a_path_that_leads_outside_is_refused(ctx: ToolContext, path: str) -> None:
    for use in uses(ctx, path):
        with pytest.raises(ToolError):
            use()
    assert (home(ctx).parent / "secret").read_text() == "secret"


def test_a_link_that_leads_outside_is_refused(ctx: ToolContext) -> None:
    (home(ctx) / "file").symlink_to(home(ctx).parent / "secret")
    (home(ctx) / "folder").symlink_to(home(ctx).parent)
    (home(ctx) / "new").symlink_to(home(ctx).parent / "new")
    for path in ("file", "folder/secret", "folder/other", "folder", "new"):
        for use in uses(ctx, path):
            with pytest.raises(ToolError, match=r"leads out|no file"):
                use()
    assert sorted(each.name for each in home(ctx).parent.iterdir()) == ["secret", "ws"]


def test_a_link_put_there_after_the_check_leads_nowhere(ctx: ToolContext) -> None:
    (home(ctx) / "folder").mkdir()
    file, inner = locate(ctx, "file"), locate(ctx, "folder/file")
    (home(ctx) / "folder").rmdir()
    (home(ctx) / "folder").symlink_to(home(ctx).parent)
    (home(ctx) / "file").symlink_to(home(ctx).parent / "secret")
    write_bytes(file, b"mine", None)
    with pytest.raises(ToolError):
        write_bytes(inner, b"x", None)
    assert (home(ctx) / "file").read_text() == "mine"
    assert (home(ctx).parent / "secret").read_text() == "secret"
    assert not (home(ctx).parent / "file").exists()


def test_links_and_absolute_paths_inside_are_followed(ctx: ToolContext) -> None:
    place = put(ctx, "a/file", "words")
    (home(ctx) / "link").symlink_to("a/file")
    assert read_file("link", ctx) == read_file(str(place), ctx) == "words"
    write_file("link", "other", ctx)
    assert (home(ctx) / "link").is_symlink()
    assert place.read_text() == "other"


def test_without_a_workspace_there_are_no_files() -> None:
    with pytest.raises(ToolError, match="no workspace"):
        read_file("a", ToolContext())


def test_errors_do_not_tell_where_the_workspace_is(ctx: ToolContext) -> None:
    with pytest.raises(ToolError) as raised:
        read_file("a/b", ctx)
    assert str(raised.value) == "There is no file 'a/b' in the workspace. list_files shows what is there."


def test_lines_are_read_as_they_are(ctx: ToolContext) -> None:
    put(ctx, "f", "one\r\ntwo\u2028two\nthree")
    assert read_file("f", ctx) == "one\r\ntwo\u2028two\nthree"
    assert read_file("f", ctx, 2, 2) == "two\u2028two\n"
    assert read_file("f", ctx, 2) == "two\u2028two\nthree"
    assert read_file("f", ctx, 3, 99) == "three"
    put(ctx, "empty", "")
    assert read_file("empty", ctx) == "[the file is empty]"


@pytest.mark.parametrize(("start", "end"), [(0, None), (-1, 5), (3, 2), (9, None)])
def test_a_range_that_is_none_is_refused(ctx: ToolContext, start: int, end: int | None) -> None:
    put(ctx, "f", "1\n2\n3\n")
    with pytest.raises(ToolError):
        read_file("f", ctx, start, end)


def test_a_long_file_is_read_in_parts(ctx: ToolContext) -> None:
    put(ctx, "f", "".join(f"{number}\n" for number in range(1, 5001)))
    text = read_file("f", ctx)
    assert text.endswith("2000\n\n[lines 1 to 2000 of 5000; go on with start_line=2001]")
    assert read_file("f", ctx, 4001).endswith("5000\n")
    assert "[lines" not in read_file("f", ctx, 10, 20)


def test_a_long_line_is_cut(ctx: ToolContext) -> None:
    put(ctx, "f", "x" * 200_000 + "\nend\n")
    text = read_file("f", ctx)
    assert len(text) < 61_000
    assert "the line is cut here" in text
    assert text.endswith("start_line=2]")


@pytest.mark.parametrize("data", [b"a\0b", b"\xff\xfe", "ä".encode("latin-1")])
def test_a_binary_file_is_refused(ctx: ToolContext, data: bytes) -> None:
    put(ctx, "f", data)
    with pytest.raises(ToolError, match="binary"):
        read_file("f", ctx)
    with pytest.raises(ToolError, match="binary"):
        edit_file("f", "a", "b", ctx)


def test_a_file_that_is_too_large_is_refused(ctx: ToolContext) -> None:
    with (home(ctx) / "f").open("wb") as file:
        file.truncate(files_module.LARGEST_FILE + 1)
    with pytest.raises(ToolError, match="more than the"):
        read_file("f", ctx)
    assert write_file("f", "small", ctx) == "Replaced f: 5 bytes."


def test_what_is_no_regular_file_is_refused_and_does_not_block(ctx: ToolContext) -> None:
    os.mkfifo(home(ctx) / "pipe")
    (home(ctx) / "folder").mkdir()
    for path in ("pipe", "folder", "."):
        for use in uses(ctx, path)[:3]:
            with pytest.raises(ToolError, match=r"regular|folder"):
                use()


def test_writing_makes_folders_keeps_modes_and_leaves_no_traces(ctx: ToolContext) -> None:
    assert write_file("a/b/c.sh", "echo ä", ctx) == "Wrote a/b/c.sh: 7 bytes."
    place = home(ctx) / "a/b/c.sh"
    place.chmod(0o750)
    before = place.stat()
    assert "already" in write_file("a/b/c.sh", "echo ä", ctx)
    assert place.stat().st_mtime_ns == before.st_mtime_ns
    assert write_file("a/b/c.sh", "x", ctx) == "Replaced a/b/c.sh: 1 bytes."
    assert place.stat().st_mode & 0o777 == 0o750
    assert [each.name for each in place.parent.iterdir()] == ["c.sh"]


def test_a_file_in_the_middle_of_being_written_is_none_that_snapshots_take(
    ctx: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(os, "replace", lambda name, *_, **__: made.append(name))
    write_file("f", "x", ctx)
    assert TEMPORARY.fullmatch(os.fsencode(made[0]))


def test_an_edit_replaces_the_one_place(ctx: ToolContext) -> None:
    place = put(ctx, "f", "a = 1\nb = 2\n")
    assert edit_file("f", "b = 2", "b = 3", ctx) == "Edited f at line 2."
    assert place.read_text() == "a = 1\nb = 3\n"


def test_an_edit_in_a_file_with_windows_line_ends_keeps_them(ctx: ToolContext) -> None:
    place = put(ctx, "f", "a\r\nb\r\nc\r\n")
    edit_file("f", "a\nb\n", "a\nx\nb\n", ctx)
    assert place.read_bytes() == b"a\r\nx\r\nb\r\nc\r\n"
    assert "already" in edit_file("f", "a\nb\n", "a\nx\nb\n", ctx)


@pytest.mark.parametrize(
    ("text", "old", "words"),
    [
        ("a\nb\na\n", "a", ["2 times", "lines 1, 3"]),
        ("def f():\n    return 1\n", "def f():\n\treturn 1", ["With other spaces", "line 1", "    return 1"]),
        ("x = compute(1)\n", "x = compute(2)", ["most like", "line 1", "x = compute(1)"]),
        ("alpha\n", "omega: 12345", ["Read the file again"]),
        ("a", "", ["empty"]),
        ("a", "new", ["differ"]),
    ],
)
def test_an_edit_that_cannot_be_made_says_why(ctx: ToolContext, text: str, old: str, words: list[str]) -> None:
    place = put(ctx, "f", text)
    with pytest.raises(ToolError) as raised:
        edit_file("f", old, "new", ctx)
    assert all(word in str(raised.value) for word in words), str(raised.value)
    assert place.read_text() == text


def test_an_edit_run_again_says_so_and_changes_nothing(ctx: ToolContext) -> None:
    place = put(ctx, "f", "import os\n")
    for old, new in [("os", "sys"), ("sys", "sys, os"), ("import", "import import")]:
        edit_file("f", old, new, ctx)
        after = place.read_text()
        assert "already" in edit_file("f", old, new, ctx)
        assert place.read_text() == after


def test_removing_text_that_is_not_there_is_an_error_the_first_time_and_fine_again(ctx: ToolContext) -> None:
    put(ctx, "f", "a\n")
    with pytest.raises(ToolError, match="not in f"):
        edit_file("f", "bbb", "", ctx)
    assert "already" in edit_file("f", "bbb", "", ToolContext(workspace=ctx.workspace, attempt=2))


def test_an_edit_after_which_the_old_text_would_be_there_again_is_refused(ctx: ToolContext) -> None:
    place = put(ctx, "f", "aab")
    with pytest.raises(ToolError, match="still be there"):
        edit_file("f", "ab", "b", ctx)
    assert place.read_text() == "aab"


@given(text=st.text("ab\n", max_size=12), old=st.text("ab\n", min_size=1, max_size=3), new=st.text("ab\n", max_size=4))
def test_whatever_is_edited_running_it_again_changes_nothing(text: str, old: str, new: str) -> None:
    with TemporaryDirectory() as folder:
        place = Path(folder) / "f"
        place.write_bytes(text.encode())
        try:
            edit_file("f", old, new, ToolContext(workspace=Path(folder)))
        except ToolError:
            assert place.read_bytes() == text.encode()
            return
        after = place.read_bytes()
        assert "already" in edit_file("f", old, new, ToolContext(workspace=Path(folder), attempt=2))
        assert place.read_bytes() == after


def test_edits_side_by_side_are_all_made(ctx: ToolContext) -> None:
    place = put(ctx, "f", "".join(f"<{number}>\n" for number in range(20)))
    threads = [
        threading.Thread(target=edit_file, args=("f", f"<{number}>", f"[{number}]", ctx)) for number in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert place.read_text() == "".join(f"[{number}]\n" for number in range(20))


def test_files_are_listed_by_pattern(ctx: ToolContext) -> None:
    for path in ("a.py", "b.txt", "src/c.py", "src/deep/d.py", ".git/config", ".hidden"):
        put(ctx, path, "")
    (home(ctx) / "out").symlink_to(home(ctx).parent)
    assert list_files(ctx).split() == [".hidden", "a.py", "b.txt", "out", "src/c.py", "src/deep/d.py"]
    assert list_files(ctx, "*.py").split() == ["a.py", "src/c.py", "src/deep/d.py"]
    assert list_files(ctx, "src/*.py").split() == ["src/c.py"]
    assert list_files(ctx, "src/**").split() == ["src/c.py", "src/deep/d.py"]
    assert list_files(ctx, "*.py", "src/deep").split() == ["src/deep/d.py"]
    assert list_files(ctx, "*.rs") == "[no file in . matches '*.rs']"
    with pytest.raises(ToolError, match="not a folder"):
        list_files(ctx, path="a.py")


def test_a_long_list_is_cut(ctx: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "MOST_FILES", 3)
    for number in range(5):
        put(ctx, str(number), "")
    assert list_files(ctx).splitlines() == ["0", "1", "2", "[and 2 more; narrow the pattern or give a path]"]
    monkeypatch.setattr(files_module, "_SEEN_AT_MOST", 2)
    assert "too many" in list_files(ctx)
