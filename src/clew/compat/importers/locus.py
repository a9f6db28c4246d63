"""Reads the conversations that Locus, another agent library, keeps: the JSON files of its `FileCheckpointer`, or its
SQLite database."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec
from blake3 import blake3

from clew.compat.importers.base import Conversation, Source
from clew.compat.importers.database import Database
from clew.compat.locus.conversion import added_messages, conversation_of, is_answered, split_prompt
from clew.compat.locus.state import AgentState
from clew.errors import Corrupt, InvalidInput
from clew.log import Described, Entry, StateSet, StatusChanged, ThreadStarted

__all__ = ["LocusData"]

_HEADER = 64 * 1024
"""Bytes at the start of a checkpoint file in which its id, thread and time are looked for."""
_STATE = re.compile(rb',\s*"state"\s*:')
_EPOCH = datetime.fromtimestamp(0, UTC)


class LocusData(Source):
    """Reads the conversations that Locus, another agent library, keeps in a folder of its `FileCheckpointer` or in a
    database of its `sqlite_checkpointer`. Tested with files that `locus-sdk` 0.2.0 and 3.0.1 wrote, and with a database
    of 0.2.0b16, the last version that had databases.

    Only the newest checkpoint (saved state) of each thread is read, because it holds the whole conversation.
    """

    kind: ClassVar[str] = "locus"

    def __init__(self, threads: _Threads) -> None:
        self._threads = threads

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the data at `path`: a folder with a folder for each thread, the folder of one thread, or a SQLite
        database. Raises `InvalidInput` if it is none of these."""
        if path.is_dir():
            return cls(_Files(path))
        if not path.is_file():
            raise InvalidInput(
                f"{path}: there is nothing. Give the folder of a FileCheckpointer (by default .locus_checkpoints), or the "
                "file of a sqlite_checkpointer (locus_checkpoints.db)."
            )
        return cls(_Database(path))

    def keys(self) -> Sequence[str]:
        return self._threads.keys()

    def version(self, key: str) -> str:
        return blake3(self._threads.newest(key).data).hexdigest()

    def read(self, key: str) -> Conversation:
        found = self._threads.newest(key)
        state = found.state
        losses = [*found.doubts, *_losses(found.name, state, found.earlier)]
        return Conversation(thread_id=found.thread_id, entries=tuple(_entries(found.name, state)), losses=tuple(losses))

    def close(self) -> None:
        self._threads.close()


class _Newest:
    """The newest checkpoint (saved state) of a thread in Locus: its bytes as they are stored, the state that they hold,
    and what else is known of the thread."""

    def __init__(
        self, name: str, thread_id: str, data: bytes, state: AgentState, earlier: int, doubts: Sequence[str] = ()
    ) -> None:
        self.name = name
        """Where the checkpoint is, for errors."""
        self.thread_id = thread_id
        self.data = data
        self.state = state
        self.earlier = earlier
        """How many earlier checkpoints the thread has."""
        self.doubts = doubts
        """Sentences about what may be wrong with it: newer checkpoints that are damaged, threads that were mixed up."""


class _Threads(ABC):
    """The conversations that Locus keeps in one place, which is a folder of files or a database."""

    @abstractmethod
    def keys(self) -> Sequence[str]: ...

    @abstractmethod
    def newest(self, key: str) -> _Newest:
        """Read the newest checkpoint (saved state) of the thread with this key. Raises `InvalidInput` if there is no
        such thread, and `Corrupt` if none of its checkpoints can be read."""

    def close(self) -> None:  # noqa: B027 - files are closed as soon as they are read
        """Close the database, if one is open."""


class _File(msgspec.Struct, frozen=True):
    """A file in which Locus has saved the state of a conversation, with what the first bytes of the file say: the id of
    the thread, and the time at which it was saved."""

    path: Path
    thread_id: str
    at: datetime


class _Files(_Threads):
    """The conversations that Locus keeps as JSON files, one for each checkpoint (saved state). Locus names the folder
    of a thread by the thread's id, with some characters replaced. So several threads may share a folder, and only the
    id inside a file says to which thread it belongs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, list[_File]] = {}
        for path in sorted([*folder.glob("*.json"), *folder.glob("*/*.json")]):
            file = _look_at(path)
            if file is not None:
                self._files.setdefault(file.thread_id, []).append(file)
        if not self._files:
            raise InvalidInput(
                f"{folder} has no checkpoints of Locus: files <thread>/<checkpoint>.json with a checkpoint_id and a "
                "thread_id. Give the folder that its FileCheckpointer was given."
            )
        for files in self._files.values():
            files.sort(key=lambda file: (file.at, file.path.stat().st_mtime_ns))

    def keys(self) -> Sequence[str]:
        return sorted(self._files, key=lambda key: (self._files[key][0].at, key))

    def newest(self, key: str) -> _Newest:
        if key not in self._files:
            raise InvalidInput(f"{self._folder} has no thread {key!r}. It has: {', '.join(self.keys()[:20])}")
        damaged = []
        for number, file in reversed([*enumerate(self._files[key])]):
            try:
                data = file.path.read_bytes()
                state = _state_in(str(file.path), _decoded(str(file.path), data).get("state"))
            except (Corrupt, OSError) as error:
                damaged.append(f"A newer checkpoint is damaged and was passed over: {error}")
                continue
            notes = [*damaged, *self._mixed(key, file.path.parent)]
            return _Newest(str(file.path), key, data, state, number, notes)
        raise Corrupt(f"thread {key!r}: none of its {len(self._files[key])} checkpoints can be read. {damaged[0]}")

    def _mixed(self, key: str, folder: Path) -> Iterator[str]:
        """Yield a sentence that warns the user if `folder`, the folder of the thread with this key, also has files of
        other threads."""
        others = [other for other, files in self._files.items() if other != key and files[0].path.parent == folder]
        if others:
            yield (
                f"Locus kept the threads {', '.join(map(repr, sorted(others)))} in the same folder and took them for this "
                "one. Messages of theirs may be in this conversation."
            )


def _look_at(path: Path) -> _File | None:
    """Return what the beginning of a file says about the checkpoint (saved state) in it: its thread and its time.
    Returns None for a JSON file of another kind.

    Locus writes thread and time before the conversation, so the conversation is not read. If a file is damaged at its
    very beginning, the name of its folder is taken for the id of its thread.
    """
    try:
        with path.open("rb") as file:
            start = file.read(_HEADER)
        found = _STATE.search(start)
        about = _decoded(str(path), start[: found.start()] + b"}" if found else path.read_bytes())
    except (Corrupt, OSError):
        return _File(path, path.parent.name, _EPOCH)
    thread_id = about.get("thread_id")
    if not isinstance(about.get("checkpoint_id"), str) or not isinstance(thread_id, str):
        return None
    return _File(path, thread_id, _moment(about.get("created_at")))


class _Row(msgspec.Struct, frozen=True):
    """Where Locus, another agent library, keeps the newest state of a thread in its database: the table, and the name
    of the row. `earlier` is the number of the thread's older checkpoints."""

    table: str
    name: str
    thread_id: str
    created_at: str
    earlier: int


class _Database(_Threads):
    """The conversations that Locus keeps in a SQLite database. In its table, each row has a name: `THREAD:latest` is
    the newest state of a thread, and `THREAD:ID` is one of its checkpoints (saved states). If a thread has no row
    `THREAD:latest`, its only row has the thread's id as its name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._database = Database(path, "a database of Locus")
        except InvalidInput as error:
            raise InvalidInput(
                f"{path} cannot be read as a SQLite database. Give the file of a sqlite_checkpointer, or the folder of a "
                "FileCheckpointer."
            ) from error
        try:
            self._rows = dict(self._found())
        except BaseException:
            self.close()
            raise
        if not self._rows:
            self.close()
            raise InvalidInput(
                f"{path} is no database of Locus' sqlite_checkpointer: no table has the columns thread_id, data, "
                "created_at and updated_at and a row."
            )

    def _found(self) -> Iterator[tuple[str, _Row]]:
        """Yield a pair for each thread: its key, and the row with its newest state. No state itself is read."""
        rows: list[_Row] = []
        for unquoted in self._database.tables_with("thread_id", "data", "created_at", "updated_at"):
            table = '"' + unquoted.replace('"', '""') + '"'
            found = self._database.rows(f"SELECT thread_id, created_at FROM {table}")  # noqa: S608 - quoted
            named = {row["thread_id"]: row["created_at"] for row in found}
            owned = Counter(name.rpartition(":")[0] for name in named)
            for name, at in named.items():
                thread_id, _, rest = name.rpartition(":")
                if rest == "latest":  # beside it are a row for each checkpoint, and one that lists them
                    rows.append(_Row(table, name, thread_id, at, max(0, owned[thread_id] - 3)))
                elif f"{thread_id}:latest" not in named:
                    rows.append(_Row(table, name, name, at, 0))
        times = Counter(row.thread_id for row in rows)
        for row in sorted(rows, key=lambda row: (row.created_at, row.thread_id)):
            yield row.thread_id if times[row.thread_id] == 1 else f"{row.table}:{row.thread_id}", row

    def keys(self) -> Sequence[str]:
        return list(self._rows)

    def newest(self, key: str) -> _Newest:
        row = self._rows.get(key)
        if row is None:
            raise InvalidInput(f"{self._path} has no thread {key!r}. It has: {', '.join(list(self._rows)[:20])}")
        name = f"{self._path}, thread {key!r}"
        query = f"SELECT CAST(data AS BLOB) AS data FROM {row.table} WHERE thread_id = ?"  # noqa: S608 - quoted in _found
        found = self._database.rows(query, row.name)
        if not found:
            raise InvalidInput(f"{name}: it was deleted meanwhile.")
        data = bytes(found[0]["data"] or b"")
        return _Newest(name, row.thread_id, data, _state_in(name, _decoded(name, data)), row.earlier)

    def close(self) -> None:
        self._database.close()


def _decoded(name: str, data: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"{name} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Corrupt(f"{name} is not a checkpoint of Locus: it holds no JSON object")
    return found


def _state_in(name: str, state: Any) -> AgentState:
    if not isinstance(state, Mapping) or "messages" not in state:
        raise Corrupt(f"{name} is not a checkpoint of Locus: it has no state with messages")
    try:
        return AgentState.from_checkpoint(state)
    except InvalidInput as error:
        raise Corrupt(f"{name}: {error}") from None


def _moment(value: Any) -> datetime:
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return _EPOCH
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _entries(name: str, state: AgentState) -> Iterator[Entry]:
    """Yield the log entries for the conversation in `state`. The same state always gives the same entries, and when a
    conversation has grown, its entries begin with those that it gave before, so that a later import can add what is
    new. Raises `InvalidInput` if there are no messages; `name` says in the error where the conversation is stored."""
    prompt, said = split_prompt(state.messages)
    messages = conversation_of(said, state.tool_executions)
    if not messages:
        raise InvalidInput(f"{name} holds a conversation without any message")
    yield ThreadStarted(state.agent_id or "", "", prompt)
    for key, value in state.metadata.items():
        if value is not None and not key.startswith("clew:"):
            yield StateSet(key, value)
    yield from added_messages(messages, 0)  # type: ignore[misc]  # these are messages and intents
    yield Described(tags={"created_at": state.started_at.isoformat(), **_spent(state)})
    yield StatusChanged("done" if is_answered(messages) else "interrupted")


def _spent(state: AgentState) -> dict[str, str]:
    if not state.total_tokens_used:
        return {}
    return {
        "locus_prompt_tokens": str(state.prompt_tokens_used),
        "locus_completion_tokens": str(state.completion_tokens_used),
    }


def _losses(name: str, state: AgentState, earlier: int) -> Iterator[str]:
    """Yield a sentence for each part of `state`, the state of a conversation in Locus, that is not carried over into
    the thread. `earlier` is the number of its older checkpoints, which are not carried over either."""
    if earlier:
        checkpoints = "1 earlier checkpoint" if earlier == 1 else f"{earlier} earlier checkpoints"
        yield f"{checkpoints}: the newest holds the whole conversation, and every turn of the thread can be loaded."
    if state.total_tokens_used:
        yield (
            f"{state.prompt_tokens_used} tokens in and {state.completion_tokens_used} out: they are in the thread's tags, "
            "and not in its usage, because newer versions of Locus count only those of the last run."
        )
    if any(step.reflection for step in state.reasoning_steps) or state.confidence_history:
        yield "Locus' own ratings: reflections and confidence."
    if state.errors:
        yield f"Errors that Locus recorded ({len(state.errors)}); the last one: {state.errors[-1][:200]}"
    if state.provider_state is not None:
        yield "The vendor's id of the conversation on its own server: the whole conversation is sent instead."
    if any(message.metadata for message in state.messages):
        yield "Annotations of single messages, such as marks for prompt caching."
