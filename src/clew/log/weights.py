"""Estimate how much memory msgpack data will take when it is decoded, before it is decoded, so that hostile data can be
refused.

One byte of msgpack can become ninety bytes of Python objects (an empty list, an empty map), and zstd can make thousands
of such bytes from one. So a reader refuses data whose stored size is too small for the memory that it would take, and a
writer pads such data with zeros. Both use the function `weigh`. In this module, a weight is a number of bytes of
memory, and a body is the encoded entries of a frame.
"""

from __future__ import annotations

import re

__all__ = [
    "ENTRY",
    "FLOOR",
    "NUMBERS",
    "TIMES",
    "Place",
    "TooHeavy",
    "allowed",
    "bound",
    "check",
    "lacking",
    "missing",
    "weigh",
    "weigh_leaf",
]

TIMES = 48
"""The most memory that decoded data may take, as a multiple of its stored size.

Clew promises at most 50 times; the difference is left for copies of the data.
"""
FLOOR = 8 * 2**20
"""Bytes of memory that decoded data may always take, whatever its stored size.

The memory of short data is not estimated, because it never takes more than this.
"""

Place = tuple[int, int, int]
"""The position of a value in msgpack, as three offsets: of its token (the byte that says its type), of the start of its
content, and of the end of its content."""

# Bytes that CPython needs for an object and the pointer to it, rounded up as its allocator does, plus a small reserve.
# tests/log/test_weights.py measures them.
_SCALAR, _NEGATIVE, _NUMBER, _MOMENT, _TEXT, _WIDE_TEXT, _BYTES, _EXTENSION = 10, 44, 60, 72, 72, 100, 60, 640
_ARRAY, _MAP, _TABLE, _ITEM, _IN_TABLE = 88, 80, 160, 96, 5
ENTRY, _STATE = 104, 640
_ASTRAL = bytes(range(0xF0, 0x100))
"""The bytes in UTF-8 with which characters begin that CPython needs 4 bytes for."""
_LONG = _CHUNK = 2**16
_TIMESTAMP = b"\xff"
NUMBERS = {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
"""For each msgpack token (a value's first byte, which says its type) of a number: the length of the number in bytes,
including the token."""
_WIDTHS = {
    token: width
    for width, tokens in enumerate(
        [range(0xD4, 0xD9), b"\xc4\xc7\xd9", b"\xc5\xc8\xda\xdc\xde", b"", b"\xc6\xc9\xdb\xdd\xdf"]
    )
    for token in tokens
}
"""For each msgpack token (a value's first byte, which says its type): how many bytes after it hold the length of the
value."""


class TooHeavy(Exception):
    """Raised if data would take too much memory when decoded: more than 8 MiB (`FLOOR`) plus 48 times (`TIMES`) its
    stored size."""

    def __init__(self) -> None:
        super().__init__(f"it would take more than {TIMES} times its own size in memory")


def allowed(stored: int) -> int:
    """Return how many bytes of memory a value may take when decoded, if its stored size is `stored` bytes. Readers
    refuse a value that would take more."""
    return TIMES * stored + FLOOR


def check(body: bytes, stored: int) -> None:
    """Raise `TooHeavy` if a frame's body (its encoded entries) would take too much memory when decoded.

    `stored` is the size in bytes in which the body is stored; it decides how much memory is allowed. A fast estimate is
    made first, and a closer one only if the fast estimate is too high.
    """
    most = allowed(stored)
    if bound(body) > most and weigh(body, most)[0] > most:
        raise TooHeavy


def lacking(body: bytes, stored: int) -> int:
    """Return how many bytes of padding must be added to the stored form of a frame's body (its encoded entries), so
    that readers accept it. They refuse data that takes far more memory when decoded than its stored size.

    `stored` is the size of the stored form without padding, in bytes.
    """
    return 0 if bound(body) <= allowed(stored) else missing(weigh(body)[0], stored)


def missing(weight: int, stored: int) -> int:
    """Return how many bytes of padding must be added to data of `stored` bytes, so that readers accept it. They refuse
    data that takes far more memory when decoded than its stored size.

    `weight` is the number of bytes of memory that the data takes when decoded.
    """
    return max(0, -(-(weight - allowed(stored)) // TIMES))


def weigh(body: bytes, most: int | None = None) -> tuple[int, list[Place]]:
    """Return an upper estimate of the memory that a frame's body (its entries in msgpack) and its decoded objects take,
    in bytes, and the positions of large values in the body.

    The positions are those of msgpack extensions (such as references to blobs), and of texts and bytes of at least
    65,536 bytes. A position is three offsets in the body: of the value's first byte, of its content, and of the byte
    after it. Counting stops once the total exceeds `most` bytes, so that refusing takes no longer than decoding would.
    """
    at, end = 0, len(body)
    total = end + _beside_tokens(body)
    most = 2**63 if most is None else most
    places: list[Place] = []
    while at < end and total <= most:
        token = body[at]
        start = at + 1
        if 0xA0 <= token < 0xC0:  # text of up to 31 bytes
            at = start + (token & 31)
            text = body[start:at]
            total += _TEXT + token - 0xA0 if text.isascii() else weigh_leaf(text, True)
        elif (weight := _ALONE[token]) > 0:
            if start < end and body[start] == token:  # perhaps a run of equal tokens
                start = _SAME[weight].match(body, at).end()  # type: ignore[union-attr] # matches at least this token
                total += weight * (start - at)
            else:
                total += weight
            at = start
        elif token in NUMBERS:
            at += NUMBERS[token]
            total += _NUMBER
        else:
            start += _WIDTHS[token]
            size = int.from_bytes(body[at + 1 : start], "big")
            stop = start
            if token >= 0xDE:
                total += _weigh_map(size)
            elif token >= 0xDC:
                total += _ARRAY
            elif token >= 0xD9 or token <= 0xC6:
                stop = start + size
                total += size if total + size > most else weigh_leaf(body[start:stop], token >= 0xD9)
            else:
                stop = start + 1 + (1 << token - 0xD4 if token >= 0xD4 else size)
                if body[start : start + 1] == _TIMESTAMP:
                    total += _MOMENT
                else:
                    total += _EXTENSION + stop - start
                    places.append((at, start, stop))
            if stop - start >= _LONG and token in (0xC6, 0xDB):
                places.append((at, start, stop))
            at = stop
    return total, places


def weigh_leaf(data: bytes, text: bool) -> int:
    """Return the bytes of memory that a text or bytes object takes. `data` is the text in UTF-8, or the bytes.

    CPython uses 1, 2 or 4 bytes for each character, depending on the widest one, and half as much again while decoding.
    """
    if not text:
        return _BYTES + len(data)
    if data.isascii():
        return _TEXT + len(data)
    # To delete them is many times faster than to search for the first of them.
    is_astral = len(data.translate(None, _ASTRAL)) < len(data)
    return _WIDE_TEXT + len(data) * (6 if is_astral else 3)


def bound(body: bytes) -> int:
    """Return an upper estimate of the memory that a frame's body (its entries in msgpack) takes when decoded, in bytes.
    It is coarser than the estimate of `weigh`, and made ten times faster.

    Every byte is counted as if a value began with it, also bytes inside texts. So the estimate may be far too high, but
    never too low.
    """
    total = len(body) + _beside_tokens(body)
    may_have_large_maps = b"\xde" in body or b"\xdf" in body
    for start in range(0, len(body), _CHUNK):
        part = body[start : start + _CHUNK]
        rest = part.translate(None, _ASCII)
        total += _SCALAR * (len(part) - len(rest))
        for tokens, weight, may_be_key in _HEAVIEST:
            before, rest = len(rest), rest.translate(None, tokens)
            total += (weight + (_ITEM if may_be_key and may_have_large_maps else 0)) * (before - len(rest))
        total += _LARGE_MAP * len(rest)
    return total


def _weigh_map(items: int) -> int:
    """Return the bytes of memory that a decoded map (a Python dict) of this many items takes, without its keys and
    values."""
    return _MAP + _TABLE + _ITEM * max(0, items - _IN_TABLE) if items else _MAP


def _beside_tokens(body: bytes) -> int:
    """Return the bytes of memory that Clew's own objects in a decoded frame take: one for each of its entries, and the
    fields of each folded state (an entry that holds the thread's whole state). The single values in them, such as texts
    and numbers, are not counted. `body` is the frame's entries in msgpack."""
    return ENTRY * _count_entries(body) + _STATE * body.count(b"folded")


def _count_entries(body: bytes) -> int:
    """Return the number of entries in a frame's body, which is a msgpack array of two items: a time, and the array of
    entries. Returns 0 if the body does not have this form."""
    at = 1 + _WIDTHS.get(body[0], 0) if body else 0
    at += NUMBERS.get(body[at], 1) if at < len(body) else 0
    token = body[at] if at < len(body) else 0
    if 0x90 <= token < 0xA0:
        return token & 15
    if token in (0xDC, 0xDD):
        return min(int.from_bytes(body[at + 1 : at + 1 + _WIDTHS[token]], "big"), len(body))
    return 0


def _weigh_alone(token: int) -> int:
    """Return the bytes of memory that a decoded msgpack value takes, if the value is only the one byte `token`. Returns
    0 if this byte begins a longer value.

    Small integers from -5 on take little, because CPython has them preallocated.
    """
    if token < 0x80 or 0xC0 <= token <= 0xC3 or token >= 0xFB:
        return _SCALAR
    if token >= 0xE0:
        return _NEGATIVE
    return _weigh_map(token & 15) if token < 0x90 else _ARRAY if token < 0xA0 else 0


_ALONE = [_weigh_alone(token) for token in range(256)]
_SAME = {
    weight: re.compile(
        b"[%s]+" % b"".join(re.escape(bytes([token])) for token in range(256) if _ALONE[token] == weight)
    )
    for weight in set(_ALONE)
    if weight
}
"""For each weight (a number of bytes of memory): a pattern that matches consecutive one-byte values of this weight."""
_ASCII = bytes(range(0x80))
_LARGE_MAP = 7000
"""Bytes of memory that `bound` counts for a map of more than 15 items.

This memory is enough for 162 one-byte keys; for each longer key, `bound` adds the memory of one item.
"""
_HEAVIEST = [
    (bytes([*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB]), _WIDE_TEXT, True),
    (bytes([*range(0x90, 0xA0), 0xDC, 0xDD]), _ARRAY, True),
    (bytes([*range(0xC0, 0xC4), *range(0xFB, 0x100)]), _SCALAR, False),
    (bytes(range(0xE0, 0xFB)), _NEGATIVE, False),
    (bytes([*range(0xC4, 0xC7), *range(0xCA, 0xD4)]), _NUMBER, True),
    (bytes([*range(0xC7, 0xCA), *range(0xD4, 0xD9)]), _EXTENSION, True),
    (bytes(range(0x80, 0x86)), _MAP + _TABLE, False),
    *[(bytes([0x80 | items]), _weigh_map(items), False) for items in range(_IN_TABLE + 1, 16)],
]
