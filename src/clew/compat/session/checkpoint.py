"""`Checkpoint`, the state of an agent's run after an iteration (one response of the model with its tool calls), and the
JSON file in which it can be saved."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, Protocol, runtime_checkable

import msgspec

from clew._runtime import files
from clew.errors import Corrupt, InvalidInput

__all__ = ["FIELDS", "Checkpoint", "Param", "Summary", "checked", "read_file", "read_summary", "write_file"]

Param = dict[str, Any]
"""One message as Anthropic's API takes it: `role` and a list of content blocks, all of it plain JSON values."""

FIELDS = (
    "run_id",
    "task_name",
    "iteration",
    "messages",
    "system_prompt",
    "input_tokens",
    "output_tokens",
    "created_at",
)
"""The fields of a checkpoint, and of its JSON file, in their order there."""
_NAMES = {"".join(name.split("_")): name for name in FIELDS}
_ELSEWHERE = {
    "model": "a checkpoint has no model: give it to the loop, or to clew.Agent",
    "tools": "a checkpoint has no tools: give them to the loop, or to clew.Agent(tools=…)",
    "metadata": "a checkpoint has no metadata: clew.log.StateSet puts values on a thread",
}


@runtime_checkable
class _Model(Protocol):
    """An object of Anthropic's SDK, such as a block of a response. Its method `model_dump` returns it as plain JSON
    values."""

    def model_dump(self, *, mode: str, by_alias: bool, exclude_unset: bool) -> Any: ...


@dataclass(init=False)
class Checkpoint:
    """The state of an agent's run after an iteration, which is one response of the model with its tool calls: the
    conversation, and how far the run has come.

    `messages` are those that the user's own loop sends to Anthropic's API: dicts, which may contain block objects of
    Anthropic's SDK. A checkpoint can be changed and saved again; `Store.save` records what it holds at that time.
    """

    run_id: str
    task_name: str
    """Empty for a run without a task."""
    iteration: int
    messages: list[Any] = field(repr=False)
    system_prompt: str = field(repr=False)
    input_tokens: int
    """Tokens of the whole run so far, and not of one iteration. So are `output_tokens`."""
    output_tokens: int
    created_at: datetime

    def __init__(
        self,
        run_id: str,
        task_name: str = "",
        iteration: int = 0,
        messages: Iterable[Any] = (),
        system_prompt: str = "",
        input_tokens: int = 0,
        output_tokens: int = 0,
        created_at: datetime | None = None,
        **others: Any,
    ) -> None:
        """`run_id` identifies the run, `iteration` says how many iterations it has had, and `messages` are its
        conversation as Anthropic's API takes it. The tokens are those of the whole run so far. `task_name` is empty for
        a run without a task. `created_at` is the present time unless it is given. Any argument in `others` raises
        `InvalidInput`."""
        for name in others:
            _refuse(name)
        self.run_id = run_id
        self.task_name = task_name
        self.iteration = iteration
        self.messages = messages if isinstance(messages, list) else list(messages)
        self.system_prompt = system_prompt
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.created_at = datetime.now(UTC) if created_at is None else created_at


def _refuse(name: str) -> NoReturn:
    plain = "".join(name.split("_")).lower()
    if plain in _NAMES:
        raise InvalidInput(f"Checkpoint({name}=…): the name in Python is {_NAMES[plain]}.")
    why = _ELSEWHERE.get(name, f"a checkpoint has {', '.join(FIELDS)}")
    raise InvalidInput(f"Checkpoint({name}=…): {why}.")


def checked(checkpoint: Checkpoint) -> Checkpoint:
    """Return a copy of a checkpoint that can be stored: its messages are plain JSON values, and its time is in UTC.

    Content that is given as one text becomes a list with one text block. Anthropic's API takes both alike, and programs
    in Go can read nothing else. A time without a zone is taken as local time. Raises `InvalidInput`, with the name of
    the field, if something cannot be stored.
    """
    if not isinstance(checkpoint, Checkpoint):
        raise InvalidInput(f"save takes a Checkpoint, and not of type {type(checkpoint).__name__}.")
    for name in ("run_id", "task_name", "system_prompt"):
        if not isinstance(getattr(checkpoint, name), str):
            raise InvalidInput(f"{name} of a checkpoint is text, and not {getattr(checkpoint, name)!r}.")
    if not checkpoint.run_id:
        raise InvalidInput("run_id of a checkpoint is empty. Give the run a name of its own.")
    for name in ("iteration", "input_tokens", "output_tokens"):
        value = getattr(checkpoint, name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
            raise InvalidInput(f"{name} of a checkpoint is a whole number, 0 or more, and not {value!r}.")
    if not isinstance(checkpoint.created_at, datetime):
        raise InvalidInput(f"created_at of a checkpoint is a datetime, and not {checkpoint.created_at!r}.")
    if isinstance(checkpoint.messages, str | Mapping) or not isinstance(checkpoint.messages, Iterable):
        raise InvalidInput("messages of a checkpoint are a list of messages, as Anthropic's API takes them.")
    return Checkpoint(
        checkpoint.run_id,
        checkpoint.task_name,
        checkpoint.iteration,
        [_param(message, f"messages[{number}]") for number, message in enumerate(checkpoint.messages)],
        checkpoint.system_prompt,
        checkpoint.input_tokens,
        checkpoint.output_tokens,
        _in_utc(checkpoint.created_at),
    )


def _in_utc(moment: datetime) -> datetime:
    """Return the moment in UTC. A moment without a time zone is taken as local time."""
    try:
        return moment.astimezone(UTC)
    except (OverflowError, ValueError, OSError):  # at the very edge of the calendar
        return moment.replace(tzinfo=UTC)


def _param(message: Any, where: str) -> Param:
    plain = _plain(message, where)
    if not isinstance(plain, dict) or plain.get("role") not in ("user", "assistant") or "content" not in plain:
        raise InvalidInput(f"{where} is not a message: it needs a role, user or assistant, and content.")
    plain["content"] = _blocks(plain["content"], where)
    return plain


def _blocks(content: Any, where: str) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list) or not all(isinstance(block, dict) and "type" in block for block in content):
        raise InvalidInput(f"{where}: content is a text or a list of blocks, each with its type.")
    for block in content:
        if block["type"] == "tool_result" and isinstance(block.get("content"), str):
            block["content"] = _blocks(block["content"], where)
    return content


def _plain(value: Any, where: str) -> Any:
    """Return a copy of `value` that consists of plain JSON values. Objects of Anthropic's SDK become dicts. Raises
    `InvalidInput` for any other object; `where` says in the error where it is."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, where) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, where) for inner in value]
    if isinstance(value, _Model):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    raise InvalidInput(
        f"{where} holds a {type(value).__name__}, which is no JSON value and no block of Anthropic's SDK. Convert it first."
    )


class Summary(msgspec.Struct, frozen=True):
    """What the file of a checkpoint (the state of a run) holds, except the messages and the system prompt."""

    run_id: str
    task_name: str = ""
    iteration: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    created_at: datetime = datetime.min.replace(tzinfo=UTC)

    def checkpoint(self, messages: Iterable[Any] = (), system_prompt: str = "") -> Checkpoint:
        return Checkpoint(
            self.run_id,
            self.task_name,
            self.iteration,
            messages,
            system_prompt,
            self.input_tokens,
            self.output_tokens,
            _in_utc(self.created_at),
        )


class _Whole(Summary, frozen=True):
    messages: list[Param] | None = None
    system_prompt: str = ""


_read_summary = msgspec.json.Decoder(Summary, strict=True).decode
_read_whole = msgspec.json.Decoder(_Whole, strict=True).decode


def read_summary(path: Path) -> Summary | None:
    """Read a checkpoint's file, but not its messages and system prompt. Returns None if the file is JSON of another
    kind, without a `run_id`. Raises `Corrupt` if the file is not JSON, or if a field has a value of the wrong kind."""
    data = _bytes(path)
    try:
        return _read_summary(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if _is_other_json(data):
            return None
        raise _damaged(path, error) from None


def read_file(path: Path) -> Checkpoint:
    """Read a checkpoint from its file, which Clew or the Go package `session` has written. Raises `Corrupt`, which
    names the file, if it holds no checkpoint."""
    data = _bytes(path)
    try:
        found = _read_whole(data)
        return checked(found.checkpoint(found.messages or (), found.system_prompt))
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidInput, OverflowError) as error:
        raise _damaged(path, error) from None


def write_file(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint to the file at `path`, which is replaced as a whole. The checkpoint must be one that the
    function `checked` has returned. When this returns, the file survives a power cut. Only this user can read the file.
    """
    fields = {name: getattr(checkpoint, name) for name in FIELDS}
    fields["created_at"] = _rfc3339(checkpoint.created_at)
    try:
        text = json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False)
        data = text.encode()
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"run {checkpoint.run_id!r}: its messages cannot be written as JSON: {error}.") from None
    try:
        temporary = files.write_beside(path, data, durable=True)
        try:
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        files.sync_folder(path.parent)
    except (OSError, MemoryError) as error:
        raise files.explain(error, path) from error


def _rfc3339(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except (OSError, MemoryError) as error:
        raise files.explain(error, path) from error


def _is_other_json(data: bytes) -> bool:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return not isinstance(found, dict) or "run_id" not in found


def _damaged(path: Path, error: Exception) -> Corrupt:
    return Corrupt(f"{path} holds no run checkpoint: {error}. Restore it from a copy, or move it out of the folder.")
