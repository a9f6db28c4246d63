"""The three indices of an OpenSearch store: creates them and checks existing ones.

    <prefix>-threads   a document for each thread: fields of its head for searches, its newest frames, the list of its packs
    <prefix>-blobs     a document for each blob: when it was last used, and the blob itself if it is small
    <prefix>-data      packs of older frames, and the bytes of larger blobs: opaque, named by the documents above

Each index has an index template. So if an index is deleted, a write does not create it again with guessed settings. To use
other settings, create the templates or the indices first: Clew does not change existing ones.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from clew.checkpointers.opensearch.documents import HEAD
from clew.checkpointers.opensearch.engine import Answer, Engine, Options
from clew.checkpointers.packed.clock import Clock
from clew.errors import InvalidInput, NewerFormat, Unavailable

__all__ = ["FORMAT", "Indices"]

log = logging.getLogger("clew.checkpointers")

FORMAT = 2
"""The version of the indices. Version 2 added the field `due` to the index of threads."""
_PRIORITY = 200
_NOT_FOR_US = frozenset({400, 401, 403, 405})
"""HTTP statuses with which a managed OpenSearch service refuses a request that it does not allow its users to make."""
NOTICED = 1.0
"""A difference between the cluster's clock and this machine's is ignored if it is at most this many seconds plus the
time of the request that asked for the cluster's time."""

_WORD: dict[str, Any] = {"type": "keyword", "doc_values": False}
_SORTED: dict[str, Any] = {"type": "keyword"}
_NUMBER: dict[str, Any] = {"type": "long"}
_BYTES: dict[str, Any] = {"type": "binary"}
_LISTED_BYTES: dict[str, Any] = {"type": "binary", "doc_values": True}
"""The type of a field with bytes that listings read. Its values are also in a column of their own, so that a listing
does not read the rest of the document, which may be large."""
_TEXT: dict[str, Any] = {"type": "text"}

_THREADS = {
    "ns": _WORD,
    "key": _SORTED,
    "id": _WORD,
    "status": _WORD,
    "agent": _WORD,
    "tags": _WORD,
    "parent": _WORD,
    "title": _TEXT,
    "folded": _WORD,
    "cut": {"type": "boolean", "doc_values": False},
    "updated": _NUMBER,
    "created": _NUMBER,
    "due": _NUMBER,
    "head": _LISTED_BYTES,
    "contents": _BYTES,
    "tail": _BYTES,
    "text_of": _WORD,
    "text": _TEXT,
}
_BLOBS = {"ns": _WORD, "digest": _SORTED, "touched": _NUMBER, "name": _WORD, "pieces": _NUMBER, "bytes": _BYTES}
_DATA = {
    "ns": _WORD,
    "kind": _WORD,
    "owner": _WORD,
    "name": _SORTED,
    "piece": _NUMBER,
    "made": _NUMBER,
    "table": _BYTES,
    "bytes": _BYTES,
}


class Indices:
    """The three indices of an OpenSearch store: holds their names, and creates or checks them in `open`. `clock` gives
    the time by the cluster's clock, which may differ from this machine's."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.threads = f"{options.prefix}-threads"
        self.blobs = f"{options.prefix}-blobs"
        self.data = f"{options.prefix}-data"
        self.clock = Clock()
        self.heads_apart = True
        """Whether heads can be read without the rest of their documents. Indices that were made by hand, or by an early
        version, may not have a column for them."""

    async def open(self, engine: Engine) -> None:
        """Create the indices that are missing, and read the cluster's clock. Raises `InvalidInput` or `NewerFormat` if
        an existing index is not Clew's, has a later format, or acknowledges writes before they are on the disk."""
        found = await self._look(engine)
        missing = self._check(found)
        if missing:
            for name in missing:
                await self._make(engine, name)
            found = await self._look(engine)
            if missing := self._check(found):
                raise Unavailable(f"the index {missing[0]} was created but cannot be found. Try again.")
        if _format_of(found[self.threads]) < FORMAT:
            await self._add_queue(engine)
        field = found[self.threads]["mappings"].get("properties", {}).get(HEAD, {})
        self.heads_apart = field.get("doc_values") in (True, "true")
        self.clock = await _clock(engine)

    async def _look(self, engine: Engine) -> dict[str, Answer]:
        """Return the settings and mappings of the store's indices, by the name of the index and also by each of its
        aliases. Indices that do not exist are left out."""
        names = ",".join((self.threads, self.blobs, self.data))
        answer = await engine.ask("GET", f"/{names}", {"ignore_unavailable": "true", "allow_no_indices": "true"})
        return {name: index for real, index in answer.items() for name in (real, *index["aliases"])}

    def _check(self, found: dict[str, Answer]) -> list[str]:
        """Return which of the store's indices are missing in `found`, the existing indices by name. Raises
        `InvalidInput` or `NewerFormat` for an index that cannot be used."""
        missing = []
        for name in (self.threads, self.blobs, self.data):
            if name not in found:
                missing.append(name)
                continue
            version = _format_of(found[name])
            if not isinstance(version, int):
                raise InvalidInput(
                    f"the index {name} exists and was not created by Clew. Use another prefix, as in "
                    "opensearch://host:9200/another-prefix"
                )
            if version > FORMAT:
                raise NewerFormat(f"the index {name}", version, FORMAT)
            durability = found[name]["settings"]["index"].get("translog", {}).get("durability", "request")
            if str(durability).lower() != "request":
                raise InvalidInput(
                    f"the index {name} has index.translog.durability {durability!r}: a crash can lose acknowledged writes. "
                    f'Set it back: PUT /{name}/_settings {{"index.translog.durability": "request"}}'
                )
        return missing

    async def _add_queue(self, engine: Engine) -> None:
        """Add the field by which the queue of the workers is listed to an index of threads that an older version made,
        and raise the index's format. No document has to change: older versions queued no threads."""
        mappings = {"_meta": {"clew_format": FORMAT}, "properties": {"due": _NUMBER}}
        await engine.ask("PUT", f"/{self.threads}/_mapping", None, mappings)

    async def _make(self, engine: Engine, name: str) -> None:
        """Create the index with this name, and before it the index template of the same name. If the index or the
        template exists already, made by another process or by hand, it is left as it is."""
        template = {"index_patterns": [name], "priority": _PRIORITY, "template": self._template(name)}
        await self._step(engine, f"/_index_template/{name}", {"create": "true"}, template, "already exists")
        await self._step(engine, f"/{name}", {}, None, "resource_already_exists_exception")

    async def _step(self, engine: Engine, path: str, params: dict[str, str], body: Any, there: str) -> None:
        answer = await engine.ask("PUT", path, params, body, also={400})
        if "error" in answer and there not in str(answer["error"]):
            raise engine.failed(answer["error"], answer["status"])

    def _template(self, name: str) -> dict[str, Any]:
        options = self._options
        fields = {self.threads: _THREADS, self.blobs: _BLOBS, self.data: _DATA}[name]
        copies: dict[str, Any] = (
            {"auto_expand_replicas": "0-1"} if options.replicas is None else {"number_of_replicas": options.replicas}
        )
        settings = {
            "number_of_shards": options.shards,
            **copies,
            "translog.durability": "request",
            "codec": "best_compression",
            "refresh_interval": "30s",
        }
        mappings = {"dynamic": False, "_meta": {"clew_format": FORMAT}, "properties": fields}
        return {"settings": {"index": settings}, "mappings": mappings}


def _format_of(index: Answer) -> Any:
    """Return the format of an index as its mapping says it, or None if it was not created by Clew."""
    return index["mappings"].get("_meta", {}).get("clew_format")


async def _clock(engine: Engine) -> Clock:
    """Ask a node of the cluster for its time, and return a `Clock` that tells the cluster's time. If the cluster does
    not tell its time, the `Clock` tells this machine's time. It also does so if the two times differ by no more than a
    second (`NOTICED`) plus the time that the request took."""
    asked = time.time()
    only = {"filter_path": "nodes.*.timestamp"}
    answer = await engine.ask("GET", "/_nodes/_local/stats/process", only, also=_NOT_FOR_US)
    took = time.time() - asked
    nodes = answer.get("nodes")
    if not nodes:
        log.debug("the cluster does not tell its time; using this machine's clock")
        return Clock()
    ahead = next(iter(nodes.values()))["timestamp"] / 1000 - (asked + took / 2)
    return Clock(int(ahead * 1_000_000) if abs(ahead) > NOTICED + took else 0)
