"""Sound inputs to begin with, and ways to spoil them."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from random import Random

import msgspec
import zstandard

from clew.agent.settings import Setup
from clew.checkpointers.files import envelope
from clew.checkpointers.memory import MemoryCheckpointer
from clew.log import FIRST, StateSet, WorkspaceSnapshot, encode_entries, encode_frame
from clew.log.blobs import pack_blob
from clew.log.keys import Keyring
from clew.messages import Message, Text, ToolCall, ToolResult, assistant, system, tool, user
from clew.messages.dialects import Dialect, to_dialect
from clew.threads import Thread
from clew.threads.ops.export import export
from tests.fuzz.sessions import small_database
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
        case "anthropic" | "openai-chat" | "openai-responses" | "gemini":
            return [json.dumps(payload).encode() for payload in _payloads(target)]
        case "native":
            return [bytes([number]) + piece for number, pieces in enumerate(_sessions()) for piece in pieces]
        case "setup":
            full = Setup(
                model="openai:gpt-5", tools=("a:b",), mcp=("npx x",), folder="/w", max_turns=3, system="Be kind."
            )
            return [
                msgspec.json.encode(full),
                b"{}",
                b'{"budget":{"usd":2.5,"tokens":9},"supplies":["x"],"provider":"codex"}',
            ]
        case "url":
            forms = (
                "h:1/db",
                "[::1]:5/db?timeout=5&connections=2",
                "h/db?ssl=true&tls=1&prefix=p_",
                "b/p?region=r",
                "h#x",
            )
            return [bytes([scheme]) + form.encode() for scheme in range(7) for form in forms]
        case "http":
            return [request.encode() for request in _REQUESTS]
        case "sql":
            return [b"plain", b"it's", b"\\'", b"'; DROP TABLE x; --", bytes(range(256))]
    raise ValueError(target)


_REQUESTS = (
    "GET /v1/threads?limit=5&order=created HTTP/1.1\r\nHost: 127.0.0.1:8420\r\nAuthorization: Bearer x\r\n\r\n",
    "GET /v1/threads/t/head HTTP/1.1\r\nHost: localhost\r\nClew-Namespace: a\r\n\r\n",
    "POST /v1/blobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/msgpack\r\nContent-Length: 3\r\n\r\nabc",
    "GET / HTTP/1.1\r\nHost: 127.0.0.1:8420\r\nCookie: a=b\r\n\r\n",
    "GET /?q=x&status=done&tags=a%3Db HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /t/trip/files?turn=1&path=%2F HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 7\r\n\r\n"
    "token=x",
    "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
)


def _sessions() -> list[list[bytes]]:
    """Pieces of real sessions, short enough to be changed often, for each of `sessions.FORMS`: lines of Codex, of Claude
    Code, rows of opencode, compressed lines of Codex, a session of Claude Code with its sub-agent's rows, and opencode's
    SQLite file."""
    providers = Path(__file__).parents[1] / "providers"
    rollout = (providers / "codex/fixtures/0.166.0/rollout-tools.jsonl").read_bytes().splitlines(keepends=True)[1:]
    small = [line for line in rollout if len(line) < 1500]
    claude = providers / "claude_code/fixtures/2.1.197/sessions"
    said = [_short(file) for file in sorted(claude.glob("*/*.jsonl"))]
    with_agents = [
        _short(file.parents[1].with_suffix(".jsonl")) + b"\n" + _short(file) for file in claude.rglob("agent-*.jsonl")
    ]
    message = b'{"message":{"id":"msg_1","session_id":"s","time_created":1,"time_updated":2,"data":{"role":"user"}}}'
    part = message.replace(b'"message":', b'"part":').replace(b'"role":"user"', b'"type":"text","text":"hi"')
    rollouts = [b"".join(small[at : at + 6]) for at in range(0, 24, 6)]
    packed = [zstandard.compress(piece) for piece in rollouts] + [rollouts[0], zstandard.compress(bytes(10**6))]
    return [rollouts, said, [message, part, message + b"\n" + part], packed, with_agents, [small_database()]]


def _short(file: Path) -> bytes:
    """The first short lines of a session file."""
    return b"".join(line for line in file.read_bytes().splitlines(keepends=True) if len(line) < 3000)[:8000]


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
