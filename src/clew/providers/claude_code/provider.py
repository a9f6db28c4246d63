"""The class `ClaudeCode`, which offers the functions of this package's other modules as a `Provider`."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

from clew import advice
from clew.messages.dialects import Loss
from clew.providers.base import Command, Conversation, Health, Job, NativeSession, Program, Provider, Standing
from clew.providers.claude_code import convert, run, storage
from clew.providers.claude_code import status as health
from clew.providers.claude_code.events import ClaudeReader, Meter
from clew.providers.claude_code.storage import checked
from clew.providers.events import Reader

__all__ = ["ClaudeCode"]


class ClaudeCode(Provider):
    """The provider for Anthropic's Claude Code. A system prompt is appended to the program's own, so that its tools
    keep working.

    Permission `read` gives it only tools that read, in its working folder, and only the MCP servers that are named in
    the job's `options`, the user's further command line arguments. `edit` lets it change files in that folder and run
    the commands that the user's own settings allow. `full` allows everything; if the user is root, the program accepts
    that only with `IS_SANDBOX=1` in its environment.
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
        return storage.sessions(self.place, self.name)

    def check(self, program: Program | None) -> Health:
        return health.check(self.place, program, self.name, self.install)
