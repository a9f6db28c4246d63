"""Tests `log/batches.py`: frames that are decoded in parts, with the next parts decompressed meanwhile, are the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.log import (
    FIRST,
    MessageAdded,
    StateSet,
    batches,
    compression,
    decode_in_parts,
    decode_ordinary,
    encode_entries,
)
from clew.log.codec import encode_frame
from clew.messages import user


def frames(count: int) -> list[bytes]:
    entries = [MessageAdded(user(f"message {number} " * 20)) for number in range(count)]
    return [encode_frame([encode_entries([entry])], previous=FIRST).data for entry in entries]


@pytest.fixture(params=[False, True])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short parts, without and with an OS thread that decompresses ahead."""
    monkeypatch.setattr(compression, "has_processors", lambda: request.param)
    monkeypatch.setattr(batches, "AT_ONCE", 10)
    monkeypatch.setattr(batches, "AHEAD", 10)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 19, 20, 21, 57])
def test_a_log_decoded_in_parts_is_the_same_log(count: int) -> None:
    made = frames(count)
    left = list(made)
    found = list(decode_in_parts(left))
    assert left == []
    assert [frame for part, _ in found for frame in part] == made
    assert [entry for _, part in found for entry in part or []] == decode_ordinary(made)
    assert all(len(part) == 10 for part, _ in found[:-1])


@pytest.mark.usefixtures("parts")
def test_only_the_part_with_a_frame_that_is_not_ordinary_is_left_undecoded() -> None:
    made = frames(50)
    made[13] = made[13][:-1] + bytes([made[13][-1] ^ 1])
    made[27] = encode_frame([encode_entries([StateSet("large", "x" * 70_000)])], previous=FIRST).data
    made[41] = made[41][:20]
    assert [part is None for _, part in decode_in_parts(made)] == [False, True, True, False, True]


def test_on_a_busy_machine_and_on_one_processor_nothing_is_left_to_another_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = tmp_path / "loadavg"
    monkeypatch.setattr(compression, "_LOAD", said)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    said.write_text("9.00 9.00 9.00 4/123 4567\n")
    assert compression.has_processors()
    said.write_text("0.00 0.00 0.00 5/123 4567\n")
    assert not compression.has_processors()
    said.unlink()
    monkeypatch.setattr("os.getloadavg", lambda: (3.2, 9.0, 9.0), raising=False)
    assert compression.has_processors()
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3}, raising=False)
    assert not compression.has_processors()


def test_frames_that_are_compressed_well_are_smaller_and_the_same() -> None:
    text = " ".join(f"word{number * 7919 % 613} of{number % 17}" for number in range(300))
    body = encode_entries([MessageAdded(user(text))])
    well, quick = (encode_frame([body], previous=FIRST, is_quick=is_quick).data for is_quick in (False, True))
    assert len(well) < len(quick)
    assert decode_ordinary([well]) == decode_ordinary([quick])
