"""A source of conversations for the tests of the import itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

import msgspec
from blake3 import blake3

from clew.compat.importers import Conversation, Source
from clew.errors import Corrupt
from clew.log import Described, Entry, MessageAdded, StatusChanged, ThreadStarted, Usage
from clew.messages import assistant, user

__all__ = ["Told", "said"]


class Told(Source):
    """Conversations that a test gives as texts: prompt and answer in turn. `damaged` ones cannot be read."""

    kind: ClassVar[str] = "told"

    def __init__(
        self,
        texts: dict[str, list[str]],
        *,
        files: Path | None = None,
        losses: Sequence[str] = (),
        tags: dict[str, str] | None = None,
        damaged: Sequence[str] = (),
    ) -> None:
        self.texts = texts
        self.files = files
        self.losses = losses
        self.tags = tags or {}
        self.damaged = damaged
        self.read_keys: list[str] = []

    @classmethod
    def open(cls, path: Path) -> Self:
        return cls(msgspec.json.decode(path.read_bytes(), type=dict[str, list[str]]), files=path.parent / "files")

    def keys(self) -> Sequence[str]:
        return list(self.texts)

    def version(self, key: str) -> str:
        files = [] if self.files is None else [path for path in self.files.rglob("*") if path.is_file()]
        stamps = [(str(path), path.stat().st_mtime_ns) for path in sorted(files)]
        return blake3(msgspec.json.encode((self.texts[key], stamps))).hexdigest(8)

    def read(self, key: str) -> Conversation:
        self.read_keys.append(key)
        if key in self.damaged:
            raise Corrupt(f"conversation {key!r} is damaged.")
        return Conversation(
            thread_id=f"told-{key}",
            entries=[Described(f"About {key}", self.tags), *said(self.texts[key])],
            files=self.files,
            losses=self.losses,
        )


def said(texts: Sequence[str]) -> list[Entry]:
    """Return the entries of a conversation, in which prompts and answers take turns."""
    entries: list[Entry] = [ThreadStarted("teller", "openai:gpt-5", "Be brief.")]
    for number, text in enumerate(texts):
        answer = MessageAdded(assistant(text, model="gpt-5"), Usage(10, 5), 0.001)
        entries.append(answer if number % 2 else MessageAdded(user(text)))
    return [*entries, StatusChanged("done")]
