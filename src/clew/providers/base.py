"""The interface of a provider: a program that runs its own agent loop and keeps conversations in its own format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Literal

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
"""`read`: read, change nothing. `edit`: change files in its working folder and nowhere else. `full`: use all its tools
without being asked."""


class Place(msgspec.Struct, frozen=True):
    """Where a provider works: its working folder and the whole environment of its program, which also determines its
    home."""

    cwd: Path
    env: Mapping[str, str]

    def __repr__(self) -> str:
        """Leaves out the environment, which holds keys."""
        return f"Place({str(self.cwd)!r}, …)"

    @property
    def home(self) -> Path:
        return Path(self.env.get("HOME") or Path.home())

    @property
    def cache(self) -> Path:
        """Clew's own cache folder. Everything in it may be deleted at any time."""
        return Path(self.env.get("XDG_CACHE_HOME") or self.home / ".cache") / "clew"


class Program(msgspec.Struct, frozen=True):
    """An installed program. `path` is the native program itself, never a script around it, which could outlive its
    child or die before it."""

    path: Path
    version: str
    """The version as the program reports it; empty if unknown."""
    problem: str = ""
    """Why it cannot be run; empty if no reason is known."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt for the conversation with this key."""

    prompt: str
    key: str
    model: str = ""
    """Empty: the program's own choice."""
    system_prompt: str = ""
    permissions: Permissions = "edit"
    options: tuple[str, ...] = ()
    """Additional arguments for the program, as the user gave them."""


class Command(msgspec.Struct, frozen=True):
    """What to run in the place's working folder, with the place's environment and `env` on top."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    env: Mapping[str, str] = {}


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's conversation in Clew's own form."""

    messages: tuple[Message, ...]
    """Prompts, responses and results, without what the program itself adds for the model."""
    cwd: str = ""
    title: str = ""
    model: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    losses: tuple[Loss, ...] = ()
    """What the canonical form cannot hold."""


class NativeSession(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that a provider keeps on this machine."""

    provider: str
    key: str
    path: Path
    """The file that holds it, or the database it is in."""
    cwd: str = ""
    title: str = ""
    turns: int | None = None
    """The number of prompts; None where counting them would mean reading the whole session."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    size: int = 0
    """Bytes; 0 where that is not known."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How a provider is installed and logged in on this machine."""

    provider: str
    program: Program | None = None
    logged_in: bool | None = None
    """None if only the vendor could tell."""
    account: str = ""
    """How it is logged in: `api key`, `subscription` … Never the key itself."""
    expires_at: datetime | None = None
    """When the login expires, if that is known."""
    limited_until: datetime | None = None
    """When a usage limit that is used up will end, if that is known."""
    outdated: bool = False
    """Whether its version is older than `Provider.oldest`. Such a program is refused, because it does not keep its
    conversations."""
    answers: bool | None = None
    """Whether it answered a test prompt; None if none was sent."""
    problem: str = ""
    """What prevents its use, and what to do; empty if nothing is known."""

    @property
    def ready(self) -> bool:
        """Whether nothing is known that would prevent its use."""
        works = self.program is not None and not self.program.problem and not self.outdated
        return works and self.logged_in is not False and self.answers is not False


Standing = Literal["absent", "behind", "same", "ahead", "apart"]
"""How the conversation on this machine compares with a stored one: not here, a beginning of it, the same, a
continuation of it, or different."""


class Provider(ABC):
    """A coding agent's program in one place. Methods that are not async may block: call them outside the event loop."""

    name: ClassVar[str]
    title: ClassVar[str]
    """The name as its makers write it."""
    install: ClassVar[str]
    """The command that installs it."""
    oldest: ClassVar[str] = ""
    """The oldest version that reliably keeps its conversations; an older one is refused. Empty: any version will do."""
    newest: ClassVar[str] = ""
    """The newest version that Clew was tested with. Newer ones are used all the same."""

    def __init__(self, place: Place) -> None:
        self.place = place

    # Running the program.

    @abstractmethod
    def program(self) -> Program | None:
        """Return the installed program, found on the place's PATH; None if it is not there. If it cannot be run, its
        `problem` says why."""

    @abstractmethod
    def new_key(self) -> str:
        """Return a new, unique key for a conversation, in the program's own form."""

    @abstractmethod
    async def prepare(self, program: Program, job: Job) -> None:
        """Make sure that the conversation of this key can be continued. If there is none on this machine, create an
        empty one, so that the key holds before the first exchange."""

    @abstractmethod
    def command(self, program: Program, job: Job) -> Command:
        """Return the command that runs this prompt. Call `prepare` first."""

    @abstractmethod
    def reader(self, job: Job) -> Reader:
        """Return a reader for what the command prints. Call it before the program starts."""

    def watch(self, job: Job) -> Watch | None:
        """Return a watch that finds tool calls which have begun, for a program that prints a call only when it is done.
        Call it before the program starts. The default is None: the program prints a call when it begins."""
        return None

    # The conversation in the program's own format. A `folder` holds exactly one: it is what is stored and moved.

    @abstractmethod
    def export(self, key: str, folder: Path) -> bool:
        """Copy the conversation on this machine into an export folder, which is created or brought up to date. Returns
        False if the conversation is not here. A torn end is left out, and the program's own files are not changed."""

    @abstractmethod
    def standing(self, key: str, folder: Path) -> Standing:
        """Compare the conversation on this machine with the one in this export folder."""

    @abstractmethod
    def install_session(self, key: str, folder: Path) -> None:
        """Put the folder's conversation where the program looks for it, for the place's working folder, under this key,
        even if it had another. An existing conversation of this key that is not a part of it is kept aside, never
        overwritten."""

    @abstractmethod
    def read(self, folder: Path) -> Conversation:
        """Read a folder's conversation in Clew's own form. Raises `Corrupt` if the folder holds no conversation of this
        provider."""

    @abstractmethod
    def write(self, conversation: Conversation, key: str, folder: Path) -> tuple[Loss, ...]:
        """Write this conversation into a folder, and return what did not fit. Tool names must already be this
        provider's."""

    @abstractmethod
    def find(self, session: str) -> str | None:
        """Return the key of the conversation on this machine that a key, a unique part of one, or a path means; None if
        there is none."""

    @abstractmethod
    def sessions(self) -> Iterator[NativeSession]:
        """List all conversations on this machine, newest first, reading no more of each than its ends."""

    @abstractmethod
    def check(self, program: Program | None) -> Health:
        """Return how the provider is installed and logged in, from what is on this machine. No network request is
        made."""
