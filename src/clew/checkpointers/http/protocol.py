"""The protocol between `HTTPCheckpointer` and `clew serve`: bodies, headers, streams of records, and failures.

Bodies are msgpack. An answer that may be long is a stream of records, so that neither side needs it whole in memory. A
stream has these parts, with their sizes in bytes:

    4  the length of a record, big-endian, then the record; repeated
    4  FF FF FF FF: the end. A stream that ends without it was cut.
    4  FF FF FF FE, then 4 for a length and a `Failure` in msgpack of that length: the server could not go on
"""

from __future__ import annotations

import base64
import binascii
import functools
from typing import Annotated, Literal

import msgspec
from blake3 import blake3

from clew.checkpointers.base import MAX_ID
from clew.checkpointers.heads import Head
from clew.checkpointers.live import MOST_DELTAS, Delta
from clew.errors import InvalidInput

__all__ = [
    "END",
    "EVENTS",
    "HEART_BEAT",
    "JSON",
    "LOG_HEADER",
    "MSGPACK",
    "NAMESPACE_HEADER",
    "OCTETS",
    "PROTOCOL",
    "PROTOCOL_HEADER",
    "RECORDS",
    "Append",
    "Blobs",
    "Broken",
    "Code",
    "Deltas",
    "Digests",
    "Failure",
    "Listeners",
    "RecordReader",
    "Sweep",
    "decode_text",
    "encode_text",
    "failure_record",
    "log_number",
    "log_tag",
    "record_size",
]

PROTOCOL = 1
PROTOCOL_HEADER = "clew-protocol"
"""The name of a header that every answer of the service has. Its value is the protocol version. An answer without it is
not from Clew."""
NAMESPACE_HEADER = "clew-namespace"
"""The name of the header that holds the namespace of a request, as base64url of its UTF-8. It is a namespace within the
one that belongs to the token."""
LOG_HEADER = "clew-log"
"""The name of the header that holds the tag of a thread's log, a text that `log_tag` makes. The server sends it with
the thread's head. An append names in `If-Match` the tag of the log that it continues."""

MSGPACK = "application/msgpack"
JSON = "application/json"
OCTETS = "application/octet-stream"
RECORDS = "application/vnd.clew.records"
EVENTS = "text/event-stream"

HEART_BEAT = 15.0
"""Seconds without an event after which the service sends a comment on a stream of events. So proxies do not take the
connection for dead, and a client sees that it is not."""

Code = Literal[
    "absent",
    "conflict",
    "corrupt",
    "draining",
    "forbidden",
    "internal",
    "invalid",
    "limited",
    "missing_blobs",
    "newer_format",
    "no_such_path",
    "too_large",
    "too_slow",
    "unauthenticated",
    "unavailable",
]
"""The kind of a failure that the server reports. It is more exact than the HTTP status."""

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Append(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that appends frames to a thread. `at` is the number of frames that the log has before the
    append. `head` is the thread's new head. `refs` are the digests of the blobs that the frames refer to."""

    at: Annotated[int, msgspec.Meta(ge=0)]
    head: Head
    frames: list[bytes]
    refs: list[str] = []


class Digests(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A list of digests of blobs, as the body of a request or an answer. In a request, they are the blobs that the
    request is about. In an answer they are its result, such as the missing blobs."""

    digests: list[Digest]


class Sweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request to delete blobs. The server deletes only those that were not used for at least
    `untouched_for_micros` microseconds."""

    digests: list[Digest]
    untouched_for_micros: Annotated[int, msgspec.Meta(ge=0)]


class Blobs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request to store several blobs, each under its digest."""

    blobs: dict[str, bytes]


class Deltas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that passes pieces of a response on to those who follow the thread."""

    deltas: Annotated[list[Delta], msgspec.Meta(max_length=MOST_DELTAS)]


class Listeners(msgspec.Struct, frozen=True):
    """The answer to `Deltas`: how many streams of this process of the service follow the thread. If there are none, the
    client sends nothing for some seconds."""

    listeners: int


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of every answer that reports an error: a code for the kind of error, and a message for people."""

    code: Code
    message: str
    digests: list[str] = []
    """For the code `missing_blobs`: the digests of the missing blobs."""
    found: int = 0
    """For the code `newer_format`: the format version that was found. `supported` is the newest version that the server
    can read."""
    supported: int = 0
    retry_after: int = 0
    """The seconds to wait before the same request may succeed. 0 if the server does not say."""


def encode_text(text: str) -> str:
    """Encode any text as base64url without padding. Paths, headers, proxies and logs leave this form unchanged."""
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def decode_text(what: str, encoded: str) -> str:
    """Decode the id of a thread or namespace that `encode_text` encoded. Raises `InvalidInput` for anything that
    `encode_text` does not produce, so that each text has only one encoded form, and for a text that is longer than an
    id can be. `what` says in the error what the text is."""
    if len(encoded) > _LONGEST_ID:  # before it is kept in memory
        raise InvalidInput(f"{what} is at most {MAX_ID} bytes of UTF-8; {encoded[:40]!r}… is longer")
    return _decode_text(what, encoded)


_LONGEST_ID = (MAX_ID * 4 + 2) // 3


@functools.lru_cache(4096)
def _decode_text(what: str, encoded: str) -> str:
    try:
        text = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except (binascii.Error, ValueError):
        text = None
    if text is None or encode_text(text) != encoded:
        raise InvalidInput(f"{what} must be base64url of its UTF-8 without padding; {encoded[:40]!r} is not")
    return text


def log_tag(frames: int, log_id: str) -> str:
    """Return the HTTP entity tag for a log with this id and this number of frames. The tag changes with every frame. It
    also changes if the thread is deleted and made again."""
    return f'"{frames}-{blake3(log_id.encode()).hexdigest(8)}"'


def log_number(log_id: str) -> int:
    """Return a number that identifies the log with this id. JavaScript can hold it exactly."""
    return int.from_bytes(blake3(log_id.encode()).digest(6), "big")


# Records

_END, _FAILURE = 0xFFFFFFFF, 0xFFFFFFFE
_LARGEST_FAILURE = 2**24
END = _END.to_bytes(4, "big")


def record_size(size: int) -> bytes:
    """Return the 4 bytes that precede a record of this size in a stream."""
    return size.to_bytes(4, "big")


def failure_record(failure: Failure) -> bytes:
    """Return the bytes that end a stream of records when the server cannot go on. They hold the failure, which says
    why."""
    data = msgspec.msgpack.encode(failure)
    return _FAILURE.to_bytes(4, "big") + record_size(len(data)) + data


class Broken(Exception):
    """Raised if a stream of records is malformed or was cut, or if the server reports in the stream that it cannot go
    on. `failure` is the server's report in that last case, and None otherwise."""

    def __init__(self, reason: str, failure: Failure | None = None) -> None:
        super().__init__(reason)
        self.failure = failure


class RecordReader:
    """Splits a stream of bytes into records. Pass the stream to `feed` in pieces of any size, then call `finish`.

    A record has up to `largest` bytes, and a stream up to `most` records, or any number if `most` is None. A stream
    that exceeds these limits counts as malformed, so that a server cannot fill the client's memory.
    """

    def __init__(self, largest: int = _FAILURE - 1, most: int | None = None) -> None:
        self.records: list[bytes] = []
        self._largest = largest
        self._most = most
        self.ended = False
        self._buffer = bytearray()
        self._failing = False

    def feed(self, data: bytes) -> None:
        """Take the next piece of the stream, and add the records that it completes to `records`. Sets `ended` at the
        end of the stream. Raises `Broken` if the stream is malformed or has too many or too large records, or if the
        server reports a failure in it."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= 4:
            size = int.from_bytes(buffer[start : start + 4], "big")
            if size >= _FAILURE and not self._failing:
                self.ended = size == _END
                self._failing = not self.ended
                start += 4
                if self.ended and len(buffer) > start:
                    raise Broken("it goes on after its end")
                continue
            if size > (_LARGEST_FAILURE if self._failing else self._largest):
                raise Broken(f"it has a record of {size} bytes, and {self._largest} are the limit")
            if not self._failing and len(self.records) == self._most:
                raise Broken(f"it has more than the {self._most} records that were asked for")
            if len(buffer) - start - 4 < size:
                break
            record = bytes(memoryview(buffer)[start + 4 : start + 4 + size])
            start += 4 + size
            if self._failing:
                raise Broken("the server could not go on", msgspec.msgpack.decode(record, type=Failure))
            self.records.append(record)
        del buffer[:start]

    def finish(self) -> list[bytes]:
        """Return all records of the stream. Call it when the whole stream was passed to `feed`. Raises `Broken` if the
        stream was cut off before its end."""
        if not self.ended:
            raise Broken("it was cut")
        return self.records
