"""Threads as a team leaves them in two weeks, for pictures of the inspector: several agents, models, machines and fates.

Their times lie in the past, so a clock of this module's own stands in for the real one while they are made.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import patch

import msgspec

from clew import Thread
from clew.agent.events import QUESTIONS, Question
from clew.checkpointers import Checkpointer, Owner
from clew.log import (
    Described,
    MessageAdded,
    ModelCallStarted,
    Spend,
    StateSet,
    StatusChanged,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    Usage,
)
from clew.messages import Block, Text, Thinking, ToolCall, ToolResult, assistant, user
from clew.threads.ops.fork import fork
from clew.workspace import Workspace
from tests.server.inspector import billing_story

__all__ = ["MAIN", "WAITING", "fill_showroom"]

MAIN = "billing-v2"
"""The long thread: it crashed twice, went on on another machine each time, and runs now."""
WAITING = "refund-8841"

_PRICES = {
    "claude-opus-4-7": (5.0, 25.0),
    "claude-sonnet-4-6": (3.0, 15.0),
    "gpt-5.2": (1.75, 14.0),
    "gpt-5-mini": (0.25, 2.0),
}


class Clock:
    """The time in the showroom, and the machine that works there."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)
        self.owner = Owner(host="build-2", boot="showroom", pid=4127, started="1")

    def pass_(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def go_to(self, *, hours_ago: float) -> None:
        self.now = datetime.now(UTC) - timedelta(hours=hours_ago)

    def work_on(self, host: str, pid: int) -> None:
        self.owner = Owner(host=host, boot=f"boot of {host}", pid=pid, started="1")

    @contextmanager
    def ruling(self) -> Iterator[None]:
        seconds = SimpleNamespace(time=lambda: self.now.timestamp(), monotonic=time.monotonic)
        nanoseconds = SimpleNamespace(time_ns=lambda: int(self.now.timestamp() * 1e9))
        with (
            patch("clew._runtime.clock.time", seconds),
            patch("clew.log.codec.time", nanoseconds),
            patch("clew.threads.leases.this_process", lambda label="": self.owner),
        ):
            yield


class Work(NamedTuple):
    """A thread of the list, in short."""

    thread_id: str
    title: str
    agent: str
    model: str
    turns: int
    hours_ago: float
    fate: str = "done"
    tags: dict[str, str] = {}  # noqa: RUF012 - a default that nobody changes


_WORKS = [
    Work("nightly-118", "Nightly dependency review", "reviewer", "gpt-5-mini", 9, 322, tags={"repo": "api"}),
    Work("onboarding-copy", "Rewrite the onboarding mails", "writer", "claude-sonnet-4-6", 6, 315),
    Work(
        "flaky-checkout",
        "Find out why the checkout test is flaky",
        "coder",
        "claude-opus-4-7",
        31,
        302,
        tags={"repo": "shop"},
    ),
    Work("market-nl", "Compare delivery services in the Netherlands", "researcher", "gpt-5.2", 14, 291),
    Work("nightly-119", "Nightly dependency review", "reviewer", "gpt-5-mini", 8, 250, tags={"repo": "api"}),
    Work("q3-board", "Figures for the board, third quarter", "analyst", "gpt-5.2", 22, 243, tags={"team": "finance"}),
    Work(
        "search-latency",
        "Halve the latency of product search",
        "coder",
        "claude-opus-4-7",
        47,
        220,
        tags={"repo": "shop"},
    ),
    Work("press-kit", "Press kit for the spring release", "writer", "claude-sonnet-4-6", 11, 201),
    Work("gdpr-export", "Export everything that we hold on customer 5521", "support", "gpt-5.2", 7, 190, "failed"),
    Work("nightly-120", "Nightly dependency review", "reviewer", "gpt-5-mini", 10, 154, tags={"repo": "api"}),
    Work(
        "ticket-8702",
        "Parcel lost between Lyon and Turin",
        "support",
        "claude-sonnet-4-6",
        5,
        148,
        tags={"channel": "mail"},
    ),
    Work("postgres-18", "Plan the move to PostgreSQL 18", "coder", "claude-opus-4-7", 26, 127, tags={"repo": "infra"}),
    Work(
        "ticket-8755",
        "Wrong size sent, exchange asked",
        "support",
        "claude-sonnet-4-6",
        4,
        101,
        tags={"channel": "chat"},
    ),
    Work("nightly-121", "Nightly dependency review", "reviewer", "gpt-5-mini", 9, 99, tags={"repo": "api"}),
    Work(
        "churn-october", "Why did customers leave in October?", "analyst", "gpt-5.2", 19, 76, tags={"team": "finance"}
    ),
    Work(
        "a11y-checkout",
        "Make the checkout usable by keyboard alone",
        "coder",
        "claude-opus-4-7",
        38,
        52,
        tags={"repo": "shop"},
    ),
    Work(
        "ticket-8790",
        "Double charge on an annual plan",
        "support",
        "claude-sonnet-4-6",
        6,
        47,
        tags={"channel": "mail"},
    ),
    Work("suppliers-fr", "Shortlist packaging suppliers in France", "researcher", "gpt-5.2", 17, 30, "interrupted"),
    Work("nightly-122", "Nightly dependency review", "reviewer", "gpt-5-mini", 9, 26, tags={"repo": "api"}),
    Work("release-notes-4.2", "Release notes for 4.2", "writer", "claude-sonnet-4-6", 5, 21),
    Work(
        "search-index",
        "Rebuild the search index without downtime",
        "coder",
        "claude-opus-4-7",
        23,
        5.2,
        "crashed",
        {"repo": "shop"},
    ),
    Work(
        "ticket-8836", "Address change after dispatch", "support", "claude-sonnet-4-6", 3, 2.4, tags={"channel": "chat"}
    ),
    Work(
        WAITING,
        "Refund an order that arrived broken",
        "support",
        "claude-sonnet-4-6",
        4,
        0.7,
        "waiting",
        {"channel": "mail"},
    ),
    Work("lisbon-offsite", "Plan the team's three days in Lisbon", "researcher", "gpt-5.2", 8, 0.01, "running"),
]
_TOOLS = {
    "coder": ["read_file", "search_code", "edit_file", "run_tests"],
    "reviewer": ["read_lockfile", "fetch_changelog", "open_pull_request"],
    "writer": ["read_page", "write_page"],
    "researcher": ["search_web", "read_page", "take_note"],
    "analyst": ["query_warehouse", "plot", "write_page"],
    "support": ["find_order", "find_customer", "send_reply"],
}
_REFUND = {"order": "8841", "amount_eur": 64.9, "reason": "arrived broken"}
_SECONDS = {
    "run_tests": 48,
    "query_warehouse": 21,
    "search_web": 3.2,
    "fetch_changelog": 1.4,
    "plot": 6,
    "send_reply": 0.9,
}


async def fill_showroom(store: Checkpointer, folder: Path) -> None:
    clock, dice = Clock(), random.Random(11)
    with clock.ruling():
        for work in _WORKS:
            await _do(store, clock, work, dice)
        await _fork(store, clock, dice)
        await _tell_story(store, clock, folder)
    for thread_id in ("lisbon-offsite", MAIN):
        await _hold(store, thread_id)


async def _do(store: Checkpointer, clock: Clock, work: Work, dice: random.Random) -> None:
    clock.go_to(hours_ago=work.hours_ago)
    clock.pass_(-90 * work.turns if work.fate != "running" else -40 * work.turns)
    clock.work_on(dice.choice(["build-2", "build-5", "ada-laptop"]), dice.randrange(2000, 60000))
    thread = Thread.open(store, work.thread_id)
    await thread.__aenter__()
    await thread.append(ThreadStarted(work.agent, work.model), Described(work.title, dict(work.tags)))
    await thread.append(MessageAdded(user(f"{work.title}.")))
    for turn in range(1, work.turns + 1):
        last = turn == work.turns
        calls = [] if last and work.fate == "done" else _calls(work, dice, last)
        await _turn(thread, clock, work.model, ("Done: all of it is in place." if not calls else "",), calls, dice)
        for index, call in enumerate(calls):
            if last and work.fate in ("crashed", "waiting"):
                break
            await _settle(thread, clock, call, index, "ok")
    await _end(thread, clock, work)


def _calls(work: Work, dice: random.Random, last: bool) -> list[ToolCall]:
    if last and work.fate == "waiting":
        return [ToolCall("c0", "issue_refund", _REFUND)]
    names = dice.sample(_TOOLS[work.agent], k=dice.choice([1, 1, 2]))
    return [ToolCall(f"c{index}", name, {"about": work.title}) for index, name in enumerate(names)]


async def _end(thread: Thread, clock: Clock, work: Work) -> None:
    if work.fate == "running":
        clock.go_to(hours_ago=work.hours_ago)
        await thread.append(ModelCallStarted(work.model))
        thread.abandon()
    elif work.fate == "crashed":
        await thread.append(ToolIntent(thread.messages - 1, 0, "k"))
        thread.abandon()
    else:
        reasons = {"failed": "the model refused: context too long", "interrupted": "stopped by Ctrl+C"}
        if work.fate == "waiting":
            place = thread.messages - 1
            words = "May issue_refund be run with these arguments?"
            asked = Question("approval", "issue_refund", "c0", words, _REFUND, place, 0, "clew:approval")
            await thread.append(StateSet(QUESTIONS, [msgspec.to_builtins(asked)]))
        status = StatusChanged(work.fate, reasons.get(work.fate, ""))  # type: ignore[arg-type] # a status it is here
        await thread.append(status)
        await thread.__aexit__(None, None, None)


async def _turn(
    thread: Thread, clock: Clock, model: str, words: tuple[str, ...], calls: list[ToolCall], dice: random.Random
) -> None:
    """A response: how long it takes, what it says, and what it costs."""
    await thread.append(ModelCallStarted(model))
    seconds = dice.uniform(2.5, 14)
    clock.pass_(seconds)
    texts: list[Block] = (
        [Thinking(words[1]) if len(words) > 1 else Text(words[0])] if words[0] or len(words) > 1 else []
    )
    if len(words) > 1:
        texts.append(Text(words[0]))
    usage = Usage(dice.randrange(6_000, 38_000), dice.randrange(180, 1_900), dice.randrange(3_000, 6_000))
    price_in, price_out = _PRICES[model]
    spent = usage.input_tokens / 1e6 * price_in + usage.output_tokens / 1e6 * price_out
    await thread.append(
        MessageAdded(assistant(*texts, *calls, model=model), usage, spent), Spend(cost_usd=0.0, seconds=seconds)
    )


async def _settle(
    thread: Thread, clock: Clock, call: ToolCall, index: int, result: str, *, failed: bool = False, attempt: int = 1
) -> None:
    place = thread.messages - 1
    await thread.append(ToolIntent(place, index, "k", attempt))
    clock.pass_(_SECONDS.get(call.name, 0.12) * random.Random(f"{place}{index}").uniform(0.6, 1.6))
    await thread.append(ToolOutcome(place, index, ToolResult(call.id, (Text(result),), is_error=failed)))


async def _fork(store: Checkpointer, clock: Clock, dice: random.Random) -> None:
    """Another way was tried from the middle of a thread."""
    clock.go_to(hours_ago=50)
    await fork(store, "a11y-checkout", await Thread.load(store, "a11y-checkout"), "a11y-dialogs", 12)
    async with Thread.open(store, "a11y-dialogs") as thread:
        await thread.append(
            Described("The same, with native dialogs"), MessageAdded(user("Try it with native dialogs."))
        )
        for _ in range(6):
            await _turn(thread, clock, "claude-opus-4-7", ("The dialogs trap focus by themselves.",), [], dice)
        await thread.append(StatusChanged("done"))


async def _tell_story(store: Checkpointer, clock: Clock, folder: Path) -> None:
    """The long thread, turn by turn."""
    dice = random.Random(5)
    clock.go_to(hours_ago=1.02)
    clock.work_on("build-2", 4127)
    folder.mkdir(parents=True, exist_ok=True)
    workspace = Workspace(folder, store)
    thread = Thread.open(store, MAIN)
    await thread.__aenter__()
    await thread.append(
        ThreadStarted("coder", "claude-opus-4-7"),
        Described("Move invoices to the billing API v2", {"repo": "billing", "ticket": "FIN-204"}),
        MessageAdded(user(billing_story.TASK)),
    )
    for beat in billing_story.beats():
        calls = [ToolCall(f"c{index}", name, arguments) for index, (name, arguments, _) in enumerate(beat.calls)]
        await _turn(thread, clock, "claude-opus-4-7", beat.words, calls, dice)
        for index, call in enumerate(calls):
            result = beat.calls[index][2]
            attempt = 1
            if beat.dies_in == index:
                await thread.append(ToolIntent(thread.messages - 1, index, "k"))
                thread.abandon()
                clock.pass_(beat.pause)
                clock.work_on(*beat.goes_on)
                thread = Thread.open(store, MAIN)
                await thread.__aenter__()
                attempt = 2
            await _settle(thread, clock, call, index, result, failed="failed" in result[:24], attempt=attempt)
        if beat.files:
            for name, text in beat.files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            await thread.append((await workspace.snapshot()).entry())
        if beat.then:
            await thread.append(*beat.then)
    clock.go_to(hours_ago=8 / 3600)
    await thread.append(ModelCallStarted("claude-opus-4-7"))
    thread.abandon()


async def _hold(store: Checkpointer, thread_id: str) -> None:
    """Its process lives on another machine and works, for as long as pictures are taken."""
    head = await store.head(thread_id)
    assert head is not None
    assert head.lease is not None
    lease = msgspec.structs.replace(head.lease, expires_at=datetime.now(UTC) + timedelta(days=1))
    await store.append(thread_id, [], at=head.frames, head=msgspec.structs.replace(head, lease=lease))
