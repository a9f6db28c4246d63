"""zstd, without and with the dictionary that frames share.

Frames are a few hundred bytes to a few kilobytes: too short for zstd to learn anything from. The dictionary brings what
logs of agents have in common. Measured on frames of 2.5 KB of real prose, code and documents: 0.51 of the size without
it, 0.43 with it, at the same speed; on frames of 140 bytes 0.97 and 0.75. `tools/make_dictionary.py` made it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

import zstandard

from clew.errors import Corrupt

__all__ = ["Zstd", "framed", "plain"]

LEVEL = 1  # measured on turns of 3 KB with the dictionary: level 3 saves 4 % and takes half as long again, both ways
MANY = 16
MAX_PLAIN = 2**31
"""Nothing unpacks to more than this, whatever it claims."""


class Zstd:
    """One way to compress. Contexts must not be used by two threads at once, so each thread has its own."""

    def __init__(self, dictionary: str | None = None) -> None:
        self._dictionary = dictionary
        self._local = threading.local()

    def compress(self, data: bytes) -> bytes:
        try:
            compressor: zstandard.ZstdCompressor = self._local.compressor
        except AttributeError:
            compressor = self._local.compressor = zstandard.ZstdCompressor(
                level=LEVEL, dict_data=self._load(), write_checksum=False, write_dict_id=False
            )
        return compressor.compress(data)

    def decompress(self, data: bytes | memoryview, what: str) -> bytes:
        """The inverse of `compress`; `what` names the thing in an error."""
        _check_size(data, lambda _: what)
        try:
            return self._decompressor().decompress(data)
        except zstandard.ZstdError as error:
            raise _damaged(what, error) from error

    def decompress_all(
        self, data: Sequence[bytes | memoryview], what: Callable[[int], str]
    ) -> Sequence[bytes | memoryview]:
        """Each of these; `what` names one for an error. Many are spread over the cores: two halve the time."""
        if len(data) < MANY or "multi_decompress_to_buffer" not in zstandard.backend_features:
            return [self.decompress(part, what(place)) for place, part in enumerate(data)]
        for place, part in enumerate(data):
            _check_size(part, what, place)
        try:
            found: Any = self._decompressor().multi_decompress_to_buffer(list(data), threads=-1)
        except zstandard.ZstdError:
            return [self.decompress(part, what(place)) for place, part in enumerate(data)]
        return [memoryview(part) for part in found]

    def _decompressor(self) -> zstandard.ZstdDecompressor:
        try:
            decompressor: zstandard.ZstdDecompressor = self._local.decompressor
        except AttributeError:
            decompressor = self._local.decompressor = zstandard.ZstdDecompressor(dict_data=self._load())
        return decompressor

    def _load(self) -> zstandard.ZstdCompressionDict | None:
        return None if self._dictionary is None else _load(self._dictionary)


def _check_size(data: bytes | memoryview, what: Callable[[int], str], place: int = 0) -> None:
    try:
        size = zstandard.frame_content_size(data)
    except zstandard.ZstdError as error:
        raise _damaged(what(place), error) from error
    if not 0 <= size <= MAX_PLAIN:
        raise Corrupt(f"{what(place)} says it unpacks to {size} bytes; the limit is {MAX_PLAIN}.")


def _damaged(what: str, error: zstandard.ZstdError) -> Corrupt:
    return Corrupt(f"{what} cannot be decompressed ({error}). Restore it from a copy.")


@functools.cache
def _load(name: str) -> zstandard.ZstdCompressionDict:
    dictionary = zstandard.ZstdCompressionDict(resources.files("clew.log").joinpath(name).read_bytes())
    dictionary.precompute_compress(level=LEVEL)
    return dictionary


plain = Zstd()
framed = Zstd("dictionary-1.zstd")
"""Dictionary 1, for ever: every frame of format version 1 needs exactly these bytes."""
