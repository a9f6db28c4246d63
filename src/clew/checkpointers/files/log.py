"""One thread's log in one file: finds its records (one for each append), reads frames, and writes the next record.

The caller opens and locks the file. The positions of records are remembered, so that an append takes the same time
whatever the length of the log. Before each use, the last bytes of the last known record are compared with the file. If
they differ, all positions are forgotten: another process has deleted the thread and made it again, perhaps even under
the same inode number.

A power cut may leave a file with the length of its last record but only some of its sectors; the others are zeros then.
Such a record was not acknowledged: an append returns only after its sync. So a last record that fails its check and has
sectors of zeros does not count, and the next append cuts it off. The bytes that are cut off are first saved in another
file in the same folder, because damage to the disk can look the same. A record that fails its check in any other way,
or has another record after it, is damage: it raises `Corrupt`, and nothing is cut.
"""

from __future__ import annotations

import logging
import os
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

import msgspec

from clew._runtime import files
from clew.checkpointers.files import envelope
from clew.checkpointers.files.envelope import (
    HEADER,
    NO_MARK,
    SMALLEST,
    TRAILER,
    BadRecord,
    Header,
    NewerRecord,
)
from clew.checkpointers.heads import Head, thread_key
from clew.errors import Corrupt, NewerFormat

__all__ = ["TORN", "Log", "Span"]

log = logging.getLogger("clew.checkpointers.files")

TORN = ".torn"
"""What is appended to the name of a thread's file for the file that keeps the bytes of its last incomplete record."""
_SECTOR = 512
"""Bytes that a disk writes whole or not at all."""
_CHUNK = 2**18
"""The most bytes that are read with one call, from several records that follow each other. A single record that is
larger is also read with one call. With 4 MiB, reading takes a tenth longer (measured): the system gives new memory for
each call then, and the processor's cache does not hold what is checked next."""

_encode_head = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(Head).decode


class Span(NamedTuple):
    """Where the frames from number `start` up to, not including, `stop` are in a thread's file: which of its records
    (one for each append) hold them."""

    bounds: list[int]
    """The offset of each record that holds some of these frames, in order; then the offset at which the last record
    ends."""
    first: int
    """The number of the first frame in the first record that `bounds` names. It may be lower than `start`."""
    start: int
    stop: int


class Log:
    """What this process knows about one thread's file. The file is a sequence of records, one for each append.

    The known records are always the last ones of the file, without gaps. Earlier records are looked up, going
    backwards, when their frames are needed.
    """

    def __init__(self, path: str, key: str, name: str) -> None:
        self.path = path
        self._key = key
        self._name = name
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._offsets = array("Q")
        self._firsts = array("Q")
        self._trailer = b""
        self._mark = NO_MARK
        self._head = b""
        self.end = 0
        """Offset of the end of the last complete record, where the next one is written. 0 if the file holds no complete
        record: then the thread does not exist."""
        self.frames = 0
        self.log_id = ""
        self._has_gaps = False
        self._safe = 0
        """Offset up to which this process has synced the file. So the bytes before this offset survive a power cut."""

    def head(self) -> Head | None:
        """Return the thread's head as of the last call of `refresh`, or None if the file holds no complete append, that
        is, no thread."""
        return _decode_head(self._head) if self.end else None

    def refresh(self, fd: int) -> int:
        """Look for records (one for each append) that were added to the thread's file since the last call, and remember
        where they are. Returns the size of the file in bytes. Raises `Corrupt` if the file is damaged.

        The caller holds the file's lock. An incomplete record at the end, left by a crash, is not changed, and counts
        in the size.
        """
        with self._lock, self._forgotten_on_error():
            self._has_gaps = False
            size = os.fstat(fd).st_size
            known = self.end and size >= self.end and _read(fd, self.end - TRAILER, TRAILER) == self._trailer
            if not known:
                self._forget()
                self._find_last(fd, size)
            if self.end < size:
                self._find_next(fd, size)
            return size

    @contextmanager
    def _forgotten_on_error(self) -> Iterator[None]:
        """Forget all that is remembered about the file if the `with` block fails. The block changes what is remembered,
        and an error such as lack of memory may have stopped it half way."""
        try:
            yield
        except BaseException:
            self._forget()
            raise

    def add(self, fd: int, size: int, frames: Sequence[bytes], refs: Collection[str], head: Head) -> None:
        """Write one append as a record. When the call returns, the record survives a power cut; if the call fails, the
        log stays as it was. The caller holds the exclusive lock and has called `refresh`, which returned `size`.

        First, the end of the file is made safe against a later power cut:

        - An incomplete record, left by a crash, is cut off, and the file is synced. Otherwise its last bytes could
          reappear behind a new record that is shorter.
        - A last record that this process has not synced is synced, because its writer may have been killed before it
          did so. Otherwise a power cut could damage both records, and a damaged record with another one after it counts
          as corrupt.
        """
        if size > self.end:
            if self._has_gaps:
                _keep(self.path + TORN, _read(fd, self.end, size - self.end))
            log.warning("%s: cut off %d bytes of an append that a crash left unfinished", self.path, size - self.end)
            os.ftruncate(fd, self.end)
            self.sync(fd, os.fsync)
        elif self._safe < self.end:
            self.sync(fd, files.sync)
        encoded = _encode_head(head)
        data, header = envelope.pack(frames, refs, encoded, at=self.frames, offset=self.end, before=self._mark)
        is_written = False
        try:
            os.lseek(fd, self.end, os.SEEK_SET)
            files.write_all(fd, data)
            is_written = True
            files.sync(fd)
        except BaseException:
            with suppress(OSError):  # then the record stays incomplete, and the next append cuts it off
                os.ftruncate(fd, self.end)
                self._write_again(fd) if is_written else self.sync(fd, os.fsync)
            raise
        with self._lock, self._forgotten_on_error():
            self._push([header])
            self._settle(header, encoded, head.log_id)
            self._safe = self.end

    def sync(self, fd: int, call: Callable[[int], None]) -> None:
        """Sync the file, and note that all complete records (one for each append) are on the disk. `call` is the
        function that syncs: it gets the file's descriptor. If it fails, write the records that may be lost once more,
        and raise its error. The caller holds the file's lock exclusively."""
        try:
            call(fd)
        except OSError:
            with suppress(OSError):
                self._write_again(fd)
            raise
        self._safe = self.end

    def _write_again(self, fd: int) -> None:
        """Write once more, to the same places of the file, all records (one for each append) that this process has not
        synced, and sync them. Called after a failed sync.

        After a failed sync, the operating system treats the data as written, and no later sync writes it. So a record
        of another process, which was killed, could be missing on the disk while acknowledged records follow it.
        """
        for offset in range(self._safe, self.end, _CHUNK):
            data = _read(fd, offset, min(_CHUNK, self.end - offset))
            os.lseek(fd, offset, os.SEEK_SET)
            files.write_all(fd, data)
        os.fsync(fd)

    def locate(self, fd: int, start: int, stop: int | None) -> Span | None:
        """Find out where the frames from number `start` up to, not including, `stop` are in the file. If `stop` is None
        or more than the number of frames, the range reaches to the end of the log. Returns None if there is no frame
        `start`. The caller holds the file's lock."""
        with self._lock:
            stop = self.frames if stop is None else min(stop, self.frames)
            if start >= stop:
                return None
            self._look_back(fd, start)
            here, there = bisect_right(self._firsts, start) - 1, bisect_left(self._firsts, stop)
            bounds = [*self._offsets[here:there], self._offsets[there] if there < len(self._offsets) else self.end]
            return Span(bounds, self._firsts[here], start, stop)

    def read(self, fd: int, span: Span) -> list[bytes]:
        """Read and check the frames whose place in the file `span` says. Raises `Corrupt` if they are damaged. The
        caller need not hold the file's lock: what an append has written never changes and never moves."""
        found: list[bytes] = []
        for bounds, data in _neighbours(fd, span.bounds):
            frames = envelope.only_frames(data, bounds)
            if None not in frames:  # as in most files, whose records have one frame each; so all are asked for
                found += cast(list[bytes], frames)
                continue
            for (offset, end), frame in zip(pairwise(bounds), frames, strict=True):
                if frame is not None:
                    found.append(frame)
                else:
                    record = memoryview(data)[offset - bounds[0] : end - bounds[0]]
                    found += self._any_frames(record, offset, span)
        if len(found) != span.stop - span.start:
            raise self._corrupt(span.bounds[0], f"it does not hold frames {span.start} to {span.stop}")
        return found

    def _any_frames(self, data: memoryview, offset: int, span: Span) -> list[bytes]:
        """Check the record in `data`, which is one append, and return those of its frames whose numbers are in `span`.
        `offset` is the record's place in the file. Raises `Corrupt` if it is damaged."""
        try:
            return self._unpack(data, offset).read(data, span.start, span.stop)[0]
        except BadRecord as error:
            raise self._corrupt(offset, str(error)) from None

    def refs(self, fd: int) -> set[str]:
        """Return the digests of all blobs that the appends in this log refer to, without reading frames. The caller
        holds the file's lock."""
        with self._lock:
            self._look_back(fd, -1)
            offsets = self._offsets[:]
        found: set[str] = set()
        for offset in offsets:
            header = self._at(fd, offset)
            if not header.refs:
                continue
            try:
                found.update(header.read_table(_read(fd, offset + HEADER, header.table)).refs)
            except BadRecord as error:
                raise self._corrupt(offset, str(error)) from None
        return found

    def _find_last(self, fd: int, size: int) -> None:
        """Find the last record of the file, which is the last append, by its trailer (its last bytes), and remember it.
        Does nothing if that record is incomplete or damaged: then `_find_next` goes through the file and finds out
        which of the two it is."""
        length, mark = envelope.trailing(_trailer_before(fd, size))
        if not 0 < length <= size:
            return
        try:
            header = self._unpack(_read(fd, size - length, HEADER), size - length)
        except BadRecord:
            return
        if (header.length, header.mark) == (length, mark) and self._follows(fd, header):
            try:
                self._load(fd, header)
            except Corrupt:
                if _has_gaps(_read(fd, header.offset, length), header.offset, header):
                    return
                raise
            self._push([header])

    def _follows(self, fd: int, header: Header) -> bool:
        """Return whether the record (one append) with this header belongs after the record that precedes it in the
        file: its header must name the mark (checksum) of that record. A header at offset 0 must say that it is the
        first record."""
        if header.offset == 0:
            return header.at == 0 and header.before == NO_MARK
        return envelope.trailing(_trailer_before(fd, header.offset))[1] == header.before

    def _find_next(self, fd: int, size: int) -> None:
        """Go through the records (one for each append) after the last known one, up to the end of the file or an
        incomplete record, and remember them.

        A record is incomplete if the file ends before the length that the record declares, if only the start of a
        header or only zeros are left, or if it is the last one and has lost whole sectors: the remains of an append
        that was never acknowledged. Anything else that is not a record is damage. Damage raises `Corrupt` and is never
        cut off.
        """
        offset, at, before = self.end, self.frames, self._mark
        headers: list[Header] = []
        while offset < size:
            data = _read(fd, offset, HEADER)
            try:
                header = self._unpack(data, offset)
            except BadRecord as error:
                if envelope.begins(data, at=at, offset=offset, before=before) or _only_zeros(fd, offset, size):
                    break
                if _has_gaps(_read(fd, offset, size - offset), offset, None):
                    self._has_gaps = True
                    break
                raise self._corrupt(offset, str(error)) from None
            if (header.at, header.before) != (at, before):
                raise self._corrupt(offset, "a record does not go on where the one before it ends")
            if header.end > size:
                break
            if _read(fd, header.end - TRAILER, TRAILER) != header.trailer:
                if header.end == size and _has_gaps(_read(fd, offset, header.length), offset, header):
                    self._has_gaps = True
                    break
                raise self._corrupt(offset, "a record's trailer fails its check")
            headers.append(header)
            offset, at, before = header.end, header.at + header.frames, header.mark
        while headers:
            try:
                self._load(fd, headers[-1])
                break
            except Corrupt:
                last = headers.pop()
                if last.end != size or not _has_gaps(_read(fd, last.offset, last.length), last.offset, last):
                    raise
                self._has_gaps = True
        self._push(headers)

    def _look_back(self, fd: int, frame: int) -> None:
        """Find the records (one for each append) before the first known one, going backwards, and remember them. Stops
        at the record that holds the frame with the number `frame`. With -1, finds all records. Raises `Corrupt` if a
        record is damaged."""
        if not self._offsets:
            return
        offsets: list[int] = []
        firsts: list[int] = []
        offset, first = self._offsets[0], self._firsts[0]
        before = self._at(fd, offset).before if offset and first > frame else NO_MARK
        while offset and first > frame:
            length, mark = envelope.trailing(_trailer_before(fd, offset))
            if mark != before or length > offset:
                raise self._corrupt(offset - TRAILER, "a record's trailer fails its check")
            header = self._at(fd, offset - length)
            if (header.mark, header.end, header.at + header.frames) != (mark, offset, first):
                raise self._corrupt(header.offset, "a record does not go on where the one before it ends")
            offset, first, before = header.offset, header.at, header.before
            offsets.append(offset)
            firsts.append(first)
        if not offset and first:
            raise self._corrupt(0, f"the log begins with frame {first}")
        whole = array("Q", reversed(offsets)) + self._offsets, array("Q", reversed(firsts)) + self._firsts
        self._offsets, self._firsts = whole

    def _at(self, fd: int, offset: int) -> Header:
        """Read the header of the record (one append) that starts at this offset of the file. Raises `Corrupt` if no
        sound header is there."""
        try:
            return self._unpack(_read(fd, offset, HEADER), offset)
        except BadRecord as error:
            raise self._corrupt(offset, str(error)) from None

    def _unpack(self, data: bytes | memoryview, offset: int) -> Header:
        try:
            return Header.unpack(data, offset)
        except NewerRecord as error:
            raise NewerFormat(f"{self._name} in {self.path}", error.version, envelope.VERSION) from None

    def _load(self, fd: int, header: Header) -> None:
        """Read and check the last complete record, which is the last append; its header is given. Remember the thread's
        head, which is in the record, and where the record ends. Raises `Corrupt` if the record is damaged."""
        try:
            encoded = header.read(_read(fd, header.offset, header.length))[1].head
            head = _decode_head(encoded)
        except (BadRecord, msgspec.MsgspecError) as error:
            raise self._corrupt(header.offset, str(error)) from None
        if thread_key(head.thread_id) != self._key:
            raise self._corrupt(header.offset, f"it holds the log of thread {head.thread_id!r}")
        if head.frames != header.at + header.frames:
            raise self._corrupt(header.offset, f"the head says {head.frames} frames")
        self._settle(header, encoded, head.log_id)

    def _settle(self, header: Header, encoded: bytes, log_id: str) -> None:
        self._head = encoded
        self._mark = header.mark
        self._trailer = header.trailer
        self.end = header.end
        self.frames = header.at + header.frames
        self.log_id = log_id

    def _push(self, headers: Sequence[Header]) -> None:
        self._offsets.extend(header.offset for header in headers)
        self._firsts.extend(header.at for header in headers)

    def _corrupt(self, offset: int, reason: str) -> Corrupt:
        return Corrupt(
            f"{self._name}: {self.path} is damaged at byte {offset}: {reason}. Nothing was changed; restore it from a copy."
        )


def _read(fd: int, offset: int, size: int) -> bytes:
    """Read `size` bytes of the file from `offset`. Returns fewer only if the file ends before."""
    os.lseek(fd, offset, os.SEEK_SET)
    data = os.read(fd, size)
    if len(data) == size or not data:
        return data
    parts = [data]
    size -= len(data)
    while size and (data := os.read(fd, size)):
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def _trailer_before(fd: int, offset: int) -> bytes:
    return _read(fd, offset - TRAILER, TRAILER) if offset >= SMALLEST else b""


def _neighbours(fd: int, bounds: Sequence[int]) -> Iterator[tuple[Sequence[int], bytes]]:
    """Read records (one for each append) that follow each other in a file without gaps. `bounds` has the offset of each
    record, and then the end of the last one. Several records are read at once. For each such group of records this
    yields the part of `bounds` that belongs to the group, and the group's bytes."""
    here = 0
    while here < len(bounds) - 1:
        first = bounds[here]
        there = max(bisect_right(bounds, first + _CHUNK) - 1, here + 1)
        yield bounds[here : there + 1], _read(fd, first, bounds[there] - first)
        here = there


def _has_gaps(data: bytes, offset: int, header: Header | None) -> bool:
    """Return whether `data` is the last record of a file (the last append), damaged by a power cut: whole sectors of it
    are zeros, because they were never written. `data` starts at this offset and reaches to the end of the file.

    `header` is the record's header. With it, the result is True if the record fails its check and one of its sectors is
    all zeros. If the header itself is damaged, `header` is None: then the sector of zeros must be in the header, and no
    intact header of a record may be anywhere in `data`.
    """
    if header is not None:
        with suppress(BadRecord):
            header.read(data)
            return False
    elif any(_is_record(data, place, offset) for place in _places(data)):
        return False
    start = 0
    while start < len(data):
        if header is None and start >= HEADER:
            return False
        stop = (offset + start) // _SECTOR * _SECTOR + _SECTOR - offset
        if not any(data[start:stop]):
            return True
        start = stop
    return False


def _places(data: bytes) -> Iterator[int]:
    """Yield each offset in `data` at which a record (one append in a thread's file) may begin: where the magic bytes
    are with which every record begins."""
    place = data.find(envelope.MAGIC)
    while place >= 0:
        yield place
        place = data.find(envelope.MAGIC, place + 1)


def _is_record(data: bytes, place: int, offset: int) -> bool:
    with suppress(BadRecord, NewerRecord):
        Header.unpack(data[place : place + HEADER], offset + place)
        return True
    return False


def _keep(path: str, data: bytes) -> None:
    """Write `data` to the file at `path`, and replace a file that is there. When this returns, the new file survives a
    power cut."""
    os.replace(files.write_beside(Path(path), data, durable=True), path)
    files.sync_folder(Path(path).parent)


def _only_zeros(fd: int, offset: int, size: int) -> bool:
    while offset < size:
        data = _read(fd, offset, min(_CHUNK, size - offset))
        if data.count(0) != len(data):
            return False
        offset += len(data) or size
    return True
