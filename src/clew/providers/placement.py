"""Puts a thread's conversation where a provider's program looks for it, and takes it from there into the store.

A session is what the program itself keeps of a conversation. A copy of it is stored unchanged, as a tree of blobs. If
there is no copy, or it does not match the thread, a session is written anew from the thread's messages. This is so when
another provider or the built-in agent did the last turns, when the thread was rewound into the middle of a turn, or
when a crash came before the session was stored.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import msgspec
from blake3 import blake3

from clew.agent.journal import Journal
from clew.checkpointers import Checkpointer
from clew.errors import ClewError, ProviderError
from clew.log import Checkpoint, ProviderKey
from clew.messages import Assistant, Message, Tool, ToolCall, ToolResult, User, plain_text, tool_calls
from clew.messages.dialects import Loss
from clew.providers.base import Conversation, Provider, Standing
from clew.providers.files import refuse_links, scratch
from clew.providers.registry import BUILT_IN_AGENT, find_provider
from clew.providers.translate.move import write_for
from clew.threads import Thread
from clew.workspace import Workspace

__all__ = ["Placed", "Placement", "alone", "current_provider", "staging_folder", "sweep_staging"]

log = logging.getLogger("clew.providers")
_DISOWNED = "-"
"""Marks a provider's session that must never be continued, because it is incomplete. The thread's record of a session
names the thread's log by its id; in the record of such a session this text stands in place of the id. No log has this
id."""
_KEPT_FOR = 14 * 86_400.0
"""Seconds after which Clew's own copy of a provider's session is deleted if it was not used."""


def current_provider(state: Checkpoint) -> str:
    """Return the name of the provider that worked on the thread last, or to which the thread was moved since; `clew` if
    that is the built-in agent or nobody. `state` is the thread's state."""
    named = state.limits.get("provider")
    return named if isinstance(named, str) else BUILT_IN_AGENT


class Placed(msgspec.Struct, frozen=True):
    """The session of a provider in which a thread's conversation continues. `key` is the provider's id of that session,
    and `losses` is what of the conversation did not fit the format of the session."""

    key: str
    losses: tuple[Loss, ...] = ()
    """What the provider's format cannot hold. Empty unless the session was written anew from Clew's messages."""


class Placement:
    """Puts the conversation of one thread into the session of one provider, which is what its program keeps on this
    machine, and takes it from there into the store."""

    def __init__(self, provider: Provider, store: Checkpointer, thread: Thread) -> None:
        self._provider = provider
        self._store = store
        self._thread_id = thread.thread_id
        self._log_id = thread.head.log_id
        self._said: int | None = None
        """How many messages the program's session held after the last prompt; None if that was not looked up yet."""

    async def place(self, state: Checkpoint, asked_key: str = "") -> Placed:
        """Put the thread's conversation where the program finds it. Returns the key of the program's session, and what
        of the conversation did not fit the format of that session. `state` is the thread's state. `asked_key` is the
        key to use for a thread that is still empty; if it is empty too, a new key is made."""
        known = state.providers.get(self._provider.name)
        if known is None and not state.messages and not state.providers:
            return Placed(asked_key or self._provider.new_key())
        if known is None:
            return await self._write(state, "")
        covers = _covers(known, state)
        if _in_line(known, state, self._log_id) and (covers or current_provider(state) == self._provider.name):
            return await self._go_on(known, state, covers)
        return await self._install(known, "") if covers and known.native else await self._write(state, "")

    async def _go_on(self, known: ProviderKey, state: Checkpoint, covers: bool) -> Placed:
        """Decide in which session the thread continues, and put that session where the program finds it. Returns its
        key and what of the conversation did not fit its format. `known` is the thread's last record of the provider's
        session, and `covers` says whether that session holds all of the thread.

        The session on this machine is continued if it is up to date. Otherwise the stored copy is installed if it holds
        all of the thread; if it does not, a session is written anew from the thread's messages.
        """
        standing = await self._standing(self._provider, known)
        log.info("thread %r: its %s session here is %s", self._thread_id, self._provider.name, standing)
        if standing == "ahead" or (standing == "same" and not _done_since(known, state)):
            return Placed(known.key)
        if covers and known.native:
            return await self._install(known, known.key if standing in ("absent", "behind") else "")
        if not state.messages:
            return Placed(known.key)
        return await self._write(state, known.key if standing == "absent" else "")

    async def _standing(self, provider: Provider, known: ProviderKey) -> Standing:
        """Return how the session of this provider on this machine compares with the copy that was stored last. `known`
        is the record of that copy. `absent`: it is not on this machine. `behind`: it is a beginning of the copy.
        `same`: it equals the copy. `ahead`: it continues the copy. `apart`: anything else."""
        folder = staging_folder(provider, known.key)
        if not await asyncio.to_thread(provider.export, known.key, folder):
            return "absent"
        if not known.native:
            marked = self._marked(folder, known)
            return "same" if marked[:2] in ((), (self._log_id, known.messages)) else "apart"
        if (await Workspace(folder, self._store).snapshot()).digest == known.native:
            return "same"
        async with self._restored(known.native) as kept:
            return await asyncio.to_thread(provider.standing, known.key, kept)

    def _marked(self, folder: Path, known: ProviderKey) -> tuple[()] | tuple[str, int, int]:
        """Return three values that were written into a file beside `folder`, Clew's copy of a session of the program,
        when the copy was last stored: the id of the thread's log, how many messages of the thread the session covered,
        and how many messages the session itself held.

        The tuple is empty if there is no such file or it is damaged. It is also empty if `known`, the thread's record
        of the session, names no log: such a record comes from an import, and the file was written for another thread.
        """
        return _marked(folder) if known.thread else ()

    async def then_and_now(self, state: Checkpoint) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        """Return two tuples of messages: those that the program's session held when it was last stored, and those that
        it holds on this machine now. `state` is the thread's state.

        Both are empty if they cannot be compared: the thread has no session of this provider on record, the thread was
        rewound or forked since, the session was changed otherwise than by adding to it, or it is no longer known how
        many messages the session held. Both are also empty if the session equals the copy of it in the store.
        """
        known = state.providers.get(self._provider.name)
        if known is None or not _in_line(known, state, self._log_id):
            return (), ()
        standing = await self._standing(self._provider, known)
        folder = staging_folder(self._provider, known.key)
        if standing == "ahead":
            async with self._restored(known.native) as kept:
                then = (await asyncio.to_thread(self._provider.read, kept)).messages
            return then, (await asyncio.to_thread(self._provider.read, folder)).messages
        marked = self._marked(folder, known)
        if known.native or standing != "same" or (known.messages and not marked):
            return (), ()
        now = (await asyncio.to_thread(self._provider.read, folder)).messages
        return now[: marked[2] if marked else 0], now

    async def _install(self, known: ProviderKey, key: str) -> Placed:
        key = key or self._provider.new_key()
        async with self._restored(known.native) as folder:
            await asyncio.to_thread(self._provider.install_session, key, folder)
        log.info("thread %r: its %s session is put in place as %s", self._thread_id, self._provider.name, key)
        return Placed(key)

    async def _write(self, state: Checkpoint, key: str) -> Placed:
        key = key or self._provider.new_key()
        conversation = await self.conversation(state)
        with scratch() as folder:
            lost = await asyncio.to_thread(
                write_for, self._provider, conversation, current_provider(state), key, folder
            )
            await asyncio.to_thread(self._provider.install_session, key, folder)
        log.info("thread %r: written as a %s session, %s", self._thread_id, self._provider.name, key)
        return Placed(key, lost)

    async def conversation(self, state: Checkpoint) -> Conversation:
        """Return the thread's conversation from the best source.

        The best source is the current provider's session on this machine if it holds at least as much as the thread,
        since the user may have continued the session there. Next comes the stored copy of that session if it holds all
        of the thread, and last the thread's own messages.
        """
        known = state.providers.get(current_provider(state))
        if known is not None:
            source = find_provider(known.provider)(self._provider.place)
            standing = await self._standing(source, known)
            if _only_went_on(state) and (standing == "ahead" or (standing == "same" and not _done_since(known, state))):
                found = await asyncio.to_thread(source.read, staging_folder(source, known.key))
                return _without_last_prompts(found, len(state.history) - _end(state))
            if known.native and _covers(known, state):
                async with self._restored(known.native) as folder:
                    return await asyncio.to_thread(source.read, folder)
        return Conversation(
            messages=state.messages, cwd=str(self._provider.place.cwd), title=state.title, model=state.model
        )

    async def unsettled(self, key: str) -> tuple[ToolCall, ...]:
        """Return the tool calls that have no result in the last exchange of the program's session with this key. The
        thread may not know them: some programs report a call only when it has ended, and these calls may have been
        stopped before. The result is empty if the session is not on this machine or cannot be read. No error is raised
        for a damaged session, because the program itself reports the damage."""
        folder = staging_folder(self._provider, key)
        try:
            if not await asyncio.to_thread(self._provider.export, key, folder):
                return ()
            messages = (await asyncio.to_thread(self._provider.read, folder)).messages
        except (ClewError, OSError) as error:
            log.warning("thread %r: what %s keeps: %s", self._thread_id, self._provider.name, error)
            return ()
        asked = [place for place, message in enumerate(messages) if isinstance(message, User)]
        last = messages[asked[-1] :] if asked else messages
        done = {block.call_id for message in last for block in message.content if isinstance(block, ToolResult)}
        return tuple(call for message in last for call in tool_calls(message) if call.id not in done)

    async def has_kept(self, state: Checkpoint, key: str, prompt: str, answer: str) -> bool:
        """Return whether the program's session of this key holds the prompt and its answer. Some programs do not write
        them into it: outdated versions write them elsewhere, and others write nothing if the disk is full. A damaged
        session counts as holding them, because the program itself reports the damage. `state`, the thread's state,
        shows whether the session has grown since Clew last copied it; if not, returns False."""
        folder = staging_folder(self._provider, key)
        known = state.providers.get(self._provider.name)
        try:
            if not await asyncio.to_thread(self._provider.export, key, folder):
                return False
            messages = (await asyncio.to_thread(self._provider.read, folder)).messages
        except OSError as error:
            log.warning("thread %r: what %s keeps: %s", self._thread_id, self._provider.name, error)
            return False
        except ClewError:
            return True
        self._said = len(messages)
        if known is not None and _marked(folder) == (self._log_id, known.messages, self._said):
            return False
        return _ends_with(messages, prompt, answer)

    async def disown(self, journal: Journal, key: str) -> None:
        """Record that the program's session of this key is incomplete. The next prompt then goes to a new session,
        which is written from the thread's messages."""
        await journal.record(ProviderKey(self._provider.name, key, thread=_DISOWNED))

    async def capture(self, journal: Journal, key: str, *, natively: bool = True) -> bool:
        """Store a copy of the program's session as it is now. The thread of `journal` records the copy, and that the
        session holds all of the thread's messages so far. Returns False if the program has no session of this key. With
        `natively=False` the content stays on this machine: only the key, and how much of the thread the session holds,
        are recorded."""
        folder = staging_folder(self._provider, key)
        if not await asyncio.to_thread(self._provider.export, key, folder):
            return False
        digest = (await Workspace(folder, self._store).snapshot()).digest if natively else ""
        length = journal.thread.messages
        await journal.record(ProviderKey(self._provider.name, key, digest, self._log_id, length))
        if not natively and self._said is None:
            self._said = len((await asyncio.to_thread(self._provider.read, folder)).messages)
        if self._said is not None:
            await asyncio.to_thread(_mark, folder, self._log_id, length, self._said)
        return True

    @asynccontextmanager
    async def _restored(self, digest: str) -> AsyncIterator[Path]:
        """Write the stored copy of a session into a temporary folder, and yield that folder. `digest` identifies the
        copy in the store. Raises `Corrupt` if the copy holds a link: what a link points at on this machine must never
        be read, or copied to the store."""
        with scratch() as folder:
            await Workspace(folder, self._store).restore(digest)
            await asyncio.to_thread(refuse_links, folder)
            yield folder


def staging_folder(provider: Provider, key: str) -> Path:
    """Return the path of the folder in Clew's cache for a copy of a provider's session. The copy makes it cheap to
    store the session again, because only what has changed is read. The folder may be deleted at any time."""
    return provider.place.cache / "providers" / provider.name / blake3(key.encode()).hexdigest()[:32]


@contextmanager
def alone(provider: Provider, key: str) -> Iterator[None]:
    """Hold a lock on a provider's session until the context ends, so that no other process on this machine works on it.
    `key` is the session's id. Raises `ProviderError` if another process holds the lock. A lease is not enough: two
    processes with different stores do not see each other's leases."""
    import fcntl  # not on Windows, where this module is imported all the same

    lock = staging_folder(provider, key).with_suffix(".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ProviderError(
                provider.name, "another process on this machine works on this session", "Wait for it, or stop it."
            ) from None
        yield


def sweep_staging(provider: Provider) -> None:
    """Delete Clew's own copies of this provider's sessions that were not used for 14 days. They are made again when
    needed."""
    oldest = time.time() - _KEPT_FOR
    for entry in staging_folder(provider, "").parent.glob("*"):
        with suppress(FileNotFoundError):
            if entry.stat().st_mtime < oldest:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _mark(folder: Path, log_id: str, messages: int, said: int) -> None:
    folder.with_suffix(".mark").write_text(f"{log_id} {messages} {said}")


def _marked(folder: Path) -> tuple[()] | tuple[str, int, int]:
    """Return three values from a small file beside `folder`, which is Clew's copy of a session: the id of the thread's
    log, how many messages of the thread the session covered, and how many messages the session itself held. They were
    written when the session was last stored. The tuple is empty if the file does not exist or is damaged."""
    try:
        log_id, messages, said = folder.with_suffix(".mark").read_text().split()
    except (FileNotFoundError, ValueError):
        return ()
    return log_id, int(messages), int(said)


def _ends_with(messages: Sequence[Message], prompt: str, answer: str) -> bool:
    """Return whether `messages`, which are those of a session, hold this prompt and after it this answer. The message
    with the prompt may begin with a note that Clew put there.

    White space is ignored. A program may store a prompt in another form: without invisible characters, or as a summary.
    So if the prompt is not found, the last user message counts as the prompt.
    """
    asked = [place for place, message in enumerate(messages) if type(message) is User]
    if not asked:
        return False
    found = (at for at in reversed(asked) if _solid(plain_text(messages[at])).endswith(_solid(prompt)))
    place = next(found, asked[-1])
    said = "".join(_solid(plain_text(message)) for message in messages[place + 1 :] if type(message) is Assistant)
    return _solid(answer) in said


def _solid(text: str) -> str:
    return "".join(text.split())


def _covers(known: ProviderKey, state: Checkpoint) -> bool:
    """Return whether a provider's session holds everything that the thread holds now. `known` is the last record of the
    session, and says how many of the thread's messages the session holds."""
    return known.messages == _end(state)


def _end(state: Checkpoint) -> int:
    """Return the index in the thread's history right after the last message that the model still sees; 0 if the model
    sees none. All messages from this index on were rewound."""
    return state.view[-1][1] if state.view else 0


def _only_went_on(state: Checkpoint) -> bool:
    """Return whether the thread has only grown and was never rewound. `state` is the thread's state. It does not count
    as rewinding if only prompts without an answer were removed from the end of the thread."""
    return len(state.view) <= 1 and all(type(message) is User for message in state.history[_end(state) :])


def _without_last_prompts(conversation: Conversation, taken_back: int) -> Conversation:
    """Return the conversation without its last message if `taken_back` is not 0 and that message is a prompt; otherwise
    unchanged. `taken_back` is the number of messages at the end of the thread that were rewound, so that the model no
    longer sees them: a prompt among them is asked again, and would then be in the conversation twice."""
    messages = conversation.messages
    if taken_back and messages and type(messages[-1]) is User:
        messages = messages[:-1]
    return msgspec.structs.replace(conversation, messages=messages)


def _done_since(known: ProviderKey, state: Checkpoint) -> bool:
    """Return whether responses or tool results were added to the thread after the provider's session was last recorded.
    `known` is that record."""
    return any(type(message) in (Assistant, Tool) for message in state.history[known.messages :])


def _in_line(known: ProviderKey, state: Checkpoint, log_id: str) -> bool:
    """Return whether the thread has only grown since the provider's session was recorded in `known`: it was not
    rewound, and it is not a fork or copy of the thread that the session belongs to. `log_id` is the id of this thread's
    log."""
    if known.thread not in ("", log_id):
        return False
    start = state.view[-1][0] if state.view else 0
    return _end(state) == len(state.history) and start <= known.messages
