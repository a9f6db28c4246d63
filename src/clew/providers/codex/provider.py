"""The provider, put together."""

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
from clew.providers.codex import driving, health, native
from clew.providers.codex.events import CodexReader
from clew.providers.codex.homes import codex_home, new_key
from clew.providers.codex.listing import list_sessions
from clew.providers.codex.programs import find_program
from clew.providers.codex.reading import read_rollout
from clew.providers.codex.writing import write_rollout

__all__ = ["Codex"]


class Codex(Provider):
    """OpenAI's Codex. Its conversations are rollouts in `$CODEX_HOME`, or `~/.codex`."""

    name: ClassVar[str] = "codex"
    title: ClassVar[str] = "Codex"
    install: ClassVar[str] = advice.install_program("codex")
    oldest: ClassVar[str] = "0.120.0"
    newest: ClassVar[str] = driving.SEEN_VERSION

    @property
    def _home(self) -> Path:
        return codex_home(self.place)

    def program(self) -> Program | None:
        return find_program(self.place.env)

    def new_key(self) -> str:
        return new_key()

    async def prepare(self, program: Program, job: Job) -> None:
        await asyncio.to_thread(driving.prepare, self.place, program, job)

    def command(self, program: Program, job: Job) -> Command:
        return driving.command_for(self.place, program, job)

    def reader(self, job: Job) -> CodexReader:
        driving.checked_key(job.key)
        return CodexReader(self._home, job)

    def export(self, key: str, folder: Path) -> bool:
        return native.export(self._home, key, folder)

    def standing(self, key: str, folder: Path) -> Standing:
        return native.standing(self._home, key, folder)

    def install_session(self, key: str, folder: Path) -> None:
        native.install(self._home, key, folder)

    def read(self, folder: Path) -> Conversation:
        return read_rollout(native.rollout_in(folder))

    def write(self, conversation: Conversation, key: str, folder: Path) -> tuple[Loss, ...]:
        return write_rollout(conversation, key, folder)

    def find(self, session: str) -> str | None:
        return native.find(self.place, session)

    def sessions(self) -> Iterator[NativeSession]:
        return list_sessions(self._home)

    def check(self, program: Program | None) -> Health:
        return health.check(self.place, program, self.install)
