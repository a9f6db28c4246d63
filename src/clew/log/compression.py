"""zstd compression, with and without a dictionary. The dictionary holds text that logs of agents have in common.

Frames are compressed with the dictionary, because they have only a few hundred bytes to a few kilobytes, which is too
little for zstd to learn anything from. Measured on frames of 2.5 KB of real prose, code and documents: compressed to
0.51 of the size without the dictionary and to 0.43 with it, at the same speed. On frames of 140 bytes: 0.97 and 0.75.
`tools/make_dictionary.py` made the dictionary.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any

import zstandard

from clew._runtime import forks

__all__ = ["NotCompressed", "Zstd", "framed", "has_processors", "plain"]

LEVEL = 2
"""The zstd level.

Measured on turns of 3 KB: level 1 gives more bytes and is not faster. Level 3 takes 1.5 times as long and saves 1 % of
the bytes.
"""
_QUICK = {
    "strategy": zstandard.STRATEGY_FAST,
    "window_log": 20,
    "hash_log": 15,
    "chain_log": 15,
    "search_log": 1,
    "min_match": 6,
    "target_length": 0,
}
"""The zstd parameters for frames that are made in a hurry: those of level 2, except that matches have at least six bytes
instead of five.

Measured on texts of 3 KB of prose, code and JSON: compared with level 2, compression takes a tenth less time and
decompression a twentieth less, for 1.5 to 2.5 % more bytes.
"""
_THRIFTY = _QUICK | {
    "strategy": zstandard.STRATEGY_LAZY,
    "chain_log": 14,
    "search_log": 2,
    "min_match": 4,
    "target_length": 8,
}
"""The zstd parameters for all other frames of up to 64 KiB.

Measured on texts of 3 KB: compared with the quick ones, compression takes 45 µs instead of 15, for 5 to 7 % fewer bytes.
More effort gains little: with twice the time another 1 %.
"""
MAX_RATIO = 40
ALWAYS = 64 * 1024
"""Compressed data never unpacks to more than the larger of `ALWAYS` bytes and `MAX_RATIO` times its own size.

Data that would shrink further is padded with zeros. So a few hostile bytes cannot fill a reader's memory.
"""

_HAS_MANY = "multi_decompress_to_buffer" in zstandard.backend_features


class NotCompressed(Exception):
    """Raised if bytes cannot be decompressed, because they are not valid zstd data, or would unpack to more than 64 KiB
    (`ALWAYS`). `Zstd.decompress` allows more, up to 40 times the size of the bytes (`MAX_RATIO`)."""


class Zstd:
    """Compresses and decompresses bytes with zstd. Uses a dictionary if the constructor is given the name of a
    dictionary's file.

    Each OS thread gets zstd objects of its own, because they must not be shared between OS threads.
    """

    def __init__(self, dictionary: str | None = None) -> None:
        self._dictionary = dictionary
        self._local = threading.local()

    def compress(self, data: bytes) -> bytes:
        """Compress the data quickly and return it. `compress_well` takes longer and gives fewer bytes."""
        try:
            compressor: zstandard.ZstdCompressor = self._local.compressor
        except AttributeError:
            compressor = self._local.compressor = self._new_compressor(is_thrifty=False)
        small = compressor.compress(data)
        return small.ljust(len(data) // MAX_RATIO, b"\0") if len(data) > ALWAYS else small

    def compress_well(self, data: bytes) -> bytes:
        """Compress data and return the result, which has fewer bytes than `compress` gives. Takes three times as long
        as `compress`. The data must have at most 64 KiB (`ALWAYS`), because `decompress` may refuse what more gives."""
        try:
            compressor: zstandard.ZstdCompressor = self._local.thrifty
        except AttributeError:
            compressor = self._local.thrifty = self._new_compressor(is_thrifty=True)
        return compressor.compress(data)

    def decompress(self, data: bytes) -> bytes:
        """Decompress what `compress` or `compress_well` returned. Raises `NotCompressed` if the data is not valid, or
        would unpack to more than 64 KiB and more than 40 times its size."""
        try:
            _check_size(data)
            return self._decompressor().decompress(data)
        except zstandard.ZstdError as error:
            raise NotCompressed(str(error)) from error

    def decompress_many(self, data: list[bytes]) -> Iterable[Any]:
        """Decompress each item of `data` and return the results as buffers, in order. Each item must unpack to at
        most 64 KiB (`ALWAYS`). Raises `NotCompressed` if an item is not valid or unpacks to more."""
        try:
            sizes = [*map(zstandard.frame_content_size, data)]
            if sizes and not 0 <= min(sizes) <= max(sizes) <= ALWAYS:
                raise NotCompressed("it is large, or does not say its size")
            if not _HAS_MANY or not sizes or not all(sizes):
                return [*map(self._decompressor().decompress, data)]
            found: Iterable[Any] = self._decompressor().multi_decompress_to_buffer([*data], threads=1)  # type: ignore[assignment] # it can be iterated
        except zstandard.ZstdError as error:
            raise NotCompressed(str(error)) from error
        return found

    def start(self, data: list[bytes]) -> Callable[[], Iterable[Any]]:
        """Start to decompress each item of `data` on another OS thread. Returns a function that waits for the results
        and returns them: the decompressed items, in order. That function raises `NotCompressed` if an item is not
        valid, or unpacks to more than 64 KiB.

        Returns only when the other OS thread has begun to work, for which it needs the interpreter lock. If this call
        returned at once, the caller could keep the lock for up to 5 ms, in which time a small log is decoded already.
        """
        begun = threading.Event()

        def work() -> Iterable[Any]:
            begun.set()
            return self.decompress_many(data)

        try:
            result = _helper().submit(work).result
        except RuntimeError:  # the interpreter is about to end, and starts no OS thread any more
            return functools.partial(self.decompress_many, data)
        begun.wait()
        return result

    def _decompressor(self) -> zstandard.ZstdDecompressor:
        try:
            found: zstandard.ZstdDecompressor = self._local.decompressor
        except AttributeError:
            found = self._local.decompressor = zstandard.ZstdDecompressor(dict_data=self._load())
        return found

    def _load(self) -> zstandard.ZstdCompressionDict | None:
        return None if self._dictionary is None else _load(self._dictionary, is_thrifty=False)

    def _new_compressor(self, *, is_thrifty: bool) -> zstandard.ZstdCompressor:
        if self._dictionary is None:
            return zstandard.ZstdCompressor(level=LEVEL, write_checksum=False)
        dictionary = _load(self._dictionary, is_thrifty=is_thrifty)
        return zstandard.ZstdCompressor(dict_data=dictionary, compression_params=_parameters(is_thrifty))


def _check_size(data: bytes) -> None:
    size = zstandard.frame_content_size(data)
    if not 0 <= size <= ALWAYS and not 0 <= size < MAX_RATIO * (len(data) + 1):
        raise NotCompressed(f"it says it unpacks to {size} bytes, which is more than {MAX_RATIO} times its own")


def has_processors() -> bool:
    """Return whether it saves time to decompress on another OS thread. That is so if there is more than one processor,
    and the machine is not too busy: at most two OS threads run or wait for each processor. Measured: with two for each
    processor, another OS thread still saves a little time; with four, it saves none."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return usable > 1 and _wanted_processors() <= 2 * usable


def _wanted_processors() -> float:
    """Return how many OS threads of the machine run or wait for a processor at the moment, this one included. Where the
    system is not Linux, return the average of the last minute."""
    try:
        return int(_LOAD.read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else 1.0


_LOAD = Path("/proc/loadavg")


@functools.cache
def _helper() -> ThreadPoolExecutor:
    """Return an executor with one OS thread, on which data is decompressed while the calling OS thread decodes. The two
    work at the same time, because zstd does not need the interpreter lock."""
    return ThreadPoolExecutor(1, "clew-zstd")


forks.in_child(_helper.cache_clear)  # an OS thread does not live on in a forked child


@functools.cache
def _load(name: str, *, is_thrifty: bool) -> zstandard.ZstdCompressionDict:
    dictionary = zstandard.ZstdCompressionDict(resources.files("clew.log").joinpath(name).read_bytes())
    dictionary.precompute_compress(compression_params=_parameters(is_thrifty))
    return dictionary


def _parameters(is_thrifty: bool) -> zstandard.ZstdCompressionParameters:
    return zstandard.ZstdCompressionParameters(
        **(_THRIFTY if is_thrifty else _QUICK), write_content_size=True, write_checksum=False, write_dict_id=False
    )


plain = Zstd()
framed = Zstd("dictionary-1.zstd")
"""The compressor of frames.

It uses dictionary 1, which must never change: frames of format version 1 cannot be read without exactly these bytes.
"""
