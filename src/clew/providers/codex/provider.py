"""The class `Codex`, which offers the functions of this package's other modules as a `Provider`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from clew import advice
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
from clew.providers.codex import convert, run, status, storage
from clew.providers.codex.events import CodexReader
from clew.providers.codex.rollout import SEEN_VERSION, checked, codex_home, new_key

__all__ = ["Codex"]


class Codex(Provider):
    """The provider for OpenAI's Codex. Codex keeps each conversation in a file of its own, called a rollout, in
    `$CODEX_HOME` or else `~/.codex`."""

    name: ClassVar[str] = "codex"
    title: ClassVar[str] = "Codex"
    install: ClassVar[str] = advice.install_program("codex")
    oldest: ClassVar[str] = "0.120.0"
    newest: ClassVar[str] = SEEN_VERSION

    @property
    def _home(self) -> Path:
        return codex_home(self.place)

    def program(self) -> Program | None:
        return run.find_program(self.place.env)

    def new_key(self) -> str:
        return new_key()

    async def prepare(self, program: Program, job: Job) -> None:
        await asyncio.to_thread(run.prepare, self.place, program, job)

    def command(self, program: Program, job: Job) -> Command:
        return run.command(self.place, program, job)

    def reader(self, job: Job) -> CodexReader:
        checked(job.key)
        return CodexReader(self._home, job)

    def export(self, key: str, folder: Path) -> bool:
        return storage.export(self._home, key, folder)

    def standing(self, key: str, folder: Path) -> Standing:
        return storage.standing(self._home, key, folder)

    def install_session(self, key: str, folder: Path) -> None:
        storage.install_session(self._home, key, folder)

    def read(self, folder: Path) -> Conversation:
        return convert.read(storage.rollout_in(folder))

    def write(self, conversation: Conversation, key: str, folder: Path) -> tuple[Loss, ...]:
        return convert.write(conversation, key, folder)

    def find(self, session: str) -> str | None:
        return storage.find(self.place, session)

    def sessions(self) -> Iterator[NativeSession]:
        return storage.sessions(self._home)

    def check(self, program: Program | None) -> Health:
        return status.check(self.place, program, self.install)
