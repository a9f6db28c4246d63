"""The class `OpenCode`: the `Provider` that drives the coding program opencode. The other modules of this package do
the work."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from clew import advice
from clew.errors import ClewError
from clew.messages.dialects import Loss
from clew.providers.base import (
    Command,
    Conversation,
    Health,
    Job,
    NativeSession,
    Program,
    Provider,
    Standing,
)
from clew.providers.events import Reader, Watch
from clew.providers.files import scratch
from clew.providers.opencode import convert, installation, run, status, storage
from clew.providers.opencode.convert import model_name, stored
from clew.providers.opencode.database import (
    checked,
    data_folder,
    database_path,
    has_database,
    new_session,
    open_to_read,
    open_to_write,
    select,
)
from clew.providers.opencode.events import OpenCodeReader, RunningCalls
from clew.providers.opencode.storage import OUTPUTS, load

__all__ = ["OpenCode"]


class OpenCode(Provider):
    """The provider for opencode. opencode keeps all its sessions in one database in the user's home folder, and each
    session belongs to a working folder."""

    name = "opencode"
    title = "opencode"
    install = advice.install_program("opencode")
    oldest = "1.18.3"
    newest = "1.18.33"

    def program(self) -> Program | None:
        return run.find_program(self.place)

    def new_key(self) -> str:
        return new_session()

    async def prepare(self, program: Program, job: Job) -> None:
        await asyncio.to_thread(run.prepare, program, job, self.place)

    def command(self, program: Program, job: Job) -> Command:
        return run.command(program, job, self.place)

    def reader(self, job: Job) -> Reader:
        key = checked(job.key)
        return OpenCodeReader(self._messages_since, lambda: job.model or self._model_of(key), job.model)

    def watch(self, job: Job) -> Watch:
        return RunningCalls(database_path(self.place), checked(job.key))

    def export(self, key: str, folder: Path) -> bool:
        checked(key)
        if not has_database(self.place):
            return False
        with open_to_read(database_path(self.place)) as connection:
            return storage.export(connection, key, folder, self._outputs)

    def standing(self, key: str, folder: Path) -> Standing:
        checked(key)
        if not has_database(self.place):
            return "absent"
        with open_to_read(database_path(self.place)) as connection:
            return storage.standing(connection, key, folder)

    def install_session(self, key: str, folder: Path) -> None:
        checked(key)
        if load(folder).key != key:  # ids could clash with rows in this database: write it with new ids
            with scratch() as anew:
                self.write(self.read(folder), key, anew)
                self.install_session(key, anew)
            return
        path = run.make_database(self.program() if not has_database(self.place) else None, self.place)
        installation.install_outputs(folder, self._outputs)
        with open_to_write(path) as connection:
            installation.install(connection, key, folder, self.place.cwd)

    def read(self, folder: Path) -> Conversation:
        return convert.read(folder)

    def write(self, conversation: Conversation, key: str, folder: Path) -> tuple[Loss, ...]:
        return convert.write(conversation, key, folder)

    def find(self, session: str) -> str | None:
        if not has_database(self.place):
            return None
        with open_to_read(database_path(self.place)) as connection:
            return storage.find(connection, session)

    def sessions(self) -> Iterator[NativeSession]:
        if has_database(self.place):
            path = database_path(self.place)
            with open_to_read(path) as connection:
                yield from storage.sessions(connection, path)

    def check(self, program: Program | None) -> Health:
        return status.check(program, self.place, self.install)

    @property
    def _outputs(self) -> Path:
        return data_folder(self.place) / OUTPUTS

    def _messages_since(self, session: str, since: int) -> Sequence[convert.Stored]:
        with open_to_read(database_path(self.place)) as connection:
            rows = storage.message_rows(connection, session, (since, ""))
            return [convert.stored(message, parts) for message, parts in rows]

    def _model_of(self, key: str) -> str:
        """Return the model that the newest message of a session names; empty if it names none or the database cannot be
        read."""
        try:
            with open_to_read(database_path(self.place)) as connection:
                return _last_model(connection, key)
        except ClewError:
            return ""  # an answer must not be lost because its model is unknown


def _last_model(connection: sqlite3.Connection, session: str) -> str:
    query = "SELECT * FROM message WHERE session_id = ? ORDER BY time_created DESC, id DESC LIMIT 1"
    return next((model_name(stored(row, ()).info) for row in select(connection, query, (session,))), "")
