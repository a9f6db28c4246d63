"""Knows where Claude Code keeps its sessions, copies them from there into export folders and back, and finds and lists
them.

An export folder holds one session:

    session.jsonl            the rows of the conversation, one JSON object a line
    session/subagents/…      the rows of its sub-agents
    session/tool-results/…   outputs that were too long for a row
    tasks/…                  the model's to-do list

The files in `session/` are called side files. The copies of files that the program keeps for its `/rewind` command are
not exported: they name paths of one machine.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from clew.errors import Corrupt, InvalidInput
from clew.providers import files
from clew.providers.base import NativeSession, Place, Standing
from clew.providers.claude_code.convert import last_cwd, prompt_of, title_of
from clew.providers.claude_code.rows import (
    Row,
    cut_end,
    has_conversation,
    is_said,
    name_in,
    renamed,
    rows_in,
    whole_size,
)
from clew.providers.fields import parse_time
from clew.providers.files import check_folders, copy, files_in, put, scratch, sweep

__all__ = [
    "bring",
    "checked",
    "config_dir",
    "export",
    "find",
    "install_session",
    "is_key",
    "locate",
    "main_file",
    "project_dir",
    "projects_dir",
    "session_files",
    "sessions",
    "set_aside",
    "side_folders",
    "slug",
    "standing",
    "tasks_dir",
    "write",
]


MAIN = "session.jsonl"
_BESIDE = "session"
_TASKS = "tasks"
_LOCK = ".lock"
_KEY = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_LONGEST = 200
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


_PART_OF_KEY = re.compile(r"[0-9a-fA-F-]{4,36}")
_BLOCK = 1 << 20


_PART = 8 * 1024
_LONG_PART = 128 * 1024
"""How many bytes are read at each end of a session's file to describe the session in a list, if reading `_PART` bytes
at each end found no prompt. That happens if the session begins with a long text."""
_SUFFIX = ".jsonl"


def is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None


def checked(key: str) -> str:
    """Return the key if it is a session id as Claude Code makes them, a UUID; otherwise raise `InvalidInput`. Keys are
    checked because they become parts of paths."""
    if not is_key(key):
        raise InvalidInput(f"{key!r} is not a session id of Claude Code. Its session ids are UUIDs.")
    return key


def config_dir(place: Place) -> Path:
    named = place.env.get("CLAUDE_CONFIG_DIR")
    return place.cwd / named if named else place.home / ".claude"


def projects_dir(place: Place) -> Path:
    return config_dir(place) / "projects"


def tasks_dir(place: Place, key: str) -> Path:
    """Return the folder of a session's to-do list, which the model keeps with its tools. The folder has one file for
    each item of the list. `place` says where Claude Code keeps its files."""
    return config_dir(place) / "tasks" / key


def project_dir(place: Place) -> Path:
    """Return the folder in which Claude Code keeps the sessions that begin in the working folder of `place`."""
    return projects_dir(place) / slug(os.path.realpath(place.cwd))


def slug(folder: str) -> str:
    """Return the name of the project folder in which Claude Code keeps the sessions of a working folder.

    In the path of the working folder, everything but ASCII letters and digits becomes a dash, one for each UTF-16 unit.
    A name of more than 200 characters is cut to 200, and a dash and a hash of the whole path are appended.
    """
    units = folder.encode("utf-16-le", "surrogatepass")
    codes = [units[at] | units[at + 1] << 8 for at in range(0, len(units), 2)]
    name = "".join(chr(code) if code < 128 and chr(code).isalnum() else "-" for code in codes)
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}-{_hash(codes)}"


def _hash(codes: list[int]) -> str:
    total = 0
    for code in codes:
        total = (total * 31 + code) & 0xFFFFFFFF
    rest = abs(total - 0x1_0000_0000 if total >= 0x8000_0000 else total)
    digits = ""
    while rest:
        rest, digit = divmod(rest, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"


def session_files(place: Place, key: str) -> Iterator[Path]:
    """Yield the paths of all session files of this key, also of files without a message. Claude Code has a project
    folder for each working folder, and each project folder can have one such file. `place` says where the project
    folders are. Links are left out."""
    return (path for project in _projects(place) if _is_own_file(path := project / f"{key}.jsonl"))


def _is_own_file(path: Path) -> bool:
    """Return whether there is a file at `path` that is not a link: a link may point at anything."""
    return path.is_file() and not path.is_symlink()


def side_folders(place: Place, key: str) -> Iterator[Path]:
    """Yield the folders with the side files of a session: long outputs of tools, and the rows of sub-agents. There can
    be several, because Claude Code keeps a project folder for each working folder, and puts a long output into the
    project folder of the working folder that the prompt was asked in. `key` is the session's id. `place` says where the
    project folders are."""
    return (path for project in _projects(place) if (path := project / key).is_dir() and not path.is_symlink())


def _projects(place: Place) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(projects_dir(place)))
    except FileNotFoundError:
        return []


def locate(place: Place, key: str) -> Path | None:
    """Return the session file of this key that holds at least one message. If several project folders have one, return
    the one written last; if none has, return None. Raises `InvalidInput` if the key is not a session id. `place` says
    where the project folders are."""
    found = [path for path in session_files(place, checked(key)) if has_conversation(path)]
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)


def main_file(folder: Path) -> Path:
    """Return the path of the session file in an export folder, which holds Clew's copy of one session. Raises `Corrupt`
    if there is none."""
    path = folder / MAIN
    if not _is_own_file(path):
        raise Corrupt(f"{folder} holds no session of Claude Code: there is no {MAIN} in it")
    return path


def export(place: Place, key: str, folder: Path) -> bool:
    """Copy the session of this key from this machine into an export folder, or bring an earlier copy there up to date.
    Files that the session no longer has are deleted from the folder. Returns False if the session is not on this
    machine. `place` says where Claude Code keeps its files."""
    path = locate(place, key)
    if path is None:
        return False
    sweep(folder)
    here = _session_files(place, key, path)
    for name, source in here.items():
        bring(source, folder / name)
    for name in list(files_in(folder)):
        if name not in here and name.startswith((f"{_BESIDE}/", f"{_TASKS}/")):
            (folder / name).unlink(missing_ok=True)
    return True


def bring(source: Path, target: Path) -> None:
    """Bring `target`, Clew's copy of the file `source`, up to date if the file has changed since it was copied. From a
    session file, a last row that is cut off because the program was killed while writing is left out."""
    files.bring(source, target, _fill_with_rows if source.suffix == ".jsonl" else shutil.copyfile)


def _fill_with_rows(source: Path, draft: Path) -> None:
    shutil.copyfile(source, draft)
    cut_end(draft)


def write(session: bytes, folder: Path) -> None:
    """Write `session`, the bytes of a session file, into an export folder, which holds Clew's copy of one session. The
    to-do list of an earlier copy in the folder is deleted, and so are its side files (long outputs of tools, and the
    rows of sub-agents)."""
    for name in (_BESIDE, _TASKS):
        if (folder / name).is_symlink():
            (folder / name).unlink()
        shutil.rmtree(folder / name, ignore_errors=True)
    put(folder / MAIN, session)


def _session_files(place: Place, key: str, path: Path) -> dict[str, Path]:
    """Return all files of a session as a dict: from the name that a file gets in an export folder, Clew's copy of a
    session, to its path on this machine. `key` is the session's id. `path` is its session file, which is the last entry
    of the dict. `place` says where Claude Code keeps its files."""
    tasks = tasks_dir(place, key)
    found: dict[str, Path] = {}
    for beside in (*side_folders(place, key), path.with_suffix("")):
        found |= {f"{_BESIDE}/{name}": beside / name for name in files_in(beside)}
    found |= {f"{_TASKS}/{name}": tasks / name for name in files_in(tasks) if name != _LOCK}
    return found | {MAIN: path}


@contextmanager
def _under(key: str, folder: Path) -> Iterator[Path]:
    """Yield an export folder, Clew's copy of one session, in which the session has this key. That is `folder` itself,
    unless its session has another key. Then it is a temporary copy of `folder` in which that key is replaced by `key`;
    the copy is deleted when the context ends."""
    own = name_in(main_file(folder))
    if own in ("", key):
        yield folder
        return
    with scratch() as anew:
        for name in files_in(folder):
            if name.endswith(".jsonl"):
                put(anew / name, renamed((folder / name).read_bytes(), own, key))
            else:
                copy(folder / name, anew / name)
        yield anew


def standing(place: Place, key: str, folder: Path) -> Standing:
    """Return how the session of this key on this machine compares with the copy in an export folder. `absent`: it is
    not on this machine. `behind`: it is a beginning of the copy. `same`: it equals the copy. `ahead`: it continues the
    copy. `apart`: anything else. `place` says where Claude Code keeps its files."""
    with _under(checked(key), folder) as kept:
        return _standing(place, key, kept)


def _standing(place: Place, key: str, folder: Path) -> Standing:
    """Return how the session of this key on this machine compares with the copy in `folder`, which must have the same
    key. `absent`: it is not on this machine. `behind`: it is a beginning of the copy. `same`: it equals the copy.
    `ahead`: it continues the copy. `apart`: anything else.

    The session file and the side files (long outputs of tools, and the rows of sub-agents) are compared byte by byte:
    they only grow, so the shorter one is older. The to-do list is not compared, because its files change in place and
    do not show which side is older.
    """
    path = locate(place, key)
    if path is None:
        return "absent"
    here = {
        name: source for name, source in _session_files(place, key, path).items() if not name.startswith(f"{_TASKS}/")
    }
    there = {MAIN: folder / MAIN} | {
        f"{_BESIDE}/{name}": folder / _BESIDE / name for name in files_in(folder / _BESIDE)
    }
    found = {_compared(here.get(name), there.get(name)) for name in {*here, *there}} - {"same"}
    return found.pop() if len(found) == 1 else "apart" if found else "same"


def _compared(here: Path | None, there: Path | None) -> Standing:
    if here is None or there is None:
        return "behind" if here is None else "ahead"
    mine, kept = whole_size(here), whole_size(there)
    if not _begin_alike(here, there, min(mine, kept)):
        return "apart"
    return "same" if mine == kept else "behind" if mine < kept else "ahead"


def _begin_alike(one: Path, other: Path, size: int) -> bool:
    with one.open("rb") as first, other.open("rb") as second:
        while size > 0:
            block = min(size, _BLOCK)
            if first.read(block) != second.read(block):
                return False
            size -= block
    return True


def install_session(place: Place, key: str, folder: Path) -> None:
    """Put the session in the export folder `folder`, which holds Clew's copy of one session, where Claude Code looks
    for it. It gets this key.

    If this machine has a session of this key that is a beginning of the exported one, its files are extended where they
    are. An equal session is left as it is. Any other session of this key is renamed so that the program ignores it, and
    the exported one is written for the working folder of `place`. The session file is written last, so that a
    half-finished installation is not visible.
    """
    with _under(checked(key), folder) as kept:
        _install(place, key, kept)


def _install(place: Place, key: str, folder: Path) -> None:
    stands = _standing(place, key, folder)
    if stands == "same":
        return
    path = locate(place, key)
    if path is None or stands != "behind":
        _set_aside(place, key)
        path = project_dir(place) / f"{key}.jsonl"
    tasks = folder / _TASKS
    for source, target in ((tasks, tasks_dir(place, key)), (folder / _BESIDE, path.with_suffix(""))):
        for name in files_in(source):
            check_folders(target, target / name)
            copy(source / name, target / name)
    copy(folder / MAIN, path)


def _set_aside(place: Place, key: str) -> None:
    for path in [*session_files(place, key), *side_folders(place, key), tasks_dir(place, key)]:
        set_aside(path)


def set_aside(path: Path) -> None:
    """Rename a file, folder or link, if it exists, by appending `.aside-1`, or the next free number, to its name.
    Claude Code ignores files with such names."""
    if path.exists() or path.is_symlink():
        names = (path.with_name(f"{path.name}.aside-{number}") for number in itertools.count(1))
        path.rename(next(name for name in names if not name.exists()))


def find(place: Place, session: str) -> str | None:
    """Return the key of a session on this machine. `session` is its key, the beginning of a key, or the path of its
    file. Returns None if there is none. Raises `InvalidInput` if several keys have that beginning, or if the file is
    not one of Claude Code's sessions. `place` says where Claude Code keeps its files."""
    if os.sep in session or session.endswith(".jsonl"):
        return _by_path(place, session)
    if is_key(session):
        return session if locate(place, session) else None
    if not _PART_OF_KEY.fullmatch(session):
        return None
    keys = sorted({path.stem for path in projects_dir(place).glob(f"*/{session}*.jsonl") if _is_session(path)})
    if len(keys) > 1:
        raise InvalidInput(f"{session!r} is the beginning of {len(keys)} session ids. Give more characters.")
    return keys[0] if keys else None


def _is_session(path: Path) -> bool:
    return is_key(path.stem) and _is_own_file(path) and has_conversation(path)


def _by_path(place: Place, session: str) -> str | None:
    named = place.home / session[2:] if session.startswith("~/") else place.cwd / session
    if not named.exists():
        return None
    path, projects = named.resolve(), projects_dir(place).resolve()
    if path.parent.parent == projects and path.suffix == ".jsonl" and is_key(path.stem):
        return path.stem if has_conversation(path) else None
    raise InvalidInput(
        f"{session} is not a session in {projects_dir(place)}. Give a file <project>/<uuid>.jsonl of that folder, or set "
        "CLAUDE_CONFIG_DIR to the folder that has this one's projects"
    )


def sessions(place: Place, provider: str) -> Iterator[NativeSession]:
    """Describe the sessions on this machine, newest first. `provider` is the name to put into the descriptions, and
    `place` says where Claude Code keeps its files.

    A file is opened only when the iteration reaches it, so taking the first few costs little more than a directory
    scan.
    """
    found = sorted(_found_files(projects_dir(place)), key=lambda file: (-file[1].st_mtime_ns, file[0]))
    for path, status in found:
        try:
            session = _described(path, status, provider)
        except FileNotFoundError:
            continue
        if session is not None:
            yield session


def _found_files(projects: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for project in _entries(projects):
        for entry in _entries(Path(project.path)):
            if (
                entry.name.endswith(_SUFFIX)
                and is_key(entry.name.removesuffix(_SUFFIX))
                and entry.is_file(follow_symlinks=False)
            ):
                yield Path(entry.path), entry.stat()


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _described(path: Path, status: os.stat_result, provider: str) -> NativeSession | None:
    """Describe the session in a file by reading only its beginning and end. `status` is what `os.stat` says about the
    file, and `provider` is the name to put into the description. Returns None if the file holds no message."""
    rows, is_all = _ends(path, status.st_size, _PART)
    if not is_all and not any(prompt_of(row) for row in rows):
        rows, is_all = _ends(path, status.st_size, _LONG_PART)
    if is_all and not any(is_said(row) for row in rows):
        return None
    return NativeSession(
        provider=provider,
        key=path.stem,
        path=path,
        cwd=last_cwd(rows),
        title=title_of(rows),
        exchanges=sum(bool(prompt_of(row)) for row in rows) if is_all else None,
        created_at=next((time for row in rows if (time := parse_time(row.get("timestamp")))), None),
        updated_at=datetime.fromtimestamp(status.st_mtime, UTC),
        size=status.st_size,
    )


def _ends(path: Path, size: int, part: int) -> tuple[list[Row], bool]:
    """Return the rows (JSON objects, one a line) in the first `part` bytes and in the last `part` bytes of a session
    file, and whether these are all rows of the file. `size` is the size of the file in bytes. If it is at most twice
    `part`, the whole file is read."""
    with path.open("rb") as file:
        if size <= 2 * part:
            return list(rows_in(file.read())), True
        head = file.read(part)
        file.seek(size - part)
        return [*rows_in(head), *rows_in(file.read())], False
