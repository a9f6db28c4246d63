"""What travels between `HTTPCheckpointer` and `clew serve`: bodies, headers, records, and failures that name their kind.

Bodies are msgpack. What may be long comes as a stream of records, so that neither side needs it whole:

    4  length, big-endian, then so many bytes; again and again
    4  FF FF FF FF: all of it was sent. A stream that ends without it was cut.
    4  FF FF FF FE, 4 length, so many bytes of a `Failure` in msgpack: the server could not go on
"""

from __future__ import annotations

import base64
import binascii
import functools
from typing import Annotated, Literal

import msgspec
from blake3 import blake3

from clew.checkpointers.heads import Head
from clew.errors import InvalidInput

__all__ = [
    "END",
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
    "Digests",
    "Failure",
    "RecordReader",
    "Sweep",
    "decode_text",
    "encode_text",
    "failure_record",
    "log_tag",
    "record_size",
]

PROTOCOL = 1
PROTOCOL_HEADER = "clew-protocol"
"""On every answer of the service, with the version it speaks: what comes without it comes from somebody else."""
NAMESPACE_HEADER = "clew-namespace"
"""The namespace inside that of the token, as base64url of its UTF-8."""
LOG_HEADER = "clew-log"
"""The tag of a thread's log, beside its head: what `If-Match` of an append takes."""

MSGPACK = "application/msgpack"
JSON = "application/json"
OCTETS = "application/octet-stream"
RECORDS = "application/vnd.clew.records"

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
    "unauthenticated",
    "unavailable",
]
"""What went wrong. The status says it to everybody, the code says it to Clew."""

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Append(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an append."""

    at: Annotated[int, msgspec.Meta(ge=0)]
    head: Head
    frames: list[bytes]
    refs: list[str] = []


class Digests(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Blobs by name: those asked for, or those that are missing."""

    digests: list[Digest]


class Sweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Blobs to delete if they are still untouched for this time."""

    digests: list[Digest]
    untouched_for_micros: Annotated[int, msgspec.Meta(ge=0)]


class Blobs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Several blobs to keep, each under its digest."""

    blobs: dict[str, bytes]


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of every answer that is not a success."""

    code: Code
    message: str
    digests: list[str] = []
    """The blobs that are missing."""
    found: int = 0
    """The version of a format that is too new for the server, and the one it reads up to."""
    supported: int = 0
    retry_after: int = 0
    """Seconds after which the same request may succeed."""


def encode_text(text: str) -> str:
    """Any text as letters, digits, - and _: what paths, headers, proxies and logs leave as it is."""
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


@functools.lru_cache(4096)
def decode_text(what: str, encoded: str) -> str:
    """The text again; `InvalidInput` for all that `encode_text` does not make, so that nothing has two names."""
    try:
        text = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except (binascii.Error, ValueError):
        text = None
    if text is None or encode_text(text) != encoded:
        raise InvalidInput(f"{what} is sent as base64url of its UTF-8, without padding; {encoded[:40]!r} is not that")
    return text


def log_tag(frames: int, log_id: str) -> str:
    """The entity tag of a log that ends here: it changes with every frame, and with another log under the same id."""
    return f'"{frames}-{blake3(log_id.encode()).hexdigest(8)}"'


# Records

_END, _FAILURE = 0xFFFFFFFF, 0xFFFFFFFE
END = _END.to_bytes(4, "big")


def record_size(size: int) -> bytes:
    """What stands before a record of so many bytes."""
    return size.to_bytes(4, "big")


def failure_record(failure: Failure) -> bytes:
    data = msgspec.msgpack.encode(failure)
    return _FAILURE.to_bytes(4, "big") + record_size(len(data)) + data


class Broken(Exception):
    """A stream that is not one of records, or says that it cannot go on."""

    def __init__(self, reason: str, failure: Failure | None = None) -> None:
        super().__init__(reason)
        self.failure = failure


class RecordReader:
    """Takes a stream apart as it comes, in pieces of any size."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.ended = False
        self._buffer = bytearray()
        self._failing = False

    def feed(self, data: bytes) -> None:
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
            if len(buffer) - start - 4 < size:
                break
            record = bytes(memoryview(buffer)[start + 4 : start + 4 + size])
            start += 4 + size
            if self._failing:
                raise Broken("the server could not go on", msgspec.msgpack.decode(record, type=Failure))
            self.records.append(record)
        del buffer[:start]

    def finish(self) -> list[bytes]:
        """All records, once the stream is over; `Broken` if it was cut."""
        if not self.ended:
            raise Broken("it was cut")
        return self.records
