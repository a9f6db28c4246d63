"""Where files are cut: where their content says, within bounds, and the same whoever reads."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.workspace.chunks import LARGEST, ONE_CHUNK, SMALLEST, chunks, data_of, extents_of

MIB = 2**20


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def prose(size: int) -> bytes:
    draw = random.Random(2)
    words = [bytes(draw.choices(b"etaoinshrdlucmfw", k=draw.randrange(2, 9))) for _ in range(2000)]
    return b" ".join(draw.choices(words, k=size // 5))[:size]


def cut(data: bytes) -> list[bytes]:
    return list(chunks(BytesIO(data).read, len(data)))


@pytest.mark.parametrize("size", [1, 1000, ONE_CHUNK])
def test_a_file_up_to_a_mebibyte_is_one_chunk(size: int) -> None:
    assert cut(noise(size)) == [noise(size)]


def test_an_empty_file_has_no_chunk() -> None:
    assert cut(b"") == []


@pytest.mark.parametrize("make", [noise, prose, bytes])
def test_chunks_are_the_file_and_within_bounds(make: Callable[[int], bytes]) -> None:
    data = make(9 * MIB + 1)
    parts = cut(data)
    assert b"".join(parts) == data
    assert all(SMALLEST < len(part) <= LARGEST for part in parts[:-1])


@pytest.mark.parametrize("make", [noise, prose])
def test_an_insertion_changes_one_or_two_chunks(make: Callable[[int], bytes]) -> None:
    data = make(12 * MIB)
    before = cut(data)
    assert len(before) > 8
    for place in random.Random(3).sample(range(len(data)), 12):
        after = cut(data[:place] + b"a few more bytes" + data[place:])
        assert len(set(after) - set(before)) <= 2


def test_the_cuts_are_for_ever() -> None:
    """Others would be as good, but everything stored before would be stored again."""
    assert [len(part) for part in cut(noise(4 * MIB))] == [
        531370,
        524412,
        606399,
        569162,
        538225,
        526457,
        541751,
        356528,
    ]


def sparse(path: Path, size: int, parts: dict[int, bytes]) -> int:
    with path.open("wb") as file:
        file.truncate(size)
        for offset, data in parts.items():
            os.pwrite(file.fileno(), data, offset)
        os.fsync(file.fileno())
    return os.open(path, os.O_RDONLY)


def test_the_holes_of_a_sparse_file_are_found(tmp_path: Path) -> None:
    fd = sparse(tmp_path / "sparse", 40 * MIB, {8 * MIB: b"x" * 4096, 24 * MIB: b"y" * 8192})
    extents = extents_of(fd, os.fstat(fd))
    if extents is None:
        pytest.skip("this file system does not tell where holes are")
    assert extents == ((8 * MIB, 4096), (24 * MIB, 8192))
    assert data_of(fd, extents)(10 * MIB) == b"x" * 4096 + b"y" * 8192
    os.close(fd)


def test_a_file_that_is_one_hole_has_no_data(tmp_path: Path) -> None:
    fd = sparse(tmp_path / "sparse", 40 * MIB, {})
    assert extents_of(fd, os.fstat(fd)) in ((), None)
    os.close(fd)


def test_a_file_without_holes_has_no_extents(tmp_path: Path) -> None:
    (tmp_path / "full").write_bytes(noise(100_000))
    with (tmp_path / "full").open("rb") as file:
        assert extents_of(file.fileno(), os.fstat(file.fileno())) is None


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), max_size=8), st.integers(1, 70))
def test_data_is_read_across_extents_in_pieces_of_any_size(gaps: list[tuple[int, int]], piece: int) -> None:
    data, extents, place = b"", [], 0
    for gap, length in gaps:
        extents.append((place + gap, length))
        data += b"\0" * gap + bytes([len(extents)]) * length
        place += gap + length
    fd = os.memfd_create("data") if hasattr(os, "memfd_create") else pytest.skip("no memfd here")
    try:
        os.write(fd, data)
        read = data_of(fd, tuple(extents))
        pieces = list(iter(lambda: read(piece), b""))
    finally:
        os.close(fd)
    assert b"".join(pieces) == b"".join(data[start : start + length] for start, length in extents)
    assert all(len(part) == piece for part in pieces[:-1])
