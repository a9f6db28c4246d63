"""The page of all threads: a table that can be searched, filtered, ordered and paged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, get_args
from urllib.parse import urlencode

import msgspec

from clew import advice
from clew.checkpointers import Checkpointer, Head, HeadQuery, Owner
from clew.checkpointers.heads import Status
from clew.errors import Corrupt, InvalidInput
from clew.server.inspector.templates import Markup, part, render
from clew.server.inspector.visits import Viewer
from clew.threads import Thread
from clew.threads.leases import is_live
from clew.workers.places import place_words

__all__ = ["Listing", "list_threads", "read_tags", "rows", "threads_page"]

PAGE = 50
_MOST_SCANNED = 5000
"""The most heads that one search reads. The page then shows what was found so far, with a link that goes on searching.
"""


class Listing(msgspec.Struct, frozen=True):
    """The filters that a request gave, and one page of the threads that match them."""

    asked: dict[str, str]
    heads: tuple[Head, ...] = ()
    next_cursor: str | None = None
    scanned: int = 0
    stopped_early: bool = False
    damage: str = ""
    """The error that names the threads whose heads cannot be read; empty if all can."""


async def list_threads(store: Checkpointer, given: Mapping[str, str]) -> Listing:
    """Return one page of the threads that match the filters in `given`, the parameters of the request: at most `PAGE`
    threads. The filter `q` is a text to find in titles and ids. With it, at most `_MOST_SCANNED` heads are read, so the
    page may have fewer threads than match. Raises `InvalidInput` for a filter with a wrong value."""
    asked = {name: given[name].strip() for name in _FIELDS if given.get(name, "").strip()}
    query = _query(asked)
    text = asked.get("q", "").casefold()
    found: list[Head] = []
    scanned, last = 0, None
    damage = ""
    try:
        async for head in Thread.list(store, msgspec.structs.replace(query, limit=None if text else PAGE + 1)):
            if len(found) == PAGE or scanned == _MOST_SCANNED:
                assert last is not None  # noqa: S101 - one was found or looked at before
                cursor = query.after(last).cursor
                return Listing(asked, tuple(found), cursor, scanned, scanned == _MOST_SCANNED)
            scanned, last = scanned + 1, head
            if text in head.title.casefold() or text in head.thread_id.casefold():
                found.append(head)
    except Corrupt as error:
        damage = str(error)
    return Listing(asked, tuple(found), None, scanned, damage=damage)


_FIELDS = ("q", "status", "agent", "tags", "parent", "order", "cursor")


def _query(asked: Mapping[str, str]) -> HeadQuery:
    status = asked.get("status")
    if status is not None and status not in get_args(Status):
        raise InvalidInput(f"{status!r} is not a status. Use one of {', '.join(get_args(Status))}.")
    order = asked.get("order", "updated")
    if order not in ("updated", "created"):
        raise InvalidInput(f"{order!r} is not an order of threads. Use updated or created.")
    query = HeadQuery(
        status=status,  # type: ignore[arg-type] # looked up above
        agent=asked.get("agent"),
        tags=read_tags(asked.get("tags", "")),
        parent=asked.get("parent"),
        order=order,  # type: ignore[arg-type] # looked up above
        cursor=asked.get("cursor"),
    )
    query.start()
    return query


def read_tags(text: str) -> dict[str, str]:
    """Parse tags that are written as `name=value name=value`. Raises `InvalidInput` for a word without `=`."""
    pairs = [word.partition("=") for word in text.split()]
    if wrong := [name for name, sign, _ in pairs if not sign]:
        raise InvalidInput(f"the tag {wrong[0]!r} has no value. Write name=value.")
    return {name: value for name, _, value in pairs}


class _Row(NamedTuple):
    head: Head
    crashed: bool
    holder: Owner | None
    place: str
    """Where the thread is in the queue of the workers; empty if it is not there."""
    tags: list[tuple[str, str]]
    forks: int
    """How many threads on the same page are forks of this one, or threads of its sub-agents."""
    forks_url: str


def threads_page(viewer: Viewer, listing: Listing) -> Markup:
    asked = listing.asked
    first = {name: value for name, value in asked.items() if name != "cursor"}
    return render(
        "threads.html",
        viewer=viewer,
        title="Threads",
        current="threads",
        wide=True,
        asked=asked,
        shown=_shown(listing),
        damage=listing.damage,
        unpriced=sum(head.cost_usd is None for head in listing.heads),
        scanned=listing.scanned,
        stopped_early=listing.stopped_early,
        is_filtered=listing.damage or any(name in asked for name in ("q", "status", "agent", "tags", "parent")),
        start_command=advice.start(store=viewer.store),
        events_url=f"/threads/events?{urlencode(asked)}",
        first_url=f"/?{urlencode(first)}" if "cursor" in asked else "",
        next_url=f"/?{urlencode({**asked, 'cursor': listing.next_cursor})}" if listing.next_cursor else "",
    )


def rows(listing: Listing) -> Markup:
    """Return the HTML of the table's rows alone. Live updates send it to replace the rows of an open page."""
    return part("thread_rows.html", "rows", _shown(listing))


def _shown(listing: Listing) -> list[_Row]:
    forks = Counter(head.parent[0] for head in listing.heads if head.parent is not None)
    return [_row(head, forks[head.thread_id]) for head in listing.heads]


def _row(head: Head, forks: int) -> _Row:
    live = head.lease if is_live(head.lease) else None
    return _Row(
        head,
        crashed=head.status == "interrupted" and head.lease is not None and live is None,
        holder=live.owner if live else None,
        place=place_words(head),
        tags=sorted(head.tags.items())[:4],
        forks=forks,
        forks_url=f"/?{urlencode({'parent': head.thread_id})}",
    )
