"""Frames that an earlier Clew wrote are read as it meant them, for ever."""

from __future__ import annotations

import json

from clew.log import FIRST, decode_frame
from tests.log.make_golden import GOLDEN, entries


def test_frames_of_version_1_stay_readable() -> None:
    stored = json.loads(GOLDEN.read_text())
    blobs = {digest: bytes.fromhex(data) for digest, data in stored["blobs"].items()}
    previous = FIRST
    for number, (data, expected) in enumerate(zip(stored["frames"], entries(), strict=True)):
        frame = decode_frame(bytes.fromhex(data), "golden", number, blobs)
        assert frame.previous == previous
        assert frame.time == 1_800_000_000_000_000
        assert frame.entries == expected
        previous = frame.digest
