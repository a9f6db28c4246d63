"""One thread: where it stands, what happened on it, and what can be done with it."""

from __future__ import annotations

import msgspec

from clew.agent.events import Question
from clew.agent.questions import open_questions
from clew.agent.way_forward import Way
from clew.agent.workspace import unkept
from clew.checkpointers import Head
from clew.server.inspector.html import Html, el, join
from clew.server.inspector.layout import Viewer, page, status_badge, thread_url
from clew.server.inspector.text import cost, count, duration, moment, plural, pretty, tokens
from clew.server.inspector.turns import pending, strip, tick, timeline_items
from clew.threads.leases import is_live
from clew.threads.views.timeline import Timeline, TimelineReader, is_abandoned

__all__ = ["WINDOW", "header_facts", "questions_form", "resume_box", "thread_page", "window_at", "window_html"]

WINDOW = 50
"""Turns that are sent at a time."""


def window_at(reader: TimelineReader, position: int | None) -> tuple[int, int]:
    """The stretch of turns to show first: the newest, or those around one that was asked for."""
    if position is None:
        return max(0, reader.total - WINDOW), reader.total
    start = max(0, min(position - WINDOW // 2, reader.total - WINDOW))
    return start, min(reader.total, start + WINDOW)


def thread_page(
    viewer: Viewer, reader: TimelineReader, head: Head, forks: list[Head], way: Way, position: int | None
) -> Html:
    """`way` is how the thread goes on."""
    thread_id, abandoned = head.thread_id, is_abandoned(head)
    start, stop = window_at(reader, position)
    whole = reader.timeline(abandoned=abandoned)
    timeline = reader.timeline(start, stop, abandoned=abandoned)
    room = "strip roomy" if whole.total <= 24 else "strip dense" if whole.total > 150 else "strip"
    return page(
        head.title or whole.checkpoint.title or thread_id,
        _header(viewer, head, timeline, forks, way),
        _callouts(viewer, head, timeline),
        el(
            "nav",
            el("div", strip(whole, thread_id), id="strip", class_=room, data_test="strip"),
            _legend(whole),
            class_="strip-box",
            aria_label="All turns",
        )
        if whole.total or whole.marks
        else None,
        el(
            "div",
            window_html(timeline, thread_id, can_write=viewer.can_write),
            id="timeline",
            class_="timeline",
            data_test="timeline",
            data_url=thread_url(thread_id, "/turns"),
            data_events=thread_url(thread_id, f"/events?frames={timeline.frames}"),
            data_at_end=str(stop == reader.total).lower(),
            data_focus=f"p{position}" if position is not None else None,
        ),
        pending(timeline, abandoned=abandoned) if stop == reader.total else el("section", id="pending", hidden=True),
        el("button", "New turns ↓", type="button", id="newer-pill", class_="pill", hidden=True, data_test="new-turns"),
        viewer=viewer,
        current="thread",
    )


def window_html(timeline: Timeline, thread_id: str, *, can_write: bool) -> Html:
    """A stretch of the timeline, with the ways to what comes before and after it: links, which the script follows by
    itself as one scrolls."""
    older = newer = None
    if timeline.start > 0:
        first = max(0, timeline.start - WINDOW)
        older = el(
            "a",
            f"Older: {plural(timeline.start, 'turn')} before these",
            href=thread_url(thread_id, f"?at={first + WINDOW // 2}"),
            class_="more more-older",
            data_load=f"?start={first}&stop={timeline.start}",
            data_test="older",
        )
    if timeline.stop < timeline.total:
        last = min(timeline.total, timeline.stop + WINDOW)
        newer = el(
            "a",
            f"Newer: {plural(timeline.total - timeline.stop, 'turn')} after these",
            href=thread_url(thread_id, f"?at={last - 1}"),
            class_="more more-newer",
            data_load=f"?start={timeline.stop}&stop={last}",
            data_test="newer",
        )
    return join(older, timeline_items(timeline, thread_id, can_write=can_write), newer)


def _header(viewer: Viewer, head: Head, timeline: Timeline, forks: list[Head], way: Way) -> Html:
    thread_id = head.thread_id
    title = head.title or timeline.checkpoint.title or thread_id
    links = [
        el("a", "Files", href=thread_url(thread_id, "/files"), data_test="files-link"),
        el("a", "Entries", href=thread_url(thread_id, "/entries"), data_test="entries-link"),
        el("a", "Export .clew", href=thread_url(thread_id, "/export.clew"), download=True, data_test="export-clew"),
        el("a", "Markdown", href=thread_url(thread_id, "/export.md"), download=True, data_test="export-md"),
    ]
    if viewer.can_write:
        links.append(el("a", "Rename", href=thread_url(thread_id, "/describe"), data_test="describe-link"))
    return el(
        "section",
        el(
            "nav",
            el("a", "Threads", href="/"),
            " / ",
            el("span", thread_id, class_="id"),
            class_="crumbs",
            aria_label="Path",
        ),
        el(
            "div",
            el("h1", title, data_test="thread-title"),
            el("span", "Live", class_="live", id="live", hidden=True, data_test="live"),
            class_="title-row",
        ),
        header_facts(head, timeline),
        _lineage(head, forks),
        el("div", resume_box(viewer, way), el("div", links, class_="links"), class_="ways"),
        class_="thread-head",
    )


def header_facts(head: Head, timeline: Timeline) -> Html:
    """What a live page replaces as a whole."""
    state = timeline.checkpoint
    crashed = is_abandoned(head)
    holder = str(head.lease.owner) if head.lease is not None and is_live(head.lease) else None
    lost = f", {plural(state.unaccounted, 'lost call')}" if state.unaccounted else ""
    rows: list[tuple[str, str | Html | None, str]] = [
        ("Status", status_badge(head.status, crashed=crashed), "fact-status"),
        ("Why", state.reason if state.status in ("failed", "interrupted") else None, "fact-reason"),
        ("Holder", holder, "fact-holder"),
        ("Agent", head.agent, "fact-agent"),
        ("Model", head.model, "fact-model"),
        ("Turns", count(head.turns), "fact-turns"),
        ("Tokens", f"{tokens(head.input_tokens)} in · {tokens(head.output_tokens)} out", "fact-tokens"),
        ("Cost", cost(head.cost_usd) + lost, "fact-cost"),
        ("Files", unkept(state) if crashed or state.status != "running" else None, "fact-files"),
        ("Worked", duration(state.seconds) if state.seconds else None, "fact-worked"),
        ("Last activity", moment(head.updated_at, relative=True), "fact-activity"),
        ("Tags", _tags(head), "fact-tags"),
    ]
    made = [el("div", el("dt", name), el("dd", value, data_test=test)) for name, value, test in rows if value]
    return el("dl", made, class_="facts-grid", id="facts", data_test="facts")


def _tags(head: Head) -> Html | None:
    chips = [el("span", f"{name}={value}", class_="chip tag") for name, value in sorted(head.tags.items())]
    return el("span", chips, class_="tags") if chips else None


def _lineage(head: Head, forks: list[Head]) -> Html | None:
    parts: list[Html] = []
    if head.parent is not None:
        parent, turn = head.parent
        link = el("a", parent, href=thread_url(parent, f"?turn={turn}"), data_test="parent-link")
        parts.append(el("span", "From ", link, f", turn {turn}"))
    if forks:
        links = [
            el(
                "li",
                el("a", fork.title or fork.thread_id, href=thread_url(fork.thread_id)),
                f" at turn {fork.parent[1] if fork.parent else 0}",
            )
            for fork in forks
        ]
        parts.append(
            el(
                "details",
                el("summary", f"{plural(len(forks), 'thread')} from this one"),
                el("ul", links),
                data_test="forks",
            )
        )
    return el("div", parts, class_="lineage-box") if parts else None


def resume_box(viewer: Viewer, way: Way) -> Html:
    """The command that goes on with a thread, or the call in the program that made it. No command names a namespace within
    that of a token, but a program can."""
    in_program = way.is_program or viewer.is_nested
    command = msgspec.structs.replace(way, is_program=in_program).command(viewer.store)
    return el(
        "div",
        el("span", f"In {way.program}: ", class_="hint") if in_program else None,
        el("code", command, id="resume-command", data_test="resume-command"),
        el("button", "Copy", type="button", class_="copy", data_copy="resume-command", data_test="copy-resume"),
        class_="resume",
        id="resume",
    )


def _callouts(viewer: Viewer, head: Head, timeline: Timeline) -> Html:
    """What asks for a person's attention."""
    return el("div", questions_form(viewer, head, timeline) or el("div", id="questions", hidden=True), id="callouts")


def questions_form(viewer: Viewer, head: Head, timeline: Timeline) -> Html | None:
    asked = open_questions(timeline.checkpoint) if timeline.checkpoint.status == "waiting" else []
    if not asked:
        return None
    fields = [_question(number, question, viewer.can_write) for number, question in enumerate(asked)]
    title = el("h2", "This thread waits for an answer" if len(asked) == 1 else "This thread waits for answers")
    if not viewer.can_write:
        return el("section", title, fields, class_="callout", id="questions", data_test="questions")
    return el(
        "form",
        title,
        viewer.proof(),
        fields,
        el("button", "Record the answer", type="submit", class_="primary", data_test="answer-submit"),
        el("p", "The answer is put on record. The work goes on with the next resume.", class_="hint"),
        method="post",
        action=thread_url(head.thread_id, "/answer"),
        class_="callout",
        id="questions",
        data_test="questions",
    )


def _question(number: int, question: Question, can_write: bool) -> Html:
    about = el(
        "details",
        el("summary", f"{question.tool} with these arguments"),
        el("pre", pretty(question.arguments), class_="code"),
        open=question.kind == "approval",
    )
    what = el("legend", question.text, data_test="question")
    if not can_write:
        return el("fieldset", what, about)
    name = f"answer-{number}"
    hidden = el("input", type="hidden", name=f"id-{number}", value=question.id)
    if question.kind == "approval":
        choices = join(
            _choice(name, "yes", "Allow it"),
            _choice(name, "no", "Do not allow it"),
            el(
                "label",
                el("span", "Why not (for the model, if not allowed)"),
                el("input", type="text", name=f"why-{number}", autocomplete="off"),
                class_="field",
            ),
        )
        return el(
            "fieldset",
            what,
            hidden,
            el("input", type="hidden", name=f"kind-{number}", value="approval"),
            about,
            choices,
        )
    hint = "'run' to run it again, or what it came to" if question.kind == "in doubt" else "Your answer"
    control = el(
        "textarea", name=name, rows=2, required=True, placeholder=hint, aria_label="Answer", data_test="answer"
    )
    json = el(
        "label", el("input", type="checkbox", name=f"json-{number}", value="1"), " read it as JSON", class_="check"
    )
    return el("fieldset", what, hidden, about, control, json)


def _choice(name: str, value: str, text: str) -> Html:
    return el(
        "label",
        el("input", type="radio", name=name, value=value, required=True, data_test=f"answer-{value}"),
        f" {text}",
        class_="check",
    )


def _legend(whole: Timeline) -> Html | None:
    """Says what the colours stand for that are there."""
    kinds = {mark.kind for mark in whole.marks if tick(mark) is not None}
    made = [
        el("span", el("span", class_=f"tick tick-{kind.replace(' ', '-')}"), kind)
        for kind in ("crashed", "failed", "resumed", "taken over", "rewound", "compacted", "moved", "forked", "waiting")
        if kind in kinds
    ]
    cells = {status for turn in whole.turns for status in (call.status for call in turn.calls)}
    if "in doubt" in cells:
        made.append(el("span", el("span", class_="cell cell-in-doubt"), "in doubt"))
    return el("div", made, class_="legend", aria_hidden="true") if made else None
