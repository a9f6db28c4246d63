"""Reads a conversation from the tables of `logs.db`, in which the program `llm` keeps what it was asked and answered.

Versions of `llm` up to 0.31 have a row in `responses` for each answer, with what was new in its prompt. Newer versions
keep messages in a tree (`messages`, `parts`), in which a row of `threads` names the last message of a conversation, and
a row of `turns` belongs to each answer. A database can have both, for a conversation that a newer version went on with.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from clew.compat.importers.database import Database, Row
from clew.errors import Corrupt
from clew.log import MessageAdded, Spend, Usage
from clew.messages import (
    Assistant,
    Block,
    File,
    Image,
    Message,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    User,
    plain_text,
    tool_calls,
)
from clew.models.prices import cost_of
from clew.providers.fields import text, values

__all__ = ["Chat", "read_chat", "version_of"]


class Chat(msgspec.Struct):
    """A conversation that was read from the database of the program `llm`."""

    system: str = ""
    said: list[MessageAdded] = []
    spent: list[Spend] = []
    """What answers cost that are not part of the conversation as it stands."""
    losses: list[str] = []
    models: list[str] = []
    """The names of the models that answered, in order."""
    times: list[str] = []
    """When the answers were given, in order."""


def version_of(database: Database, key: str) -> str:
    """Return a digest, in hex, that changes whenever an answer is added to the conversation with this key."""
    answers = [row["id"] for row in _responses(database, key)]
    turns = [row["id"] for row in _turns(database, key)]
    facts = [_tip(database, key), *answers, "", *turns]
    return sha256("\n".join(map(str, facts)).encode("utf-8", "replace")).hexdigest()[:32]


def read_chat(database: Database, key: str) -> Chat:
    """Read the conversation with this key from `database`, in which the program `llm` keeps it. Raises `Corrupt` if a
    message of it is missing, or has a form that `llm` does not write."""
    reader = _Reader(database, key)
    tip = _tip(database, key)
    if tip:
        reader.follow(tip)
    else:
        for row in _responses(database, key):
            reader.answer(row)
    return reader.end()


def _tip(database: Database, key: str) -> str:
    """Return the hash of the last message of the conversation with this key. Only newer versions of `llm` write such
    hashes; returns an empty text if the conversation has none."""
    if not (database.has("threads", "id", "tip_message_hash") and database.has("messages") and database.has("parts")):
        return ""
    found = database.rows("SELECT tip_message_hash AS tip FROM threads WHERE id = ?", key)
    return text(found[0]["tip"]) if found else ""


def _responses(database: Database, key: str) -> list[Row]:
    if not database.has("responses", "id", "conversation_id", "model", "prompt", "response"):
        return []
    return sorted(database.matching("responses", "conversation_id", key), key=lambda row: text(row["id"]))


def _turns(database: Database, key: str) -> list[Row]:
    if not database.has("turns", "id", "thread_id", "tip_message_hash", "model"):
        return []
    return sorted(database.matching("turns", "thread_id", key), key=lambda row: text(row["id"]))


class _Reader:
    """Reads one conversation from the database of the program `llm`: its messages in order, and what of it cannot be
    carried over into a thread."""

    def __init__(self, database: Database, key: str) -> None:
        self._database = database
        self._key = key
        self._chat = Chat()
        self._open: list[tuple[str, str]] = []
        """Id and name of each call of the last answer that has no result yet."""
        self._calls = 0
        self._notes: dict[str, list[str]] = {}
        """What cannot be carried over: details, by the sentence that they go into."""

    # The older tables: a row for each answer.

    def answer(self, row: Row) -> None:
        """Add to the conversation the answer in `row`, and before it the messages that were new in its prompt. `row` is
        a row of the table `responses`, in which older versions of `llm` keep an answer with its prompt."""
        key = row["id"]
        system = [self._fragments("system_fragments", key), text(row.get("system"))]
        self._say_system("\n\n".join(part.strip() for parts in system for part in _listed(parts) if part.strip()))
        results = self._of_response("tool_results", key)
        if results:
            self._add(Tool(tuple(self._result(result, result.get("tool_call_id")) for result in results)))
        asked = "\n".join([*self._fragments("prompt_fragments", key), *_listed(text(row.get("prompt")))])
        content: list[Block] = [Text(asked)] if asked else []
        content += [block for each in self._attached(key) if (block := self._attachment(each)) is not None]
        if content:
            self._add(User(tuple(content)))
        calls = [
            self._call(call.get("tool_call_id"), text(call.get("name")), _json(call.get("arguments"), "a tool call"))
            for call in self._of_response("tool_calls", key)
        ]
        self._say(self._answer_of(row, calls), row)
        self._look_at(row, "tool_responses", "response_id")

    def _answer_of(self, row: Row, calls: list[ToolCall]) -> Assistant:
        thought, said = text(row.get("reasoning")), text(row.get("response"))
        content: list[Block] = [Thinking(thought)] if thought else []
        content += [Text(said)] if said else []
        return Assistant((*content, *calls), _model(row))

    def _of_response(self, table: str, key: str) -> list[Row]:
        if not self._database.has(table, "id", "response_id", "name"):
            return []
        return self._database.matching(table, "response_id", key)

    def _fragments(self, table: str, key: str) -> list[str]:
        if not (self._database.has(table, "response_id", "fragment_id", "order") and self._database.has("fragments")):
            return []
        query = f'SELECT content FROM {table} JOIN fragments ON id = fragment_id WHERE response_id = ? ORDER BY "order"'  # noqa: S608 - a name of ours
        return [text(row["content"]) for row in self._database.rows(query, key)]

    def _attached(self, key: str) -> list[Row]:
        if not (self._database.has("prompt_attachments", "order") and self._database.has("attachments", "content")):
            return []
        query = (
            "SELECT attachments.* FROM prompt_attachments JOIN attachments ON id = attachment_id WHERE response_id = ? "
            'ORDER BY "order"'
        )
        return self._database.rows(query, key)

    # The newer tables: a tree of messages.

    def follow(self, tip: str) -> None:
        """Add the messages of the conversation to those read so far. `tip` is the hash of its last message; each
        message names the one before it. Answers that do not lead to `tip` are left out, with a note, but their tokens
        count."""
        turns = {text(row["tip_message_hash"]): row for row in _turns(self._database, self._key)}
        known = {row["id"] for row in turns.values()}
        older = [row for row in _responses(self._database, self._key) if row["id"] not in known]
        chain, probe = self._chain(tip), _Reader(self._database, self._key)
        start = _end_of([probe._message(name, role) for name, role in chain], older) if older else 0
        for row in older[: len(older) if start else 0]:
            self.answer(row)
        for place, (name, role) in enumerate(chain[start:], start):
            message = self._message(name, role)
            if message is None:
                continue
            if isinstance(message, System) and place == 0:
                self._say_system(plain_text(message))
            elif isinstance(message, Assistant):
                turn = turns.pop(name, {})
                if turn:
                    self._look_at(turn, "turn_tools", "turn_id")
                self._say(msgspec.structs.replace(message, model=_model(turn)), turn)
            else:
                self._add(message)
        aside = [*(older if not start else ()), *turns.values()]
        self._chat.spent += [Spend(usage, _cost(row, usage)) for row in aside if (usage := _usage(row)) is not None]
        for row in aside:
            self._note("{n} answers that are not part of the conversation as it is now ({names})", text(row["id"]))

    def _chain(self, tip: str) -> list[tuple[str, str]]:
        """Return the hash and the role of each message of a conversation, from its first message to the one with the
        hash `tip`. Raises `Corrupt` if a message in between is missing."""
        chain: list[tuple[str, str]] = []
        seen: set[str] = set()
        while tip:
            found = self._database.rows("SELECT parent_hash, role FROM messages WHERE hash = ?", tip)
            if not found or tip in seen:
                raise Corrupt(
                    f"conversation {self._key!r} of llm is damaged: the chain of its messages breaks at {tip!r}. Restore "
                    "the database from a copy."
                )
            seen.add(tip)
            chain.append((tip, text(found[0]["role"])))
            tip = text(found[0]["parent_hash"])
        return chain[::-1]

    def _message(self, name: str, role: str) -> Message | None:
        """Return the message with the hash `name` and the given role, or None if nothing of the message can be carried
        over."""
        rows = self._database.rows("SELECT * FROM parts WHERE message_hash = ? ORDER BY position", name)
        blocks = [block for row in rows if (block := self._part(row)) is not None]
        calls = [block for block in blocks if isinstance(block, ToolCall)]
        results = [block for block in blocks if isinstance(block, ToolResult)]
        others = tuple(block for block in blocks if not isinstance(block, ToolCall | ToolResult))
        if role == "assistant":
            return Assistant((*others, *calls))
        if role == "tool" or results:
            return Tool(tuple(results)) if results else None
        if role == "system":
            return System(others) if others else None
        return User(others) if others else None

    def _part(self, row: Row) -> Block | None:
        """Convert a row of the table `parts`, which holds one part of a message, to a block. Returns None if the part
        cannot be imported, for example because it is of an unknown kind."""
        kind, payload = text(row.get("type")), values(_json(row.get("payload") or "{}", "a part of a message"))
        said = text(row.get("text"))
        if payload.get("server_executed"):
            self._note(
                "{n} calls of tools that the vendor ran itself, with their results ({names})", payload.get("name")
            )
            return None
        if kind == "text":
            self._note_vendor(payload)
            return Text(said or self._with_fragments(payload))
        if kind == "reasoning":
            return self._reasoning(said, payload)
        if kind == "tool_call":
            self._note_vendor(payload)
            return self._call(payload.get("tool_call_id"), text(payload.get("name")), payload.get("arguments"))
        if kind == "tool_result":
            return self._result(payload, payload.get("tool_call_id"))
        if kind == "attachment":
            return self._attachment(self._stored(text(values(payload.get("attachment")).get("id"))))
        self._note("{n} parts of messages of a kind that is not known ({names})", kind)
        return None

    def _with_fragments(self, payload: dict[str, Any]) -> str:
        """Return the text of a part of a message that is stored in pieces. `payload` is the content of the part and
        lists the pieces: each is a text, or the id of a row in the table `fragments`."""
        pieces = payload.get("text_ref")
        found = []
        for piece in map(values, pieces if isinstance(pieces, list) else []):
            rows = self._database.rows("SELECT content FROM fragments WHERE id = ?", _number(piece.get("fragment")))
            found.append(text(piece.get("literal")) or "".join(text(row["content"]) for row in rows))
        return "".join(found)

    def _reasoning(self, said: str, payload: dict[str, Any]) -> Thinking | None:
        """Return a model's reasoning as a block, with Anthropic's signature if there is one. `said` is its text, and
        `payload` has further data. Encrypted reasoning of other vendors is noted as lost. Returns None if there is no
        text."""
        data = values(payload.get("provider_metadata"))
        signature = text(values(data.get("anthropic")).get("signature")) or None
        if signature is None:
            self._note_vendor(payload)
        return Thinking(said, signature) if said else None

    def _note_vendor(self, payload: dict[str, Any]) -> None:
        for vendor in values(payload.get("provider_metadata")):
            self._note(
                "data of {n} parts that only the vendor understands, such as encrypted reasoning ({names})", vendor
            )

    def _stored(self, name: str) -> Row:
        found = self._database.rows("SELECT * FROM attachments WHERE id = ?", name)
        return found[0] if found else {"id": name}

    # Both.

    def end(self) -> Chat:
        """Return the conversation, with the list of what cannot be carried over. Call this after all messages were
        added."""
        self._chat.losses = [
            sentence.format(n=len(details), names=", ".join(dict.fromkeys(filter(None, details)))).replace(" ()", "")
            for sentence, details in self._notes.items()
        ]
        return self._chat

    def _note(self, sentence: str, detail: Any = "") -> None:
        self._notes.setdefault(sentence, []).append(text(detail))

    def _add(self, message: Message) -> None:
        self._chat.said.append(MessageAdded(message))

    def _say_system(self, prompt: str) -> None:
        """Add a system prompt, if it is not empty. It becomes the system prompt of the thread if no message and no
        other system prompt came before it; otherwise it is added as a message."""
        if prompt and not self._chat.said and not self._chat.system:
            self._chat.system = prompt
        elif prompt:
            self._add(System((Text(prompt),)))

    def _say(self, message: Assistant, row: Row) -> None:
        """Add an answer of the model. `row` has what the database says about the answer: the model, the tokens and the
        time. The options of the call and a JSON schema for the answer are noted as lost."""
        usage = _usage(row)
        self._chat.said.append(MessageAdded(message, usage, None if usage is None else _cost(row, usage)))
        self._open = [(call.id, call.name) for call in tool_calls(message)]
        self._chat.models += _listed(_model(row))
        self._chat.times += _listed(text(row.get("datetime_utc")))
        for name, value in values(_json(row.get("options_json") or "{}", "the options of an answer")).items():
            self._note("the options of model calls ({names})", f"{name}={value}")
        if row.get("schema_id"):
            self._note("the JSON schema of {n} answers")

    def _look_at(self, row: Row, table: str, column: str) -> None:
        """Note that the import loses the code of the tools that the model could call for an answer: the database has
        only their names. `row` is the row of the answer; `table` links answers to tools, and has the answer's id in
        `column`."""
        if self._database.has(table, column, "tool_id") and self._database.has("tools", "id", "name"):
            for offered in self._database.matching(table, column, row["id"]):
                for tool in self._database.matching("tools", "id", offered["tool_id"]):
                    self._note("the code of the tools, of which there are only the names ({names})", tool["name"])

    def _call(self, given: Any, name: str, arguments: Any) -> ToolCall:
        self._calls += 1
        return ToolCall(text(given) or f"llm_{self._calls}", name, arguments)

    def _result(self, row: Row, given: Any) -> ToolResult:
        """Return the result of a tool call as a block, with the output in `row`. `given` is the id of the call. If the
        database has no id, the result is for the first call of the same tool that has no result yet."""
        name = text(row.get("name"))
        call = text(given) or next((call for call, tool in self._open if tool == name), "llm_unknown")
        self._open = [(other, tool) for other, tool in self._open if other != call]
        return ToolResult(call, (Text(text(row.get("output"))),), is_error=bool(row.get("exception")))

    def _attachment(self, row: Row) -> Block | None:
        """Return an attachment as a block; None if its content is gone. If the database has only the path of a file,
        the file is read, but only if the attachment's id is a digest of the file's content. So a database that comes
        from somebody else cannot bring in any file of this machine."""
        kind, path, url = text(row.get("type")), text(row.get("path")), text(row.get("url"))
        name = Path(path).name or url.rpartition("/")[2]
        data = row.get("content")
        if not isinstance(data, bytes) and path:
            data = _same_file(Path(path), text(row.get("id")))
        if not isinstance(data, bytes) and not url:
            self._note("{n} attachments whose file is gone or has changed ({names})", path or row.get("id"))
            return None
        data = data if isinstance(data, bytes) else None
        if kind.startswith("image/"):
            return Image(kind, data, url or None)
        return File(name, kind, data, url or None)


def _end_of(messages: Sequence[Message | None], older: Sequence[Row]) -> int:
    """Return how many messages at the beginning of `messages`, the conversation that a newer `llm` keeps, are those
    that an older `llm` keeps in `older`, rows that hold an answer with its prompt. The caller takes these messages from
    `older`, because the newer `llm` copied them without their attachments. Returns 0 if `older` is empty, or if
    `messages` does not begin with all answers in `older`."""
    left = [text(row.get("response")) for row in older]
    for place, message in enumerate(messages, 1):
        if isinstance(message, Assistant):
            if not left or plain_text(message) != left.pop(0):
                return 0
            if not left:
                return place
    return 0


def _same_file(path: Path, digest: str) -> bytes | None:
    """Return the content of a file if its SHA-256 digest, in hex, is `digest`; otherwise None."""
    try:
        if not (path.is_absolute() and stat.S_ISREG(path.stat().st_mode)):
            return None
        data = path.read_bytes()
    except (OSError, ValueError):
        return None
    return data if sha256(data).hexdigest() == digest else None


def _model(row: Row) -> str:
    return text(row.get("resolved_model")) or text(row.get("model"))


def _usage(row: Row) -> Usage | None:
    """Return the tokens that an answer used; None if the database does not say it. Anthropic counts the tokens of its
    cache apart from the input, so they are added to the input here, as Clew counts them."""
    if row.get("input_tokens") is None and row.get("output_tokens") is None:
        return None
    details = values(_json(row.get("token_details") or "{}", "the tokens of an answer"))
    read, written = _number(details.get("cache_read_input_tokens")), _number(details.get("cache_creation_input_tokens"))
    asked = values(details.get("prompt_tokens_details") or details.get("input_tokens_details"))
    answered = values(details.get("completion_tokens_details") or details.get("output_tokens_details"))
    return Usage(
        _number(row.get("input_tokens")) + read + written,
        _number(row.get("output_tokens")),
        read + _number(asked.get("cached_tokens")),
        written + _number(asked.get("cache_write_tokens")),
        _number(answered.get("reasoning_tokens")),
    )


def _cost(row: Row, usage: Usage) -> float | None:
    """Return the cost of an answer in dollars by Clew's table of prices; None if the model is not in the table."""
    return cost_of([name.rpartition("/")[2] for name in (_model(row), text(row.get("model"))) if name], usage)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _listed(value: str | Sequence[str]) -> Iterator[str]:
    """Yield `value` if it is a text, or each item if it is a list of texts. Empty texts are left out."""
    yield from filter(None, [value] if isinstance(value, str) else value)


def _json(value: Any, what: str) -> Any:
    """Decode `value`, the content of a column that holds JSON; returns None if it is neither text nor bytes. Raises
    `Corrupt` if it is not JSON. `what` says in the error what it should be."""
    try:
        return msgspec.json.decode(value) if isinstance(value, str | bytes) else None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Corrupt(f"{what} in llm's database is no JSON: {error}. Restore the database from a copy.") from error
