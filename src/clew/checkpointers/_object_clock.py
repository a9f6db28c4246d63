"""What a bucket must be able to do, tried before it is relied upon; and what time it is there."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Literal

from clew.checkpointers._object_bucket import PatientBucket, Refused, Tag
from clew.checkpointers._object_format import unique_name
from clew.checkpointers.heads import micros
from clew.errors import InvalidInput

__all__ = ["Clock", "probe"]

NOTICED = 3_000_000
"""Microseconds that the two clocks have to differ by: the store's is told to the second only."""


class Clock:
    """The store's clock, as far as it differs from this machine's by more than a moment."""

    def __init__(self, ahead: int = 0) -> None:
        self._ahead = ahead

    def now(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000 + self._ahead


async def probe(bucket: PatientBucket, root: str, where: str) -> Clock:
    """Try what all depends on: that of two who make an object one is refused, and of two who replace it too.

    Some servers that speak S3 take the conditions of a put and ignore them. There every writer would be told that it had
    won, so such a store is refused.
    """
    key = f"{root}/probe/{unique_name()}"
    first = await bucket.put(key, b"1", "absent")
    try:
        await _must_be_refused(bucket, key, where, "absent")
        second = await bucket.put(key, b"2", first)
        if second == first:
            raise _unfit(where, "gives two different states of an object the same tag")
        await _must_be_refused(bucket, key, where, first)
        found = await bucket.get(key)
        if found is None or found.data != b"2":
            raise _unfit(where, "does not show an object as it was written a moment before")
        await bucket.put(key, b"4", found.tag)
    except Refused:
        raise _unfit(where, "refuses a conditional put whose condition holds") from None
    finally:
        await bucket.delete([key])
    ahead = micros(found.modified) - micros(datetime.now(UTC))
    return Clock(ahead if abs(ahead) > NOTICED else 0)


async def _must_be_refused(bucket: PatientBucket, key: str, where: str, when: Tag | Literal["absent"]) -> None:
    try:
        await bucket.put(key, b"3", when)
    except Refused:
        return
    kind = "create an object only if it is absent" if when == "absent" else "replace an object only if it is unchanged"
    raise _unfit(where, f"was asked to {kind}, and overwrote it")


def _unfit(where: str, reason: str) -> InvalidInput:
    return InvalidInput(
        f"{where} {reason}. Without conditional puts two writers would both be told that they had won, and one would lose "
        "its work. Use a store that honours If-Match and If-None-Match: Amazon S3, Google Cloud Storage, Azure, OCI, "
        "SeaweedFS, MinIO or Ceph of recent versions."
    )
