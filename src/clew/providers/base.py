"""The interface of a provider, which is an outside coding agent program that keeps conversations in its own format, and
the types that its methods take and return."""

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
"""What a provider's program may do. `read`: read files, change nothing. `edit`: also change files in its working
folder, and nowhere else. `full`: use all its tools without asking the user."""


class Place(msgspec.Struct, frozen=True):
    """Where a provider works: `cwd` is its working folder, and `env` is the whole environment of its program. The
    environment also says where the user's home is, and so where the program keeps its files."""

    cwd: Path
    env: Mapping[str, str]

    def __repr__(self) -> str:
        """Shows the working folder but not the environment, which holds keys."""
        return f"Place({str(self.cwd)!r}, …)"

    @property
    def home(self) -> Path:
        return Path(self.env.get("HOME") or Path.home())

    @property
    def cache(self) -> Path:
        """The folder for files that Clew can make again, such as its copies of conversations. Everything in it may be
        deleted at any time."""
        return Path(self.env.get("XDG_CACHE_HOME") or self.home / ".cache") / "clew"


class Program(msgspec.Struct, frozen=True):
    """An installed program of a provider. `path` is the native executable itself, never a script that starts the
    executable: such a script could end before the executable does, or after it."""

    path: Path
    version: str
    """The version as the program reports it; empty if unknown."""
    problem: str = ""
    """Why the program cannot be run, in words for the user; empty if no reason is known."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt for a provider's program, and everything that the program needs to answer it. `key` is the id under
    which the provider keeps the conversation."""

    prompt: str
    key: str
    model: str = ""
    """The provider's own name of a model. Empty: the program chooses."""
    system_prompt: str = ""
    permissions: Permissions = "edit"
    options: tuple[str, ...] = ()
    """Additional command line arguments for the program, as the user gave them."""


class Command(msgspec.Struct, frozen=True):
    """A command line to run at a `Place`, in its working folder. `env` is added to the environment of the place, and
    `stdin` is the whole standard input."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    env: Mapping[str, str] = {}


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's conversation, converted to Clew's messages."""

    messages: tuple[Message, ...]
    """The user's prompts, the model's responses and the tools' results. What the program itself tells the model, such
    as reminders, is left out."""
    cwd: str = ""
    title: str = ""
    model: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    losses: tuple[Loss, ...] = ()
    """What Clew's messages cannot hold of the original conversation. Each loss says in which message it is, what is
    lost, and why."""


class NativeSession(msgspec.Struct, frozen=True, kw_only=True):
    """A description of one conversation that a provider keeps on this machine in its own format."""

    provider: str
    key: str
    path: Path
    """The file that holds the conversation, or the database in which it is."""
    cwd: str = ""
    title: str = ""
    exchanges: int | None = None
    """The number of exchanges, that is of prompts; None if counting them would mean reading the whole conversation."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    size: int = 0
    """The size in bytes; 0 if it is not known."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of how a provider is installed and logged in on this machine."""

    provider: str
    program: Program | None = None
    logged_in: bool | None = None
    """Whether there is a login; None if this machine's files do not tell, so that only the vendor could."""
    account: str = ""
    """How the provider is logged in: `api key`, `subscription` … Never the key itself."""
    expires_at: datetime | None = None
    """When the login expires, if that is known."""
    limited_until: datetime | None = None
    """When a usage limit that is used up will end, if that is known."""
    outdated: bool = False
    """Whether the program's version is older than `Provider.oldest`. Clew refuses such a program, because it does not
    reliably keep its conversations."""
    answers: bool | None = None
    """Whether the provider answered a test prompt; None if no test prompt was sent."""
    problem: str = ""
    """What prevents the use of the provider, and what the user can do; empty if nothing is known to prevent it."""

    @property
    def ready(self) -> bool:
        """Whether the program is there, can be run and is not outdated, and neither a missing login nor a test prompt
        without an answer is known. A usage limit that is used up makes no difference."""
        works = self.program is not None and not self.program.problem and not self.outdated
        return works and self.logged_in is not False and self.answers is not False


Standing = Literal["absent", "behind", "same", "ahead", "apart"]
"""How the conversation on this machine compares with a stored copy of it. `absent`: it is not on this machine.
`behind`: it is a beginning of the copy. `same`: it equals the copy. `ahead`: it continues the copy. `apart`: each has
something that the other lacks, or they differ."""


class Provider(ABC):
    """The interface to a coding agent's program, for one `Place`: a working folder and an environment. Methods that are
    not async may block, so do not call them on the event loop.

    A key is the id under which the program keeps a conversation. An export folder holds a copy of one conversation in
    the program's own format.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    """The program's name as its makers write it, for example `Claude Code`."""
    install: ClassVar[str]
    """The shell command that installs the program."""
    oldest: ClassVar[str] = ""
    """The oldest version that reliably keeps its conversations; Clew refuses an older one. Empty: any version will do.
    """
    newest: ClassVar[str] = ""
    """The newest version that Clew was tested with. Newer ones are used all the same."""

    def __init__(self, place: Place) -> None:
        self.place = place

    # Running the program.

    @abstractmethod
    def program(self) -> Program | None:
        """Find this provider's program on the PATH of its environment (`place.env`), and return it; None if it is not
        there. If it is there but cannot be run, the field `problem` of the result says why."""

    @abstractmethod
    def new_key(self) -> str:
        """Make a new, unique key for a conversation, in the form that the program uses."""

    @abstractmethod
    async def prepare(self, program: Program, job: Job) -> None:
        """Prepare this machine for running the command line that `command` returns. A job is one prompt for the
        program, with the key of its conversation. If the program needs a conversation to exist on this machine before
        its first prompt, an empty one is created under that key."""

    @abstractmethod
    def command(self, program: Program, job: Job) -> Command:
        """Return the command line that asks the job's prompt. A job is one prompt for the program, with the key of its
        conversation. `prepare` must have been called with this job before."""

    @abstractmethod
    def reader(self, job: Job) -> Reader:
        """Return a reader, which turns the lines that the program prints into events. A job is one prompt for the
        program. Call this method before the program starts: the reader may note how many tokens the conversation has
        used so far, to find out later how many this prompt has used."""

    def watch(self, job: Job) -> Watch | None:
        """Return a watch that finds the tool calls of this job, which is one prompt, as soon as they begin. Returns
        None, the default, if the program prints tool calls when they begin, so that no watch is needed. Call it before
        the program starts."""
        return None

    # The conversation in the program's own format. A `folder` holds exactly one: it is what is stored and moved.

    @abstractmethod
    def export(self, key: str, folder: Path) -> bool:
        """Copy the conversation of this key from this machine into a folder, which is created, or updated if it holds
        an earlier copy. Returns False if the conversation is not on this machine. A last line that is cut off, because
        the program was killed while writing, is left out. The program's own files are not changed."""

    @abstractmethod
    def standing(self, key: str, folder: Path) -> Standing:
        """Return how the conversation of this key on this machine compares with its copy in the export folder `folder`.
        `absent`: it is not on this machine. `behind`: it is a beginning of the copy. `same`: it equals the copy.
        `ahead`: it continues the copy. `apart`: anything else."""

    @abstractmethod
    def install_session(self, key: str, folder: Path) -> None:
        """Put the conversation in the export folder `folder` where the program looks for it. It gets this key, even if
        it was exported under another one, and belongs to the provider's working folder. A different conversation that
        has this key on this machine is kept under another name, unless it is only a beginning of the exported one."""

    @abstractmethod
    def read(self, folder: Path) -> Conversation:
        """Convert a conversation that was exported to `folder` to Clew's messages. Raises `Corrupt` if the folder holds
        no conversation of this provider."""

    @abstractmethod
    def write(self, conversation: Conversation, key: str, folder: Path) -> tuple[Loss, ...]:
        """Write a conversation in the program's own format, under this key, into the export folder `folder`, from which
        `install_session` can install it. Returns what could not be expressed in that format. Tool calls are written as
        they are: the caller must have rewritten them for this provider's tools before."""

    @abstractmethod
    def find(self, session: str) -> str | None:
        """Return the key of a conversation on this machine. `session` is the whole key, a part that occurs in no other
        key, or the path of the conversation's file. Returns None if there is none. Raises `InvalidInput` if `session`
        fits several conversations."""

    @abstractmethod
    def sessions(self) -> Iterator[NativeSession]:
        """Describe all conversations on this machine, newest first. To be fast, no more than the beginning and the end
        of each is read."""

    @abstractmethod
    def check(self, program: Program | None) -> Health:
        """Return how the provider is installed and logged in, judged from files and the environment on this machine.
        `program` is the installed program; None if there is none. No network request is made."""
