"""The `Codex` provider: one class over the other modules of this package."""

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
from clew.providers.codex import run, status, storage
from clew.providers.codex.convert import read_rollout, write_rollout
from clew.providers.codex.events import CodexReader
from clew.providers.codex.rollout import codex_home, new_key
from clew.providers.codex.run import find_program
from clew.providers.codex.storage import list_sessions

__all__ = ["Codex"]


class Codex(Provider):
    """OpenAI's Codex. Its conversations are rollout files in `$CODEX_HOME`, or `~/.codex`."""

    name: ClassVar[str] = "codex"
    title: ClassVar[str] = "Codex"
    install: ClassVar[str] = advice.install_program("codex")
    oldest: ClassVar[str] = "0.120.0"
    newest: ClassVar[str] = run.SEEN_VERSION

    @property
    def _home(self) -> Path:
        return codex_home(self.place)

    def program(self) -> Program | None:
        return find_program(self.place.env)

    def new_key(self) -> str:
        return new_key()

    async def prepare(self, program: Program, job: Job) -> None:
        await asyncio.to_thread(run.prepare, self.place, program, job)

    def command(self, program: Program, job: Job) -> Command:
        return run.command_for(self.place, program, job)

    def reader(self, job: Job) -> CodexReader:
        run.checked_key(job.key)
        return CodexReader(self._home, job)

    def export(self, key: str, folder: Path) -> bool:
        return storage.export(self._home, key, folder)

    def standing(self, key: str, folder: Path) -> Standing:
        return storage.standing(self._home, key, folder)

    def install_session(self, key: str, folder: Path) -> None:
        storage.install(self._home, key, folder)

    def read(self, folder: Path) -> Conversation:
        return read_rollout(storage.rollout_in(folder))

    def write(self, conversation: Conversation, key: str, folder: Path) -> tuple[Loss, ...]:
        return write_rollout(conversation, key, folder)

    def find(self, session: str) -> str | None:
        return storage.find(self.place, session)

    def sessions(self) -> Iterator[NativeSession]:
        return list_sessions(self._home)

    def check(self, program: Program | None) -> Health:
        return status.check(self.place, program, self.install)
