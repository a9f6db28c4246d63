"""What is decoded takes no more memory than 50 times what is stored, and 8 MiB, whoever made it."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from itertools import product

import msgspec
import pytest
import zstandard
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from clew.errors import Corrupt
from clew.log import (
    FIRST,
    Logged,
    StateSet,
    UnknownEntry,
    compression,
    decode_frame,
    decode_ordinary,
    encode_entries,
    encode_frame,
    weights,
)
from clew.log.blobs import find_refs, pack_blob, restore, spill
from clew.log.codec import _decode_entries
from tests.sampling import sampled
from tests.strategies import logs

pytestmark = pytest.mark.attack

FLOOR = 8 * 2**20
SIZE = 140_000
OVERHEAD = 4096
"""Bytes that any call takes."""

REPEATED: dict[str, bytes] = {
    "nil": b"\xc0",
    "small int": b"\x05",
    "negative int": b"\xe0",
    "int": b"\xcd\x12\x34",
    "long int": b"\xcf\xf1\x23\x45\x67\x89\xab\xcd\xef",
    "float": b"\xca\1\2\3\4",
    "empty text": b"\xa0",
    "two letters": b"\xa2ab",
    "seven letters": b"\xa7abcdefg",
    "two letters with accents": b"\xa4" + "éé".encode(),
    "a sign": b"\xa3" + "€".encode(),
    "an emoji": b"\xa4" + "😀".encode(),
    "letters and an emoji": b"\xbe" + ("a" * 26 + "😀").encode(),
    "bytes": b"\xc4\2ab",
    "moment": b"\xd6\xff\1\2\3\4",
    "extension": b"\xd4\5a",
    "large extension": b"\xc7\x20\1" + bytes(32),
    "empty list": b"\x90",
    "list of nil": b"\x91\xc0",
    "list of list": b"\x91\x90",
    "empty map": b"\x80",
    "map of nil": b"\x81\xc0\xc0",
    "map of text": b"\x81\xa2kl\xc0",
    "map of six": b"\x86" + bytes(range(12)),
    "map of eleven": b"\x8b" + bytes(range(22)),
}
ENTRIES: dict[str, bytes] = {
    "nothing": b"\xc0",
    "an empty one": b"\x90",
    "an unknown one": b"\x91\xc0",
    "started": b"\x91\xa7started",
    "folded": b"\x92\xa6folded\x90",
    "folded, said at length": b"\x92\xd9\6folded\x90",
    "state": b"\x93\xa5state\xa0\x80",
    "message": b"\x92\xa7message\x92\xa4user\x90",
    "picture": b"\x92\xa7message\x92\xa4user\x91\x91\xa5image",
}
BLOCKS: dict[str, bytes] = {
    "nothing": b"\xc0",
    "an unknown one": b"\x91\xa0",
    "a longer unknown one": b"\x92\xa2ab\x90",
    "text": b"\x92\xa4text\xa0",
    "thinking": b"\x91\xa8thinking",
    "picture": b"\x91\xa5image",
}


def array(item: bytes, count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + item * count


def body_of(entries: bytes) -> bytes:
    return b"\x92\0" + entries


def repeated(size: int) -> dict[str, bytes]:
    """Bodies of up to this size that hold one thing many times over."""

    def array(item: bytes) -> bytes:
        return b"\xdd" + (size // len(item)).to_bytes(4, "big") + item * (size // len(item))

    found = {f"values: {name}": body_of(b"\x91\x93\xa5state\xa1k" + array(item)) for name, item in REPEATED.items()}
    found |= {f"entries: {name}": body_of(array(item)) for name, item in ENTRIES.items()}
    found["entries of a body that is said at length"] = b"\xdd\0\0\0\2\xd0\0" + array(b"\xc0")
    for name, item in BLOCKS.items():
        found[f"blocks: {name}"] = body_of(b"\x91\x92\xa7message\x92\xa9assistant" + array(item))
    return found


def bodies() -> dict[str, bytes]:
    found = repeated(SIZE)
    keys = b"".join(b"\xcd" + key.to_bytes(2, "big") + b"\xc0" for key in range(2**15, 2**16))
    for items in (21_846, 32_000):  # just after the table grew, and before it does
        found[f"map of {items}"] = body_of(b"\x91\x93\xa5state\xa1k\xdf" + items.to_bytes(4, "big") + keys[: 4 * items])
    words = "".join(f"\xa5{key:05x}\xc0" for key in range(30_000)).encode("latin-1")
    found["map of words"] = body_of(b"\x91\x93\xa5state\xa1k\xdf" + (30_000).to_bytes(4, "big") + words)
    for name, text in {"ascii": "a" * 10**6, "signs": "a" * 10**6 + "€", "emoji": "a" * 10**6 + "€😀"}.items():
        data = text.encode()
        found[f"text: {name}"] = body_of(b"\x91\x93\xa5state\xa1k\xdb" + len(data).to_bytes(4, "big") + data)
    pieces = array(b"\xda\xf0\0" + b"a" * 0xF000, 40)
    found["a long message with an unknown block"] = body_of(
        b"\x91\x92\xa7message\x92\xa9assistant\xdd"
        + (41).to_bytes(4, "big")
        + b"\x91\xa0"
        + pieces[5:].replace(b"\xda", b"\x92\xa4text\xda")
    )
    return found


BODIES = bodies()


def taken(work: Callable[[], object]) -> int:
    """The most memory that this takes at any time."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        result = work()
        peak = tracemalloc.get_traced_memory()[1]
        del result
        return peak - before
    finally:
        tracemalloc.stop()


def attempt(work: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        try:
            return work()
        except Corrupt:
            return None

    return run


def packed(body: bytes, *, dictionary: bool, padding: int = 0) -> bytes:
    """As small as one who means harm can make it."""
    words = compression.framed._load() if dictionary else None
    compressor = zstandard.ZstdCompressor(level=19, dict_data=words, write_checksum=False, write_dict_id=False)
    return compressor.compress(body) + bytes(padding)


def frame(payload: bytes, flags: int = 1) -> bytes:
    data = bytes([1, flags]) + bytes(28) + payload
    return data + blake3(data).digest(16)


def blob(value: bytes) -> tuple[str, bytes]:
    small = packed(value, dictionary=False)
    small = b"\1" + small.ljust(len(value) // compression.MAX_RATIO, b"\0")
    return blake3(small).hexdigest(), small


@pytest.mark.crash
@pytest.mark.parametrize("name", sampled(BODIES, 4))
def test_nothing_takes_more_than_it_weighs(name: str) -> None:
    body = BODIES[name]

    def work() -> object:
        copied = bytes(memoryview(body))
        try:
            return copied, _decode_entries(copied)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    weight, peak = weights.weigh(body)[0], taken(work)
    assert peak <= weight + OVERHEAD
    assert peak <= weights.bound(body) + OVERHEAD


@pytest.mark.crash
@pytest.mark.parametrize("name", sampled(BODIES, 4))
@pytest.mark.parametrize("padded", [False, True])
def test_a_hostile_frame_takes_no_more_than_fifty_times_its_size(name: str, padded: bool) -> None:
    """Either as short as it can be, or just long enough to be decoded."""
    body = BODIES[name]
    small = packed(body, dictionary=True)
    if padded:
        weight = weights.weigh(body)[0]
        small = small.ljust(max(weights.missing(weight, 46), len(body) // compression.MAX_RATIO), b"\0")
    data = frame(small)
    assert taken(attempt(lambda: decode_ordinary([data]) or decode_frame(data, "t", 0))) <= 50 * len(data) + FLOOR


LARGE: dict[str, bytes] = {
    "empty lists": array(b"\x90", 12 * 10**6),
    "emoji": array(b"\xa4" + "😀".encode(), 2_400_000),
    "text": b"\xdb" + (12 * 10**6).to_bytes(4, "big") + b"a" * 12 * 10**6,
    "text with an emoji": b"\xdb" + (12 * 10**6 + 4).to_bytes(4, "big") + b"a" * 12 * 10**6 + "😀".encode(),
    "bytes": b"\xc6" + (12 * 10**6).to_bytes(4, "big") + bytes(12 * 10**6),
}


@pytest.mark.crash
@pytest.mark.parametrize("name", sampled(LARGE, 2))
@pytest.mark.parametrize("in_blob", [False, True])
def test_refusing_takes_no_more_than_fifty_times_the_size_either(name: str, in_blob: bool) -> None:
    """Far over the 8 MiB that are free, and unpacked as far as zstd's limit allows."""
    body = body_of(b"\x91\x93\xa5state\xa1k" + LARGE[name])
    digest, value = blob(body)
    blobs = {digest: value} if in_blob else {}
    small = packed(body, dictionary=True).ljust(len(body) // compression.MAX_RATIO, b"\0")
    data = frame(bytes.fromhex(digest), 4) if in_blob else frame(small)
    size = len(data) + sum(map(len, blobs.values()))
    assert taken(attempt(lambda: decode_frame(data, "t", 0, blobs))) <= 50 * size + FLOOR


SHORT = repeated(2**16 - 40)


@pytest.mark.parametrize("name", SHORT)
def test_a_body_that_is_not_weighed_takes_no_more_than_8_mib(name: str) -> None:
    assert len(SHORT[name]) <= compression.ALWAYS
    data = frame(packed(SHORT[name], dictionary=True))
    assert taken(attempt(lambda: decode_frame(data, "t", 0))) <= FLOOR


@pytest.mark.crash
@pytest.mark.parametrize("name", sampled(BODIES, 4))
def test_a_hostile_body_in_a_blob_takes_no_more_than_fifty_times_its_size(name: str) -> None:
    digest, value = blob(BODIES[name])
    data = frame(bytes.fromhex(digest), 4)
    size = len(data) + len(value)
    assert taken(attempt(lambda: decode_frame(data, "t", 0, {digest: value}))) <= 50 * size + FLOOR


REFERENCES = product([1, 20, 5000], [1, 2], [b"a" * 10**6, ("a" * 10**6 + "€😀").encode(), b"a" * 60_000, b"a"])


@pytest.mark.crash
@pytest.mark.parametrize(("count", "kind", "value"), sampled(REFERENCES, 8))
def test_references_to_one_blob_take_no_more_than_fifty_times_its_size(count: int, kind: int, value: bytes) -> None:
    digest, small = blob(value)
    reference = b"\xc7\x20" + bytes([kind]) + bytes.fromhex(digest)
    body = body_of(b"\x91\x93\xa5state\xa1k" + array(reference, count))
    data = frame(packed(body, dictionary=True), 3)
    size = len(data) + len(small)
    assert taken(attempt(lambda: decode_frame(data, "t", 0))) <= 50 * size + FLOOR
    assert taken(attempt(lambda: decode_frame(data, "t", 0, {digest: small}))) <= 50 * size + FLOOR


def test_many_blobs_that_unpack_to_64_kib_each_take_no_more_than_fifty_times_their_size() -> None:
    blobs = dict(blob(number.to_bytes(4, "big") + bytes(65_000)) for number in range(2000))
    references = b"".join(b"\xc7\x20\2" + bytes.fromhex(digest) for digest in blobs)
    body = body_of(b"\x91\x93\xa5state\xa1k\xdc" + len(blobs).to_bytes(2, "big") + references)
    data = frame(packed(body, dictionary=True), 3)
    size = len(data) + sum(map(len, blobs.values()))
    assert taken(attempt(lambda: decode_frame(data, "t", 0, blobs))) <= 50 * size + FLOOR


def test_what_is_too_heavy_is_refused_by_name() -> None:
    data = frame(packed(body_of(b"\x91\x93\xa5state\xa1k" + array(b"\x90", 10**6)), dictionary=True, padding=30_000))
    with pytest.raises(Corrupt, match=r"thread 'my', frame 3 .* more than 48 times its own size in memory"):
        decode_frame(data, "my", 3)


noise = random.Random(3)
EXTREMES: dict[str, Callable[[], object]] = {
    "nils": lambda: [None] * 10**6,
    "empty lists": lambda: [[]] * 10**6,
    "many empty lists": lambda: [[]] * 4 * 10**6,
    "empty maps": lambda: [{}] * 10**6,
    "lists of nil": lambda: [[None]] * 10**6,
    "words": lambda: ["ab"] * 10**6,
    "emoji": lambda: "😀" * 250_000,
    "much emoji": lambda: "😀" * 2_500_000,
    "much emoji many times": lambda: ["😀" * 500_000] * 10,
    "text that repeats itself": lambda: "the same words again, " * 150_000,
    "much text that repeats itself": lambda: "the same words again, " * 10**6,
    "bytes that repeat themselves": lambda: bytes(30 * 10**6),
    "rows": lambda: [{"id": n, "name": f"row {n}", "ok": True, "tags": ["a", "b"]} for n in range(100_000)],
    "a map by number": lambda: dict.fromkeys(range(200000)),
    "rows that compress well, and a long text": lambda: [[{"a": []}] * 300_000, "text " * 100_000],
    "lists of all sizes that do not compress": lambda: [[] if noise.random() < 0.5 else {} for _ in range(10**6)],
}


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("name", sampled(EXTREMES, 3))
@pytest.mark.parametrize("carried", [False, True])
def test_whatever_a_user_keeps_comes_back(name: str, carried: bool) -> None:
    value = EXTREMES[name]()
    entries: list[Logged] = [StateSet("k", value)]
    if carried:
        entries = [UnknownEntry(msgspec.msgpack.encode(["of tomorrow", value]))]
    encoded = encode_frame([encode_entries(entries)], previous=FIRST)
    assert len(encoded.data) < 4 * 2**20
    found = decode_frame(encoded.data, "t", 0, encoded.blobs).entries
    assert found == entries


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize(
    "name", sampled(["empty lists", "much emoji many times", "rows", "text that repeats itself"], 2)
)
def test_what_a_user_keeps_takes_no_more_than_fifty_times_its_size(name: str) -> None:
    encoded = encode_frame([encode_entries([StateSet("k", EXTREMES[name]())])], previous=FIRST)
    size = len(encoded.data) + sum(map(len, encoded.blobs.values()))
    assert taken(lambda: decode_frame(encoded.data, "t", 0, encoded.blobs)) <= 50 * size + FLOOR


def test_a_short_body_is_never_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("weigh", "bound"):
        monkeypatch.setattr(weights, name, None)
    data = encode_frame([encode_entries([StateSet("k", [[]] * 60_000)])], previous=FIRST).data
    frame = decode_frame(data, "t", 0)
    assert decode_ordinary([data, data]) == [(frame.time, [StateSet("k", [[]] * 60_000)])] * 2
    assert decode_frame(data, "t", 0).entries == [StateSet("k", [[]] * 60_000)]


@given(logs)
def test_the_coarse_estimate_is_never_below_the_fine_one(entries: list[Logged]) -> None:
    body = msgspec.msgpack.encode([0, entries]) if not any(type(e) is UnknownEntry for e in entries) else b"\x92\0\x90"
    assert weights.bound(body) >= weights.weigh(body)[0] > len(body)


values = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    st.lists(values, max_size=5),
    st.lists(st.sampled_from(["a" * 2**16, b"b" * 70_000, "ö" * 2**15, "a" * (2**16 - 1)])),
)
def test_large_values_are_moved_out_and_back_to_the_byte(small: list[object], large: list[object]) -> None:
    body = msgspec.msgpack.encode([0, [small, large, small]])
    blobs: dict[str, bytes] = {}
    short, leaves = spill(body, weights.weigh(body)[1], blobs)
    weight, places = weights.weigh(short)
    refs = find_refs(short, places)
    assert set(refs.values()) == blobs.keys()
    assert restore(short, weight, refs, blobs, None, weight + leaves) == body
    if refs:
        with pytest.raises(weights.TooHeavy):
            restore(short, weight, refs, blobs, None, weight + leaves - 1)


def test_a_padded_blob_unpacks_to_what_was_packed() -> None:
    for data in (b"", b"words " * 100, random.Random(4).randbytes(5000)):
        for least in (0, 100, 10_000):
            assert len(pack_blob(data, None, least)[1]) >= least
