"""Frames: what goes in comes out, and what was changed since is never taken for what was written."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.errors import Corrupt, InvalidInput, NewerFormat
from clew.log import (
    FIRST,
    Frame,
    Logged,
    MessageAdded,
    StateSet,
    UnknownEntry,
    decode_frame,
    decode_ordinary,
    encode_entries,
    encode_frame,
)
from clew.log.keys import Keyring
from clew.messages import Image, Opaque, Text, User, user
from tests.sampling import examples
from tests.strategies import logs


def frame_of(entries: Sequence[Logged], previous: bytes = FIRST) -> bytes:
    return encode_frame([encode_entries(entries)], previous=previous).data


def sealed(data: bytes) -> bytes:
    """Bytes that pass the check of a frame, whatever they say."""
    return data + blake3(data).digest(16)


def round_trip(entries: Sequence[Logged]) -> Frame:
    encoded = encode_frame([encode_entries(entries)], previous=FIRST)
    return decode_frame(encoded.data, "t", 0, encoded.blobs)


@settings(max_examples=examples(400))
@given(logs)
def test_entries_survive_the_codec(entries: list[Logged]) -> None:
    assert round_trip(entries).entries == entries


@settings(max_examples=50)
@given(st.lists(logs, max_size=6))
def test_frames_decoded_in_one_go_give_the_entries_that_each_gives(groups: list[list[Logged]]) -> None:
    data = [frame_of(entries) for entries in groups]
    each = [(frame.time, frame.entries) for frame in (decode_frame(part, "t", 0) for part in data)]
    every = [entry for _, entries in each for entry in entries]
    unknown = any(isinstance(entry, UnknownEntry) or b"opaque" in encode_entries([entry]).entries for entry in every)
    found = decode_ordinary(data)
    assert found == each or (found is None and (unknown or max(frame[1] for frame in data) > 1))


def ordinary(number: int) -> bytes:
    """Long ones are compressed, short ones are not."""
    return frame_of([MessageAdded(user(f"message {number} " * 20)) if number % 3 else StateSet("", number)])


def test_ordinary_frames_are_decoded_in_one_go() -> None:
    frames = [ordinary(number) for number in range(40)]
    each = [decode_frame(frame, "t", 0) for frame in frames]
    assert decode_ordinary(frames) == [(frame.time, frame.entries) for frame in each]
    assert decode_ordinary([]) == []


def test_among_frames_that_are_decoded_in_one_go_is_none_that_needs_a_closer_look() -> None:
    sound = ordinary(7)
    damaged = sound[:-1] + bytes([sound[-1] ^ 1])
    not_compressed = sealed(bytes([1, 1]) + bytes(12) + FIRST + b"no zstd at all, though it says so")
    other = {
        "damaged": damaged,
        "cut": ordinary(7)[:20],
        "empty": b"",
        "newer": sealed(bytes([2, 0]) + ordinary(7)[2:-16]),
        "no zstd": not_compressed,
        "no msgpack": sealed(bytes([1, 0]) + bytes(12) + FIRST + b"\xc1"),
        "refers to a blob": frame_of([StateSet("large", "x" * 70_000)]),
        "sealed": encode_frame([encode_entries([StateSet("a", 1)])], previous=FIRST, keys=Keyring(bytes(32))).data,
        "of an unknown kind": frame_of([UnknownEntry(msgspec.msgpack.encode(["from the future", 1]))]),
    }
    for what, frame in other.items():
        for place in (0, 5, 9):
            frames = [ordinary(number) for number in range(9)]
            frames.insert(place, frame)
            assert decode_ordinary(frames) is None, what


def test_a_frame_names_its_predecessor_and_itself() -> None:
    first = encode_frame([encode_entries([StateSet("a", 1)])], previous=FIRST)
    second = encode_frame([encode_entries([StateSet("b", 2)])], previous=first.digest)
    assert decode_frame(first.data, "t", 0).previous == FIRST
    assert decode_frame(second.data, "t", 1).previous == decode_frame(first.data, "t", 0).digest == first.digest


def test_the_same_entries_never_make_the_same_frame_twice() -> None:
    assert frame_of([StateSet("a", 1)]) != frame_of([StateSet("a", 1)])


def test_every_flipped_bit_is_corrupt_and_named() -> None:
    data = frame_of([MessageAdded(user("a message with some words, some words that repeat, and some more"))])
    for place in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            with pytest.raises(Corrupt, match=r"thread 'my-thread', frame 7"):
                decode_frame(bytes(damaged), "my-thread", 7)


def test_a_frame_cut_anywhere_is_corrupt() -> None:
    data = frame_of([MessageAdded(user("words"))])
    for length in range(len(data)):
        with pytest.raises(Corrupt):
            decode_frame(data[:length], "t", 0)


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_decoder(data: bytes) -> None:
    for candidate in (data, sealed(data), sealed(b"\1\0" + bytes(28) + data), sealed(b"\1\1" + bytes(28) + data)):
        with contextlib.suppress(Corrupt, NewerFormat):
            decode_frame(candidate, "t", 0)


def test_a_newer_format_is_refused_with_the_version_needed() -> None:
    data = frame_of([StateSet("a", 1)])
    with pytest.raises(
        NewerFormat, match=r"frame 3 has format version 2; this Clew reads up to 1.*pip install --upgrade"
    ):
        decode_frame(sealed(b"\2" + data[1:-16]), "t", 3)
    with pytest.raises(NewerFormat):
        decode_frame(sealed(data[:1] + b"\x80" + data[2:-16]), "t", 3)


def test_an_entry_of_an_unknown_kind_is_carried_through() -> None:
    raw = msgspec.msgpack.encode(["teleported", {"to": "elsewhere"}, 5])
    entries: list[Logged] = [StateSet("a", 1), UnknownEntry(raw), StateSet("b", 2)]
    frame = round_trip(entries)
    assert frame.entries == entries
    assert round_trip(frame.entries).entries == entries


def test_a_block_of_an_unknown_kind_becomes_opaque_and_its_message_stays() -> None:
    raw = msgspec.msgpack.encode(["message", ["user", [["text", "before"], ["hologram", {"x": 1}]]], None, None])
    (entry,) = round_trip([UnknownEntry(raw)]).entries
    assert entry == MessageAdded(User((Text("before"), Opaque("clew", ["hologram", {"x": 1}]))))


@pytest.mark.parametrize("plain", [["message", 5], ["message"], ["message", ["user", 5]], ["state"], ["folded", 1]])
def test_an_entry_of_a_known_kind_that_makes_no_sense_is_corrupt(plain: object) -> None:
    with pytest.raises(Corrupt, match="frame 0"):
        round_trip([UnknownEntry(msgspec.msgpack.encode(plain))])


@pytest.mark.parametrize("plain", [[], 7, None, [7], {"message": 1}, ["message of another kind", 5]])
def test_whatever_is_of_no_known_kind_is_carried_through(plain: object) -> None:
    raw = msgspec.msgpack.encode(plain)
    assert round_trip([UnknownEntry(raw)]).entries == [UnknownEntry(raw)]


def test_fields_that_a_newer_version_added_are_skipped() -> None:
    raw = msgspec.msgpack.encode(["state", "key", "value", "thread", "a field of tomorrow"])
    assert round_trip([UnknownEntry(raw)]).entries == [StateSet("key", "value")]


def test_long_text_and_bytes_go_to_blobs_and_come_back() -> None:
    words, picture = "wörter " * 20_000, bytes(range(256)) * 400
    entries: list[Logged] = [MessageAdded(user(words, Image("image/png", picture))), StateSet("short", "value")]
    encoded = encode_frame([encode_entries(entries)], previous=FIRST)
    assert len(encoded.data) < 1000
    assert len(encoded.blobs) == 2
    bare = decode_frame(encoded.data, "t", 0)
    assert bare.missing == bare.refs == encoded.blobs.keys()
    assert decode_frame(encoded.data, "t", 0, encoded.blobs).entries == entries


def test_the_limit_of_a_value_is_exact() -> None:
    inside, over = "x" * (2**16 - 1), "x" * 2**16
    assert not encode_frame([encode_entries([StateSet("k", inside)])], previous=FIRST).blobs
    assert encode_frame([encode_entries([StateSet("k", over)])], previous=FIRST).blobs


def test_a_frame_with_too_much_in_it_keeps_its_body_in_a_blob() -> None:
    noise = random.Random(5)
    entries = [StateSet(str(n), noise.randbytes(60_000)) for n in range(80)]
    encoded = encode_frame([encode_entries(entries)], previous=FIRST)
    assert len(encoded.data) < 200
    assert decode_frame(encoded.data, "t", 0, encoded.blobs).entries == entries


def test_a_large_body_with_large_values_is_found_step_by_step() -> None:
    noise = random.Random(6)
    entries = [StateSet(str(n), noise.randbytes(60_000)) for n in range(80)] + [
        StateSet("big", noise.randbytes(70_000))
    ]
    encoded = encode_frame([encode_entries(entries)], previous=FIRST)
    first = decode_frame(encoded.data, "t", 0)
    assert len(first.missing) == 1
    second = decode_frame(encoded.data, "t", 0, {digest: encoded.blobs[digest] for digest in first.missing})
    assert second.missing == encoded.blobs.keys() - first.missing
    assert decode_frame(encoded.data, "t", 0, encoded.blobs).entries == entries


def test_equal_large_values_are_one_blob() -> None:
    value = "the same long text " * 10_000
    encoded = encode_frame([encode_entries([StateSet("a", value), StateSet("b", value)])], previous=FIRST)
    assert len(encoded.blobs) == 1


@pytest.mark.parametrize("value", [object(), 2**80, "\ud800", {1: object()}])
def test_a_value_that_cannot_be_stored_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidInput, match="StateSet holds a value that cannot be stored"):
        encode_entries([StateSet("fine", 1), StateSet("key", value)])
