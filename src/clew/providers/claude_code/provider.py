"""The `ClaudeCode` provider, and the list of Claude Code's sessions on this machine."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from clew import advice
from clew.messages.dialects import Loss
from clew.providers.base import Command, Conversation, Health, Job, NativeSession, Place, Program, Provider, Standing
from clew.providers.claude_code import convert, run, storage
from clew.providers.claude_code import status as health
from clew.providers.claude_code.convert import last_cwd, prompt_of, time_of, title_of
from clew.providers.claude_code.events import ClaudeReader, Meter
from clew.providers.claude_code.rows import Row, is_said, rows_in
from clew.providers.claude_code.storage import checked, is_key, projects_dir
from clew.providers.events import Reader

__all__ = ["ClaudeCode", "sessions"]


class ClaudeCode(Provider):
    """Anthropic's Claude Code. A system prompt is appended to the program's own, so that its tools keep working.

    Permission `read` gives it only tools that read, in its own folder, and only the MCP servers that `options` name.
    `edit` lets it change files in its folder and run the commands that the user's own settings allow. `full` allows
    everything; as root, the program accepts that only with `IS_SANDBOX=1` in its environment.
    """

    name = "claude_code"
    title = "Claude Code"
    install = advice.install_program("claude_code")
    oldest = "2.1.90"
    newest = "2.1.325"

    def program(self) -> Program | None:
        return run.find_program(self.place)

    def new_key(self) -> str:
        return str(uuid.uuid4())

    async def prepare(self, program: Program, job: Job) -> None:
        await asyncio.to_thread(run.prepare, self.place, job)

    def command(self, program: Program, job: Job) -> Command:
        return run.command(self.place, program, job)

    def reader(self, job: Job) -> Reader:
        return ClaudeReader(Meter(self.place, checked(job.key)))

    def export(self, key: str, folder: Path) -> bool:
        return storage.export(self.place, key, folder)

    def standing(self, key: str, folder: Path) -> Standing:
        return storage.standing(self.place, key, folder)

    def install_session(self, key: str, folder: Path) -> None:
        storage.install_session(self.place, key, folder)

    def read(self, folder: Path) -> Conversation:
        return convert.read(storage.main_file(folder))

    def write(self, conversation: Conversation, key: str, folder: Path) -> tuple[Loss, ...]:
        session = convert.session_bytes(conversation, checked(key), str(self.place.cwd))
        storage.write(session, folder)
        return convert.writing_losses(conversation)

    def find(self, session: str) -> str | None:
        return storage.find(self.place, session)

    def sessions(self) -> Iterator[NativeSession]:
        return sessions(self.place, self.name)

    def check(self, program: Program | None) -> Health:
        return health.check(self.place, program, self.name, self.install)


_PART = 8 * 1024
_LONG_PART = 128 * 1024
"""Bytes read at each end of a session that begins with a long text, where `_PART` bytes hold no prompt."""
_SUFFIX = ".jsonl"


def sessions(place: Place, provider: str) -> Iterator[NativeSession]:
    """List the sessions on this machine, newest first.

    A file is opened only when the iteration reaches it, so the first few sessions cost no more than one directory scan.
    """
    found = sorted(_files(projects_dir(place)), key=lambda file: (-file[1].st_mtime_ns, file[0]))
    for path, status in found:
        try:
            session = _described(path, status, provider)
        except FileNotFoundError:
            continue
        if session is not None:
            yield session


def _files(projects: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for project in _entries(projects):
        for entry in _entries(Path(project.path)):
            if entry.name.endswith(_SUFFIX) and is_key(entry.name.removesuffix(_SUFFIX)) and entry.is_file():
                yield Path(entry.path), entry.stat()


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _described(path: Path, status: os.stat_result, provider: str) -> NativeSession | None:
    """Describe one session from both ends of its file. Returns None for a file without any message: the program died
    before it began."""
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
        turns=sum(bool(prompt_of(row)) for row in rows) if is_all else None,
        created_at=next((time for row in rows if (time := time_of(row))), None),
        updated_at=datetime.fromtimestamp(status.st_mtime, UTC),
        size=status.st_size,
    )


def _ends(path: Path, size: int, part: int) -> tuple[list[Row], bool]:
    """Return the rows in the first and last `part` bytes of a file, and whether these are all of its rows."""
    with path.open("rb") as file:
        if size <= 2 * part:
            return list(rows_in(file.read())), True
        head = file.read(part)
        file.seek(size - part)
        return [*rows_in(head), *rows_in(file.read())], False
