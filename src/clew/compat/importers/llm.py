"""Reads the conversations of the program `llm`, which it keeps in a SQLite file named `logs.db`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Self

from clew.compat.importers.base import Conversation, Source
from clew.compat.importers.database import Database
from clew.compat.importers.llm_tables import Chat, read_chat, version_of
from clew.errors import InvalidInput
from clew.log import Described, Entry, StatusChanged, ThreadStarted, ToolIntent
from clew.messages import Assistant, ToolResult, tool_calls
from clew.providers.fields import text

__all__ = ["LlmLogs"]

_NAME = "logs.db"
_OPENAI = re.compile(r"(gpt-|chatgpt-|o\d)")
_OTHERS = re.compile(r"(anthropic|openai)/(.+)")


class LlmLogs(Source):
    """Reads the conversations in a `logs.db`, the database of the program `llm`. Tested with files that `llm` 0.16,
    0.31 and 0.36 wrote."""

    kind: ClassVar[str] = "llm"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = Database(path, "a log of llm")
        self._known: dict[str, str] | None = None

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the database `logs.db` of the program `llm`, at `path` or in the folder `path`. The command `llm logs
        path` prints where it is. Raises `InvalidInput` if there is no such file, or if it is not a database of `llm`.
        """
        file = path / _NAME if path.is_dir() else path
        if not file.is_file():
            raise InvalidInput(f"{file}: there is no such file. `llm logs path` prints where llm keeps its log.")
        made = cls(file)
        if not (
            made._database.has("responses", "conversation_id") or made._database.has("threads", "tip_message_hash")
        ):
            made.close()
            raise InvalidInput(
                f"{file} is not a log of llm 0.6 or newer: it has neither its table `responses` nor `threads`. If it is "
                "older, `llm logs` of a newer version brings it up to date."
            )
        return made

    def keys(self) -> Sequence[str]:
        return list(self._names())

    def _names(self) -> dict[str, str]:
        """Return a dict with the name of each conversation that has an answer, by the conversation's id, oldest first.
        Only the first call reads the database."""
        if self._known is None:
            self._known = self._look()
        return self._known

    def _look(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if self._database.has("threads", "id", "name", "tip_message_hash"):
            rows = self._database.rows("SELECT id, name FROM threads WHERE tip_message_hash IS NOT NULL")
            found |= {text(row["id"]): text(row["name"]) for row in rows}
        if self._database.has("responses", "conversation_id"):
            rows = self._database.rows("SELECT DISTINCT conversation_id AS id FROM responses")
            found |= {text(row["id"]): found.get(text(row["id"]), "") for row in rows}
        if self._database.has("conversations", "id", "name"):
            rows = self._database.rows("SELECT id, name FROM conversations")
            found |= {text(row["id"]): text(row["name"]) for row in rows if row["id"] in found and row["name"]}
        return {key: found[key] for key in sorted(found) if key}

    def version(self, key: str) -> str:
        return version_of(self._database, key)

    def read(self, key: str) -> Conversation:
        chat = read_chat(self._database, key)
        if not chat.said:
            raise InvalidInput(f"conversation {key!r} of llm has no messages.")
        return Conversation(
            thread_id=f"llm-{key}", entries=list(_entries(chat, self._names().get(key, ""))), losses=chat.losses
        )

    def close(self) -> None:
        self._database.close()


def _entries(chat: Chat, title: str) -> Iterator[Entry]:
    """Yield the log entries of a thread with the conversation `chat` and the title `title`. Tool calls without a result
    are recorded as begun, because nobody knows whether they ran: `llm` writes the results only after it has run the
    tools."""
    yield ThreadStarted("llm", _model(chat.models[-1]) if chat.models else "", chat.system)
    tags = {"created_at": chat.times[0]} if chat.times else {}
    yield Described(title or None, tags)
    answered = {block.call_id for each in chat.said for block in each.message.content if isinstance(block, ToolResult)}
    for place, said in enumerate(chat.said):
        yield said
        for index, call in enumerate(tool_calls(said.message)):
            if call.id not in answered:
                yield ToolIntent(place, index)
    yield from chat.spent
    last = chat.said[-1].message
    done = isinstance(last, Assistant) and not tool_calls(last)
    yield StatusChanged("done" if done else "interrupted")


def _model(name: str) -> str:
    """Return the name of a model in the form that `Agent` takes, such as `openai:gpt-5`. `name` is the model's name in
    `llm`; it is returned as it is if it does not show the vendor."""
    other = _OTHERS.fullmatch(name)
    if other is not None:
        return f"{other[1]}:{other[2]}"
    return f"openai:{name}" if _OPENAI.match(name) else name
