"""opencode as a provider: driven by its command, its conversations kept by rows of its database."""

from __future__ import annotations

import asyncio
import tempfile
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
from clew.providers.happenings import Reader, Watch
from clew.providers.opencode import driving, exporting, health, installing, listing, reading, standing, writing
from clew.providers.opencode.database import data_folder, database_path, has_database, open_to_read, open_to_write
from clew.providers.opencode.events import OpenCodeReader
from clew.providers.opencode.folders import OUTPUTS, load
from clew.providers.opencode.ids import checked, new_session
from clew.providers.opencode.locating import find_program
from clew.providers.opencode.watching import RunningCalls

__all__ = ["OpenCode"]


class OpenCode(Provider):
    """opencode. Its sessions are rows of one database in the user's home, and each belongs to a folder."""

    name = "opencode"
    title = "opencode"
    install = advice.install_program("opencode")
    oldest = "1.18.3"
    newest = "1.18.33"

    def program(self) -> Program | None:
        return find_program(self.place)

    def new_key(self) -> str:
        return new_session()

    async def prepare(self, program: Program, job: Job) -> None:
        await asyncio.to_thread(driving.prepare, program, job, self.place)

    def command(self, program: Program, job: Job) -> Command:
        return driving.command(program, job, self.place)

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
            return exporting.export(connection, key, folder, self._outputs)

    def standing(self, key: str, folder: Path) -> Standing:
        checked(key)
        if not has_database(self.place):
            return "absent"
        with open_to_read(database_path(self.place)) as connection:
            return standing.standing(connection, key, folder)

    def install_session(self, key: str, folder: Path) -> None:
        checked(key)
        if load(folder).key != key:  # all its rows would have the names of others that may be here: it is written anew
            with tempfile.TemporaryDirectory(prefix="clew-") as anew:
                self.write(self.read(folder), key, Path(anew))
                self.install_session(key, Path(anew))
            return
        path = driving.make_database(self.program() if not has_database(self.place) else None, self.place)
        installing.install_outputs(folder, self._outputs)
        with open_to_write(path) as connection:
            installing.install(connection, key, folder, self.place.cwd)

    def read(self, folder: Path) -> Conversation:
        return reading.read(folder)

    def write(self, conversation: Conversation, key: str, folder: Path) -> tuple[Loss, ...]:
        return writing.write(conversation, key, folder)

    def find(self, session: str) -> str | None:
        if not has_database(self.place):
            return None
        with open_to_read(database_path(self.place)) as connection:
            return listing.find(connection, session)

    def sessions(self) -> Iterator[NativeSession]:
        if has_database(self.place):
            path = database_path(self.place)
            with open_to_read(path) as connection:
                yield from listing.sessions(connection, path)

    def check(self, program: Program | None) -> Health:
        return health.check(program, self.place, self.install)

    @property
    def _outputs(self) -> Path:
        return data_folder(self.place) / OUTPUTS

    def _messages_since(self, session: str, since: int) -> Sequence[reading.Stored]:
        with open_to_read(database_path(self.place)) as connection:
            rows = exporting.message_rows(connection, session, (since, ""))
            return [reading.stored(message, parts) for message, parts in rows]

    def _model_of(self, key: str) -> str:
        """The model that a session was last answered by; empty where that is not known."""
        try:
            with open_to_read(database_path(self.place)) as connection:
                return listing.model_of(connection, key)
        except ClewError:
            return ""  # an answer is not lost for want of a name
