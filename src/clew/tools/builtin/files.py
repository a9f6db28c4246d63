"""Tools that read and write files of the workspace. No path and no symbolic link leads them outside it."""

from __future__ import annotations

import difflib
import io
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Annotated

import msgspec

from clew.tools.context import ToolContext
from clew.tools.decorator import tool
from clew.tools.signals import ToolError
from clew.workspace.folders import temporary_name

__all__ = ["Place", "edit_file", "list_files", "locate", "read_bytes", "read_file", "write_bytes", "write_file"]


LARGEST_FILE = 16 * 2**20
MOST_CHARACTERS = 60_000
MOST_LINES = 2000
MOST_FILES = 1000
_SEEN_AT_MOST = 200_000
_one_writer = threading.Lock()
"""A lock that every tool holds while it writes a file. The calls of one turn run in parallel; without the lock, one of
two edits of the same file could be lost."""


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
            f"Lines {start_line} to {end_line} are not a valid range: lines count from 1, and end_line must not be "
            "before start_line."
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
        raise ToolError(f"{pattern!r} is not a valid pattern: {error}") from error
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
    """Yield the paths, relative to the workspace, of all files in the folder `place` and in its subfolders. Each
    folder's own files come first, sorted by name. Symbolic links are listed, not followed. `.git` is left out."""
    for folder, folders, files in os.walk(place.path):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = sorted(name for name in folders if name != ".git" and name not in links)
        above = os.path.relpath(folder, place.root)
        for name in sorted([*files, *links]):
            whole = name if above == "." else f"{above}/{name}"
            yield whole.replace(os.sep, "/")


def _existing(place: Place) -> tuple[bytes | None, int | None]:
    """Return the content and the mode (permission bits) of the file at this path. If there is nothing or a folder, both
    are None. If the file has more than `LARGEST_FILE` bytes, the content is returned empty."""
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
        raise ToolError("The text contains half a surrogate pair, which cannot be written to a file.") from error


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
    """Return whether the edit that replaces `old` by `new` seems to have been made in the text already: the text
    contains `new`, and `old` only inside `new`.

    This is true after every edit that `edit_file` makes. So when the tool runs again after a crash, it can tell that
    the edit is done.
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
    """Split text into lines, each with its line ending, at the same characters as editors and compilers do.
    `str.splitlines` would also split at eight other characters."""
    return io.StringIO(text, newline="\n").readlines()


def _lines_of(text: str, part: str) -> Iterator[int]:
    place = text.find(part)
    while place >= 0:
        yield text.count("\n", 0, place) + 1
        place = text.find(part, place + len(part))


def _not_found(place: Place, text: str, old: str) -> str:
    """Return a message for the model. It says that `old` is not in the file at `place`, whose content is `text`, and
    quotes what the model may have meant: a passage that differs from `old` only in spaces, or the line that is most
    similar to its first line."""
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


_BY_FD = os.open in os.supports_dir_fd
_CLOEXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | _CLOEXEC
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NO_LINK


class Place(msgspec.Struct, frozen=True):
    """A path inside a workspace, with all symbolic links resolved. `root` is the workspace, and `parts` are the names
    of the folders below it and of the file."""

    root: Path
    parts: tuple[str, ...]

    @property
    def path(self) -> Path:
        return self.root.joinpath(*self.parts)

    def __str__(self) -> str:
        return "/".join(self.parts) or "."


def locate(ctx: ToolContext, path: str) -> Place:
    """Resolve a path that the model gave. Raises `ToolError` if the path leads outside the workspace.

    Symbolic links inside the workspace are followed here and nowhere else. The functions that later open the file
    refuse links. So a link that somebody puts there after this check is not followed.
    """
    if ctx.workspace is None:
        raise ToolError("There is no workspace, so there are no files. Run the agent with workspace=…")
    wanted = PurePath(path)
    if not path or "\0" in path or ".." in wanted.parts:
        raise ToolError(f"The path {path!r} is not allowed: give one inside the workspace, without '..'.")
    root = Path(os.path.realpath(ctx.workspace))
    if wanted.is_absolute():
        homes = (root, Path(os.path.abspath(ctx.workspace)))
        home = next((home for home in homes if wanted.is_relative_to(home)), None)
        if home is None:
            raise ToolError(f"The path {path!r} is outside the workspace. Give one relative to the workspace.")
        wanted = wanted.relative_to(home)
    try:
        real = Path(os.path.realpath(root / wanted))
    except OSError as error:
        raise _explain(error, path) from error
    if not real.is_relative_to(root):
        raise ToolError(f"The path {path!r} leads out of the workspace through a symbolic link.")
    return Place(root, real.relative_to(root).parts)


def read_bytes(place: Place, largest: int) -> tuple[bytes, int]:
    """Return the content and the mode (permission bits) of a regular file. Raises `ToolError` if there is no such file
    at this path, or if it has more than `largest` bytes."""
    with _folder(place, make=False) as (fd, name):
        opened = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _NO_LINK, dir_fd=fd)
        try:
            facts = os.fstat(opened)
            if stat.S_ISDIR(facts.st_mode):
                raise ToolError(f"{str(place)!r} is a folder. list_files shows what is in it.")
            if not stat.S_ISREG(facts.st_mode):
                raise ToolError(f"{str(place)!r} is not a regular file.")
            if facts.st_size > largest:
                raise ToolError(
                    f"{str(place)!r} has {facts.st_size} bytes, more than the {largest} that this tool takes. "
                    "Use a command for it."
                )
            with os.fdopen(opened, "rb", closefd=False) as file:
                return file.read(largest + 1), stat.S_IMODE(facts.st_mode)
        finally:
            os.close(opened)


def write_bytes(place: Place, data: bytes, mode: int | None) -> None:
    """Write a file, or replace it in one step, so that a reader sees either the old content or the new. Makes missing
    folders. `mode` are the permission bits to set, if any. Raises `ToolError` if it cannot be written."""
    if not place.parts:
        raise ToolError("The workspace itself is a folder, and not a file that can be written.")
    with _folder(place, make=True) as (fd, name):
        if _is_folder(name, fd):
            raise ToolError(f"{str(place)!r} is a folder. Give the path of a file.")
        temporary = os.fsdecode(temporary_name())  # snapshots of the workspace leave out such names
        if fd is None:
            temporary = str(Path(name).parent / temporary)
        opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666, dir_fd=fd)
        try:
            with os.fdopen(opened, "wb") as file:
                file.write(data)
                if mode is not None and hasattr(os, "fchmod"):
                    os.fchmod(opened, mode)
            os.replace(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=fd)
            raise


@contextmanager
def _folder(place: Place, *, make: bool) -> Iterator[tuple[int | None, str]]:
    """Open the folder of a file, name by name from the workspace on, so that no symbolic link is followed. Yield the
    folder's descriptor and the file's name. Close the folder after the `with` block.

    With `make`, missing folders are made. An `OSError`, also one in the `with` block, becomes a `ToolError`. On systems
    where files cannot be opened relative to a descriptor, the descriptor is None and the name is the whole path.
    """
    fds: list[int] = []
    try:
        if not _BY_FD:
            if make:
                place.path.parent.mkdir(parents=True, exist_ok=True)
            yield None, str(place.path)
            return
        fds.append(os.open(place.root, _FOLDER))
        for name in place.parts[:-1]:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=fds[-1])
            fds.append(os.open(name, _FOLDER, dir_fd=fds[-1]))
        yield fds[-1], place.parts[-1] if place.parts else "."
    except OSError as error:
        raise _explain(error, str(place)) from error
    finally:
        for fd in fds:
            os.close(fd)


def _is_folder(name: str, fd: int | None) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _explain(error: OSError, path: str) -> ToolError:
    """Return a `ToolError` that describes an OS error without the full path of the workspace, which the model need not
    know."""
    if isinstance(error, FileNotFoundError):
        return ToolError(f"There is no file {path!r} in the workspace. list_files shows what is there.")
    return ToolError(f"{path!r}: {error.strerror or type(error).__name__}")
