"""The record format of the file store: what was packed comes back, and nothing else is ever taken for it."""

from __future__ import annotations

import struct

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from clew.checkpointers.files import envelope
from clew.checkpointers.files.envelope import (
    HEADER,
    NO_MARK,
    SMALLEST,
    TRAILER,
    BadRecord,
    Header,
    NewerRecord,
    begins,
    only_frames,
    pack,
)

REF = blake3(b"blob").hexdigest()
BEFORE = blake3(b"the record before").digest(16)


def a_record(offset: int = 300) -> bytes:
    return pack([b"one", b"", b"three"], [REF], b"head", at=7, offset=offset, before=BEFORE)[0]


def take_apart(data: bytes, offset: int = 300) -> tuple[list[bytes], envelope.Table]:
    return Header.unpack(data, offset).read(data)


@given(
    frames=st.lists(st.binary(max_size=300), max_size=5),
    refs=st.sets(st.binary(min_size=32, max_size=32).map(bytes.hex), max_size=3),
    head=st.binary(max_size=300),
    at=st.integers(0, 2**63),
    offset=st.integers(0, 2**63),
    before=st.binary(min_size=16, max_size=16),
)
def test_what_is_packed_comes_back(
    frames: list[bytes], refs: set[str], head: bytes, at: int, offset: int, before: bytes
) -> None:
    data, header = pack(frames, refs, head, at=at, offset=offset, before=before)
    assert Header.unpack(data, offset) == header
    assert (header.at, header.before, header.frames, header.end) == (at, before, len(frames), offset + len(data))
    found, table = header.read(data)
    assert found == frames
    assert set(table.refs) == refs
    assert table.head == head
    assert header.read_table(data[HEADER:]) == table
    assert envelope.trailing(data[-TRAILER:]) == (len(data), header.mark)


def test_a_record_is_laid_out_as_documented() -> None:
    """Files written once stay readable: this record may never change."""
    data = a_record()
    fields = struct.unpack_from("<3sBQQ16sQIII16s16s16s", data)
    assert fields[:9] == (b"CLW", 1, 300, 7, BEFORE, len(data), 3, 1, 4)
    table = struct.pack("<3I", 3, 0, 5) + bytes.fromhex(REF) + b"head"
    assert data[HEADER:-TRAILER] == table + b"onethree"
    assert fields[9:] == (blake3(table).digest(16), blake3(b"onethree").digest(16), blake3(data[:88]).digest(16))
    assert data[-TRAILER:] == struct.pack("<Q16s", len(data), fields[11])
    assert blake3(data).hexdigest() == "325932fd4a2183017027c8e8a0d2abaf43652dcd0e51172749b716f02b96a354"


def test_every_bit_of_a_record_is_checked() -> None:
    data = a_record()
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(BadRecord):
                take_apart(bytes(damaged))


def neighbours() -> tuple[bytes, list[int]]:
    """Return records that follow each other from byte 300 on, and where each begins and the last one ends. The third holds
    two frames, the fourth a ref: `only_frames` leaves these to others."""
    offset, bounds, parts = 300, [300], []
    for at, (frames, refs) in enumerate(
        [([b"one"], []), ([b""], []), ([b"a", b"b"], []), ([b"x"], [REF]), ([b"end"], [])]
    ):
        data, header = pack(frames, refs, b"head", at=at, offset=offset, before=BEFORE)
        offset = header.end
        parts.append(data)
        bounds.append(offset)
    return b"".join(parts), bounds


def test_records_of_one_frame_are_read_together() -> None:
    assert only_frames(*neighbours()) == [b"one", b"", None, None, b"end"]


def test_every_bit_of_records_that_are_read_together_is_checked() -> None:
    data, bounds = neighbours()
    sound = only_frames(data, bounds)
    for position in range(len(data)):
        place = sum(bound <= 300 + position for bound in bounds) - 1
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            assert only_frames(bytes(damaged), bounds) == [*sound[:place], None, *sound[place + 1 :]]


def test_records_that_are_read_together_and_end_early_are_left_out_at_every_length() -> None:
    data, bounds = neighbours()
    sound = only_frames(data, bounds)
    for length in range(len(data)):
        whole = sum(bound <= 300 + length for bound in bounds[1:])
        assert only_frames(data[:length], bounds) == [*sound[:whole], *[None] * (len(sound) - whole)]


def test_a_record_that_ends_early_is_refused_at_every_length() -> None:
    data = a_record()
    for size in range(len(data)):
        with pytest.raises(BadRecord):
            take_apart(data[:size])


def test_a_record_at_another_place_is_no_record() -> None:
    with pytest.raises(BadRecord, match="belongs at byte 300"):
        take_apart(a_record(offset=300), offset=301)


def test_a_newer_version_is_told_from_a_damaged_one() -> None:
    data = bytearray(a_record())
    data[3] = 2
    with pytest.raises(BadRecord):
        Header.unpack(bytes(data), 300)
    data[88:HEADER] = blake3(data[:88]).digest(16)
    with pytest.raises(NewerRecord) as error:
        Header.unpack(bytes(data), 300)
    assert error.value.version == 2


def test_a_length_that_its_parts_do_not_fit_in_is_refused() -> None:
    data = bytearray(pack([b"frame"], [], b"head", at=0, offset=0, before=NO_MARK)[0])
    data[36:44] = struct.pack("<Q", SMALLEST)
    data[88:HEADER] = blake3(data[:88]).digest(16)
    with pytest.raises(BadRecord, match="shorter than its own parts"):
        Header.unpack(bytes(data), 0)


def test_the_start_of_a_header_is_known_at_every_length() -> None:
    data = a_record()
    for size in range(HEADER):
        assert begins(data[:size], at=7, offset=300, before=BEFORE)
    assert not begins(data[:HEADER], at=7, offset=300, before=BEFORE)


def test_the_start_of_another_record_is_not_the_start_of_this_one() -> None:
    data = a_record()[:50]
    assert not begins(data, at=8, offset=300, before=BEFORE)
    assert not begins(data, at=7, offset=301, before=BEFORE)
    assert not begins(data, at=7, offset=300, before=NO_MARK)
    assert not begins(b"x" + data[1:], at=7, offset=300, before=BEFORE)


@given(st.binary(max_size=TRAILER))
def test_any_bytes_may_stand_where_a_trailer_should(data: bytes) -> None:
    length, mark = envelope.trailing(data)
    assert (length, mark) == (0, b"") or (length >= SMALLEST and mark == data[8:])
