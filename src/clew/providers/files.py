"""Writes and copies files for providers.

A file is first written under a temporary name, as a draft, and then renamed, so that it is there whole or not at all.
Only its owner can read it. A copy is written again only when the original has changed.

Symbolic links inside a folder with the files of a conversation are not followed. Programs put no links there, so a link
could only lead to files that are not part of the conversation.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from clew.errors import Corrupt, InvalidInput

__all__ = [
    "bring",
    "check_folders",
    "copy",
    "files_in",
    "is_draft",
    "lines_from_end",
    "make_folder",
    "put",
    "put_if_changed",
    "refuse_links",
    "remembered",
    "scratch",
    "sweep",
]

_DRAFT = re.compile(r"\..+\.clew-[0-9a-f]{16}")
_ABANDONED = 3600.0
"""Seconds after which a draft, a temporary file that is not yet renamed to its final name, counts as abandoned by a
killed writer."""
_TICK = 20_000_000
"""Nanoseconds within which two changes of a file may get the same modification time, because file systems count time in
steps."""
_BLOCK = 65_536
_known: dict[tuple[str, int, int], str] = {}


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, each accessible only by its owner. Folders that exist stay as they are."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def put(path: Path, data: bytes) -> None:
    """Write a file atomically: under a temporary name, which is then renamed. Missing parent folders are made."""
    with _draft(path) as draft:
        draft.write_bytes(data)


def put_if_changed(path: Path, data: bytes) -> None:
    """Write a file atomically, unless it exists with exactly this content."""
    try:
        if path.stat().st_size == len(data) and path.read_bytes() == data:
            return
    except FileNotFoundError:
        pass
    put(path, data)


def copy(source: Path, target: Path) -> None:
    """Copy the file `source` to `target` atomically: under a temporary name, which is then renamed. Missing parent
    folders are made."""
    with _draft(target) as draft:
        shutil.copyfile(source, draft)


def bring(source: Path, target: Path, fill: Callable[[Path, Path], object] = shutil.copyfile) -> bool:
    """Bring `target`, a copy of `source`, up to date. Returns whether it had to be written. `fill(source, draft)`
    writes the content of the copy to the temporary file `draft`; by default it copies the bytes.

    The copy gets the modification time of the original, and counts as up to date while the two times are equal. If the
    original was changed less than 20 milliseconds ago, the copy does not get that time, because a further change could
    leave the time as it is. The next call then writes the copy again.
    """
    seen = source.stat().st_mtime_ns
    if target.exists() and target.stat().st_mtime_ns == seen:
        return False
    settled = abs(time.time_ns() - seen) > _TICK
    with _draft(target) as draft:
        fill(source, draft)
        if settled:
            os.utime(draft, ns=(seen, seen))
    return True


def files_in(folder: Path) -> Iterator[str]:
    """Yield the files in a folder and its subfolders, as paths relative to that folder. Symbolic links are left out,
    and so are drafts, which are temporary files that are renamed when they are complete. Yields nothing if `folder`
    itself is a link."""
    if folder.is_symlink():
        return
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(parent, name)
            if path.is_file() and not path.is_symlink() and not is_draft(name):
                yield path.relative_to(folder).as_posix()


def refuse_links(folder: Path) -> None:
    """Raise `Corrupt` if a folder contains anything but files and folders, for example a symbolic link. The folder
    holds a session that was taken from the store. Programs write no links into their sessions, so somebody may have put
    the link there to have other files of this machine read or written."""
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(parent, name)
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise Corrupt(
                    f"the session on record holds a link or a special file, {path.relative_to(folder).as_posix()!r}, and "
                    "no coding agent writes one. It was not used: somebody may have changed the record."
                )


def check_folders(top: Path, path: Path) -> None:
    """Raise `InvalidInput` if the folder `top`, or any folder between it and the file `path`, is a symbolic link: a
    file written there would land elsewhere. `path` must be below `top`. Whether `path` itself is a link is not
    checked."""
    folder = path.parent
    while True:
        if folder.is_symlink():
            raise InvalidInput(f"{folder} is a link, and a session is not written through one. Remove the link first.")
        if folder in (top, folder.parent):
            return
        folder = folder.parent


@contextmanager
def scratch() -> Iterator[Path]:
    """Make an empty temporary folder, and delete it when the context ends."""
    with tempfile.TemporaryDirectory(prefix="clew-") as top:
        folder = Path(top, "session")
        folder.mkdir()
        yield folder


def lines_from_end(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file from the last to the first, without newlines. Only as much is read as the caller takes."""
    with path.open("rb") as file:
        end, rest = file.seek(0, os.SEEK_END), b""
        while end > 0:
            start = max(0, end - _BLOCK)
            file.seek(start)
            rest, *lines = (file.read(end - start) + rest).split(b"\n")
            yield from reversed(lines)
            end = start
        yield rest


def sweep(folder: Path) -> None:
    """Delete abandoned drafts in this folder and below. These are temporary files that a killed process left, and that
    were not changed for more than an hour."""
    for path in folder.rglob(".*.clew-*"):
        try:
            if is_draft(path.name) and time.time() - path.lstat().st_mtime > _ABANDONED:
                path.unlink()
        except FileNotFoundError:
            continue  # its writer has finished, or another process removed it


def is_draft(name: str) -> bool:
    """Return whether this is the file name of a draft: a temporary file that is renamed when it is complete."""
    return _DRAFT.fullmatch(name) is not None


def remembered(path: Path, ask: Callable[[], str]) -> str:
    """Return the text that `ask()` finds out about the file `path`. `ask` is called only if this process has no answer
    for the file yet, or if the size or modification time of the file has changed since."""
    status = path.stat()
    key = (str(path), status.st_mtime_ns, status.st_size)
    if key not in _known:
        _known[key] = ask()
    return _known[key]


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Yield the path of a new, empty temporary file beside `path`. When the context ends the temporary file is renamed
    to `path`; after an error it is deleted instead. Every call makes a temporary file of its own."""
    make_folder(path.parent)
    draft = path.with_name(f".{path.name}.clew-{secrets.token_hex(8)}")
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        yield draft
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
