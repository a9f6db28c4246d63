"""What takes bytes from outside: each must answer anything with a result or a `ClewError`, soon and in little memory."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
from blake3 import blake3

from clew.checkpointers.files import envelope as _envelope
from clew.checkpointers.memory import MemoryCheckpointer
from clew.errors import ClewError
from clew.log import compression, decode_frame, weights
from clew.log.blobs import unpack_blob
from clew.log.codec import _decode_entries
from clew.log.keys import Keyring
from clew.messages.dialects import Dialect, from_dialect, losses, to_dialect
from clew.threads.ops.export import import_
from tests.fuzz import inputs, sessions

__all__ = ["TARGETS"]

_KEYS = Keyring(bytes(32))


def frame(data: bytes) -> None:
    """A frame as it is, as one who can compute its digest would forge it, and with these bytes as its body."""
    bodied = b"\1\1" + bytes(28) + compression.framed.compress(data)
    for candidate in (data, data + blake3(data).digest(16), bodied + blake3(bodied).digest(16)):
        for keys in (None, _KEYS):
            with contextlib.suppress(ClewError):
                refs = decode_frame(candidate, "t", 0, keys=keys).refs
                if refs:
                    decode_frame(candidate, "t", 0, dict.fromkeys(refs, data[-64:]), keys)


def weight(data: bytes) -> None:
    """A value many times over, as a user's, as entries or as blocks: it takes no more than it weighs. The first byte says
    where it stands."""
    item = data[1:64]
    try:
        msgspec.msgpack.decode(item)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    before = (b"\x91\x93\xa5state\xa1k", b"", b"\x91\x92\xa7message\x92\xa4user")[data[0] % 3]
    body = b"\x92\0" + before + b"\xdc\4\0" + item * 1024
    tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            _decode_entries(body)
        taken = len(body) + tracemalloc.get_traced_memory()[1] - held
    finally:
        if not tracing:
            tracemalloc.stop()
    assert taken <= min(weights.weigh(body)[0], weights.bound(body)) + 16 * 1024, f"{taken} bytes for {item.hex()}"


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
    "weight": weight,
    "blob": blob,
    "envelope": envelope,
    "archive": archive,
    "anthropic": _dialect("anthropic"),
    "openai-chat": _dialect("openai-chat"),
    "openai-responses": _dialect("openai-responses"),
    "gemini": _dialect("gemini"),
    "native": sessions.native,
    "setup": inputs.setup,
    "url": inputs.url,
    "http": inputs.http,
    "sql": inputs.sql,
}
