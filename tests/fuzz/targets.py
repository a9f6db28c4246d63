"""What takes bytes from outside: each must answer anything with a result or a `ClewError`, soon and in little memory."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Callable
from typing import Any

from blake3 import blake3

from clew.checkpointers import _envelope
from clew.checkpointers.memory import MemoryCheckpointer
from clew.errors import ClewError
from clew.log import decode_frame
from clew.log.blobs import unpack_blob
from clew.log.keys import Keyring
from clew.messages.dialects import Dialect, from_dialect, losses, to_dialect
from clew.threads.exporting import import_

__all__ = ["TARGETS"]

_KEYS = Keyring(bytes(32))


def frame(data: bytes) -> None:
    """A frame as it is, and as one who can compute its digest would forge it."""
    for candidate in (data, data + blake3(data).digest(16)):
        for keys in (None, _KEYS):
            try:
                found = decode_frame(candidate, "t", 0, keys=keys)
                if found.missing:
                    decode_frame(candidate, "t", 0, dict.fromkeys(found.refs, data[-64:]), keys)
            except ClewError:
                pass


def blob(data: bytes) -> None:
    for keys in (None, _KEYS):
        with contextlib.suppress(ClewError):
            unpack_blob("0" * 64, data, keys)


def envelope(data: bytes) -> None:
    """A record of a file store, and one whose header's sum was made to fit."""
    forged = data[:88] + blake3(data[:88]).digest(16) + data[104:]
    for candidate in (data, forged):
        _envelope.trailing(candidate[-_envelope.TRAILER :])
        _envelope.begins(candidate[:50], at=0, offset=0, before=_envelope.NO_MARK)
        with contextlib.suppress(_envelope.BadRecord, _envelope.NewerRecord):
            _envelope.Header.unpack(candidate, 0).read(candidate)


def archive(data: bytes) -> None:
    """A `.clew` file."""

    async def run() -> None:
        async with MemoryCheckpointer() as store:
            try:
                await import_(store, io.BytesIO(data))
            except ClewError:
                assert [head async for head in store.heads()] == [], "a refused import left something behind"

    asyncio.run(run())


def _dialect(dialect: Dialect) -> Callable[[bytes], None]:
    def target(data: bytes) -> None:
        try:
            payload: Any = json.loads(data)
        except (ValueError, RecursionError):
            return
        try:
            conversation = from_dialect(payload, dialect)
        except ClewError:
            return
        produced = to_dialect(conversation, dialect)
        losses(conversation, dialect)
        assert to_dialect(from_dialect(produced, dialect), dialect) == produced, "not a fixed point"

    return target


TARGETS: dict[str, Callable[[bytes], None]] = {
    "frame": frame,
    "blob": blob,
    "envelope": envelope,
    "archive": archive,
    "anthropic": _dialect("anthropic"),
    "openai-chat": _dialect("openai-chat"),
    "openai-responses": _dialect("openai-responses"),
}
