"""Trajectories and views tell what happened: how each prompt ended, why, and what it cost."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from clew import Agent, Thread, open_checkpointer
from clew.agent.rewind import rewind
from clew.checkpointers import HeadQuery, MemoryCheckpointer
from clew.errors import ContextTooLong, ModelError, ModelRefused, ModelUnavailable
from clew.log import MessageAdded, StatusChanged, Usage
from clew.messages import assistant, user
from clew.providers import Exchange
from clew.testing import Response, ScriptedModel, call
from clew.threads import to_json, to_markdown
from clew.threads.views.timeline import read_timeline
from tests.agent.endings import ENDINGS, REFUSAL, VENDOR_WORDS, Endings, make_agent
from tests.cli.command_line import clew, objects
from tests.server.inspector.looking import thread
from tests.server.serving import serving

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    made = f"sqlite:///{tmp_path_factory.mktemp('endings')}/clew.db"
    async with Endings(made):
        yield made


async def turns_of(url: str, name: str) -> tuple[Exchange, ...]:
    async with make_agent(url, []) as agent:
        return (await agent.start_session(thread_id=name).trajectory()).exchanges


@pytest.mark.parametrize("name", ENDINGS)
async def test_a_trajectory_tells_how_each_prompt_ended_why_and_what_it_cost(url: str, name: str) -> None:
    expected = ENDINGS[name]
    first, last = await turns_of(url, name)
    assert (first.status, first.reason, first.output, first.prompt_id) == ("done", "", "Hello.", "m1")
    assert (last.status, last.prompt_id, last.provider, last.model) == (expected.status, "m2", "clew", "example")
    assert last.reason.startswith(expected.reason)
    assert bool(last.reason) == bool(expected.reason)
    assert (last.output is None) == (expected.status != "done")
    async with open_checkpointer(url) as store:
        state = await Thread.load(store, name)
    assert first.usage is not None
    assert first.cost is not None
    if not expected.is_known:
        assert (last.usage, last.cost) == (None, None)
        return
    assert last.usage is not None
    assert last.cost is not None
    assert (last.usage.input_tokens > 0) == (last.cost > 0) == (name != "refused")
    both = [mine + other for mine, other in zip(vars_of(first.usage), vars_of(last.usage), strict=True)]
    assert both == vars_of(state.usage), "prompts add up to the thread"
    assert first.cost + last.cost == pytest.approx(state.cost_usd)
    assert first.duration + last.duration == pytest.approx(state.seconds, abs=1e-4)


def vars_of(usage: Usage) -> list[int]:
    return [getattr(usage, field) for field in Usage.__struct_fields__]


@pytest.mark.parametrize("name", ENDINGS)
async def test_states_lists_timelines_and_exports_tell_the_same_ending(url: str, name: str) -> None:
    status = ENDINGS[name].status
    async with open_checkpointer(url) as store:
        state = await Thread.load(store, name)
        (head,) = [head async for head in Thread.list(store, HeadQuery(prefix=name)) if head.thread_id == name]
        timeline = await read_timeline(store, name)
    assert (state.status, head.status) == (status, status)
    assert f'"status": "{status}"' in to_json(state)
    assert f"| Status | {status}" in to_markdown(state)
    last = [mark.kind for mark in timeline.marks][-1]
    assert last == {"killed": "crashed", "running": "resumed"}.get(name, status)
    calls = [call.status for turn in timeline.turns for call in turn.calls]
    open_calls = {"cancelled": "in doubt", "timeout": "in doubt", "killed": "in doubt", "running": "running"}
    assert calls == (
        []
        if name in ("failed-at-once", "refused")
        else [open_calls.get(name, "waiting" if name == "waiting" else "done")]
    )
    assert [turn.usage is not None and turn.cost_usd is not None for turn in timeline.turns] == [True] * state.turns


async def test_the_command_tells_the_same_endings(url: str, tmp_path: Path) -> None:
    listed = {found["thread_id"]: found["status"] for found in objects(clew("ls", "--json", store=url, cwd=tmp_path))}
    assert listed == {name: expected.status for name, expected in ENDINGS.items()}
    (totals,) = objects(clew("stats", "--json", store=url, cwd=tmp_path))
    by_status = {found["status"]: found["threads"] for found in totals["by_status"]}
    assert by_status == {"done": 1, "failed": 3, "interrupted": 5, "waiting": 1, "running": 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDINGS)
async def test_show_tells_how_each_prompt_ended_why_and_what_it_cost(url: str, name: str, tmp_path: Path) -> None:
    (shown,) = objects(clew("show", name, "--json", store=url, cwd=tmp_path))
    assert shown["status"] == ENDINGS[name].status
    told = await turns_of(url, name)
    assert [
        (found["prompt_id"], found["prompt"], found["status"], found["reason"], found["cost_usd"], found["seconds"])
        for found in shown["exchanges"]
    ] == [(turn.prompt_id, turn.prompt, turn.status, turn.reason, turn.cost, turn.duration) for turn in told]
    (why,) = objects(clew("why", name, "--json", store=url, cwd=tmp_path))
    assert why["status"] == ENDINGS[name].status


async def test_the_inspector_tells_the_same_endings(url: str) -> None:
    with serving(url) as running, httpx.Client(base_url=running.url) as browser:
        for name, expected in ENDINGS.items():
            page = browser.get(thread(name)).text
            (facts,) = re.findall(r'data-test="facts">(.*?)</dl>', page, re.DOTALL)
            shown = re.findall(r'data-status="(\w+)"', facts)
            assert shown == ["crashed" if name == "killed" else expected.status], name


async def test_every_view_says_that_a_request_was_refused_and_none_that_it_was_lost(url: str, tmp_path: Path) -> None:
    async with open_checkpointer(url) as store:
        state = await Thread.load(store, "refused")
        timeline = await read_timeline(store, "refused")
    assert (state.unaccounted, state.in_flight, state.cost_usd is None) == (0, False, False)
    marks = [mark.text for mark in timeline.marks]
    views = {
        "markdown": to_markdown(state),
        "json": to_json(state),
        "timeline": "\n".join(marks),
        **{command: clew(command, "refused", store=url, cwd=tmp_path).stdout for command in ("why", "show", "tail")},
        "export": clew("export", "refused", "-", "--markdown", store=url, cwd=tmp_path).stdout,
    }
    with serving(url) as running, httpx.Client(base_url=running.url) as browser:
        views["inspector"] = browser.get(thread("refused")).text
    for name, view in views.items():
        words = re.sub(r"\s+", " ", view.replace("\\", ""))
        assert "was refused" in words, name
        assert VENDOR_WORDS in words, name
        assert "lost" not in words.replace("closed", ""), name
        assert "may have been paid" not in words, name
    assert sum(VENDOR_WORDS in mark for mark in marks) == 2, "each refusal is told once"


async def test_a_run_that_goes_on_after_a_refusal_knows_what_it_cost(store: MemoryCheckpointer) -> None:
    refused = make_agent(store, [REFUSAL])
    await refused.run("Hi.", thread_id="t")
    with pytest.raises(ModelRefused):
        await refused.run("Go.", thread_id="t")
    result = await make_agent(store, ["Done."]).run("Go.", thread_id="t")
    state = await Thread.load(store, "t")
    assert (result.output, result.cost is None, state.unaccounted) == ("Done.", False, 0)


@pytest.mark.parametrize(("error", "lost"), [(REFUSAL, 0), (ModelUnavailable("example", "HTTP 500", attempts=5), 1)])
async def test_only_a_request_that_may_have_been_charged_counts_as_lost(
    store: MemoryCheckpointer, error: ModelError, lost: int
) -> None:
    agent = make_agent(store, [error])
    await agent.run("Hi.", thread_id="t")
    for _ in range(2):
        with pytest.raises(type(error)):
            await agent.run("Go.", thread_id="t")
    assert (await Thread.load(store, "t")).unaccounted == lost


async def test_what_a_prompt_cost_is_unknown_if_a_request_for_it_was_lost_before_one_was_refused(
    store: MemoryCheckpointer,
) -> None:
    agent = make_agent(store, [])
    await agent.run("Hi.", thread_id="t")
    for error in (ModelUnavailable("example", "a timeout", attempts=5), REFUSAL):
        with pytest.raises(type(error)):
            await make_agent(store, [error]).run("Go.", thread_id="t")
    last = (await agent.start_session(thread_id="t").trajectory()).exchanges[-1]
    assert (last.usage, last.cost) == (None, None)


async def test_a_conversation_that_was_refused_as_too_long_and_summed_up_is_told_and_not_lost(
    store: MemoryCheckpointer,
) -> None:
    too_long = ContextTooLong("example", "HTTP 400, invalid_request_error: prompt is too long", status=400)
    answers: list[Response] = ["One.", "Two.", too_long, too_long, "In short.", "Three."]
    agent = Agent(ScriptedModel(lambda request: answers.pop(0)), checkpointer=store)
    for prompt in ("One?", "Two?", "Three?"):
        await agent.run(prompt, thread_id="t")
    state, timeline = await Thread.load(store, "t"), await read_timeline(store, "t")
    assert (state.unaccounted, state.in_flight, state.status) == (0, False, "done")
    told = [(mark.kind, mark.text) for mark in timeline.marks if mark.kind in ("refused", "compacted")]
    assert [kind for kind, _ in told] == ["refused", "refused", "compacted"]
    assert told[0][1].startswith("refused: the conversation does not fit (HTTP 400, ")


async def test_a_prompt_costs_what_all_its_runs_bought_and_a_run_what_it_bought_itself(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    killed = subprocess.run([sys.executable, "-m", "tests.agent.endings", url], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    first, before = await turns_of(url, "killed")
    async with make_agent(url, [call("look"), call("look"), "Done."], max_turns=2) as agent:
        stopped = await agent.run("Go.", thread_id="killed", prompt_id="m2")
        half = (await agent.start_session(thread_id="killed").trajectory()).exchanges[-1]
        result = await agent.resume(thread_id="killed", max_turns=9)
        told = await agent.start_session(thread_id="killed").trajectory()
    assert (half.status, half.reason) == ("interrupted", "max_turns: 2")
    assert (told.exchanges[-1].status, told.exchanges[-1].reason, told.exchanges[-1].output) == ("done", "", "Done.")
    bought = [before.cost, stopped.cost, result.cost]
    assert all(cost is not None and cost > 0 for cost in bought)
    assert told.exchanges[-1].cost == pytest.approx(sum(cost or 0.0 for cost in bought))
    assert told.cost == pytest.approx((first.cost or 0.0) + (told.exchanges[-1].cost or 0.0))


async def test_a_prompt_that_another_one_overtook_is_not_done(store: MemoryCheckpointer) -> None:
    agent = make_agent(store, [call("look"), call("look"), "Both."], max_turns=1)
    await agent.run("Hi.", thread_id="t")
    await agent.run("Go.", thread_id="t")
    await make_agent(store, [call("look"), "Both."]).run("And?", thread_id="t")
    told = (await agent.start_session(thread_id="t").trajectory()).exchanges
    assert [(turn.prompt, turn.status, turn.reason) for turn in told] == [
        ("Hi.", "done", ""),
        ("Go.", "interrupted", "max_turns: 1"),
        ("And?", "done", ""),
    ]


async def test_a_prompt_is_as_it_was_at_the_turn_that_a_thread_was_rewound_to(store: MemoryCheckpointer) -> None:
    agent = make_agent(store, [call("look"), "Done.", "More."])
    for prompt in ("Hi.", "Go.", "And?"):
        await agent.run(prompt, thread_id="t")
    await rewind(store, "t", 3)
    told = (await agent.start_session(thread_id="t").trajectory()).exchanges
    assert [turn.status for turn in told] == ["done", "done"]
    await rewind(store, "t", 2)
    told = (await agent.start_session(thread_id="t").trajectory()).exchanges
    assert [(turn.status, turn.reason) for turn in told] == [("done", ""), ("interrupted", "rewound to turn 2")]
    assert told[1].cost is None, "what it cost cannot be told from what the rewound prompt cost"
    assert (await agent.run("Go.", thread_id="t")).output == "Done."
    assert [turn.status for turn in (await agent.start_session(thread_id="t").trajectory()).exchanges] == [
        "done",
        "done",
    ]


async def test_an_unknown_price_is_no_cost_and_the_tokens_are_known(store: MemoryCheckpointer) -> None:
    agent = Agent(ScriptedModel(["One."], name="nobody-knows"), checkpointer=store)
    result = await agent.run("Go.", thread_id="t")
    (told,) = (await agent.start_session(thread_id="t").trajectory()).exchanges
    assert (result.usage, result.cost) == (told.usage, told.cost)
    assert (told.usage is not None, told.cost) == (True, None)


async def test_prompts_that_were_put_on_record_by_hand_are_told_without_a_cost(store: MemoryCheckpointer) -> None:
    async with Thread.open(store, "t") as opened:
        for words in ("One.", "Two."):
            await opened.append(MessageAdded(user("Go.")), MessageAdded(assistant(words), Usage(5, 5), 0.5))
        await opened.append(StatusChanged("done"))
    agent = Agent(ScriptedModel(["One.", "Two.", "Three."]), checkpointer=store)
    told = (await agent.start_session(thread_id="t").trajectory()).exchanges
    assert [(turn.status, turn.output, turn.usage, turn.cost) for turn in told] == [
        ("done", "One.", None, None),
        ("done", "Two.", None, None),
    ]
    assert (await agent.run("Go.", thread_id="t")).output == "Three."
