"""`clew enqueue`, and what other commands say of threads in the queue."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from clew import Agent, Thread, open_checkpointer
from clew.checkpointers import Head
from clew.testing import ScriptedModel, call
from clew.tools import ToolContext, tool
from clew.workers import Retries, Worker, enqueue
from tests.cli.command_line import Samples, clew, objects

pytestmark = pytest.mark.slow


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'clew.db'}"


def heads(url: str) -> dict[str, Head]:
    async def work() -> dict[str, Head]:
        async with open_checkpointer(url) as store:
            return {head.thread_id: head async for head in Thread.list(store)}

    return asyncio.run(work())


def test_a_prompt_without_an_id_makes_a_thread_and_prints_its_id(url: str) -> None:
    run = clew("enqueue", "Send them.", "--agent", "clerk", store=url)
    assert (run.returncode, run.stderr) == (0, "queued: due now\n")
    (head,) = heads(url).values()
    assert run.stdout == f"{head.thread_id}\n"
    assert (head.status, head.agent, head.title) == ("queued", "clerk", "Send them.")


def test_options_say_when_and_where_it_is_taken(url: str) -> None:
    run = clew(
        *("enqueue", "user-42", "-", "--agent", "clerk", "--priority", "2", "--delay", "10min", "--tag", "a=b"),
        *("--prompt-id", "p-1", "--json"),
        store=url,
        given="Send them.\nAll.",
    )
    (found,) = objects(run)
    assert (found["status"], found["tags"], found["queue"]["priority"]) == ("queued", {"a": "b"}, 2)
    listed = clew("ls", "--status", "queued", store=url).stdout
    assert "due in " in listed
    assert "priority 2" in listed
    assert objects(clew("ls", "--json", store=url))[0]["queue"]["tries"] == 0
    assert "due in " in clew("show", "user-42", store=url).stdout
    why = clew("why", "user-42", store=url)
    assert "In the queue: due in " in why.stdout
    assert "runs the agent clerk" in why.stdout
    assert objects(clew("why", "user-42", "--json", store=url))[0]["queue"]["priority"] == 2
    assert "1 in the queue of the workers; none is due" in clew("stats", store=url).stdout


def test_stats_tell_how_long_the_oldest_has_waited(url: str) -> None:
    clew("enqueue", "a", "Go.", "--agent", "clerk", "--priority", "9", store=url)
    (found,) = objects(clew("stats", "--json", store=url))
    assert found["queue"]["length"] == 1
    assert found["queue"]["oldest_due"] == objects(clew("ls", "--json", store=url))[0]["queue"]["queued_at"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "give a prompt"),
        (["a", "b", "c"], 2, "needs quotes"),
        ([" "], 2, "the prompt is empty"),
        (["Go."], 2, "which agent"),
        (["new", "Go."], 2, "which agent"),
        (["nobody", "--again"], 3, "no thread 'nobody'"),
        (["trip", "Go.", "--again"], 2, "nothing new to say"),
        (["trip", "--answer", "yes"], 2, "does not wait"),
        (["trip", "Go.", "--agent", "clerk"], 2, "is one of the agent 'planner'"),
        (["trip", "Go.", "--priority", "12"], 2, "from -9 to 9"),
        (["trip", "Go.", "--delay", "soon"], 2, "is not a length of time"),
        (["trip", "Go.", "--tag", "clew:x=1"], 2, "keeps for itself"),
        (["clew:x", "Go.", "--agent", "clerk"], 2, "Choose another"),
        (["trip", "--from", "x.jsonl"], 2, "Leave out ID"),
        (["--from", "x.jsonl", "--agent", "clerk"], 2, "No such file"),
    ],
)
def test_what_cannot_be_queued_is_refused_with_a_reason(
    arguments: list[str], code: int, said: str, tmp_path: Path
) -> None:
    run = Samples(tmp_path).clew("enqueue", *arguments)
    assert (run.returncode, run.stdout) == (code, "")
    assert said in " ".join(run.stderr.split())


def test_a_thread_that_exists_needs_no_agent_and_is_queued_with_the_answer_that_it_waits_for(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    assert samples.clew("enqueue", "trip", "Once more.").returncode == 0
    assert samples.clew("enqueue", "visa", "--answer", "yes").returncode == 0
    found = heads(samples.url)
    assert (found["trip"].status, found["visa"].status) == ("queued", "queued")


def test_a_file_is_enqueued_once_however_often_it_is_given(url: str, tmp_path: Path) -> None:
    lines = [
        {"prompt": "Send.", "id": "a", "tags": {"x": "y"}, "priority": 3},
        {"prompt": "And again.", "id": "a"},
        {"prompt": "Hello."},
        {"prompt": "Hello."},
        {"prompt": "Later.", "delay": 600, "agent": "writer", "prompt_id": "p"},
    ]
    file = tmp_path / "orders.jsonl"
    file.write_text("\n".join(map(json.dumps, lines[:2])) + "\n\n")
    given = ("enqueue", "--from", str(file), "--agent", "clerk", "--tag", "of=file")
    assert clew(*given, store=url).stdout == "2 prompts enqueued\n"
    file.write_text("\n".join(map(json.dumps, lines)))  # the first run ended early
    assert clew(*given, store=url).stdout == "3 prompts enqueued; 2 lines of it were there already\n"
    found = heads(url)
    assert sorted(head.agent for head in found.values()) == ["clerk", "clerk", "clerk", "writer"]
    assert found["a"].tags == {"of": "file", "x": "y"}

    async def work() -> list[str]:
        async with open_checkpointer(url) as store:
            await Worker(Agent(ScriptedModel(["Done."] * 9), name="clerk"), store=store).run(until_empty=True)
            return [entry.status async for entry in Thread.list(store)]

    assert sorted(asyncio.run(work())) == ["done", "done", "done", "queued"]
    again = clew(*given, "--json", store=url)
    assert (again.stdout, again.stderr) == ("", "0 prompts enqueued; 5 lines of it were there already\n")


def test_it_says_so_if_an_agent_runs_the_thread_or_the_prompt_was_answered_before(url: str) -> None:
    said = ("enqueue", "t", "Go.", "--agent", "clerk", "--prompt-id", "p")

    @tool
    async def send() -> str:
        run = await asyncio.to_thread(clew, "enqueue", "t", "And this.", store=url)
        assert "An agent runs it, and takes this in. To follow it: clew tail t" in run.stderr
        return "sent"

    async def work() -> None:
        async with open_checkpointer(url) as store:
            agent = Agent(ScriptedModel([call("send"), "Done."]), name="clerk", tools=[send])
            await Worker(agent, store=store, poll=0.05).run(until_empty=True)

    assert clew(*said, store=url).stderr == "queued: due now\n"
    asyncio.run(work())
    again = clew(*said, store=url)
    assert (again.returncode, again.stderr) == (0, "This prompt was asked and answered before. Nothing was queued.\n")
    assert heads(url)["t"].status == "done"


@pytest.mark.parametrize("line", ['{"prompt": 3}', "{", '{"id": "a"}', '{"prompt": "x", "model": "y"}', "\xff", "[]"])
def test_a_malformed_line_is_named_and_nothing_is_enqueued(url: str, line: str) -> None:
    run = clew("enqueue", "--from", "-", "--agent", "clerk", store=url, given=f'{{"prompt": "Go."}}\n{line}\n')
    assert run.returncode == 2
    assert "line 2 of -" in run.stderr
    assert heads(url) == {}


def test_a_line_that_is_refused_says_what_was_done_before(url: str) -> None:
    lines = ['{"prompt": "Go.", "id": "a"}', '{"prompt": "Go.", "id": "a", "priority": 99}']
    run = clew("enqueue", "--from", "-", "--agent", "clerk", store=url, given="\n".join(lines))
    assert run.returncode == 2
    assert "That was line 2. 1 of 2 were enqueued." in run.stderr


def test_hostile_titles_and_tags_do_not_reach_the_terminal(url: str) -> None:
    run = clew("enqueue", "a\x1b[2J", "x \x1b[31m", "--agent", "c\x1b]0;x\x07", "--tag", "\x1b=\x1b", store=url)
    assert run.returncode == 0
    for command in (["ls"], ["ls", "--json"], ["why", "a\x1b[2J"], ["show", "a\x1b[2J"], ["stats"]):
        shown = clew(*command, store=url)
        assert shown.returncode == 0
        assert "\x1b" not in run.stdout + run.stderr + shown.stdout + shown.stderr


def test_a_thread_that_was_set_aside_says_how_to_queue_it_again(url: str) -> None:
    @tool
    async def fall(ctx: ToolContext) -> str:
        raise KeyError("no such thing")

    async def work() -> None:
        async with open_checkpointer(url) as store:
            await enqueue(store, "t", "Go.", agent="clerk")
            model = ScriptedModel([call("fall"), *[RuntimeError("red")] * 9])
            agent = Agent(model, name="clerk", tools=[fall])
            await Worker(agent, store=store, retries=Retries(most=2, first=0), poll=0.01).run(until_empty=True)

    asyncio.run(work())
    assert heads(url)["t"].status == "failed"
    why = clew("why", "t", store=url)
    assert "set aside after 2 tries" in why.stdout
    assert "Let workers try it again: clew enqueue t --again" in why.stdout
    assert objects(clew("why", "t", "--json", store=url))[0]["again"] == "clew enqueue t --again"


def test_show_says_what_is_to_be_asked(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/c.db"
    assert clew("enqueue", "t", "Send the invoices.", "--agent", "clerk", store=store).returncode == 0
    assert "To be asked: Send the invoices." in clew("show", "t", store=store).stdout
