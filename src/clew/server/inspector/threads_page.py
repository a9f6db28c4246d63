"""The threads of a store: a table that can be searched, filtered, ordered and paged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args
from urllib.parse import urlencode

import msgspec

from clew import advice
from clew.checkpointers import Checkpointer, Head, HeadQuery, Owner
from clew.checkpointers.heads import Status
from clew.errors import Corrupt, InvalidInput
from clew.server.inspector.html import Html, el, join
from clew.server.inspector.layout import STATUS_WORDS, Viewer, damage_note, empty, field, page, status_badge, thread_url
from clew.server.inspector.text import cost, count, moment, tokens
from clew.threads import Thread
from clew.threads.leases import is_live

__all__ = ["Listing", "list_threads", "read_tags", "rows", "threads_page"]

PAGE = 50
_MOST_SCANNED = 5000
"""Heads that a search looks at before it shows what it has found, and where to go on."""


class Listing(msgspec.Struct, frozen=True):
    """What was asked for in the form, and what was found."""

    asked: dict[str, str]
    heads: tuple[Head, ...] = ()
    next_cursor: str | None = None
    scanned: int = 0
    stopped_early: bool = False
    damage: str = ""
    """What names the threads that cannot be listed."""


async def list_threads(store: Checkpointer, given: Mapping[str, str]) -> Listing:
    """One page of the threads that match. The text is looked for in titles and ids."""
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
        raise InvalidInput(f"{status!r} is no status: they are {', '.join(get_args(Status))}")
    order = asked.get("order", "updated")
    if order not in ("updated", "created"):
        raise InvalidInput(f"threads are ordered by updated or created, not by {order!r}")
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
    """`name=value name=value`."""
    pairs = [word.partition("=") for word in text.split()]
    if wrong := [name for name, sign, _ in pairs if not sign]:
        raise InvalidInput(f"tags are written name=value; {wrong[0]!r} has no value")
    return {name: value for name, _, value in pairs}


def threads_page(viewer: Viewer, listing: Listing) -> Html:
    asked = listing.asked
    filtered = any(name in asked for name in ("q", "status", "agent", "tags", "parent"))
    body: Html
    if listing.heads:
        body = _table(listing)
    elif filtered or listing.damage:
        body = empty("No thread matches", el("p", el("a", "Show all threads", href="/")))
    else:
        body = empty(
            "No threads yet",
            el("p", "Start one, and it appears here by itself:"),
            el("pre", advice.start(store=viewer.store), class_="code"),
        )
    return page(
        "Threads",
        el("div", el("h1", "Threads"), _live(), class_="title-row"),
        _filters(asked),
        _about_search(listing),
        el("div", body, id="listing", data_events=f"/threads/events?{urlencode(asked)}", data_test="threads"),
        _pages(listing),
        viewer=viewer,
        current="threads",
        wide=True,
    )


def _live() -> Html:
    return el("span", "Live", class_="live", id="live", data_state="off", data_test="live", hidden=True)


def _filters(asked: Mapping[str, str]) -> Html:
    statuses = [("", "Any status"), *STATUS_WORDS.items()]
    orders = [("updated", "Last activity"), ("created", "Newest first")]
    search = el(
        "input",
        type="search",
        name="q",
        id="search",
        value=asked.get("q", ""),
        placeholder="Search titles and ids",
        autocomplete="off",
        data_test="search",
    )
    return el(
        "form",
        field("Search", search, class_="grow"),
        field("Status", _select("status", statuses, asked.get("status", ""))),
        field("Agent", _text("agent", asked, "any")),
        field("Tags", _text("tags", asked, "name=value")),
        field("Order", _select("order", orders, asked.get("order", "updated"))),
        el("input", type="hidden", name="parent", value=asked["parent"]) if "parent" in asked else None,
        el("button", "Apply", type="submit", data_test="apply"),
        method="get",
        action="/",
        class_="filters",
        id="filters",
        role="search",
        data_test="filters",
    )


def _select(name: str, options: list[tuple[str, str]], chosen: str) -> Html:
    made = [el("option", text, value=value, selected=value == chosen) for value, text in options]
    return el("select", made, name=name, data_test=f"filter-{name}")


def _text(name: str, asked: Mapping[str, str], hint: str) -> Html:
    return el(
        "input",
        type="text",
        name=name,
        value=asked.get(name, ""),
        placeholder=hint,
        autocomplete="off",
        data_test=f"filter-{name}",
    )


def _about_search(listing: Listing) -> Html | None:
    asked = listing.asked
    parts: list[Html] = []
    if "parent" in asked:
        link = el("a", asked["parent"], href=thread_url(asked["parent"]))
        parts.append(el("p", "Forks and children of ", link, ". ", el("a", "Show all", href="/"), class_="hint"))
    if listing.stopped_early:
        parts.append(
            el(
                "p",
                f"The newest {count(listing.scanned)} threads were looked at. Go on below for older ones.",
                class_="hint",
            )
        )
    if listing.damage:
        parts.append(damage_note(listing.damage))
    return join(*parts) if parts else None


_COLUMNS = [
    ("Status", ""),
    ("Thread", "thread-cell"),
    ("Agent", "m"),
    ("Model", "l"),
    ("Turns", "num"),
    ("Tokens", "num m"),
    ("Cost", "num"),
    ("Activity", "num"),
    ("Holder", "l"),
]


def _table(listing: Listing) -> Html:
    head = el("tr", [el("th", text, scope="col", class_=kind or None) for text, kind in _COLUMNS])
    return el(
        "div",
        el(
            "table",
            el("caption", "Threads", class_="hidden"),
            el("thead", head),
            el("tbody", rows(listing), id="rows"),
            class_="threads",
        ),
        class_="table",
    )


def rows(listing: Listing) -> Html:
    """The rows alone: what a live page replaces."""
    children: dict[str, int] = {}
    for head in listing.heads:
        if head.parent is not None:
            children[head.parent[0]] = children.get(head.parent[0], 0) + 1
    return join([_row(head, children.get(head.thread_id, 0)) for head in listing.heads])


def _row(head: Head, children: int) -> Html:
    live = head.lease if is_live(head.lease) else None
    crashed = head.status == "interrupted" and head.lease is not None and live is None
    url = thread_url(head.thread_id)
    forks = el(
        "a",
        f"{children} fork{'' if children == 1 else 's'}",
        href=f"/?{urlencode({'parent': head.thread_id})}",
        class_="chip",
        data_test="forks",
    )
    below = [
        el("span", head.thread_id, class_="id", data_test="thread-id") if head.title else None,
        _lineage(head),
        forks if children else None,
        [el("span", f"{name}={value}", class_="chip tag") for name, value in sorted(head.tags.items())[:4]],
    ]
    cells = [
        el("td", status_badge(head.status, crashed=crashed)),
        el(
            "td",
            el("a", head.title or head.thread_id, href=url, class_="title", data_test="thread-link"),
            el("div", below, class_="below"),
            class_="thread-cell",
        ),
        el("td", head.agent or "–", class_="m"),
        el("td", head.model or "–", class_="l model"),
        el("td", count(head.turns), class_="num", data_label="turn" if head.turns == 1 else "turns"),
        el("td", tokens(head.input_tokens + head.output_tokens), class_="num m", title=_spelt(head)),
        el("td", cost(head.cost_usd), class_="num"),
        el("td", moment(head.updated_at, relative=True), class_="num activity"),
        el("td", _holder(live.owner) if live else None, class_="l holder", data_test="holder"),
    ]
    return el(
        "tr",
        cells,
        id=f"t-{url.rpartition('/')[2]}",
        data_href=url,
        data_test="thread-row",
    )


def _holder(owner: Owner) -> Html:
    return el("span", owner.host, el("span", f" · {owner.pid}", class_="pid"), title=str(owner))


def _spelt(head: Head) -> str:
    return f"{count(head.input_tokens)} in, {count(head.output_tokens)} out"


def _lineage(head: Head) -> Html | None:
    if head.parent is None:
        return None
    parent, turn = head.parent
    return el(
        "span",
        "↳ ",
        el("a", parent, href=thread_url(parent, f"?turn={turn}"), data_test="parent-link"),
        f" turn {turn}",
        class_="lineage",
    )


def _pages(listing: Listing) -> Html | None:
    asked = listing.asked
    links = []
    if "cursor" in asked:
        rest = {name: value for name, value in asked.items() if name != "cursor"}
        links.append(el("a", "First page", href=f"/?{urlencode(rest)}", rel="first", data_test="first-page"))
    if listing.next_cursor:
        more = urlencode({**asked, "cursor": listing.next_cursor})
        links.append(el("a", "Older threads →", href=f"/?{more}", rel="next", data_test="next-page"))
    return el("nav", links, class_="pages", aria_label="Pages") if links else None
