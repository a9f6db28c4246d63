"""Leftovers: packs and bytes of blobs that a crash or a lost race left under a name that nothing names."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from clew.checkpointers._opensearch_blobs import Blobs
from clew.checkpointers._opensearch_engine import Answer, Engine
from clew.checkpointers._opensearch_schema import Indices
from clew.checkpointers._opensearch_threads import Threads
from clew.errors import Corrupt

__all__ = ["sweep"]

LEFTOVER = 86_400_000_000
"""Microseconds after which a document that nothing names belongs to nobody: who writes one names it within the hour."""
PAGE = 500


async def sweep(engine: Engine, indices: Indices, ns: str, threads: Threads, blobs: Blobs) -> None:
    """Remove what is a day old and nothing names."""
    await engine.refresh(indices.data)
    old = {"range": {"made": {"lt": indices.clock.now() - LEFTOVER}}}
    body: dict[str, Any] = {
        "size": PAGE,
        "query": {"bool": {"filter": [{"term": {"ns": ns}}, old]}},
        "sort": [{"name": "asc"}, {"piece": "asc"}],
        "_source": ["kind", "owner", "name"],
        "track_total_hits": False,
    }
    while True:
        hits = (await engine.search(body, indices.data))["hits"]["hits"]
        named = await _named(hits, threads, blobs)
        left = [hit["_id"] for hit in hits if hit["_source"]["name"] not in named]
        await engine.bulk(indices.data, [("delete", {"_id": key}, None) for key in left])
        if len(hits) < PAGE:
            return
        body["search_after"] = hits[-1]["sort"]


async def _named(hits: list[Answer], threads: Threads, blobs: Blobs) -> set[str]:
    """Of the names that these documents have, those that must stay."""
    names: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for hit in hits:
        source = hit["_source"]
        names[source["kind"], source["owner"]].add(source["name"])
    named: set[str] = set()
    for (kind, owner), mine in names.items():
        try:
            named |= await (threads.packs_of(owner) if kind == "pack" else blobs.names(owner))
        except Corrupt:
            named |= mine  # nobody can tell which of them it names, and somebody may yet restore it
    return named
