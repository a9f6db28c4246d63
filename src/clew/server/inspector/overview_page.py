"""The store at a glance: what was spent and when, by whom, and which tools are slow."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, date, datetime, timedelta
from statistics import median

import msgspec

from clew.checkpointers import Checkpointer, Head, HeadQuery
from clew.errors import ClewError, Corrupt
from clew.server.inspector.charts import bars
from clew.server.inspector.html import Child, Html, el, join
from clew.server.inspector.layout import STATUS_WORDS, Viewer, damage_note, empty, page
from clew.server.inspector.text import cost, count, duration, plural, size, tokens
from clew.threads import Thread
from clew.threads.views.timeline import reader_of

__all__ = ["Overview", "look_over", "overview_page"]

_DAYS = 30
_MOST_HEADS = 5000
_MOST_TIMELINES = 20
_MOST_FRAMES = 20_000
"""Frames that are read for the look at tools, of all these threads together."""


class Overview(msgspec.Struct, frozen=True):
    heads: tuple[Head, ...]
    more: bool
    """There are threads that were not looked at."""
    tools: dict[str, list[float]]
    looked_at: int
    """Threads whose timelines were read, for the tools."""
    storage: int | None = None
    damage: str = ""
    """What names the threads that cannot be listed."""


async def look_over(store: Checkpointer, storage: int | None) -> Overview:
    heads: list[Head] = []
    more = False
    damage = ""
    try:
        async for head in Thread.list(store, HeadQuery()):
            if len(heads) == _MOST_HEADS:
                more = True
                break
            heads.append(head)
    except Corrupt as error:
        damage = str(error)
    tools: dict[str, list[float]] = defaultdict(list)
    looked_at = frames = 0
    for head in heads[:_MOST_TIMELINES]:
        frames += head.frames
        if frames > _MOST_FRAMES:
            break
        try:
            reader, _ = await reader_of(store, head.thread_id, head=head)
        except ClewError:  # damaged, deleted since, or sealed with another key: its own page says so
            continue
        looked_at += 1
        for turn in reader.timeline().turns:
            for call in turn.calls:
                if call.seconds is not None:
                    tools[call.call.name].append(call.seconds)
    return Overview(tuple(heads), more, dict(tools), looked_at, storage, damage)


def overview_page(viewer: Viewer, overview: Overview) -> Html:
    note = damage_note(overview.damage) if overview.damage else None
    if not overview.heads:
        body: Html = empty(
            "Nothing to see yet", el("p", "Once there are threads, their spend and activity are shown here.")
        )
        return page("Overview", el("h1", "Overview"), note, body, viewer=viewer, current="overview")
    heads = overview.heads
    newest = f" of the {plural(len(heads), 'newest thread')}" if overview.more else ""
    return page(
        "Overview",
        el(
            "div",
            el("h1", "Overview"),
            el("span", f"Numbers{newest}" if newest else "", class_="hint"),
            class_="title-row",
        ),
        note,
        _totals(overview),
        el("div", _by_day(heads), class_="charts"),
        el("section", el("h2", "Agents and models"), _by_agent(heads), class_="block"),
        el("section", el("h2", "Slowest tools"), _slowest(overview), class_="block"),
        viewer=viewer,
        current="overview",
        wide=True,
    )


def _totals(overview: Overview) -> Html:
    heads = overview.heads
    statuses = Counter(head.status for head in heads)
    known = [head.cost_usd for head in heads if head.cost_usd is not None]
    unknown = len(heads) - len(known)
    rows: list[tuple[str, str, str]] = [
        ("Threads", count(len(heads)), ", ".join(f"{n} {STATUS_WORDS[s].lower()}" for s, n in statuses.most_common())),
        ("Turns", count(sum(head.turns for head in heads)), ""),
        (
            "Tokens",
            tokens(sum(head.input_tokens + head.output_tokens for head in heads)),
            f"{tokens(sum(head.output_tokens for head in heads))} of them out",
        ),
        ("Spend", cost(sum(known)), f"unknown for {plural(unknown, 'thread')}" if unknown else ""),
    ]
    if overview.storage is not None:
        rows.append(("Storage", size(overview.storage), "the whole store, on this machine's disk"))
    made = [
        el(
            "div",
            el("dt", name),
            el("dd", value),
            el("dd", more, class_="hint") if more else None,
            data_test=f"total-{name.lower()}",
        )
        for name, value, more in rows
    ]
    return el("dl", made, class_="totals", data_test="totals")


def _by_day(heads: tuple[Head, ...]) -> Html:
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=back) for back in reversed(range(_DAYS))]
    spend: dict[date, float] = defaultdict(float)
    active: Counter[date] = Counter()
    for head in heads:
        day = head.updated_at.astimezone(UTC).date()
        active[day] += 1
        spend[day] += head.cost_usd or 0.0
    return join(
        _chart(
            "Spend by day of last activity", [(f"{day:%b %d}", spend[day], cost(spend[day])) for day in days], "spend"
        ),
        _chart(
            "Threads by day of last activity",
            [(f"{day:%b %d}", float(active[day]), plural(active[day], "thread")) for day in days],
            "activity",
        ),
    )


def _chart(title: str, values: list[tuple[str, float, str]], name: str) -> Html:
    return el("figure", el("figcaption", title), bars(title, values), data_test=f"chart-{name}")


def _by_agent(heads: tuple[Head, ...]) -> Html:
    groups: dict[tuple[str, str], list[Head]] = defaultdict(list)
    for head in heads:
        groups[head.agent, head.model].append(head)
    ordered = sorted(groups.items(), key=lambda group: -sum(head.cost_usd or 0 for head in group[1]))
    rows: list[list[Child]] = [
        [
            agent or "–",
            model or "–",
            count(len(group)),
            count(sum(head.turns for head in group)),
            tokens(sum(head.input_tokens + head.output_tokens for head in group)),
            cost(None if any(head.cost_usd is None for head in group) else sum(head.cost_usd or 0 for head in group)),
        ]
        for (agent, model), group in ordered[:50]
    ]
    return _table(["Agent", "Model", "Threads", "Turns", "Tokens", "Cost"], rows, 2, "agents")


def _slowest(overview: Overview) -> Html:
    if not overview.tools:
        return el("p", f"No tool calls in the newest {plural(overview.looked_at, 'thread')}.", class_="hint")
    ordered = sorted(overview.tools.items(), key=lambda tool: -median(tool[1]))
    rows: list[list[Child]] = [
        [name, count(len(times)), duration(median(times)), duration(max(times)), duration(sum(times))]
        for name, times in ordered[:20]
    ]
    said = f"From the timelines of the newest {plural(overview.looked_at, 'thread')}."
    return join(
        _table(["Tool", "Calls", "Median", "Longest", "Together"], rows, 1, "tools"), el("p", said, class_="hint")
    )


def _table(columns: list[str], rows: list[list[Child]], names: int, test: str) -> Html:
    head = [el("th", text, scope="col", class_="num" if place >= names else None) for place, text in enumerate(columns)]
    body = [
        el("tr", [el("td", value, class_="num" if place >= names else None) for place, value in enumerate(row)])
        for row in rows
    ]
    return el(
        "div", el("table", el("thead", el("tr", head)), el("tbody", body), data_test=f"table-{test}"), class_="table"
    )
