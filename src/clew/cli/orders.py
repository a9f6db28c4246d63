"""Read a file of JSON lines that says which threads to enqueue, and find out what was enqueued before."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from blake3 import blake3

from clew import Thread
from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput
from clew.threads.inbox import new_posts

__all__ = ["Order", "is_there", "read_orders"]


class _Line(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a line of the file may have."""

    prompt: str
    id: str | None = None
    agent: str | None = None
    tags: dict[str, str] = {}
    priority: int | None = None
    delay: float | None = None
    prompt_id: str | None = None


class Order(NamedTuple):
    """One prompt to enqueue."""

    line: int
    thread_id: str
    prompt: str
    prompt_id: str
    options: dict[str, Any]


def read_orders(source: str, options: Mapping[str, Any]) -> list[Order]:
    """Read all lines of a file; `-` is the standard input. `options` hold for lines that do not say otherwise. Raises
    `InvalidInput`, which names the line, before anything is enqueued.

    A line without an id gets one that is made from what the line says, and so does one without a prompt id. So the same
    line has the same ids whenever the file is read. Lines that say the same are told apart by their order.
    """
    found = []
    seen: Counter[str] = Counter()
    for number, text in enumerate(_lines(source), start=1):
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=_Line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"line {number} of {source}: {error}. Write one JSON object a line, with a prompt and, if you like, id, "
                "agent, tags, priority, delay and prompt_id. Nothing was enqueued."
            ) from None
        agent = options["agent"] if line.agent is None else line.agent
        if agent is None and line.id is None:
            raise InvalidInput(f"line {number} of {source} names no agent. Add it there, or give --agent NAME.")
        digest = blake3(msgspec.json.encode(line)).hexdigest()
        seen[digest] += 1
        made = blake3(f"{digest} {seen[digest]}".encode()).hexdigest()
        own = {
            "agent": agent,
            "tags": {**options["tags"], **line.tags},
            "priority": options["priority"] if line.priority is None else line.priority,
            "delay": options["delay"] if line.delay is None else line.delay,
        }
        found.append(
            Order(number, line.id or f"{agent or 'run'}-{made[:16]}", line.prompt, line.prompt_id or made[:32], own)
        )
    return found


def _lines(source: str) -> list[bytes]:
    try:
        if source == "-":
            return sys.stdin.buffer.read().splitlines()
        with open(source, "rb") as file:
            return file.read().splitlines()
    except OSError as error:
        raise InvalidInput(f"--from {source}: it cannot be read: {error.strerror}.") from None


async def is_there(store: Checkpointer, order: Order) -> bool:
    """Return whether this prompt was enqueued before. A prompt that was posted, but whose thread did not get into the
    queue because the process ended in between, was not."""
    head = await store.head(order.thread_id)
    if head is None or all(post.prompt_id != order.prompt_id for post in await new_posts(store, head, None)):
        return False
    if head.due is not None:
        return True
    state = await Thread.load(store, order.thread_id)
    unread = await new_posts(store, head, state.inbox_read)
    return all(post.prompt_id != order.prompt_id for post in unread)
