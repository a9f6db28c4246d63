"""Sound inputs to begin with, and ways to spoil them."""

from __future__ import annotations

import asyncio
import io
import json
from random import Random

import msgspec

from clew.checkpointers.files import envelope
from clew.checkpointers.memory import MemoryCheckpointer
from clew.log import FIRST, StateSet, WorkspaceSnapshot, encode_entries, encode_frame
from clew.log.blobs import pack_blob
from clew.log.keys import Keyring
from clew.messages import Message, Text, ToolCall, ToolResult, assistant, system, tool, user
from clew.messages.dialects import Dialect, to_dialect
from clew.threads import Thread
from clew.threads.ops.export import export
from tests.log.make_golden import entries

__all__ = ["seeds", "spoil"]

_KEYS = Keyring(bytes(32))


def seeds(target: str) -> list[bytes]:
    """A few inputs that this target accepts."""
    match target:
        case "frame":
            groups = [[encode_entries(group)] for group in entries()]
            plain = [encode_frame(group, previous=FIRST).data for group in groups]
            plain.append(encode_frame([encode_entries([StateSet("k", [[]] * 70_000)])], previous=FIRST).data)
            plain.append(encode_frame([encode_entries([StateSet("k", "text " * 15_000)])], previous=FIRST).data)
            plain += [
                b"\x92\0" + array for array in (b"\x91\x93\xa5state\xa1k\x81\xa0\x80", b"\x92\xc0\x91\xa7started")
            ]
            return plain + [encode_frame(group, previous=FIRST, thread_id="t", keys=_KEYS).data for group in groups]
        case "weight":
            values: list[object] = [
                None,
                5,
                2**40,
                1.5,
                "",
                "ab",
                "é€😀",
                b"ab",
                [],
                [[]],
                [None],
                {},
                {"k": []},
                dict.fromkeys(range(12)),
            ]
            shapes = [msgspec.msgpack.encode(value) for value in values]
            shapes += [
                b"\x91\xa7started",
                b"\x92\xa6folded\x90",
                b"\x91\xa5image",
                b"\x92\xa4text\xa0",
                b"\xd6\xff\1\2\3\4",
            ]
            return [bytes([place]) + shape for place in range(3) for shape in shapes]
        case "blob":
            return [pack_blob(data, keys)[1] for data in (b"", b"text " * 300, bytes(10**6)) for keys in (None, _KEYS)]
        case "envelope":
            records = [([b"frame"], ["ab" * 32], b"head"), ([], [], b""), ([b"", b"x" * 300], [], b"h" * 40)]
            return [envelope.pack(*record, at=0, offset=0, before=envelope.NO_MARK)[0] for record in records]
        case "archive":
            return [asyncio.run(_archive())]
        case "anthropic" | "openai-chat" | "openai-responses":
            return [json.dumps(payload).encode() for payload in _payloads(target)]
    raise ValueError(target)


async def _archive() -> bytes:
    file = io.BytesIO()
    async with MemoryCheckpointer() as store:
        async with Thread.open(store, "t") as thread:
            for group in entries()[:3]:
                await thread.append(*[entry for entry in group if type(entry) is not WorkspaceSnapshot])
        await export(store, "t", file)
    return file.getvalue()


def _payloads(dialect: Dialect) -> list[object]:
    call, result = ToolCall("c1", "look", {"at": 1}), ToolResult("c1", (Text("there"),))
    conversation: list[Message] = [system("Be kind."), user("Hello"), assistant("Looking.", call), tool(result)]
    recorded = [entry.message for group in entries()[:2] for entry in group if hasattr(entry, "message")]
    messages = [message for message in recorded if not isinstance(message, int)]
    return [to_dialect(conversation, dialect), to_dialect(messages, dialect)]


def spoil(data: bytes, random: Random) -> bytes:
    """A few random changes: flipped, lost, doubled, swapped and invented bytes."""
    spoiled = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4, 8))):
        place = random.randrange(len(spoiled) + 1)
        length = random.choice((1, 1, 2, 4, 8, 64))
        match random.randrange(7):
            case 0 if spoiled:
                spoiled[place % len(spoiled)] ^= 1 << random.randrange(8)
            case 1:
                del spoiled[place : place + length]
            case 2:
                spoiled[place:place] = random.randbytes(length)
            case 3:
                spoiled[place:place] = spoiled[place : place + length]
            case 4:
                del spoiled[place:]
            case 5:
                spoiled[place : place + 4] = random.choice(
                    (b"\xff\xff\xff\xff", bytes(4), b"\x7f\xff\xff\xff", b"[[[[")
                )
            case 6:
                other = random.randrange(len(spoiled) + 1)
                spoiled[place : place + length] = spoiled[other : other + length]
    return bytes(spoiled)
