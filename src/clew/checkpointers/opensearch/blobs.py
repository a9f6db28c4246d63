"""The blobs of an OpenSearch store. Each blob has one document, its record, which says that it exists and when it was
touched. To touch a blob is to set its time of last use to now.

A touch changes the record. A deletion is made on condition that the record has not changed since it was read, so it
never deletes a blob that was touched meanwhile. The bytes of a larger blob are in documents of their own, under a name
that no other put ever uses, so deleting them never hits the bytes of a later put. A touch does not write them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from clew._runtime.aio import together
from clew._runtime.batches import batches
from clew.checkpointers.checks import check_stored_blob
from clew.checkpointers.opensearch.documents import read_bytes
from clew.checkpointers.opensearch.engine import Answer, Engine
from clew.checkpointers.opensearch.schema import Indices
from clew.checkpointers.packed.packs import unique_name
from clew.errors import Corrupt

__all__ = ["Blobs"]

INLINE = 16 * 2**10
"""The largest blob, in bytes, that is stored inside its record, the document that each blob has. Such a blob is written
again whenever its time of last use is set."""
PIECE = 4 * 2**20
"""The most bytes in one document of a blob that is too large for its record. Such a blob is split into several
documents."""
BATCH = 500
"""The most blobs in one request."""
BATCH_BYTES = 4 * 2**20
"""The most bytes of blobs in one request."""
PAGE = 1000
"""The number of blobs in each page of a listing; the last page may have fewer."""
AT_ONCE = 4
"""The most requests with bytes of larger blobs that are made at the same time."""
_RECORD = "touched,name,pieces,bytes"


class _Record(NamedTuple):
    """A blob's record, the document that says that the blob exists and when it was last used, without the blob's bytes."""

    state: tuple[int, int]
    """The sequence number and the primary term of the record's document. They change with every write."""
    touched: int
    """The blob's time of last use, in microseconds since 1970."""
    name: str
    """The name that is part of the ids of all documents with the blob's bytes. Empty if the bytes are in the record
    itself."""
    pieces: int
    """Number of documents that hold the blob's bytes; 0 if they are in the record itself."""


class Blobs:
    """The blobs of one namespace (a separate part) of an OpenSearch store."""

    def __init__(self, engine: Engine, indices: Indices, ns: str, where: str) -> None:
        self._engine = engine
        self._indices = indices
        self._ns = ns
        self._where = where
        self._room = asyncio.Semaphore(AT_ONCE)

    async def put(self, blobs: Mapping[str, bytes]) -> None:
        small = {digest: data for digest, data in blobs.items() if len(data) <= INLINE}
        for batch in batches(small.items(), BATCH, size=lambda blob: len(blob[1]), largest=BATCH_BYTES):
            documents = [(digest, self._small(digest, data)) for digest, data in batch]
            await self._bulk([("index", {"_id": self._key(digest)}, document) for digest, document in documents])
        large = [(digest, data) for digest, data in blobs.items() if len(data) > INLINE]
        await together([self._put_large(digest, data) for digest, data in large])

    async def get(self, digests: Iterable[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for batch in batches(dict.fromkeys(digests), BATCH):
            documents = await self._engine.get_all(
                self._indices.blobs, [self._key(digest) for digest in batch], _RECORD
            )
            there = [pair for pair in zip(batch, documents, strict=True) if pair[1] is not None]
            for digest, data in zip(
                [digest for digest, _ in there], await together([self._get(*pair) for pair in there]), strict=True
            ):
                if data is not None:
                    found[digest] = data
        return found

    async def touch(self, digests: Iterable[str]) -> set[str]:
        """Touch these blobs: set their time of last use to now. Returns the digests of blobs that do not exist."""
        missing: set[str] = set()
        for batch in batches(dict.fromkeys(digests), BATCH):
            left = batch
            while left:
                change = {"doc": {"touched": self._indices.clock.now()}}
                items = await self._bulk(
                    [("update", {"_id": self._key(digest), "retry_on_conflict": 5}, change) for digest in left]
                )
                outcomes = list(zip(left, (item["status"] for item in items), strict=True))
                missing |= {digest for digest, status in outcomes if status == 404}
                left = [digest for digest, status in outcomes if status == 409]
        return missing

    async def untouched(self, grace: timedelta) -> AsyncIterator[str]:
        """Yield the digests of blobs whose time of last use is at least `grace` ago."""
        before = self._indices.clock.before(grace)
        await self._engine.refresh(self._indices.blobs)
        conditions = [{"term": {"ns": self._ns}}, {"range": {"touched": {"lte": before}}}]
        body: dict[str, Any] = {
            "size": PAGE,
            "query": {"bool": {"filter": conditions}},
            "sort": [{"digest": "asc"}],
            "_source": False,
            "track_total_hits": False,
        }
        while True:
            answer = await self._engine.search(body, self._indices.blobs)
            hits = answer["hits"]["hits"]
            for hit in hits:
                yield hit["sort"][0]
            if len(hits) < PAGE:
                return
            body["search_after"] = hits[-1]["sort"]

    async def delete(self, digests: Collection[str], grace: timedelta) -> None:
        """Delete these blobs, except those whose time of last use is less than `grace` ago."""
        for batch in batches(dict.fromkeys(digests), BATCH):
            before = self._indices.clock.before(grace)
            records = await self._records(batch)
            old = [(digest, record) for digest, record in records.items() if record.touched <= before]
            items = await self._bulk(
                [
                    (
                        "delete",
                        {"_id": self._key(digest), "if_seq_no": record.state[0], "if_primary_term": record.state[1]},
                        None,
                    )
                    for digest, record in old
                ]
            )
            gone = [pair for pair, item in zip(old, items, strict=True) if item["status"] == 200]
            await self._drop(key for digest, record in gone for key in self._piece_keys(digest, record))

    async def names(self, digest: str) -> set[str]:
        """Return where a blob's bytes are stored, as a set of at most one name. The set is empty if the blob does not
        exist. The name is an empty text if the bytes are in the blob's record, its own document; otherwise it is the
        name that is in the ids of all documents with the blob's bytes."""
        record = (await self._records([digest])).get(digest)
        return {record.name} if record else set()

    async def _put_large(self, digest: str, data: bytes) -> None:
        """Put a blob that is too large for its record, the document that each blob has. If the blob exists with all of
        its bytes, only its time of last use is set to now. Otherwise its bytes are written as other documents, then the
        record, which names them."""
        while True:
            mend = False
            try:
                record = (await self._records([digest])).get(digest)
            except Corrupt:
                record, mend = None, True
            if record is not None and await self._is_whole(digest, record):
                if not await self.touch([digest]):
                    return
                continue
            name = unique_name()
            pieces = [data[at : at + PIECE] for at in range(0, len(data), PIECE)]
            await together([self._put_piece(digest, name, number, piece) for number, piece in enumerate(pieces)])
            document = self._document(digest, name=name, pieces=len(pieces))
            when = record.state if record else None if mend else "absent"
            if await self._engine.put(self._indices.blobs, self._key(digest), document, when=when) is not None:
                return
            now = (await self._records([digest])).get(digest)
            if now is not None and now.name == name:
                return
            await self._drop(self._piece_key(digest, name, number) for number in range(len(pieces)))

    async def _put_piece(self, digest: str, name: str, number: int, data: bytes) -> None:
        document = {
            "ns": self._ns,
            "kind": "blob",
            "owner": digest,
            "name": name,
            "piece": number,
            "made": self._indices.clock.now(),
            "bytes": data,
        }
        async with self._room:
            await self._engine.put(self._indices.data, self._piece_key(digest, name, number), document)

    async def _is_whole(self, digest: str, record: _Record) -> bool:
        return None not in await self._engine.get_all(self._indices.data, self._piece_keys(digest, record), None)

    async def _get(self, digest: str, document: Answer | None) -> bytes | None:
        seen: tuple[int, int] | None = None
        while document is not None:
            record = self._read(digest, document)
            if not record.name:
                data = self._bytes(digest, document)
            else:
                pieces = await together([self._get_piece(key) for key in self._piece_keys(digest, record)])
                if None in pieces:
                    if record.state == seen:
                        raise Corrupt(
                            f"blob {digest} in {self._where}: documents with its bytes, such as "
                            f"{self._piece_key(digest, record.name, 0)}, were deleted from the index {self._indices.data} "
                            "behind Clew's back. Put the blob again, or restore them from a snapshot."
                        )
                    seen = record.state
                    document = await self._engine.get(self._indices.blobs, self._key(digest), _RECORD)
                    continue
                data = b"".join(self._bytes(digest, piece) for piece in pieces if piece is not None)
            check_stored_blob(digest, data, self._where)
            return data
        return None

    async def _get_piece(self, key: str) -> Answer | None:
        async with self._room:
            return await self._engine.get(self._indices.data, key, "bytes")

    async def _records(self, digests: Sequence[str]) -> dict[str, _Record]:
        keys = [self._key(digest) for digest in digests]
        found = await self._engine.get_all(self._indices.blobs, keys, "touched,name,pieces")
        return {
            digest: self._read(digest, document)
            for digest, document in zip(digests, found, strict=True)
            if document is not None
        }

    async def _drop(self, keys: Iterable[str]) -> None:
        await self._engine.bulk(self._indices.data, [("delete", {"_id": key}, None) for key in keys])

    async def _bulk(self, actions: Sequence[tuple[str, Mapping[str, Any], Any]]) -> list[Answer]:
        return await self._engine.bulk(self._indices.blobs, actions)

    def _small(self, digest: str, data: bytes) -> dict[str, Any]:
        return self._document(digest, bytes=data)

    def _document(self, digest: str, **more: Any) -> dict[str, Any]:
        return {"ns": self._ns, "digest": digest, "touched": self._indices.clock.now(), **more}

    def _read(self, digest: str, document: Answer) -> _Record:
        source = document["_source"]
        touched, name, pieces = source.get("touched"), source.get("name", ""), source.get("pieces", 0)
        if not isinstance(touched, int) or not isinstance(name, str) or not isinstance(pieces, int):
            raise self._damaged(digest, "it does not say when it was touched or where its bytes are")
        return _Record((document["_seq_no"], document["_primary_term"]), touched, name, pieces)

    def _bytes(self, digest: str, document: Answer) -> bytes:
        try:
            return read_bytes(document["_source"], "bytes")
        except ValueError as error:
            raise self._damaged(digest, str(error)) from error

    def _damaged(self, digest: str, reason: str) -> Corrupt:
        return Corrupt(
            f"a document of blob {digest} in {self._where} is damaged: {reason}. "
            "Put the blob again, or restore it from a copy."
        )

    def _key(self, digest: str) -> str:
        return f"{self._ns}.{digest}"

    def _piece_key(self, digest: str, name: str, number: int) -> str:
        return f"{self._ns}.{digest}.{name}.{number}"

    def _piece_keys(self, digest: str, record: _Record) -> list[str]:
        return [self._piece_key(digest, record.name, number) for number in range(record.pieces)]
