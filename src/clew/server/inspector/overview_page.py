"""The overview page: what a store's threads cost, when they were active, which agents worked on them, and which tools
are slow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from statistics import median
from typing import NamedTuple

import msgspec

from clew._runtime.clock import now
from clew._runtime.text import ago, dollars, elapsed, plural, short_number, size
from clew.checkpointers import Checkpointer, Head, HeadQuery
from clew.errors import ClewError, Corrupt
from clew.server.inspector.templates import Markup, render
from clew.server.inspector.text import STATUS_WORDS, count
from clew.server.inspector.visits import Viewer
from clew.threads import Thread
from clew.threads.views.timeline import TimelineReader, TimelineTurn, Window, reader_of
from clew.workers.places import waits_since

__all__ = ["Overview", "look_over", "overview_page"]

_DAYS = 30
_MOST_HEADS = 5000
_MOST_TIMELINES = 20
_MOST_FRAMES = 20_000
"""The most frames that are read, from all threads together, to find out how long tools take."""

_WIDTH, _HEIGHT, _FOOT, _TOP = 600, 140, 18, 16
_MARGIN = 60
"""A distance in SVG units. If the highest bar is nearer than this to the left or right edge of the chart, the bar's
label is aligned to that edge instead of centred on the bar."""


class Overview(msgspec.Struct, frozen=True):
    """What the overview page shows: the heads of threads, how long tool calls took, and the size of the store."""

    heads: tuple[Head, ...]
    more: bool
    """Whether the store has more threads than those in `heads`."""
    tools: dict[str, list[float]]
    """For each tool, by name: the seconds that each of its calls took."""
    looked_at: int
    """How many threads were read to fill `tools`."""
    storage: int | None = None
    damage: str = ""
    """The error that names the threads whose heads cannot be read; empty if all can."""


class _Bar(NamedTuple):
    """One bar of a chart. Positions and sizes are texts: SVG lengths with one digit after the point."""

    title: str
    column_x: str
    x: str
    y: str
    height: str


class _Peak(NamedTuple):
    """The label over the highest bar of a chart: its text, its position, and how it is aligned there."""

    words: str
    x: str
    anchor: str


class _Chart(NamedTuple):
    """A bar chart, prepared for the template of the overview page. `peak` is the label over the highest bar; `first`
    and `last` are the names below the first and the last bar."""

    title: str
    bars: list[_Bar]
    column_width: str
    bar_width: str
    peak: _Peak | None
    first: str
    last: str
    width: int = _WIDTH
    height: int = _HEIGHT
    base: int = _HEIGHT - _FOOT
    """The vertical position of the chart's axis, counted from the top."""


async def look_over(store: Checkpointer, storage: int | None) -> Overview:
    """Read what the overview page shows: at most `_MOST_HEADS` heads, the newest first, and the logs of at most
    `_MOST_TIMELINES` of these threads, for the times of their tool calls. `storage` is the size of the store in bytes;
    None if it is not known."""
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

    def count_times(turn: TimelineTurn, _: object = ()) -> None:
        for call in turn.calls:
            if call.seconds is not None:
                tools[call.call.name].append(call.seconds)

    looked_at = frames = 0
    for head in heads[:_MOST_TIMELINES]:
        frames += head.frames
        if frames > _MOST_FRAMES:
            break
        try:
            reader = TimelineReader(head.thread_id, Window(), on_settled=count_times)
            await reader_of(store, head.thread_id, head=head, reader=reader)
        except ClewError:  # damaged, deleted since, or sealed with another key: its own page says so
            continue
        looked_at += 1
        for turn in reader.timeline().turns:
            count_times(turn)
    return Overview(tuple(heads), more, dict(tools), looked_at, storage, damage)


def overview_page(viewer: Viewer, overview: Overview) -> Markup:
    heads = overview.heads
    return render(
        "overview.html",
        viewer=viewer,
        title="Overview",
        current="overview",
        wide=bool(heads),
        damage=overview.damage,
        newest=f"Numbers of the {plural(len(heads), 'newest thread')}" if overview.more else "",
        totals=_totals(overview) if heads else [],
        charts=_by_day(heads),
        agents=_by_agent(heads),
        tools=_slowest(overview.tools),
        looked_at=overview.looked_at,
    )


def _totals(overview: Overview) -> list[tuple[str, str, str]]:
    """Return the numbers at the top of the overview page, each as a name, a value and a remark."""
    heads = overview.heads
    statuses = Counter(head.status for head in heads)
    known = [head.cost_usd for head in heads if head.cost_usd is not None]
    unknown = len(heads) - len(known)
    rows = [
        ("Threads", count(len(heads)), ", ".join(f"{n} {STATUS_WORDS[s].lower()}" for s, n in statuses.most_common())),
        ("Turns", count(sum(head.turns for head in heads)), ""),
        (
            "Tokens",
            short_number(sum(head.input_tokens + head.output_tokens for head in heads)),
            f"{short_number(sum(head.output_tokens for head in heads))} of them out",
        ),
        ("Spend", dollars(sum(known)), f"unknown for {plural(unknown, 'thread')}" if unknown else ""),
    ]
    if queued := [since for head in heads if head.status == "queued" and (since := waits_since(head)) is not None]:
        due = [since for since in queued if since <= now()]
        oldest = f"{count(len(due))} due, the oldest for {ago(min(due))}" if due else "none is due"
        rows.append(("Queue", count(len(queued)), oldest))
    if overview.storage is not None:
        rows.append(("Storage", size(overview.storage), "the whole store, on this machine's disk"))
    return rows


def _by_day(heads: tuple[Head, ...]) -> list[tuple[str, _Chart]]:
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=back) for back in reversed(range(_DAYS))]
    spend: dict[date, float] = defaultdict(float)
    active: Counter[date] = Counter()
    for head in heads:
        day = head.updated_at.astimezone(UTC).date()
        active[day] += 1
        spend[day] += head.cost_usd or 0.0
    costs = [(f"{day:%b %d}", spend[day], dollars(spend[day])) for day in days]
    counts = [(f"{day:%b %d}", float(active[day]), plural(active[day], "thread")) for day in days]
    return [
        ("spend", _bar_chart("Spend by day of last activity", costs)),
        ("activity", _bar_chart("Threads by day of last activity", counts)),
    ]


def _bar_chart(title: str, values: Sequence[tuple[str, float, str]]) -> _Chart:
    """Lay out a bar chart. `values` has a tuple for each bar: its name, such as a day, its value, and the value as
    text."""
    step = _WIDTH / max(1, len(values))
    most = max((value for _, value, _ in values), default=0) or 1
    bars = []
    for place, (name, value, words) in enumerate(values):
        height = 0 if not value else max(2.0, value / most * (_HEIGHT - _FOOT - _TOP))
        x = place * step
        y = _HEIGHT - _FOOT - height
        bars.append(_Bar(f"{name}: {words}", f"{x:.1f}", f"{x + step * 0.15:.1f}", f"{y:.1f}", f"{height:.1f}"))
    first, last = (values[0][0], values[-1][0]) if values else ("", "")
    return _Chart(title, bars, f"{step:.1f}", f"{step * 0.7:.1f}", _peak(values, step), first, last)


def _peak(values: Sequence[tuple[str, float, str]], step: float) -> _Peak | None:
    """Return the label over the highest bar, placed so that it does not leave the picture. `step` is the distance
    between two bars. None if all values are 0."""
    if not any(value for _, value, _ in values):
        return None
    place = max(range(len(values)), key=lambda place: values[place][1])
    words, middle = values[place][2], (place + 0.5) * step
    if middle < _MARGIN:
        return _Peak(words, "0.0", "start")
    if middle > _WIDTH - _MARGIN:
        return _Peak(words, f"{_WIDTH:.1f}", "end")
    return _Peak(words, f"{middle:.1f}", "middle")


def _by_agent(heads: tuple[Head, ...]) -> list[list[str]]:
    groups: dict[tuple[str, str], list[Head]] = defaultdict(list)
    for head in heads:
        groups[head.agent, head.model].append(head)
    ordered = sorted(groups.items(), key=lambda group: -sum(head.cost_usd or 0 for head in group[1]))
    return [
        [
            agent or "–",
            model or "–",
            count(len(group)),
            count(sum(head.turns for head in group)),
            short_number(sum(head.input_tokens + head.output_tokens for head in group)),
            dollars(
                None if any(head.cost_usd is None for head in group) else sum(head.cost_usd or 0 for head in group)
            ),
        ]
        for (agent, model), group in ordered[:50]
    ]


def _slowest(tools: dict[str, list[float]]) -> list[list[str]]:
    ordered = sorted(tools.items(), key=lambda tool: -median(tool[1]))
    return [
        [name, count(len(times)), elapsed(median(times)), elapsed(max(times)), elapsed(sum(times))]
        for name, times in ordered[:20]
    ]
