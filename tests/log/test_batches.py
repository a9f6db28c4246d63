"""Tests `log/batches.py`: frames that are decoded in parts, with the next parts decompressed meanwhile, are the same."""

from __future__ import annotations

import pytest

from clew.log import FIRST, MessageAdded, StateSet, compression, decode_in_parts, decode_ordinary, encode_entries
from clew.log.codec import encode_frame
from clew.messages import user


def frames(count: int) -> list[bytes]:
    entries = [MessageAdded(user(f"message {number} " * 20)) for number in range(count)]
    return [encode_frame([encode_entries([entry])], previous=FIRST).data for entry in entries]


@pytest.mark.parametrize("processors", [1, 2])
@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 57])
def test_a_log_decoded_in_parts_is_the_same_log(count: int, processors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_processors", lambda: processors)
    made = frames(count)
    left = list(made)
    parts = list(decode_in_parts(left, 10))
    assert left == []
    assert [frame for part, _ in parts for frame in part] == made
    assert [entry for _, part in parts for entry in part or []] == decode_ordinary(made)
    assert all(len(part) == 10 for part, _ in parts[:-1])


@pytest.mark.parametrize("processors", [1, 2])
def test_only_the_part_with_a_frame_that_is_not_ordinary_is_left_undecoded(
    processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "_processors", lambda: processors)
    made = frames(50)
    made[13] = made[13][:-1] + bytes([made[13][-1] ^ 1])
    made[27] = encode_frame([encode_entries([StateSet("large", "x" * 70_000)])], previous=FIRST).data
    made[41] = made[41][:20]
    assert [part is None for _, part in decode_in_parts(made, 10)] == [False, True, True, False, True]


def test_work_that_no_thread_has_begun_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never:
        def submit(self, *_: object) -> Never:
            return self

        def cancel(self) -> bool:
            return True

    monkeypatch.setattr(compression, "_processors", lambda: 2)
    monkeypatch.setattr(compression, "_helper", Never)
    made = frames(25)
    assert [entry for _, part in decode_in_parts(list(made), 10) for entry in part or []] == decode_ordinary(made)


def test_frames_that_are_compressed_well_are_smaller_and_the_same() -> None:
    text = " ".join(f"word{number * 7919 % 613} of{number % 17}" for number in range(300))
    body = encode_entries([MessageAdded(user(text))])
    well, quick = (encode_frame([body], previous=FIRST, is_quick=is_quick).data for is_quick in (False, True))
    assert len(well) < len(quick)
    assert decode_ordinary([well]) == decode_ordinary([quick])
