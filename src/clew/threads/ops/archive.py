"""Read and write the `.clew` file format: a tar of `clew.json`, `frames/…`, `blobs/…` and `inbox/…`, in this order.

The reader accepts only regular files with the expected names and sizes, each with one plain header block. It refuses
other members, links, long names, sparse files and all other features of tar, so that a hostile file cannot use them.
"""

from __future__ import annotations

import asyncio
import io
import re
import tarfile
from collections.abc import Collection
from datetime import datetime
from typing import IO

import msgspec
from blake3 import blake3

from clew.checkpointers import Head
from clew.checkpointers.base import MAX_FRAME
from clew.errors import Corrupt, InvalidInput, NewerFormat
from clew.log import FIRST, sealed_with
from clew.log.keys import Keyring
from clew.threads.heads import inbox_id, new_head
from clew.threads.reader import link

__all__ = ["FORMAT", "Archive", "InboxPart", "Manifest", "TarWriter", "format_of", "frame_name"]

FORMAT = 2
"""The newest format of `.clew` files. Only files with an inbox have it; the others have format 1."""
MAX_MANIFEST = 2**20
MAX_BLOB = 2**30
_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 2**20
_MANIFEST = "clew.json"
_CHECKED = re.compile(rb'\{"check":"([0-9a-f]{64})",')
_BLOB = re.compile(r"blobs/[0-9a-f]{64}")


class InboxPart(msgspec.Struct, frozen=True, kw_only=True):
    """The inbox of the thread in a `.clew` file: the random id of the inbox's log, the number of its frames, and the
    digest of the last one."""

    log_id: str
    frames: int
    digest: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of `clew.json`, the first member of a `.clew` file: the thread's id and head, the numbers of frames
    and blobs in the file, the id of their encryption key, and when the file was made."""

    format: int
    thread_id: str
    frames: int
    blobs: int
    key: str | None
    """The id of the key that the log's last frame is encrypted with, or null if it is not encrypted."""
    created: datetime
    head: Head
    inbox: InboxPart | None = None
    """None if nothing was posted to the thread."""

    def encoded(self) -> bytes:
        """Return the manifest as JSON that begins with a blake3 digest of the rest, so that a changed byte is noticed."""
        rest = msgspec.json.encode(self)[1:]
        return b'{"check":"%s",%s' % (blake3(rest).hexdigest().encode(), rest)


def format_of(inbox: InboxPart | None) -> int:
    """Return the format of a `.clew` file with this inbox. Only files with an inbox need the newest one."""
    return FORMAT if inbox is not None else 1


class _Version(msgspec.Struct):
    format: int


def frame_name(number: int, folder: str = "frames") -> str:
    return f"{folder}/{number:08d}"


class TarWriter:
    """Writes the members of a tar file one after the other, with plain headers that every tar program reads."""

    def __init__(self, file: IO[bytes], created: datetime) -> None:
        self._file = file
        self._time = int(created.timestamp())
        self.size = 0

    def add(self, name: str, data: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = len(data), 0o600, self._time
        self._write(member.tobuf(tarfile.USTAR_FORMAT))
        self._write(data)
        self._write(bytes(-len(data) % _BLOCK))

    def add_members(self, members: IO[bytes]) -> None:
        """Copy all members from `members`, a file that another `TarWriter` wrote, to the end of this writer's file."""
        members.seek(0)
        while chunk := members.read(_CHUNK):
            self._write(chunk)

    def end(self) -> None:
        self._write(bytes(2 * _BLOCK))
        self._file.flush()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = self._file.write(view)
            view = view[len(view) if written is None else written :]
        self.size += len(data)


class Archive:
    """An opened `.clew` file whose bytes were all checked. A thread can be copied from it like from a store."""

    def __init__(self, file: IO[bytes], name: str, keys: Keyring | None) -> None:
        """Read and check the whole file, which blocks the caller.

        Raises `Corrupt` or `InvalidInput` if the file is damaged or not a valid `.clew` file. `name` is its name in
        errors. `keys` are needed to decode frames and blobs later if they are encrypted.
        """
        self.keys: Keyring | None = keys
        self.direct: set[str] = set()
        """Digests of the blobs that frames refer to directly. Empty until the import sets it.

        All other blobs of the file are reached through these.
        """
        self._file = file
        self._name = name
        self._frames: list[tuple[int, int]] = []
        self._blobs: dict[str, tuple[int, int]] = {}
        self._posts: list[tuple[int, int]] = []
        file.seek(0, io.SEEK_END)
        self._end = file.tell()
        file.seek(0)
        self.manifest = self._read_manifest()
        if self.manifest.key is None:  # a plain file is imported as it is, and sealed in a store with a key
            self.keys = None
        self.inbox = inbox_id(self.manifest.thread_id, self.manifest.head.log_id)
        """The id of the thread's inbox."""
        self._scan_frames()
        self._scan_blobs()
        self._scan_inbox()
        self._check_end()

    def stored(self, number: int, digests: Collection[str]) -> int:
        """Return the number of bytes that frame `number` and these blobs take in the file, including their tar headers."""
        sizes = [self._frames[number][1], *[self._blobs[digest][1] for digest in digests]]
        return sum(_BLOCK + size + -size % _BLOCK for size in sizes)

    async def head(self, thread_id: str) -> Head | None:
        part = self.manifest.inbox
        if thread_id != self.inbox:
            return self.manifest.head
        if part is None:
            return None
        return msgspec.structs.replace(
            new_head(thread_id, "done", self.manifest.created),
            log_id=part.log_id,
            frames=part.frames,
            digest=part.digest,
        )

    async def refs(self, thread_id: str) -> set[str]:
        return self.direct

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        places = self._posts if thread_id == self.inbox else self._frames
        return await asyncio.to_thread(lambda: [self._load(*place) for place in places[start:stop]])

    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        for digest in digests:
            if digest not in self._blobs:
                raise self._corrupt(f"blobs/{digest[:64]}", "is missing")
        return await asyncio.to_thread(lambda: {digest: self._load(*self._blobs[digest]) for digest in digests})

    def _load(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) != size:
            raise Corrupt(f"{self._name} became shorter while it was being read.")
        return data

    def _read_manifest(self) -> Manifest:
        member = self._next()
        if member is None or member.name != _MANIFEST:
            raise InvalidInput(f"{self._name} is not a .clew file: it does not begin with {_MANIFEST}.")
        if member.size > MAX_MANIFEST:
            raise self._corrupt(_MANIFEST, f"has {member.size} bytes; the limit is {MAX_MANIFEST}")
        data = self._take(member)
        try:
            version = msgspec.json.decode(data, type=_Version).format
            if version > FORMAT:
                raise NewerFormat(self._name, version, FORMAT)
            found = _CHECKED.match(data)
            if found is None or blake3(data[found.end() :]).hexdigest().encode() != found[1]:
                raise self._corrupt(_MANIFEST, "fails its check")
            manifest = msgspec.json.decode(data, type=Manifest)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise self._corrupt(_MANIFEST, f"does not decode ({type(error).__name__})") from error
        head = manifest.head
        if (
            manifest.format != format_of(manifest.inbox)
            or head.thread_id != manifest.thread_id
            or head.frames != manifest.frames
        ):
            raise self._corrupt(_MANIFEST, "has fields that contradict each other")
        if head.lease is not None or head.seal or head.status == "running" or not -1 <= head.snapshot < head.frames:
            raise self._corrupt(_MANIFEST, "has a head that an export never writes")
        if any(tag.startswith("clew:") for tag in head.tags):
            raise self._corrupt(_MANIFEST, "has a tag that begins with 'clew:', which is reserved for Clew")
        return manifest

    def _scan_frames(self) -> None:
        """Check that every frame follows the one before it, from the first to the one that the head names as the last.

        Remembers the position of each frame in the file. Raises `Corrupt` if one is missing or damaged.
        """
        previous, key = FIRST, None
        for number in range(self.manifest.frames):
            name = frame_name(number)
            member = self._expect(name)
            if member.size > MAX_FRAME:
                raise self._corrupt(name, f"has {member.size} bytes; the limit is {MAX_FRAME}")
            self._frames.append((self._file.tell(), member.size))
            data = self._take(member)
            previous, key = link(data, previous, f"{self._name}, member {name}"), sealed_with(data)
        if not self._frames or previous.hex() != self.manifest.head.digest:
            raise self._corrupt(_MANIFEST, "names another frame as the last")
        if key != self.manifest.key:
            raise self._corrupt(_MANIFEST, "names another key than the last frame")

    def _scan_blobs(self) -> None:
        for _ in range(self.manifest.blobs):
            member = self._next()
            if member is None:
                raise self._corrupt("blobs/…", f"is missing: there are {len(self._blobs)}, not {self.manifest.blobs}")
            if not _BLOB.fullmatch(member.name):
                raise self._corrupt(member.name, "has no place here: a blob is expected")
            digest = member.name.removeprefix("blobs/")
            if digest in self._blobs:
                raise self._corrupt(member.name, "is in the file twice")
            if member.size > MAX_BLOB:
                raise self._corrupt(member.name, f"has {member.size} bytes; the limit is {MAX_BLOB}")
            self._blobs[digest] = self._file.tell(), member.size
            hasher, left = blake3(), member.size
            while left:
                chunk = self._file.read(min(left, _CHUNK))
                if not chunk:
                    raise self._corrupt(member.name, "is cut short")
                hasher.update(chunk)
                left -= len(chunk)
            if hasher.hexdigest() != digest:
                raise self._corrupt(member.name, "fails its check")
            self._skip_padding(member)

    def _scan_inbox(self) -> None:
        """Check the frames of the thread's inbox, if the file has one, like those of the thread."""
        part, previous = self.manifest.inbox, FIRST
        for number in range(0 if part is None else part.frames):
            name = frame_name(number, "inbox")
            member = self._expect(name)
            if member.size > MAX_FRAME:
                raise self._corrupt(name, f"has {member.size} bytes; the limit is {MAX_FRAME}")
            self._posts.append((self._file.tell(), member.size))
            previous = link(self._take(member), previous, f"{self._name}, member {name}")
        if part is not None and (not self._posts or previous.hex() != part.digest):
            raise self._corrupt(_MANIFEST, "names another frame as the last of the inbox")

    def _check_end(self) -> None:
        member = self._next()
        if member is not None:
            raise self._corrupt(member.name, "has no place here: nothing more is expected")
        zeros = 1  # the block that was just read
        while chunk := self._file.read(_CHUNK):
            if chunk.strip(b"\0"):
                raise InvalidInput(f"{self._name} has data after its end. Export the thread again.")
            zeros += len(chunk) // _BLOCK
        if zeros < 2:
            raise Corrupt(f"{self._name} is cut short: the end of the archive is missing. Take another copy of it.")

    def _expect(self, name: str) -> tarfile.TarInfo:
        member = self._next()
        if member is None:
            raise self._corrupt(name, "is missing")
        if member.name != name:
            raise self._corrupt(member.name, f"has no place here: {name} is expected")
        return member

    def _next(self) -> tarfile.TarInfo | None:
        """Return the tar header of the file's next member, or None at the end.

        Raises `Corrupt` if the member is not entirely in the file.
        """
        at = self._file.tell()
        block = self._file.read(_BLOCK)
        if len(block) < _BLOCK:
            raise Corrupt(f"{self._name} is cut short at byte {at + len(block)}. Take another copy of it.")
        if not block.strip(b"\0"):
            return None
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "replace")
        except (tarfile.HeaderError, ValueError, OverflowError) as error:
            raise Corrupt(f"{self._name}: the header at byte {at} is not a valid tar header: {error}.") from error
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise self._corrupt(member.name, "is not a regular file")
        if not 0 <= member.size <= self._end - at - _BLOCK:
            raise self._corrupt(
                member.name, f"says it has {member.size} bytes, which are not there: cut short, or made up"
            )
        return member

    def _take(self, member: tarfile.TarInfo) -> bytes:
        data = self._file.read(member.size)
        if len(data) != member.size:
            raise self._corrupt(member.name, "is cut short")
        self._skip_padding(member)
        return data

    def _skip_padding(self, member: tarfile.TarInfo) -> None:
        padding = -member.size % _BLOCK
        found = self._file.read(padding)
        if len(found) != padding or found.strip(b"\0"):
            raise self._corrupt(member.name, "does not end where it should")

    def _corrupt(self, member: str, what: str) -> Corrupt:
        return Corrupt(f"{self._name}, member {member[:100]!r} {what}. Take another copy of the file, or export again.")
