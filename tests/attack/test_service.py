"""While the service is attacked, its innocent tenant works as before: every call succeeds, no call waits for long while the
service works for others, and the memory of the service stays within bounds."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clew import Thread
from clew.checkpointers.http.protocol import Append, encode_text
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.errors import Unavailable
from clew.log import MessageAdded
from clew.messages import Assistant, ToolCall, assistant, user
from clew.testing.contract.builders import a_head, digest_of
from tests.attack.target import ATTACKER, ATTACKERS, Probe, Target, attacked, work
from tests.limits import PATIENCE
from tests.sampling import FULL, dice, sampled

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.attack,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
]

MANY = 1500 if FULL else 400
ROUNDS = 40
MEMORY = 320 * 2**20
"""Bytes that the service may take on top of what it takes for quiet work: the bodies in memory (256 MiB) and some room."""
PAGES = 192 * 2**20
"""Bytes that it may take besides for pages of large threads, of which two are made at once, and for what is kept of them."""
BLOCKED = 1.5
"""Seconds of processor time that the service may take, for all its work, between any request of the innocent tenant and its
response. Seconds of work that keep others waiting exceed it."""
SLOWER = 200
"""How many times longer a call may take at the median. An attack that blocks the service makes it thousands."""


def head(method: str, path: str, *lines: str, token: str = ATTACKER) -> bytes:
    proof = [f"authorization: Bearer {token}"] if token else []
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: localhost", *proof, *lines, "", ""]).encode()


def request(method: str, path: str, body: bytes, kind: str = "application/msgpack", token: str = ATTACKER) -> bytes:
    return head(method, path, f"content-type: {kind}", f"content-length: {len(body)}", token=token) + body


def an_array(count: int, item: bytes) -> bytes:
    return b"\xdd" + struct.pack(">I", count) + item * count


FRAMES = f"/v1/threads/{encode_text('thread')}/frames"


# Slow clients


async def silence(target: Target) -> None:
    for _ in range(MANY):
        target.connect()


async def half_open_heads(target: Target) -> None:
    for _ in range(MANY):
        target.connect(b"GET / HTTP/1.1\r\nhost: localhost\r\nx-half: ")


async def heads_that_trickle(target: Target) -> None:
    opened = [target.connect(b"GET / HTTP/1.1\r\n") for _ in range(MANY // 4)]
    for _ in range(20):
        for made in opened:
            try:
                made.send(b"x")
            except OSError:
                continue
        await asyncio.sleep(0)


async def unfinished_uploads(target: Target) -> None:
    part = bytes(20 * 2**20)
    for number in range(24):
        begun = head(
            "PUT", f"/v1/blobs/{number:064x}", "content-type: application/octet-stream", "content-length: 60000000"
        )
        made = target.connect(begun)
        made.settimeout(2.0)  # the service stops reading what it has refused
        try:
            made.sendall(part)
        except OSError:
            continue


async def unfinished_logins(target: Target) -> None:
    form = head("POST", "/login", "content-type: application/x-www-form-urlencoded", "content-length: 16000", token="")
    for _ in range(MANY):
        target.connect(form + b"token=" + b"x" * 15_000)


async def deaf_readers(target: Target) -> None:
    data = bytes(16 * 2**20)
    target.ask(request("PUT", f"/v1/blobs/{digest_of(data)}", data, "application/octet-stream"))
    for _ in range(12):
        target.connect(head("GET", f"/v1/blobs/{digest_of(data)}"), buffer=4096)


# Floods


async def streams(target: Target) -> None:
    for _ in range(MANY // 4):
        target.connect(head("GET", "/threads/events"))


async def wrong_tokens(target: Target) -> None:
    for number in range(MANY):
        target.ask(head("GET", FRAMES, token=f"a-wrong-token-{number}"))


async def questions_whether_it_is_ready(target: Target) -> None:
    for _ in range(MANY):
        target.ask(head("GET", "/readyz", token=""))


async def invented_namespaces(target: Target) -> None:
    for number in range(MANY // 4):
        target.ask(head("GET", FRAMES, f"clew-namespace: {encode_text(f'invented {number}')}"))


async def ids_that_are_refused(target: Target) -> None:
    for number in range(MANY):
        target.ask(head("GET", f"/v1/threads/{encode_text(f'{number} ' + 'x' * 20_000)}"))


# Oversized and malformed


async def endless_heads(target: Target) -> None:
    for _ in range(MANY // 10):
        target.connect(b"GET / HTTP/1.1\r\nx-long: " + b"x" * 2**20)


async def small_things_in_great_number(target: Target) -> None:
    body = b"\x84\xa2at\x00\xa4head" + msgspec.msgpack.encode(a_head("thread", 1)) + b"\xa4refs\x90\xa6frames"
    for item in (b"\xc4\x00", b"\xc4\x01x"):
        target.ask(request("POST", FRAMES, body + an_array(7_000_000, item)))
    target.ask(request("POST", "/v1/blobs/get", b"\x81\xa7digests" + an_array(8_000_000, b"\xa0")))
    tags = {f"{number:x}": "" for number in range(1_000_000)}
    target.ask(request("POST", "/v1/threads/query", msgspec.json.encode({"tags": tags}), "application/json"))


async def heads_of_many_bytes(target: Target) -> None:
    for number in range(8):
        large = a_head(f"thread {number}", 1, title="x" * 15 * 2**20)
        path = f"/v1/threads/{encode_text(large.thread_id)}/frames"
        target.ask(request("POST", path, msgspec.msgpack.encode(Append(0, large, [b"frame"]))))
    target.ask(head("GET", "/"))


async def a_value_of_many_items(target: Target) -> None:
    async with (
        HTTPCheckpointer(target.url, token=ATTACKER, timeout=PATIENCE) as store,
        Thread.open(store, "large") as thread,
    ):
        call = ToolCall("1", "tool", {"numbers": list(range(600_000)), "empty": [[]] * 400_000})
        await thread.append(MessageAdded(user("Go.")), MessageAdded(Assistant((call,))))
    for _ in range(8):
        for rest in ("", "/entries", "/turns?start=0&stop=1", "/export.md"):
            target.connect(head("GET", f"/t/{encode_text('large')}{rest}"))


async def large_texts(target: Target) -> None:
    text = "\u202e\x1b" * 3_000_000  # a page shows each of these characters as six or four
    for token in ATTACKERS:
        await fill(target, token, "texts", *[text] * 3)
    visit(target, *[f"/t/{encode_text('texts')}{rest}" for rest in ("/entries", "", "/turns?start=0&stop=3")])


async def long_pages_of_markdown(target: Target) -> None:
    text = ("**a** [x](y) `c` " * 60 + "\n\n| a | b |\n|---|---|\n| c | d |\n\n> > > q\n\n* * *\n1. x\n") * 60
    for token in ATTACKERS:
        await fill(target, token, "markdown", *[text] * 50)
    pages = [f"/t/{encode_text('markdown')}{rest}" for rest in ("", "/entries", "/turns?start=0&stop=50")]
    visit(target, *pages, "/overview")


async def fill(target: Target, token: str, thread_id: str, *texts: str) -> None:
    """Write a thread with these texts of a model."""
    async with (
        HTTPCheckpointer(target.url, token=token, timeout=PATIENCE) as store,
        Thread.open(store, thread_id) as thread,
    ):
        for text in texts:
            await thread.append(MessageAdded(user("Go on.")), MessageAdded(assistant(text)))


def visit(target: Target, *paths: str) -> None:
    """Ask for all these pages at once, with all tokens, and wait for the answers."""
    opened = [target.connect(head("GET", path, token=token)) for path in paths for token in ATTACKERS]
    for made in opened:
        with suppress(OSError):
            made.recv(2**16)


async def garbage(target: Target) -> None:
    chance = dice("garbage for the service")
    pieces = [
        b"GET ", b"POST ", b"/", b" ", b" HTTP/1.1", b" HTTP/9.9", b"\r\n", b"\n", b"\0", b"\xff\xfe", b"%00", b":",
        b"host: x", b"content-length: ", b"-1", b"99999999999999999999", b"transfer-encoding: chunked",
        b"ffffffffffffffff\r\n",
        b"connection: upgrade\r\nupgrade: websocket", b"expect: 100-continue", f"authorization: Bearer {ATTACKER}".encode(),
    ]  # fmt: skip
    for _ in range(MANY):
        target.connect(b"".join(chance.choices(pieces, k=chance.randrange(1, 30))))


async def requests_in_requests(target: Target) -> None:
    hidden = head("GET", FRAMES)
    for lines in (
        ("content-length: 3", "transfer-encoding: chunked"),
        ("transfer-encoding: chunked", "content-length: 0"),
    ):
        for _ in range(MANY // 10):
            target.connect(head("POST", "/healthz", *lines, token="") + b"0\r\n\r\n" + hidden)


Attack = Callable[[Target], Coroutine[Any, Any, None]]
ATTACKS: list[Attack] = [
    silence, half_open_heads, heads_that_trickle, unfinished_uploads, unfinished_logins, deaf_readers, streams, wrong_tokens,
    questions_whether_it_is_ready, invented_namespaces, ids_that_are_refused, endless_heads, small_things_in_great_number,
    heads_of_many_bytes, a_value_of_many_items, large_texts, long_pages_of_markdown, garbage, requests_in_requests,
]  # fmt: skip


def carry_out(attack: Attack, target: Target) -> None:
    """Run an attack to its end, on an OS thread of its own."""
    asyncio.run(attack(target))


def try_out(attack: Attack, target: Target) -> None:
    """Run an attack until the service refuses it, because there are others at the same time."""
    with suppress(Unavailable):
        carry_out(attack, target)


@pytest.mark.parametrize("attack", sampled(ATTACKS, 5), ids=lambda attack: attack.__name__)
async def test_the_innocent_tenant_does_not_notice_an_attack(attack: Attack, tmp_path: Path) -> None:
    with attacked(tmp_path) as target:
        await work(target, "warm", ROUNDS)
        calm = await work(target, "calm", ROUNDS)
        before = target.memory()
        with Probe(target, "calm") as probe:
            attacking = asyncio.create_task(asyncio.to_thread(carry_out, attack, target))
            during = await work(target, "during", ROUNDS)
            await attacking
            after = await work(target, "after", ROUNDS)
        assert target.is_running()
        assert during.done == after.done == ROUNDS
        assert max(during.median, after.median) < SLOWER * calm.median
        assert len(probe.waits) >= ROUNDS // 4
        assert max(probe.waits) < BLOCKED
        assert target.memory() - before < MEMORY


async def test_all_attacks_at_once_end_with_a_service_that_works(tmp_path: Path) -> None:
    chosen = sampled(ATTACKS, 8)
    # All have the address of the innocent tenant here, whose new connections would be pushed out among so many.
    with attacked(tmp_path, "--max-connections-per-address", "900") as target:
        await work(target, "warm", ROUNDS)
        before = target.memory()
        attacking = asyncio.gather(*(asyncio.to_thread(try_out, attack, target) for attack in chosen))
        during = await work(target, "during", ROUNDS)
        await attacking
        target.release()
        assert during.done == (await work(target, "after", ROUNDS)).done == ROUNDS
        assert target.memory() - before < MEMORY + PAGES
