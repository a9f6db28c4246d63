"""Tools that read and write the files of the workspace, and nothing outside it."""

from __future__ import annotations

import difflib
import io
import os
import stat
import threading
from collections.abc import Iterator
from typing import Annotated

from clew.tools._inside import Place, locate, read_bytes, write_bytes
from clew.tools.context import ToolContext
from clew.tools.declaring import tool
from clew.tools.signals import ToolError

__all__ = ["edit_file", "list_files", "read_file", "write_file"]

LARGEST_FILE = 16 * 2**20
MOST_CHARACTERS = 60_000
MOST_LINES = 2000
MOST_FILES = 1000
_SEEN_AT_MOST = 200_000
_one_writer = threading.Lock()
"""Calls of one turn run side by side: two edits of one file must not lose one of them."""


@tool(effect="none", needs_workspace=True)
def read_file(
    path: Annotated[str, "The file, relative to the workspace."],
    ctx: ToolContext,
    start_line: Annotated[int, "The first line to read; the file's first is 1."] = 1,
    end_line: Annotated[int | None, "The last line to read. Left out: as many as fit."] = None,
) -> str:
    """Read a text file of the workspace, whole or some of its lines. A note at the end says if there is more."""
    if start_line < 1 or (end_line is not None and end_line < start_line):
        raise ToolError(
            f"Lines {start_line} to {end_line} are no range: the first line is 1, and end_line is not before."
        )
    place = locate(ctx, path)
    lines = _lines(_text(place, read_bytes(place, LARGEST_FILE)[0]))
    if start_line > max(1, len(lines)):
        raise ToolError(f"{str(place)!r} has {len(lines)} lines, so there is no line {start_line}.")
    wanted = lines[start_line - 1 : end_line][:MOST_LINES]
    taken, size = list[str](), 0
    for line in wanted:
        if taken and size + len(line) > MOST_CHARACTERS:
            break
        taken.append(line if len(line) <= MOST_CHARACTERS else line[:MOST_CHARACTERS] + "[the line is cut here]\n")
        size += len(line)
    last = start_line - 1 + len(taken)
    asked_for = len(lines) if end_line is None else min(end_line, len(lines))
    text = "".join(taken)
    if last < asked_for:
        text += f"\n[lines {start_line} to {last} of {len(lines)}; go on with start_line={last + 1}]"
    return text or "[the file is empty]"


@tool(effect="idempotent", needs_workspace=True)
def write_file(
    path: Annotated[str, "The file, relative to the workspace. Folders are made as needed."],
    content: Annotated[str, "The whole content."],
    ctx: ToolContext,
) -> str:
    """Write a text file of the workspace: a new one, or in place of the one that is there."""
    place, data = locate(ctx, path), _bytes(content)
    with _one_writer:
        existing, mode = _existing(place)
        if existing == data:
            return f"{place} has this content already."
        write_bytes(place, data, mode)
    return f"{'Wrote' if existing is None else 'Replaced'} {place}: {len(data)} bytes."


@tool(effect="idempotent", needs_workspace=True)
def edit_file(
    path: Annotated[str, "The file, relative to the workspace."],
    old_text: Annotated[str, "The text to replace, exactly as in the file. It must be there once."],
    new_text: Annotated[str, "The text to put in its place."],
    ctx: ToolContext,
) -> str:
    """Replace one piece of text in a file of the workspace. Include enough of what surrounds it to make it unique."""
    if not old_text or old_text == new_text:
        raise ToolError(
            "old_text must not be empty, and new_text must differ from it. To write a whole file, use write_file."
        )
    place = locate(ctx, path)
    with _one_writer:
        data, mode = read_bytes(place, LARGEST_FILE)
        text = _text(place, data)
        if "\r\n" in text and "\r\n" not in old_text and old_text not in text:
            old_text, new_text = old_text.replace("\n", "\r\n"), new_text.replace("\n", "\r\n")
        if _is_edited(text, old_text, new_text):
            if new_text or ctx.attempt > 1:
                return (
                    f"{place} is edited already: the old text is not there, and the new text is. Nothing was changed."
                )
            raise ToolError(_not_found(place, text, old_text))
        found = text.count(old_text)
        if found == 0:
            raise ToolError(_not_found(place, text, old_text))
        if found > 1:
            where = ", ".join(str(line) for line in _lines_of(text, old_text))
            raise ToolError(
                f"old_text is in {place} {found} times, at the lines {where}. Include more of what surrounds it."
            )
        edited = text.replace(old_text, new_text)
        if not _is_edited(edited, old_text, new_text):
            raise ToolError(
                "After this edit old_text would still be there. Include more of what surrounds it in both texts."
            )
        write_bytes(place, _bytes(edited), mode)
    line = text.count("\n", 0, text.index(old_text)) + 1
    return f"Edited {place} at line {line}."


@tool(effect="none", needs_workspace=True)
def list_files(
    ctx: ToolContext,
    pattern: Annotated[
        str, "As in .gitignore: '*.py' is at any depth, 'src/*.py' only there, 'src/**' all below."
    ] = "*",
    path: Annotated[str, "The folder to look in, relative to the workspace."] = ".",
) -> str:
    """List the files of the workspace, one path a line, with those in subfolders. What is in .git is left out."""
    from pathspec import GitIgnoreSpec

    place = locate(ctx, path)
    if not place.path.is_dir():
        raise ToolError(f"{path!r} is not a folder of the workspace.")
    try:
        matches = GitIgnoreSpec.from_lines([pattern]).match_file
    except ValueError as error:
        raise ToolError(f"{pattern!r} is no pattern: {error}") from error
    found, more = list[str](), 0
    for seen, name in enumerate(_walk(place)):
        if seen >= _SEEN_AT_MOST:
            return "\n".join([*found, f"[there are too many files to look at; give a path= below {place}]"])
        if matches(name[len(str(place)) + 1 :] if place.parts else name):
            found.append(name)
            more += len(found) > MOST_FILES
            del found[MOST_FILES:]
    if more:
        found.append(f"[and {more} more; narrow the pattern or give a path]")
    return "\n".join(found).encode("utf-8", "replace").decode() or f"[no file in {place} matches {pattern!r}]"


def _walk(place: Place) -> Iterator[str]:
    """Paths relative to the workspace, in order. Links are named and not followed."""
    for folder, folders, files in os.walk(place.path):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = sorted(name for name in folders if name != ".git" and name not in links)
        above = os.path.relpath(folder, place.root)
        for name in sorted([*files, *links]):
            whole = name if above == "." else f"{above}/{name}"
            yield whole.replace(os.sep, "/")


def _existing(place: Place) -> tuple[bytes | None, int | None]:
    """What is there now, and its mode; of a file too large to compare, only the mode."""
    try:
        facts = os.lstat(place.path)
    except OSError:
        return None, None
    if stat.S_ISDIR(facts.st_mode):
        return None, None
    if facts.st_size > LARGEST_FILE:
        return b"", stat.S_IMODE(facts.st_mode)
    return read_bytes(place, LARGEST_FILE)


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ToolError("The text holds half a surrogate pair, which no file can.") from error


def _text(place: Place, data: bytes) -> str:
    if b"\0" not in data[:8192]:
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
    raise ToolError(
        f"{str(place)!r} is not a text in UTF-8 but binary ({len(data)} bytes). Use a command to look into it."
    )


def _is_edited(text: str, old: str, new: str) -> bool:
    """Whether this may be what the edit leaves behind: the new text is there, and the old one nowhere but inside it.

    It is true of everything that `edit_file` writes, which is why it may run again.
    """
    if new not in text:
        return False
    covered, start = list[tuple[int, int]](), text.find(new) if old in new else -1
    while start >= 0:
        covered.append((start, start + len(new)))
        start = text.find(new, start + 1)
    place = text.find(old)
    while place >= 0:
        if not any(begin <= place and place + len(old) <= end for begin, end in covered):
            return False
        place = text.find(old, place + 1)
    return True


def _lines(text: str) -> list[str]:
    """As editors and compilers count them: str.splitlines knows eight more ends of a line."""
    return io.StringIO(text, newline="\n").readlines()


def _lines_of(text: str, part: str) -> Iterator[int]:
    place = text.find(part)
    while place >= 0:
        yield text.count("\n", 0, place) + 1
        place = text.find(part, place + len(part))


def _not_found(place: Place, text: str, old: str) -> str:
    """Where what was meant probably is: the same but for its spaces, or the line most like the first one."""
    lines = [line.rstrip("\r\n") for line in _lines(text)]
    wanted = [line.split() for line in old.strip("\r\n").splitlines()] or [[]]
    message = f"old_text is not in {place}."
    for number in range(len(lines) - len(wanted) + 1):
        if wanted != [[]] and [line.split() for line in lines[number : number + len(wanted)]] == wanted:
            there = "\n".join(lines[number : number + len(wanted)])
            return f"{message} With other spaces it is at line {number + 1}:\n{there}"
    first = next((line.strip() for line in old.splitlines() if line.strip()), "")
    close = (
        difflib.get_close_matches(first, [line.strip() for line in lines[:20_000]], 1, 0.6) if len(first) < 500 else []
    )
    if not close:
        return f"{message} Read the file again, and copy the text as it is."
    number = next(number for number, line in enumerate(lines, 1) if line.strip() == close[0])
    return f"{message} The line most like its first is line {number}:\n{lines[number - 1]}"
