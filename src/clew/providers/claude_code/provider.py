"""Claude Code as a provider: one face for what the other modules do."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

from clew import advice
from clew.messages.dialects import Loss
from clew.providers.base import Command, Conversation, Health, Job, NativeSession, Program, Provider, Standing
from clew.providers.claude_code import driving, health, listing, native, reading, writing
from clew.providers.claude_code.events import ClaudeReader
from clew.providers.claude_code.homes import checked
from clew.providers.claude_code.spending import Meter
from clew.providers.happenings import Reader

__all__ = ["ClaudeCode"]


class ClaudeCode(Provider):
    """Anthropic's Claude Code. A system prompt is added to the program's own, so that its tools go on working.

    Permission `read` leaves it the tools that look, in its own folder, and no MCP servers but those that options name.
    `edit` lets it change files in its folder, and run what the user's own settings allow. `full` allows everything; as root,
    the program takes that only with `IS_SANDBOX=1` in its environment.
    """

    name = "claude_code"
    title = "Claude Code"
    install = advice.install_program("claude_code")
    oldest = "2.1.90"
    newest = "2.1.325"

    def program(self) -> Program | None:
        return driving.find_program(self.place)

    def new_key(self) -> str:
        return str(uuid.uuid4())

    async def prepare(self, program: Program, job: Job) -> None:
        await asyncio.to_thread(driving.prepare, self.place, job)

    def command(self, program: Program, job: Job) -> Command:
        return driving.command(self.place, program, job)

    def reader(self, job: Job) -> Reader:
        return ClaudeReader(Meter(self.place, checked(job.key)))

    def export(self, key: str, folder: Path) -> bool:
        return native.export(self.place, key, folder)

    def standing(self, key: str, folder: Path) -> Standing:
        return native.standing(self.place, key, folder)

    def install_session(self, key: str, folder: Path) -> None:
        native.install_session(self.place, key, folder)

    def read(self, folder: Path) -> Conversation:
        return reading.read(native.main_file(folder))

    def write(self, conversation: Conversation, key: str, folder: Path) -> tuple[Loss, ...]:
        session = writing.session_bytes(conversation, checked(key), str(self.place.cwd))
        native.write(session, folder)
        return writing.writing_losses(conversation)

    def find(self, session: str) -> str | None:
        return native.find(self.place, session)

    def sessions(self) -> Iterator[NativeSession]:
        return listing.sessions(self.place, self.name)

    def check(self, program: Program | None) -> Health:
        return health.check(self.place, program, self.name, self.install)
