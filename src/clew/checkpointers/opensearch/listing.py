"""Lists the heads (small summaries) of threads, and searches threads, in OpenSearch. Appends and reads of threads do
not search: they get documents by their id.

A search sees only what was written before the last refresh of the index. So a listing refreshes first, which costs
almost nothing if nothing has changed, and tens of milliseconds otherwise. Appends never wait for a refresh. A listing
of several pages is read from a point in time (a frozen view of the index), so that a thread that is updated meanwhile
is still listed exactly once.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

from clew.checkpointers.checks import Guard
from clew.checkpointers.heads import Head, HeadQuery, micros, unlisted
from clew.checkpointers.opensearch.documents import HEAD, fold_title, read_head, tag_word, word
from clew.checkpointers.opensearch.engine import Answer, Engine
from clew.checkpointers.opensearch.schema import Indices
from clew.checkpointers.opensearch.threads import Threads
from clew.errors import ClewError, Corrupt, Unavailable

__all__ = ["Listing"]

log = logging.getLogger("clew.checkpointers")

PAGE = 200
"""The most heads that the first request of a listing asks for. Many listings end there."""
LONG_PAGE = 2000
"""The number of heads in each page of a longer listing; the last page may have fewer. The cluster sorts all matching
threads anew for every page, so a long listing takes few large ones. It allows up to 10,000."""
KEPT = "5m"
"""How long the cluster keeps a point in time (a frozen view of an index) after each request for a page: 5 minutes."""
_LONGEST_SEARCH = 100
"""The most characters that the cluster looks for if a query asks for a title: the first ones. Each result is checked
again here with the whole title."""

_LONGEST_PREFIX = 900
"""The most bytes of a prefix that the cluster compares: it refuses more than 1000. Each result is checked again here with
the whole prefix."""


class Listing:
    """Lists the heads and searches the threads of one namespace of an OpenSearch store."""

    def __init__(self, engine: Engine, indices: Indices, ns: str, threads: Threads, guard: Guard, where: str) -> None:
        self._engine = engine
        self._indices = indices
        self._ns = ns
        self._threads = threads
        self._guard = guard
        self._where = where

    async def heads(self, query: HeadQuery) -> AsyncIterator[Head]:
        """Yield the heads that match the query, in its order. If documents of threads are damaged, a `Corrupt` error
        that names them is raised after all other heads."""
        if query.limit == 0 or query.statuses() == ():
            return
        limit = query.limit
        size = PAGE if limit is None else min(limit, PAGE)
        damaged: list[Corrupt] = []
        await self._engine.refresh(self._indices.threads)
        body = self._body(query, size)
        hits = (await self._engine.search(body, self._indices.threads))["hits"]["hits"]
        found = self._matching(hits, query, damaged)
        if len(hits) < size or (limit is not None and len(found) >= limit):
            for head in found[:limit]:
                yield head
        else:
            damaged.clear()
            async for head in self._long(query, body, damaged):
                yield head
        if damaged:
            raise unlisted(damaged)

    async def _long(self, query: HeadQuery, body: Answer, damaged: list[Corrupt]) -> AsyncIterator[Head]:
        """Yield the heads of a listing of several pages, all from one point in time (a frozen view of the index).
        `body` is the search request. Errors for damaged documents are added to the list `damaged`."""
        left = query.limit
        params = {"keep_alive": KEPT, "preference": "_primary"}
        made = await self._engine.call("POST", f"/{self._indices.threads}/_search/point_in_time", params)
        moment = made["pit_id"]
        body = {**body, "size": LONG_PAGE}
        try:
            while True:
                self._guard.enter()
                answer = await self._engine.search({**body, "pit": {"id": moment, "keep_alive": KEPT}})
                if "error" in answer:
                    raise Unavailable(f"{self._where}: this listing was paused for more than {KEPT}. Start it again.")
                hits = answer["hits"]["hits"]
                found = self._matching(hits, query, damaged)[:left]
                for head in found:
                    yield head
                left = None if left is None else left - len(found)
                if len(hits) < LONG_PAGE or left == 0:
                    return
                body["search_after"] = hits[-1]["sort"]
        finally:
            await self._let_go(moment)

    async def _let_go(self, moment: str) -> None:
        """Delete the point in time (a frozen view of the index) whose id is `moment`. A failure does no harm and is
        only logged: the cluster drops the view by itself some minutes later."""
        try:
            await self._engine.call("DELETE", "/_search/point_in_time", None, {"pit_id": [moment]})
        except ClewError as error:
            log.debug("%s: a point in time is not deleted for now: %s", self._where, error)

    async def search(self, text: str, limit: int) -> list[Head]:
        """Return the heads of at most `limit` threads, best matches first. A thread matches if its title, or its search
        text (set with `set_text`), has at least one word of this text."""
        mine = [{"term": {"ns": self._ns}}, {"term": {"text_of": self._ns}}]
        body = {
            "size": 2 * limit,
            "query": {
                "bool": {
                    "must": [{"multi_match": {"query": text, "fields": ["title", "text"]}}],
                    "filter": [{"bool": {"should": mine}}],
                }
            },
            "_source": ["key"],
            "track_total_hits": False,
        }
        await self._engine.refresh(self._indices.threads)
        hits = (await self._engine.search(body, self._indices.threads))["hits"]["hits"]
        keys = list(dict.fromkeys(hit["_source"]["key"] for hit in hits))
        return (await self._threads.heads(keys))[:limit]

    def _body(self, query: HeadQuery, size: int) -> Answer:
        apart = self._indices.heads_apart
        body: Answer = {
            "size": size,
            "query": {"bool": {"filter": self._conditions(query)}},
            "sort": [{query.order: "desc"}, {"key": "desc"}],
            **({"_source": False, "docvalue_fields": ["key", HEAD]} if apart else {"_source": ["key", HEAD]}),
            "track_total_hits": False,
        }
        if (start := query.start()) is not None:
            body["search_after"] = list(start)
        return body

    def _conditions(self, query: HeadQuery) -> list[Any]:
        """Return the conditions of a query as filters for the cluster. All threads that match the query pass the
        filters. A few others may pass too, where a value is long, so the caller checks each result again."""
        found: list[Any] = [{"term": {"ns": self._ns}}]
        if query.order == "due":
            found.append({"exists": {"field": "due"}})
        if query.prefix:
            start = query.prefix.encode()[:_LONGEST_PREFIX].decode(errors="ignore")
            found.append({"prefix": {"id": start}})
        if (statuses := query.statuses()) is not None:
            found.append({"terms": {"status": list(statuses)}})
        if query.agent is not None:
            found.append({"term": {"agent": word(query.agent)}})
        found += [{"term": {"tags": tag_word(name, value)}} for name, value in query.tags.items()]
        if query.parent is not None:
            found.append({"term": {"parent": word(query.parent)}})
        bounds = {"gte": query.updated_after, "lt": query.updated_before}
        if given := {bound: micros(moment) for bound, moment in bounds.items() if moment is not None}:
            found.append({"range": {"updated": given}})
        if query.title:
            text = fold_title(query.title)[0][:_LONGEST_SEARCH]
            there = [{"wildcard": {"folded": f"*{_escaped(text)}*"}}, {"term": {"cut": True}}]
            found.append({"bool": {"should": there}})
        return found

    def _matching(self, hits: Sequence[Answer], query: HeadQuery, damaged: list[Corrupt]) -> list[Head]:
        found = []
        for hit in hits:
            source = hit["_source"] if "_source" in hit else _columns(hit)
            try:
                head = read_head(source, str(source.get("key", hit["_id"])), self._where)
            except Corrupt as error:
                damaged.append(error)
            else:
                if query.matches(head):
                    found.append(head)
        return found


def _columns(hit: Answer) -> dict[str, str]:
    """Return the fields of a search result, by name, in the form that they have in a document. The result holds them as
    doc values, which give the head as URL-safe base64 without padding; a document has it as standard base64 with
    padding."""
    found = {name: str(value) for name, (value, *_) in hit.get("fields", {}).items()}
    if HEAD in found:
        head = found[HEAD].replace("-", "+").replace("_", "/")
        found[HEAD] = head + "=" * (-len(head) % 4)
    return found


def _escaped(text: str) -> str:
    """Return this text with a backslash before each character that has a meaning in a wildcard pattern."""
    return "".join(f"\\{letter}" if letter in "*?\\" else letter for letter in text)
