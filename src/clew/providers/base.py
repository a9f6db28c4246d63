"""What a provider is: a program that runs an agent's loop of its own, and keeps the conversation in a form of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from clew.messages import Message
from clew.messages.dialects import Loss
from clew.providers.events import Reader, Watch

__all__ = [
    "Command",
    "Conversation",
    "Health",
    "Job",
    "NativeSession",
    "Permissions",
    "Place",
    "Program",
    "Provider",
    "Standing",
]

Permissions = Literal["read", "edit", "full"]
"""`read`: look, change nothing. `edit`: change files in the folder it works in, and nowhere else. `full`: whatever its tools
can, unasked."""


class Place(msgspec.Struct, frozen=True):
    """Where a provider works: its folder, and the whole environment of its program, which says where its home is."""

    cwd: Path
    env: Mapping[str, str]

    def __repr__(self) -> str:
        """Without the environment, which holds keys."""
        return f"Place({str(self.cwd)!r}, …)"

    @property
    def home(self) -> Path:
        return Path(self.env.get("HOME") or Path.home())


class Program(msgspec.Struct, frozen=True):
    """An installed program: the file to run, never a script around it that would outlive its child or die before it."""

    path: Path
    version: str
    """As it says itself; empty where it does not."""
    problem: str = ""
    """Why it cannot be run; empty if nothing is known to be in the way."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt, for a conversation that is known by its key."""

    prompt: str
    key: str
    model: str = ""
    """Empty: what the program takes by itself."""
    system_prompt: str = ""
    permissions: Permissions = "edit"
    options: tuple[str, ...] = ()
    """Further arguments for the program, as the user gave them."""


class Command(msgspec.Struct, frozen=True):
    """What to run: in the place's folder, with the place's environment and `env` on top."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    env: Mapping[str, str] = {}


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's conversation in Clew's own words."""

    messages: tuple[Message, ...]
    """Prompts, responses and results; without what the program itself tells the model beside them."""
    cwd: str = ""
    title: str = ""
    model: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    losses: tuple[Loss, ...] = ()
    """What has no place in the canonical form."""


class NativeSession(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that a provider keeps on this machine."""

    provider: str
    key: str
    path: Path
    """The file that holds it, or the database it is in."""
    cwd: str = ""
    title: str = ""
    turns: int | None = None
    """Prompts; None where counting them means reading all of it."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    size: int = 0
    """Bytes, as far as that can be told."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How a provider is on this machine."""

    provider: str
    program: Program | None = None
    logged_in: bool | None = None
    """None where that cannot be known without asking the vendor."""
    account: str = ""
    """By what it is logged in: `api key`, `subscription` … Never the key itself."""
    expires_at: datetime | None = None
    """When the login runs out, where it says so."""
    limited_until: datetime | None = None
    """Until when a usage limit holds, where it is known."""
    outdated: bool = False
    """Whether its version is older than the oldest that keeps what it is told: it is refused then."""
    answers: bool | None = None
    """Whether it answered a prompt; None if it was not asked."""
    problem: str = ""
    """What is in the way, and what to do; empty if nothing is."""

    @property
    def ready(self) -> bool:
        """Whether there is no reason known why it would not work."""
        works = self.program is not None and not self.program.problem and not self.outdated
        return works and self.logged_in is not False and self.answers is not False


Standing = Literal["absent", "behind", "same", "ahead", "apart"]
"""How the conversation on this machine stands to a kept one: not here, a part of it, the same, more of it, or neither."""


class Provider(ABC):
    """One coding agent's program, in one place. Methods that are not async may block: call them off the event loop."""

    name: ClassVar[str]
    title: ClassVar[str]
    """As its makers write it."""
    install: ClassVar[str]
    """The command that installs it."""
    oldest: ClassVar[str] = ""
    """The oldest version that keeps what it is told; an older one is refused. Empty: any will do."""
    newest: ClassVar[str] = ""
    """The newest version that Clew was tried with; newer ones are taken as they are."""

    def __init__(self, place: Place) -> None:
        self.place = place

    # Driving

    @abstractmethod
    def program(self) -> Program | None:
        """The installed program, found by the place's PATH; None if it is not there. One that cannot be run says why in its
        `problem`."""

    @abstractmethod
    def new_key(self) -> str:
        """A name for a conversation that nobody has, in the program's own form."""

    @abstractmethod
    async def prepare(self, program: Program, job: Job) -> None:
        """Make sure that a conversation of this key can be gone on with: if there is none on this machine, an empty one is
        made, so that the key holds before the first turn."""

    @abstractmethod
    def command(self, program: Program, job: Job) -> Command:
        """What runs this prompt, after `prepare`."""

    @abstractmethod
    def reader(self, job: Job) -> Reader:
        """For what that prints. Made before the program starts."""

    def watch(self, job: Job) -> Watch | None:
        """For a program that prints a tool call only once it is done: what finds the calls that have begun. Made before the
        program starts. None, unless a provider says otherwise: its program prints a call as it begins."""
        return None

    # The conversation as the program keeps it. A `folder` holds one in full, and nothing else: this is what travels.

    @abstractmethod
    def export(self, key: str, folder: Path) -> bool:
        """Bring the conversation as it is on this machine into this folder, which is made or brought up to date; False if
        there is none here. A torn end is left out; what is there is not changed."""

    @abstractmethod
    def standing(self, key: str, folder: Path) -> Standing:
        """How the conversation on this machine stands to the one in this folder."""

    @abstractmethod
    def install_session(self, key: str, folder: Path) -> None:
        """Put the conversation of this folder where the program looks for it, under this key, be it another than it had, and
        for the place's own folder. What is there of the same key and is no part of it is kept aside, never overwritten."""

    @abstractmethod
    def read(self, folder: Path) -> Conversation:
        """What a folder holds, in Clew's own words. `Corrupt` if it is none of this provider's."""

    @abstractmethod
    def write(self, conversation: Conversation, key: str, folder: Path) -> tuple[Loss, ...]:
        """Make a folder that holds this conversation, and say what did not fit. Tool names are this provider's already."""

    @abstractmethod
    def find(self, session: str) -> str | None:
        """The key of the conversation on this machine that is meant by a key, an unambiguous part of one, or a path."""

    @abstractmethod
    def sessions(self) -> Iterator[NativeSession]:
        """All conversations on this machine, newest first, without reading more of each than its ends."""

    @abstractmethod
    def check(self, program: Program | None) -> Health:
        """How it is, from what is on this machine; nobody is asked."""


def values(value: Any) -> dict[str, Any]:
    """A JSON object, or an empty one in place of whatever else was there: programs change what they write."""
    return value if isinstance(value, dict) else {}
