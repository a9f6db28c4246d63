"""`Call`: one call of a store with its answer, and `Journal`: the file in which a process writes its calls down."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec
from blake3 import blake3

from clew.checkpointers.heads import Head

__all__ = ["Call", "Journal", "Outcome", "digest_of_head", "read_history", "short_digest"]

Method = Literal[
    "append",
    "read",
    "head",
    "heads",
    "refs",
    "delete",
    "put_blobs",
    "get_blobs",
    "missing_blobs",
    "delete_blobs",
]
Outcome = Literal["ok", "conflict", "refused", "unknown", "failed"]
"""How a call ended.

`ok`: it returned. `conflict`: it raised `Conflict`. `refused`: it raised `MissingBlob` or `InvalidInput`, so it changed
nothing. `unknown`: it raised `Unavailable`, was cancelled, or its process died; it may have taken effect, or take effect
later. `failed`: it raised something else, which no store should.
"""


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One call of a store: what the caller asked, and which answer the caller got. Frames, heads and blobs are named by
    digests of their content."""

    process: str
    """The name of the process that made the call."""
    number: int
    """The number of the call among the calls in the same journal."""
    method: Method
    began: int
    """When the call began, by `time.monotonic_ns`, which all processes of a machine share."""
    ended: int | None = None
    """When the call ended, by the same clock. None if its process died before."""
    outcome: Outcome = "unknown"
    error: str = ""
    """The error that the call raised, as text."""
    writer: str = ""
    """The name of the holder of a lease that made the call; "" if it was made without a lease."""
    thread_id: str = ""
    log_id: str = ""
    """For an append and for `head`: the log id in the head."""
    at: int = 0
    """For an append: the position at which the frames were to be appended. For `read`: the number of the first frame
    that was asked for."""
    stop: int | None = None
    """For `read`: the number of the frame before which the read was to end. None: it was to read to the end of the log.
    """
    frames: tuple[str, ...] = ()
    """The frames that were appended or read."""
    head: str = ""
    """The head that was appended or returned; "" if there was none."""
    refs: tuple[str, ...] = ()
    """The refs that were given to an append or returned by `refs`, sorted."""
    heads: dict[str, str] = {}
    """For `heads`: the head of each thread that was listed, by thread id, in the order of the listing."""
    prefix: str = ""
    """For `heads`: the prefix that was asked for."""
    is_whole: bool = False
    """For `heads`: True if the listing was read to its end and had no condition except a prefix."""
    blobs: tuple[str, ...] = ()
    """The digests of the blobs that were put, asked for or deleted."""
    found: tuple[str, ...] = ()
    """For `get_blobs` and `missing_blobs`: the digests of the blobs that the store has."""


class Journal:
    """A file to which one process writes its calls of a store. Call the journal with a `Call` to write it as a line of
    JSON; a `Recorder` does so before each call begins and again after it has ended. A line reaches the operating system
    at once, so killing the process loses no line that was written."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._encoder = msgspec.json.Encoder()

    def __call__(self, call: Call) -> None:
        os.write(self._file, self._encoder.encode(call) + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read_history(journals: Iterable[Path]) -> list[Call]:
    """Return all calls in these journals, in the order in which they began. A journal has a line for the beginning of a
    call, and a second line once the call has ended. A call without a second line has the outcome `unknown`. A last line
    that is cut off, because the process was killed while writing it, is skipped."""
    decoder = msgspec.json.Decoder(Call)
    found: dict[tuple[Path, int], Call] = {}
    for path in journals:
        lines = path.read_bytes().split(b"\n")
        for line in lines[:-1]:
            call = decoder.decode(line)
            found[path, call.number] = call
    return sorted(found.values(), key=lambda call: call.began)


def digest_of_head(head: Head | None) -> str:
    """Return a short digest of a head, by which a recorded history names the head; "" if `head` is None. Two heads have
    the same digest only if all their fields are equal."""
    return "" if head is None else short_digest(msgspec.msgpack.encode(head))


def short_digest(data: bytes) -> str:
    """Return a short digest (16 hexadecimal digits) of these bytes, such as a frame. A recorded history names the bytes
    by it."""
    return blake3(data).hexdigest(8)
