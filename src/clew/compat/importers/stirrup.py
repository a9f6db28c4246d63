"""Reads the cache folder of Stirrup (another agent library), `~/.cache/stirrup`. It has one folder for each task, with
the conversation in `state.json` and the files of the task in `files`."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

import msgspec
from blake3 import blake3

from clew.compat.importers.base import Conversation, Source
from clew.compat.stirrup.cache import compute_task_hash, thread_of
from clew.errors import Corrupt, InvalidInput
from clew.log import (
    Compacted,
    Described,
    Entry,
    Fold,
    MessageAdded,
    StateSet,
    StatusChanged,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    Usage,
)
from clew.log.entries import KnownEntry
from clew.messages import (
    NOTE_MARK,
    Assistant,
    Block,
    Image,
    System,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    User,
    tool_calls,
)

__all__ = ["StirrupSource"]

_STATE = "state.json"
_METADATA = "stirrup:run_metadata"
"""The name of the thread's value that holds what tools recorded, if the cache does not say about which turn."""
_IMAGES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}
"""The media types of images that models take, by the bytes that such a file begins with."""
_MEDIA = {"image_content_block": "image", "video_content_block": "video", "audio_content_block": "audio recording"}
_INSERTED = ("turn_warning", "summary")
"""The kinds of user messages that Stirrup itself wrote, as it marks them since version 0.2."""

Raw = Mapping[str, Any]


class _State(msgspec.Struct):
    """The content of `state.json`, the file in which Stirrup saves a task. It fits all versions of Stirrup that write
    this file."""

    msgs: list[dict[str, Any]]
    task_hash: str = ""
    full_msg_history: list[list[dict[str, Any]]] = []
    timestamp: str = ""
    agent_name: str = ""
    run_metadata: dict[str, Any] = {}
    run_metadata_by_turn: dict[str, dict[str, Any]] = {}


class StirrupSource(Source):
    """Reads the tasks in a cache folder of Stirrup (another agent library), or a single one. Written for Stirrup 0.1
    and 0.2.

    The thread made from a task gets the id under which `clew.compat.stirrup.Agent` looks for the task. So a program
    that was written for Stirrup goes on with the task once it imports that class instead.
    """

    kind = "stirrup"

    def __init__(self, folders: Mapping[str, Path]) -> None:
        """`folders` maps the hash that Stirrup gave to each task to the folder of the task."""
        self._folders = folders

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the data of Stirrup at `path`: its cache folder, the folder of one task, or the file `state.json` of a
        task. Raises `InvalidInput` if `path` is none of these."""
        place = path.parent if path.name == _STATE and path.is_file() else path
        if not place.is_dir():
            raise InvalidInput(
                f"{str(path)!r} is not a folder. Give the cache folder of Stirrup, ~/.cache/stirrup, or one task in it."
            )
        tasks = [place] if (place / _STATE).is_file() else [one for one in place.iterdir() if (one / _STATE).is_file()]
        if not tasks:
            raise InvalidInput(
                f"{str(path)!r} holds no task of Stirrup: there is no {_STATE} in it or in the folders in it. Give the "
                "cache folder, usually ~/.cache/stirrup."
            )
        return cls({task.resolve().name: task for task in tasks})

    def keys(self) -> Sequence[str]:
        """Return the hashes by which the tasks are known, ordered by when Stirrup last saved each task, the oldest
        first."""
        return sorted(self._folders, key=lambda key: ((self._folders[key] / _STATE).stat().st_mtime_ns, key))

    def version(self, key: str) -> str:
        """Return the digest, in hex, of `state.json`, the file in which Stirrup saves the task with this key. It
        changes whenever Stirrup saves the task again."""
        return blake3(self._read(key)).hexdigest()

    def read(self, key: str) -> Conversation:
        try:
            state = msgspec.json.decode(self._read(key), type=_State)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise Corrupt(f"the task {key!r} of Stirrup cannot be read: {error}") from None
        files = self._folders[key] / "files"
        has_files = files.is_dir() and not files.is_symlink() and any(files.iterdir())
        try:
            return _Translation(key, state).conversation(files if has_files else None)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            what = f"{type(error).__name__}: {error}"
            raise Corrupt(f"the task {key!r} of Stirrup has messages of an unknown format: {what}") from None

    def _read(self, key: str) -> bytes:
        if key not in self._folders:
            raise InvalidInput(f"there is no task {key!r} in this cache of Stirrup")
        try:
            return (self._folders[key] / _STATE).read_bytes()
        except OSError as error:
            raise InvalidInput(f"the task {key!r} of Stirrup cannot be read: {error}") from error


class _Translation:
    """Translates one task of Stirrup (another agent library), a prompt with all the work for it, into the entries of a
    thread. Notes what cannot be carried over."""

    def __init__(self, key: str, state: _State) -> None:
        self._key = key
        self._state = state
        self._groups = [*state.full_msg_history, state.msgs]
        self._system = next((message for message in self._groups[0] if message["role"] == "system"), None)
        """The first system message, which is the system prompt of the thread."""
        users = [message for message in self._groups[0] if message["role"] == "user"]
        self._prompt = users[0]["content"] if users and isinstance(users[0]["content"], str) else ""
        self._is_task = bool(self._prompt.strip()) and compute_task_hash(self._prompt) == (state.task_hash or key)
        """Whether the conversation was begun with one prompt, and not with a list of messages. Then all later messages of
        the user were written by Stirrup itself."""
        self._entries: list[Entry] = []
        self._fold = Fold()
        self._answered = False
        self._response = -1
        self._open: list[tuple[int, str]] = []
        """The calls of the last response that have no result yet: their indices and ids."""
        self._metadata = dict(state.run_metadata_by_turn)
        self._losses: dict[str, None] = {}

    def conversation(self, files: Path | None) -> Conversation:
        """Return the task as a `Conversation` with the files in the folder `files`. The entries are encoded and decoded
        once, so that a value of a wrong type in Stirrup's file raises an error now, and not later when the thread is
        read."""
        state = self._state
        system = "" if self._system is None else _words(self._system["content"])
        self._add(ThreadStarted(agent=state.agent_name, system_prompt=system))
        for message in self._groups[0]:
            self._message(message)
        for group in self._groups[1:]:
            self._begin_anew(group)
        self._close_turn()
        rest = {**self._metadata, **({"": state.run_metadata} if state.run_metadata else {})}
        if rest:
            self._add(StateSet(_METADATA, rest))
        if state.timestamp:
            self._add(Described(tags={"saved_at": state.timestamp}))
        self._add(StatusChanged("interrupted", "imported from Stirrup"))
        return Conversation(
            thread_id=thread_of(compute_task_hash(self._prompt) if self._is_task else self._key),
            entries=msgspec.msgpack.decode(msgspec.msgpack.encode(self._entries), type=list[KnownEntry]),
            files=files,
            losses=tuple(self._losses),
        )

    def _begin_anew(self, messages: Sequence[Raw]) -> None:
        """Add a list of messages that replaces all earlier ones in the conversation. Stirrup writes such a list when it
        shortens a conversation: the task again, and a summary of everything else."""
        self._close_turn()
        lead = list(takewhile(lambda message: message["role"] != "assistant", messages))
        blocks = [block for message in lead if message["role"] == "user" for block in self._content(message["content"])]
        text = "\n\n".join(block.text for block in blocks if isinstance(block, Text))
        images = [block for block in blocks if isinstance(block, Image)]
        self._add(Compacted(User((Text(NOTE_MARK + text), *images))))
        for message in messages[len(lead) :]:
            self._message(message)

    def _message(self, message: Raw) -> None:
        role = message["role"]
        if role == "assistant":
            self._respond(message)
        elif role == "tool":
            self._result(message)
        elif role == "user":
            self._ask(message)
        elif message is not self._system:
            self._close_turn()
            self._add(MessageAdded(System(tuple(self._content(message["content"])))))

    def _ask(self, message: Raw) -> None:
        """Add a message with the role `user`. If Stirrup itself wrote it, such as a warning, it is marked as a note,
        which does not count as a prompt."""
        blocks: tuple[Block, ...] = tuple(self._content(message["content"]))
        if message.get("kind") in _INSERTED or (self._is_task and self._answered):
            first = blocks[0].text if blocks and isinstance(blocks[0], Text) else ""
            blocks = (Text(NOTE_MARK + first), *blocks[1 if first else 0 :])
        self._close_turn()
        self._add(MessageAdded(User(blocks)))

    def _respond(self, message: Raw) -> None:
        self._close_turn()
        self._answered = True
        response = Assistant(tuple(self._blocks(message)))
        counts = message.get("token_usage") or {}
        reasoning = int(counts.get("reasoning") or 0)
        answer = int(counts.get("answer") or counts.get("output") or 0)
        usage = Usage(int(counts.get("input") or 0), answer + reasoning, reasoning_tokens=reasoning)
        self._add(MessageAdded(response, usage))
        self._response = self._fold.messages - 1
        self._open = [(index, call.id) for index, call in enumerate(tool_calls(response))]
        for name, values in self._metadata.pop(str(message.get("id", "")), {}).items():
            self._add(StateSet(name, values, "turn"))

    def _result(self, message: Raw) -> None:
        call_id = message.get("tool_call_id")
        found = next((one for one in self._open if not call_id or one[1] == call_id), None)
        if found is None:
            self._losses["The result of a tool is left out, because its call is not in the conversation."] = None
            return
        self._open.remove(found)
        failed = message.get("success", message.get("args_was_valid", True)) is False
        result = ToolResult(found[1], tuple(self._content(message["content"])), is_error=failed)
        self._add(ToolOutcome(self._response, found[0], result))

    def _close_turn(self) -> None:
        """Record the tool calls of the last response that have no result as begun, because it is not known whether they
        took effect. An agent that resumes the thread then decides what to do about them."""
        for index, _ in self._open:
            self._add(ToolIntent(self._response, index))
        self._open = []

    def _add(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._fold.push([entry])

    def _blocks(self, message: Raw) -> Iterator[Block]:
        """Yield the blocks of a response. Stirrup 0.2 stores them as one list, in order. Stirrup 0.1 stores them in
        three fields, which are yielded in this order: reasoning, content, tool calls."""
        if "blocks" in message:
            for block in message["blocks"]:
                yield from self._block(block)
            return
        if reasoning := message.get("reasoning"):
            yield Thinking(reasoning.get("content") or "", reasoning.get("signature"))
        yield from self._content(message.get("content") or "")
        for number, call in enumerate(message.get("tool_calls") or []):
            yield self._call(call, number)

    def _block(self, block: Raw) -> Iterator[Block]:
        kind = block["kind"]
        if kind == "text":
            yield from self._content(block["text"])
        elif kind == "tool_call":
            yield self._call(block, 0)
        elif kind in ("reasoning", "signed_reasoning"):
            yield Thinking(block.get("content") or "", block.get("signature"))
        elif kind in _MEDIA:
            yield from self._content([block])
        else:
            self._losses[f"Blocks of the kind {kind!r} are left out: only the vendor of the model can read them."] = (
                None
            )

    def _call(self, call: Raw, number: int) -> ToolCall:
        given = call.get("arguments") or "{}"
        try:
            arguments = msgspec.json.decode(given)
        except (msgspec.MsgspecError, UnicodeError):
            arguments = given
        return ToolCall(call.get("tool_call_id") or f"call_{self._fold.messages}_{number}", call["name"], arguments)

    def _content(self, content: Any) -> Iterator[Text | Image]:
        """Yield the blocks of a message's content, which is a text, or a list of texts and media. A medium that models
        do not take is replaced by a line of text, and noted as lost."""
        for part in [content] if isinstance(content, str) else content:
            if isinstance(part, str):
                if part:
                    yield Text(part)
                continue
            medium, data = _MEDIA[part["kind"]], base64.b64decode(part["data"], validate=True)
            media_type = next((kind for magic, kind in _IMAGES.items() if data.startswith(magic)), "")
            if medium == "image" and media_type:
                yield Image(media_type, data)
            else:
                self._losses[
                    f"Each {medium} of a kind that models do not take is replaced by a line with its size."
                ] = None
                yield Text(f"[{medium} of {len(data)} bytes, not carried over]")


def _words(content: Any) -> str:
    """Return the texts in the content of a message of Stirrup, joined with line breaks. Images and other media are left
    out."""
    return content if isinstance(content, str) else "\n".join(part for part in content if isinstance(part, str))
