"""Spans and log lines: there when somebody listens, free when nobody does, and never with content in them."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import clew.sync
from clew import Agent, Thread, open_checkpointer
from clew._runtime import telemetry
from clew._runtime.telemetry import span
from clew.checkpointers import Checkpointer, MemoryCheckpointer
from clew.errors import ClewError, LeaseLost, ModelRefused, Unavailable
from clew.log import (
    Compacted,
    Described,
    LeaseTaken,
    Logged,
    MessageAdded,
    ModelCallRefused,
    ModelCallStarted,
    ProviderKey,
    StateSet,
    StatusChanged,
    StepIntent,
    StepOutcome,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
)
from clew.messages import File, Image, Json, Text, Thinking, ToolCall, ToolResult, assistant, system, tool, user
from clew.sync._blocking import blocking
from clew.testing import ScriptedModel, call
from clew.tools import tool as tool_of_ours

SECRET = "hunter2-swordfish"
KEY, OTHER_KEY = "5ec7e7" + "00" * 29, "07be7" + "1" * 59


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """A tracer as a program sets one up, for this test alone."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_tracer", provider.get_tracer("clew"))
    yield exporter
    provider.shutdown()


def test_a_span_says_which_thread_and_how_much(spans: InMemorySpanExporter) -> None:
    with span("clew.load", thread_id="t") as current:
        current.set(frames=12, bytes=3400)
    (done,) = spans.get_finished_spans()
    assert done.name == "clew.load"
    assert done.attributes == {"clew.thread_id": "t", "clew.frames": 12, "clew.bytes": 3400}
    assert done.status.is_unset


def test_spans_inside_one_another_are_parent_and_child(spans: InMemorySpanExporter) -> None:
    with span("outer"), span("inner"):
        pass
    inner, outer = spans.get_finished_spans()
    assert inner.parent is not None
    assert outer.context is not None
    assert inner.parent.span_id == outer.context.span_id


def test_an_agent_tells_of_its_calls_and_nothing_of_what_is_in_them(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    @tool_of_ours(effect="idempotent")
    def look(word: str) -> str:
        raise ValueError(SECRET)

    caplog.set_level(logging.DEBUG, "clew")
    model = ScriptedModel([call("look", word=SECRET), f"It is {SECRET}."])
    with clew.sync.Agent(model, name="ada", tools=[look], checkpointer=None) as agent:
        assert SECRET in agent.run(f"Look for {SECRET}.", thread_id="t").output
    found = {span.name: dict(span.attributes or {}) for span in spans.get_finished_spans()}
    assert found["clew.model_call"]["clew.model"] == "scripted"
    assert found["clew.tool_call"] == {
        "clew.thread_id": "t",
        "clew.tool": "look",
        "clew.attempt": 1,
        "clew.is_error": True,
    }
    assert SECRET not in str(found) + str([span.events for span in spans.get_finished_spans()])
    assert SECRET not in caplog.text
    assert "tool look raised ValueError at" in caplog.text


def test_a_failed_span_names_the_type_of_the_error_and_nothing_of_its_text(spans: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match=SECRET), span("clew.append"):
        raise ValueError(SECRET)
    (done,) = spans.get_finished_spans()
    assert done.attributes == {"error.type": "ValueError"}
    assert not done.status.is_ok
    assert SECRET not in done.to_json()


def test_a_span_of_the_caller_is_the_parent_of_what_runs_in_the_loop_of_clew_sync(spans: InMemorySpanExporter) -> None:
    class Traced(MemoryCheckpointer):
        async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
            with span("inside"):
                return await super().read(thread_id, start=start, stop=stop)

    store: clew.sync.Checkpointer
    with blocking(Traced)() as store, span("outside"):
        store.read("t")
    inside, outside = spans.get_finished_spans()
    assert inside.parent is not None
    assert outside.context is not None
    assert inside.parent.span_id == outside.context.span_id


def script(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr == ""
    return run.stdout.strip()


def test_importing_clew_does_not_import_opentelemetry() -> None:
    loaded = "print(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert script(f"import sys, clew, clew.sync, clew._runtime.telemetry; clew.Thread; {loaded}") == "False"


def test_without_the_package_a_span_is_nothing_and_costs_next_to_nothing() -> None:
    found = script(
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "from clew._runtime.telemetry import span\n"
        "with span('clew.append', thread_id='t', frames=1) as current: current.set(bytes=1)\n"
        "calls = []\n"
        "sys.setprofile(lambda frame, event, argument: calls.append(event))\n"
        "with span('clew.append', thread_id='t', frames=1): pass\n"
        "sys.setprofile(None)\n"
        "print(calls.count('call'), calls.count('c_call'), span('one') is span('another'))\n"
    )
    python, builtin, is_shared = found.split()
    assert int(python) <= 4, "to make it, to look for a tracer, to enter and to leave: 0.3 µs on a quiet machine"
    assert int(builtin) <= 2
    assert is_shared == "True"


def test_with_the_package_and_no_tracer_set_up_nothing_is_recorded() -> None:
    setup = (
        "from opentelemetry.sdk.trace import TracerProvider; "
        "from opentelemetry import trace; "
        "from clew._runtime.telemetry import span; "
    )
    use = "s = span('x'); s.__enter__(); s.__exit__(None, None, None); print(type(s).__name__); "
    later = "trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False)); "
    assert script(setup + use + later + use).split() == ["_NoSpan", "_OpenSpan"]


@pytest.mark.anyio
async def test_a_span_of_a_model_call_says_that_it_was_refused_and_not_in_which_words(
    spans: InMemorySpanExporter,
) -> None:
    refusal = ModelRefused("scripted", f"HTTP 400: {SECRET}", status=400)
    agent = Agent(ScriptedModel([refusal]), checkpointer=MemoryCheckpointer())
    with pytest.raises(ModelRefused):
        await agent.run("Go.", thread_id="t")
    (found,) = [dict(one.attributes or {}) for one in spans.get_finished_spans() if one.name == "clew.model_call"]
    assert (found["clew.refused"], found["clew.status"], found["error.type"]) == (True, 400, "ModelRefused")
    assert SECRET not in str(found)


EVERYWHERE: Sequence[Logged] = [
    ThreadStarted("agent", "model", SECRET, {"look": SECRET}, {SECRET: SECRET}),
    MessageAdded(system(SECRET)),
    MessageAdded(user(SECRET, Image(SECRET, SECRET.encode()), File(SECRET, SECRET, SECRET.encode()))),
    ModelCallStarted("model", SECRET),
    ModelCallRefused(SECRET),
    MessageAdded(assistant(SECRET * 5000, Thinking(SECRET, SECRET, SECRET), ToolCall("c", "look", {SECRET: SECRET}))),
    ToolIntent(3, 0, SECRET),
    StepIntent(3, 0, SECRET),
    StepOutcome(3, 0, SECRET, {SECRET: SECRET}),
    ToolOutcome(3, 0, ToolResult("c", (Text(SECRET), Json({SECRET: SECRET})), is_error=True)),
    MessageAdded(tool(ToolResult("c", (Text(SECRET),)))),
    ProviderKey("claude_code", SECRET),
    StateSet(SECRET, SECRET),
    Described(SECRET, {SECRET: SECRET}),
    Compacted(user(SECRET)),
    StatusChanged("waiting", SECRET),
    LeaseTaken("somebody", SECRET),
]


class Stumbling(MemoryCheckpointer):
    """Fails as often as it is told to."""

    fails = 0

    async def append(self, *args: Any, **kwargs: Any) -> None:
        if self.fails:
            self.fails -= 1
            raise Unavailable("the store did not answer")
        await super().append(*args, **kwargs)


async def a_day_in_the_life(url: str) -> list[BaseException]:
    """Everything that logs, traces or fails, with the secret in every field; returns the errors."""
    errors: list[BaseException] = []

    async def failing(work: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(ClewError) as caught:
            await work()
        errors.append(caught.value)

    async with open_checkpointer(url, key=KEY) as store:
        first = await Thread.open(store, "t").__aenter__()
        for entry in EVERYWHERE:
            await first.append(entry)
        await failing(Thread.open(store, "t").__aenter__)
        async with Thread.open(store, "t", takeover=True) as second:
            await failing(lambda: first.append(*EVERYWHERE))
            await failing(lambda: first.__aexit__(None, None, None))
            await failing(lambda: second.append(StateSet("k", object())))
            await failing(lambda: second.append(MessageAdded(user(SECRET + "\ud800"))))
            await failing(lambda: second.rewind(99))
            await failing(lambda: second.fork("t"))
            await second.fork("f")
        await failing(lambda: Thread.load(store, "absent"))
        await damaged(store, failing)
    if "memory" not in url:
        for key in (None, OTHER_KEY):
            async with open_checkpointer(url, key=key) as store:
                await failing(lambda: Thread.load(store, "t"))
    with pytest.raises(ClewError) as caught:
        open_checkpointer(url, key=SECRET)
    errors.append(caught.value)

    stumbling = Stumbling()
    async with Thread.open(stumbling, "s", durability="async") as thread:
        stumbling.fails = 1
        await thread.append(StateSet("k", SECRET))
        stumbling.fails = 2
        await failing(lambda: thread.append(*EVERYWHERE))
        stumbling.fails = 0
        await thread.flush()
    return errors


async def damaged(store: Checkpointer, failing: Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]) -> None:
    """A copy of the thread whose last frame is not what it was."""
    head, frames = await store.head("t"), await store.read("t")
    assert head is not None
    frames[-1] = frames[-1][:-9] + bytes(9)
    await store.append("d", frames, at=0, head=msgspec.structs.replace(head, thread_id="d"), refs=await store.refs("t"))
    await failing(lambda: Thread.load(store, "d"))


@pytest.mark.anyio
@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/c.db", "file://{}/threads"])
async def test_no_content_and_no_key_is_ever_in_a_log_line_a_span_or_an_error(
    url: str, tmp_path: Path, spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="clew")
    errors = await a_day_in_the_life(url.format(tmp_path))
    assert len(errors) >= 9
    assert "clew.threads" in {record.name for record in caplog.records}
    formatter = logging.Formatter("%(name)s %(levelname)s %(message)s")
    told = [formatter.format(record) for record in caplog.records]
    told += [str(record.args) for record in caplog.records]
    told += ["".join(traceback.format_exception(error)) + repr(error) for error in errors]
    told += [done.to_json() for done in spans.get_finished_spans() if isinstance(done, ReadableSpan)]
    for text in told:
        assert SECRET not in text
        assert "swordfish" not in text
        assert KEY not in text
        assert OTHER_KEY not in text


@pytest.mark.anyio
async def test_appending_and_loading_are_traced_with_their_sizes(spans: InMemorySpanExporter) -> None:
    async with MemoryCheckpointer() as store:
        async with Thread.open(store, "t") as thread:
            await thread.append(*EVERYWHERE)
        spans.clear()
        frames = await store.read("t")
        await Thread.load(store, "t")
        async with Thread.open(store, "t") as thread:
            spans_before = len(spans.get_finished_spans())
            await thread.append(StateSet("a", 1), StateSet("b", 2))
    done = spans.get_finished_spans()
    assert done[0].name == "clew.load"
    assert done[0].attributes is not None
    assert done[0].attributes["clew.thread_id"] == "t"
    assert done[0].attributes["clew.frames"] == len(frames)
    assert done[0].attributes["clew.bytes"] == sum(map(len, frames))
    appended = done[spans_before]
    assert appended.name == "clew.append"
    assert appended.attributes is not None
    assert appended.attributes["clew.entries"] == 2
    assert appended.attributes["clew.frames"] == 1


class SlowBlobs(MemoryCheckpointer):
    """Takes its time over blobs, or fails."""

    fails = False

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        await asyncio.sleep(0.05)
        if self.fails:
            raise Unavailable("no room for blobs")
        await super().put_blobs(blobs)


@pytest.mark.anyio
async def test_the_span_of_an_append_holds_its_blobs(spans: InMemorySpanExporter) -> None:
    async with SlowBlobs() as store, Thread.open(store, "t") as thread:
        spans.clear()
        await thread.append(StateSet("large", "x" * 70_000))
        store.fails = True
        with pytest.raises(Unavailable):
            await thread.append(StateSet("large", "y" * 70_000))
        store.fails = False
        await thread.flush()
        took, failed, _ = spans.get_finished_spans()
    assert took.name == failed.name == "clew.append"
    assert (took.end_time or 0) - (took.start_time or 0) > 40_000_000
    assert dict(failed.attributes or {})["error.type"] == "Unavailable"


@pytest.mark.anyio
async def test_a_lost_lease_is_the_error_of_the_append_that_found_out(spans: InMemorySpanExporter) -> None:
    async with MemoryCheckpointer() as store:
        thread = await Thread.open(store, "t").__aenter__()
        async with Thread.open(store, "t", takeover=True):
            spans.clear()
            with pytest.raises(LeaseLost):
                await thread.append(StateSet("a", 1))
            (failed,) = spans.get_finished_spans()
    assert dict(failed.attributes or {})["error.type"] == "LeaseLost"


def test_a_tracer_that_is_set_up_late_is_soon_seen_by_appends() -> None:
    found = script(
        "import time; from opentelemetry import trace; from opentelemetry.sdk.trace import TracerProvider; "
        "from clew._runtime.telemetry import is_listened_to; print(is_listened_to(), end=' '); "
        "trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False)); time.sleep(0.11); print(is_listened_to())"
    )
    assert found == "False True"


@pytest.mark.anyio
async def test_an_append_that_failed_is_an_error_in_its_span(spans: InMemorySpanExporter) -> None:
    async with Stumbling() as store, Thread.open(store, "t") as thread:
        store.fails = 1
        with pytest.raises(Unavailable):
            await thread.append(StateSet("a", 1))
        await thread.flush()
    failed = [done for done in spans.get_finished_spans() if not done.status.is_unset]
    assert [(done.name, dict(done.attributes or {})["error.type"]) for done in failed] == [
        ("clew.append", "Unavailable")
    ]
