"""Every command that Clew prints, printed where it belongs and followed.

For each kind of advice there is at least one scenario. It brings about the situation with real commands, takes what was
printed, and runs that through a shell in another folder; a call in Python is evaluated. A kind of advice without a scenario
fails, and so does a scenario in which nobody prints it.
"""

from __future__ import annotations

import asyncio
import functools
import html
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import clew as package
from clew import Agent, Budget, Thread, advice, open_checkpointer, tool
from clew.advice import KINDS
from clew.errors import LeaseLost, MissingExtra, NewerFormat, SessionNotFound, ThreadBusy, ThreadNotFound
from clew.log import Checkpoint, MessageAdded
from clew.messages import user
from clew.providers.base import Place
from clew.providers.registry import find_provider
from clew.server.inspector.templates import thread_url
from clew.testing import ScriptedModel, call
from clew.workers import Retries, Worker, enqueue
from tests.cli import command_line
from tests.cli.command_line import Samples, path_with_clew
from tests.cli.native_sessions import Machine as NativeMachine
from tests.cli.workshop import Workshop
from tests.limits import PATIENCE
from tests.server.serving import a_token, serving
from tests.servers.clis import cli_path

pytestmark = [pytest.mark.slow]

ROOT = Path(package.__file__).parents[2]


def asks(name: str, **arguments: Any) -> dict[str, Any]:
    """A response of the model that calls a tool."""
    return {"call": {"name": name, "arguments": arguments}}


NAP = (asks("nap", seconds=0), asks("nap", seconds=0), "Rested.")
_WATCH = """
import functools, json, os, sys
path = os.environ.get("CLEW_TEST_ADVICE")
if path:
    from clew import advice
    def watched(name, make):
        @functools.wraps(make)
        def told(*args, **given):
            text = make(*args, **given)
            with open(path, "a") as file:
                file.write(json.dumps([name, text]) + "\\n")
            return text
        return told
    for name, make in advice.KINDS.items():
        setattr(advice, name, watched(name, make))
"""
"""What commands run first: each notes the advice it takes from the one place."""


class Bench(Workshop):
    """A workshop whose commands note the advice they make; the store is named by --store, by a path from its folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.root = folder
        self.home = folder / "home"
        self.home.mkdir()
        self.elsewhere = folder / "elsewhere"
        self.elsewhere.mkdir()
        watch = folder / "watch"
        watch.mkdir()
        (watch / "sitecustomize.py").write_text(_WATCH)
        self._noted = folder / "noted"
        self.env["PYTHONPATH"] = os.pathsep.join([str(watch), self.env["PYTHONPATH"]])
        self.env["CLEW_TEST_ADVICE"] = str(self._noted)
        self.env["PATH"] = path_with_clew(folder / "bin")
        self.at = ("--store", "sqlite:///clew.db")

    def do(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """A command in the workshop's folder."""
        return command_line.clew(*arguments, cwd=self.folder, env={**self.env, **env})

    def told(self, kind: str, shown: str) -> str:
        """The advice of this kind that is printed there, whole. Of two that begin alike it is the longer one."""
        noted = [json.loads(line) for line in self._noted.read_text().splitlines()]
        printed = [str(text) for name, text in noted if name == kind and text in shown]
        assert printed, f"the advice {kind} is not in {shown!r}; {noted}"
        return max(reversed(printed), key=len)

    def follow(self, command: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run what was printed, through a shell, in another folder."""
        return subprocess.run(
            ["sh", "-c", command],
            cwd=self.elsewhere,
            env=command_line.environment(None, {**self.env, **env}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def follow_at_terminal(self, command: str, monkeypatch: pytest.MonkeyPatch, says: str = "y\n") -> str:
        """The same at a terminal, where it asks before it does something."""
        for name, value in self.env.items():
            monkeypatch.setenv(name, value)
        words = shlex.split(command)
        assert words[0] == "clew"
        with command_line.terminal(*words[1:], cwd=self.elsewhere) as shown:
            shown.wait_for("[y/N]")
            shown.type(says)
            shown.end()
            return shown.shown

    def state(self, thread_id: str) -> Checkpoint:
        return asyncio.run(self.load(thread_id))


Scenario = Callable[[Bench, pytest.MonkeyPatch], None]
SCENARIOS: dict[str, list[Scenario]] = {}


def follows(*kinds: str) -> Callable[[Scenario], Scenario]:
    """What a scenario produces and follows."""

    def add(scenario: Scenario) -> Scenario:
        for kind in kinds:
            SCENARIOS.setdefault(kind, []).append(scenario)
        return scenario

    return add


def _all() -> Iterator[Any]:
    for kind in sorted(KINDS):
        for scenario in SCENARIOS.get(kind, []):
            if kind == next(name for name in sorted(KINDS) if scenario in SCENARIOS.get(name, [])):
                yield pytest.param(scenario, id=scenario.__name__.strip("_"))


def run_nap(bench: Bench, *options: str, thread_id: str = "t") -> subprocess.CompletedProcess[str]:
    """A task of three turns."""
    (bench.folder / "awake").touch()
    model = bench.script("nap", *NAP)
    return bench.do("run", "Nap.", "--model", model, "--tool", "shop:nap", "--thread", thread_id, *options, *bench.at)


# What goes on with a thread


@follows("resume")
def after_max_turns_run_why_and_resume_print_a_command_that_goes_on(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    stopped = run_nap(bench, "--max-turns", "1")
    first = bench.told("resume", stopped.stderr)
    assert "--max-turns 2" in first
    again = bench.do("resume", "t", *bench.at)
    assert (again.returncode, bench.told("resume", again.stderr)) == (1, first)
    asked = bench.do("why", "t", *bench.at)
    assert bench.told("resume", asked.stdout) == first
    second = bench.follow(first)
    assert (second.returncode, "↳ nap: slept" in second.stderr) == (1, True)
    last = bench.told("resume", second.stderr)
    assert "--max-turns 4" in last
    assert bench.follow(last).stdout == "Rested.\n"


@follows("resume")
def after_a_budget_the_command_allows_more_of_what_ran_out_and_keeps_the_other_limits(
    bench: Bench, patch: pytest.MonkeyPatch
) -> None:
    stopped = run_nap(bench, "--budget", "1tokens", "--budget", "1h")
    assert "interrupted: budget: " in stopped.stderr
    command = bench.told("resume", stopped.stderr)
    assert re.search(r"--budget \d+tokens --budget 3600s", command)
    assert bench.told("resume", bench.do("why", "t", *bench.at).stdout) == command
    gone_on = bench.follow(command)
    assert "↳ nap: slept" in gone_on.stderr
    assert bench.state("t").turns > 1
    assert bench.state("t").limits["seconds"] == 3600


@follows("resume")
def a_provider_whose_budget_is_spent_is_asked_again_with_the_prompt_that_was_refused(
    bench: Bench, patch: pytest.MonkeyPatch
) -> None:
    bench.do("run", "say hello", "--provider", "toy", "--thread", "t", "--budget", "1tokens", *bench.at)
    refused = bench.do("resume", "t", "say more", *bench.at)
    assert (refused.returncode, "budget: " in refused.stderr) == (1, True)
    command = bench.told("resume", refused.stderr)
    gone_on = bench.follow(command)
    assert (gone_on.returncode, gone_on.stdout) == (0, "more\n")


@follows("resume")
def after_a_timeout_the_bare_command_goes_on(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    model = bench.script("nap", asks("nap", seconds=60), "Rested.")
    options = ("--model", model, "--tool", "shop:nap", "--thread", "t", "--timeout", "2", *bench.at)
    command = bench.told("resume", bench.do("run", "Nap.", *options).stderr)
    (bench.folder / "awake").touch()
    assert bench.follow(command).stdout == "Rested.\n"


@follows("resume")
def a_thread_that_waits_takes_the_answer_and_one_that_is_done_the_prompt(
    bench: Bench, patch: pytest.MonkeyPatch
) -> None:
    model = bench.script("pay", asks("pay", amount=9), "Paid.", "Fine.")
    waits = bench.do("run", "Pay.", "--model", model, "--tool", "shop:pay", "--thread", "t", *bench.at)
    answer = bench.told("resume", waits.stderr)
    assert answer.startswith("clew resume t --answer yes --store ")
    done = bench.follow(answer)
    assert (done.stdout, "↳ pay: paid 9" in done.stderr) == ("Paid.\n", True)
    more = bench.told("resume", done.stderr)
    assert bench.follow(more).stdout == "Fine.\n"
    assert bench.state("t").messages[-2] == user(advice.PROMPT)


@follows("resume")
def an_error_before_the_prompt_is_on_record_is_followed_by_a_command_that_asks_it(
    bench: Bench, patch: pytest.MonkeyPatch
) -> None:
    bare = str(bench.root / "bin")
    missing = bench.do("run", "say hello", "--provider", "codex", "--thread", "t", *bench.at, PATH=bare)
    assert missing.returncode == 1
    command = bench.told("resume", missing.stderr)
    assert command.startswith("clew resume t 'say hello' --store ")
    again = bench.follow(command + " --provider toy")
    assert (again.returncode, again.stdout) == (0, "hello\n")


@follows("resume")
def what_a_signal_stopped_goes_on_with_the_command_that_it_leaves(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    model = bench.script("nap", asks("nap", seconds=60), "Rested.")
    options = ("--model", model, "--tool", "shop:nap", "--thread", "t")
    with bench.process("run", "Nap.", *options, *bench.at) as running:
        bench.until("napping")
        running.send_signal(signal.SIGINT)
        _, shown = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    command = bench.told("resume", shown)
    (bench.folder / "awake").touch()
    assert bench.follow(command).stdout == "Rested.\n"


@follows("resume")
def a_fork_goes_on_and_one_of_finished_work_takes_a_prompt(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    run_nap(bench)
    inside = bench.told("resume", bench.do("fork", "t", "--turn", "1", *bench.at).stderr)
    assert bench.follow(inside).stdout == "Rested.\n"
    bench.script("nap", *NAP, "Again.")
    at_end = bench.told("resume", bench.do("fork", "t", "--turn", "3", *bench.at).stderr)
    assert bench.follow(at_end).stdout == "Again.\n"


@follows("resume")
def a_thread_with_a_hostile_id_goes_on_by_the_command(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    for thread_id in ("-x", "{a}", "it's $(touch pwned)\n\x1b[31m"):
        stopped = run_nap(bench, "--max-turns", "2", thread_id=thread_id)
        command = bench.told("resume", stopped.stderr)
        assert bench.told("resume", bench.do("why", *bench.at, "--", thread_id).stdout) == command
        assert bench.follow(command).stdout == "Rested.\n"
    assert not (bench.elsewhere / "pwned").exists()


# Threads of sub-agents

FAMILY = """
from clew import Agent
from shop import pay
child = Agent("script:child", name="child", tools=[pay])
"""


def ask_child(bench: Bench, *tasks: str) -> list[str]:
    """Let a thread `t` ask a sub-agent to do these tasks, each of which waits for an approval. Returns their threads
    in the order of the tasks."""
    (bench.folder / "family.py").write_text(FAMILY)
    bench.script("child", asks("pay", amount=9), "Child paid.", "Child has more.")
    calls = [{"name": "child", "arguments": {"task": task}} for task in tasks]
    model = bench.script("parent", {"calls": calls}, "All paid.", "Fine.")
    waits = bench.do("run", "Pay.", "--model", model, "--tool", "family:child", "--thread", "t", *bench.at)
    assert waits.returncode == 1, waits.stderr
    listed = [json.loads(line) for line in bench.do("ls", "--children", "--json", *bench.at).stdout.splitlines()]
    threads = {head["title"]: head["thread_id"] for head in listed if head["parent"]}
    return [threads[task] for task in tasks]


@follows("resume")
def a_sub_agents_thread_goes_on_with_its_parent_and_every_command_says_so(
    bench: Bench, patch: pytest.MonkeyPatch
) -> None:
    (child,) = ask_child(bench, "Pay 9.")
    shown = bench.do("resume", child, *bench.at)
    command = bench.told("resume", shown.stderr)
    assert command.startswith("clew resume t --answer yes")
    assert bench.told("resume", bench.do("why", child, *bench.at).stdout) == command
    refused = bench.do("resume", child, "--answer", "too much", "--trust", *bench.at)
    (same,) = re.findall(r"It is a sub-agent's thread, and goes on with 't': (.*)", refused.stderr)
    assert same.startswith("clew resume t --answer 'too much'")
    assert "agent.resume(" not in refused.stderr
    assert bench.follow(command).stdout == "All paid.\n"
    done = bench.do("resume", child, *bench.at)
    assert "nothing is left to do" in done.stderr
    assert bench.follow(f"{bench.told('resume', done.stderr)} --trust").stdout == "Fine.\n"


@follows("resume")
def each_question_of_two_sub_agents_is_answered_under_the_id_that_their_parent_has_for_it(
    bench: Bench, patch: pytest.MonkeyPatch
) -> None:
    first, second = ask_child(bench, "Pay 9.", "Pay once more.")
    for child in (first, second):  # alike: only all of the parent's questions are sure to have this one among them
        (asked,) = json.loads(bench.do("why", child, "--json", *bench.at).stdout)["questions"]
        assert asked["answer"].count("clew:child:") == 2
    assert bench.follow(asked["answer"]).stdout == "All paid.\n"


# Threads of programs


@tool(effect="none")
async def look(page: int) -> str:
    return "a row"


def own_agent(bench: Bench, **settings: Any) -> Agent:
    model = ScriptedModel([call("look", page=1), call("look", page=2), "Two rows.", "Still two."])
    return Agent(model, tools=[look], checkpointer=bench.url, **settings)


def evaluated(text: str, **names: Any) -> Any:
    """What a call in Python comes to."""

    async def run() -> Any:
        found = eval(text, {**names, "Thread": Thread, "Budget": Budget, "clew": package})
        return await found if hasattr(found, "__await__") else found

    return asyncio.run(run())


@follows("resume_in_program", "budget_in_program")
def a_thread_of_a_program_goes_on_there_with_its_tools_and_a_larger_limit(
    bench: Bench, patch: pytest.MonkeyPatch
) -> None:
    asyncio.run(_ask(own_agent(bench, max_turns=1)))
    shown = bench.do("why", "t", *bench.at).stdout
    line = bench.told("resume_in_program", shown)
    assert "Its tools are in the program that made it: look" in shown
    assert evaluated(line, agent=own_agent(bench, max_turns=1)).status == "interrupted"
    small = own_agent(bench, budget=Budget(tokens=1))
    assert evaluated("agent.resume(thread_id='t', max_turns=9)", agent=small).reason.startswith("budget: ")
    shown = bench.do("why", "t", *bench.at).stdout
    limits = bench.told("budget_in_program", shown)
    larger = eval(f"dict({limits})", {"Budget": Budget})["budget"]
    (told,) = command_line.objects(bench.do("why", "t", "--json", *bench.at))
    assert (told["program_budget"], told["next"]) == (larger.limits, bench.told("resume_in_program", shown))
    agent = own_agent(bench, budget=larger)
    before = bench.state("t").turns
    ended = evaluated(bench.told("resume_in_program", shown), agent=agent)
    assert (ended.turns > before, ended.status) == (True, "done")


async def _ask(agent: Agent, thread_id: str = "t") -> None:
    async with agent:
        await agent.run("How many rows?", thread_id=thread_id)


@follows("resume_in_program", "resume")
def a_resume_of_a_programs_thread_names_its_tools_and_each_way_out_works(
    bench: Bench, patch: pytest.MonkeyPatch
) -> None:
    asyncio.run(_ask(own_agent(bench, max_turns=1)))
    model = bench.script("rows", asks("look", page=1), asks("look", page=2), "Two rows.")
    before = bench.state("t")
    refused = bench.do("resume", "t", "--model", model, "--max-turns", "9", "--trust", *bench.at)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert bench.state("t") == before
    bench.told("resume_in_program", refused.stderr)
    (given,) = re.findall(r"With the module that has it: (.*)", refused.stderr)
    (bench.folder / "rows.py").write_text("async def look(page: int) -> str:\n    return 'a row'\n")
    patched = f"{given.replace('MODULE:', 'rows:')} --trust"
    there = bench.follow(patched, PYTHONPATH=os.pathsep.join([str(bench.folder), bench.env["PYTHONPATH"]]))
    assert (there.returncode, there.stdout) == (0, "Two rows.\n"), there.stderr
    asyncio.run(_ask(own_agent(bench), "u"))
    refused = bench.do("resume", "u", "And?", "--model", model, "--trust", *bench.at)
    (without,) = re.findall(r"Without it: (.*)", refused.stderr)
    gone_on = bench.follow(f"{without} --trust --model {bench.script('alone', *['Alone.'] * 9)}")
    assert (gone_on.returncode, gone_on.stdout) == (0, "Alone.\n"), gone_on.stderr


@follows("run_again")
def a_program_that_a_signal_stopped_is_run_again_by_the_command_that_it_prints(
    bench: Bench, patch: pytest.MonkeyPatch
) -> None:
    program = bench.folder / "my program.py"
    program.write_text(
        "import asyncio, shop\n"
        "from clew import Agent\n"
        f"agent = Agent({bench.script('nap', asks('nap', seconds=60), 'Rested.')!r}, tools=[shop.nap], "
        f"checkpointer={bench.url!r}, handle_signals=True)\n"
        "async def main():\n"
        "    print((await agent.run('Nap.', thread_id='t')).output)\n"
        "asyncio.run(main())\n"
    )
    running = subprocess.Popen(
        [sys.executable, str(program)],
        env=command_line.environment(None, bench.env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=command_line.hear_signals,
    )
    bench.until("napping")
    running.send_signal(signal.SIGINT)
    _, shown = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130, shown
    (bench.folder / "awake").touch()
    assert bench.follow(bench.told("run_again", shown)).stdout == "Rested.\n"


# Threads that others hold, that are not there, or that can be looked at


@follows("unlock", "tail")
def a_thread_that_another_process_holds_is_followed_or_taken(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    run_nap(bench, "--max-turns", "1")

    async def hold() -> str:
        async with open_checkpointer(bench.url) as store:
            with suppress(LeaseLost):
                async with Thread.open(store, "t"):
                    busy = await asyncio.to_thread(bench.do, "resume", "t", *bench.at)
                    assert busy.returncode == 4
                    unlock = bench.told("unlock", busy.stderr)
                    shown = await asyncio.to_thread(bench.do, "why", "t", *bench.at)
                    tail = bench.told("tail", shown.stdout)
                    taken = await asyncio.to_thread(bench.follow_at_terminal, unlock, patch)
                    assert "which was still working" in taken
        return tail

    tail = asyncio.run(hold())
    assert bench.do("resume", "t", "--max-turns", "9", *bench.at).stdout == "Rested.\n"
    followed = bench.follow(tail)
    assert (followed.returncode, "Rested." in followed.stdout) == (0, True)


@follows("enqueue_again")
def a_thread_that_workers_set_aside_is_queued_again(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with open_checkpointer(bench.url) as store:
            await enqueue(store, "t", "Rest.", agent="clerk")
            agent = Agent(ScriptedModel([RuntimeError("no")]), name="clerk")
            await Worker(agent, store=store, retries=Retries(most=1)).run(until_empty=True)

    asyncio.run(work())
    command = bench.told("enqueue_again", bench.do("why", "t", *bench.at).stdout)
    assert bench.follow(command).returncode == 0
    assert bench.state("t").status == "queued"


@follows("take_over")
def a_program_takes_a_thread_over_as_the_error_says(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    async def take() -> None:
        async with open_checkpointer(bench.url) as store, Thread.open(store, "t") as thread:
            await thread.append(MessageAdded(user("Hello.")))
            with pytest.raises(ThreadBusy) as error:
                async with Thread.open(store, "t"):
                    pass
            (given,) = re.findall(r"take over: (\w+=\w+)$", str(error.value))
            assert given == advice.take_over()
            async with eval(f"Thread.open(store, 't', {given})", {"Thread": Thread, "store": store}) as mine:
                await mine.append(MessageAdded(user("Mine.")))

    with suppress(LeaseLost):
        asyncio.run(take())
    assert bench.state("t").messages[-1] == user("Mine.")


@follows("send")
def a_thread_that_another_process_holds_is_told_something(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    run_nap(bench, "--max-turns", "1")

    async def hold() -> str:
        async with open_checkpointer(bench.url) as store, Thread.open(store, "t"):
            busy = await asyncio.to_thread(bench.do, "resume", "t", *bench.at)
            assert busy.returncode == 4
            send = bench.told("send", busy.stderr)
            told = await asyncio.to_thread(bench.follow, send)
            assert (told.returncode, "runs it" in told.stderr) == (0, True)
        return send

    send = asyncio.run(hold())
    bench.follow(send)
    shown = bench.do("why", "t", *bench.at).stdout
    assert shown.count(f"not taken in yet: {advice.PROMPT}") == 2


@follows("post_in_program")
def a_program_posts_to_a_thread_as_the_error_says(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    async def post() -> list[str | None]:
        async with open_checkpointer(bench.url) as store, Thread.open(store, "t") as thread:
            await thread.append(MessageAdded(user("Hello.")))
            with pytest.raises(ThreadBusy) as error:
                async with Thread.open(store, "t"):
                    pass
            (given,) = re.findall(r"To tell it something: (.+?)\. Wait", str(error.value))
            assert given == advice.post_in_program("t")
            await eval(given, {"Thread": Thread, "checkpointer": store})
            return [each.prompt for each in await thread.posts()]

    assert asyncio.run(post()) == [advice.PROMPT]


@follows("list_threads")
def where_a_thread_is_not_found_those_that_are_there_are_listed(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    run_nap(bench)
    missing = bench.do("show", "nobody", *bench.at)
    assert missing.returncode == 3
    listed = bench.follow(bench.told("list_threads", missing.stderr))
    assert (listed.returncode, "Nap." in listed.stdout) == (0, True)
    empty = bench.do("search", " ", *bench.at)
    assert "Nap." in bench.follow(bench.told("list_threads", empty.stderr)).stdout


@follows("list_in_program")
def a_program_lists_the_threads_as_the_error_says(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    run_nap(bench)

    async def look_up() -> list[str]:
        async with open_checkpointer(bench.url) as store:
            with pytest.raises(ThreadNotFound) as error:
                await Thread.load(store, "nobody")
            assert str(error.value).endswith(advice.list_in_program())
            heads = eval(advice.list_in_program(), {"Thread": Thread, "checkpointer": store})
            return [head.thread_id async for head in heads]

    assert asyncio.run(look_up()) == ["t"]


@follows("list_sessions", "discover")
def where_a_session_is_not_found_those_that_are_there_are_listed(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    missing = bench.do("adopt", "11111111-2222-4333-8444-555555555555", *bench.at)
    assert missing.returncode == 3
    assert bench.follow(bench.told("list_sessions", missing.stderr)).returncode == 0
    error = SessionNotFound("codex", "nobody")
    assert str(error).endswith(advice.discover())
    patch.setenv("HOME", str(bench.home))
    import clew.providers  # noqa: F401 - what is advised names it

    assert list(evaluated(advice.discover())) == []


@follows("why")
def a_thread_that_nobody_works_on_is_explained(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    run_nap(bench, "--max-turns", "1")
    ended = bench.do("tail", "t", *bench.at)
    said = bench.follow(bench.told("why", ended.stderr))
    assert (said.returncode, "max_turns: 1" in said.stdout) == (0, True)


@follows("show")
def a_thread_from_a_file_is_shown(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    run_nap(bench)
    bench.do("export", "t", "t.clew", *bench.at)
    brought = bench.do("import", "t.clew", "--as", "again", *bench.at)
    shown = bench.follow(bench.told("show", brought.stderr))
    assert (shown.returncode, "Rested." in shown.stdout) == (0, True)


@follows("start")
def where_there_are_no_threads_one_is_started(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    env = {"XDG_DATA_HOME": str(bench.home / "data"), "CLEW_MODEL": bench.script("talk", "Fine.")}
    told = bench.do("ls", **env)
    assert bench.follow(bench.told("start", told.stderr), **env).stdout == "Fine.\n"
    assert "Paris" in bench.do("ls", **env).stdout


# What was changed, and what is damaged


@follows("fork", "restore_files")
def a_rewind_is_undone_by_the_commands_that_it_prints(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    samples = Samples(bench.root / "elsewhere")
    at = ("--store", samples.url)
    before = sorted(path.name for path in samples.files.iterdir())
    back = bench.do("rewind", "trip", "--turn", "1", "--workspace", str(samples.files), "--yes", *at)
    assert back.returncode == 0, back.stderr
    branch = bench.follow(bench.told("fork", back.stderr))
    assert branch.returncode == 0
    files = bench.told("restore_files", back.stderr)
    assert bench.follow(files).returncode == 0
    assert sorted(path.name for path in samples.files.iterdir()) == before
    refused = bench.do("rewind", "trip", "--frame", "3", *at)
    assert bench.follow(bench.told("fork", refused.stderr)).returncode == 0


@follows("repair", "remove")
def a_damaged_thread_is_saved_and_then_removed(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    samples = Samples(bench.root / "elsewhere")
    samples.damage_frame("trip", 5)
    found = bench.do("verify", "--store", samples.url)
    assert found.returncode == 6
    shown = bench.follow_at_terminal(bench.told("repair", found.stderr), patch)
    assert "saved as trip-repaired" in shown
    gone = bench.follow_at_terminal(bench.told("remove", shown), patch)
    assert "trip: deleted" in gone
    samples.damage_head("visa")
    listed = bench.do("show", "visa", "--store", samples.url)
    assert listed.returncode == 6
    bench.told("repair", listed.stderr)
    (command,) = re.findall(r"clew verify .*", listed.stderr)
    assert "saved as visa-repaired" in bench.follow_at_terminal(command, patch)


@follows("collect")
def what_a_deleted_thread_leaves_is_collected(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    run_nap(bench)
    gone = bench.do("rm", "t", "--yes", *bench.at)
    assert bench.follow(bench.told("collect", gone.stderr)).returncode == 0


@follows("make_private")
def files_that_others_can_read_are_made_private(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    at = ("--store", "file:kept files")
    bench.do("run", "Hello.", "--model", bench.script("talk", "Fine."), *at)
    kept = bench.folder / "kept files"
    kept.chmod(0o755)
    told = bench.do("doctor", *at)
    assert bench.follow(bench.told("make_private", told.stdout + told.stderr)).returncode == 0
    assert kept.stat().st_mode & 0o077 == 0


# Coding agents


@follows("adopt", "resume")
def a_session_is_taken_into_a_thread_and_goes_on_with_the_built_in_agent(
    bench: Bench, patch: pytest.MonkeyPatch
) -> None:
    machine = NativeMachine(bench.root / "elsewhere")
    key = machine.keep("claude_code", "Paint the door.")
    env = {**machine.env, "PATH": bench.env["PATH"], "PYTHONPATH": bench.env["PYTHONPATH"]}
    refused = bench.do("move", key, "--to", "clew", *bench.at, **env)
    adopt = bench.told("adopt", refused.stderr)
    adopted = bench.follow(adopt, CLEW_STORE=bench.url, **env)
    assert adopted.returncode == 0, adopted.stderr
    thread_id = adopted.stdout.strip()
    (line,) = re.findall(r"and then: (.*)", refused.stderr)
    filled = line.replace("resume ID", f"resume {thread_id}").replace(
        advice.MODEL, bench.script("home", *["Home."] * 9)
    )
    gone_on = bench.follow(f"{filled} --trust", CLEW_STORE=bench.url, **env)
    assert (gone_on.returncode, gone_on.stdout) == (0, "Home.\n"), gone_on.stderr


@follows("open_session")
def a_moved_session_is_opened_by_a_command_that_its_program_has(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    machine = NativeMachine(bench.root / "elsewhere")
    key = machine.keep("claude_code", "Paint the door.")
    moved = machine.clew("move", key, "--to", "codex")
    assert moved.stdout.strip() == advice.open_session("codex", moved.stdout.split()[-1])
    path = f"{cli_path()}{os.pathsep}{os.environ['PATH']}"
    for name in ("claude_code", "codex", "opencode"):
        program, option = advice.open_session(name, "KEY").split()[:2]
        shown = bench.follow(f"{program} --help", PATH=path)
        assert re.search(rf"(?<!\w){option}(?!\w)", shown.stdout + shown.stderr), (program, option)


@follows("log_in")
def who_is_not_logged_in_is_told_a_command_that_the_program_has(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    path = f"{cli_path()}{os.pathsep}{os.environ['PATH']}"
    place = Place(bench.elsewhere, {"HOME": str(bench.home), "PATH": path})
    for name in ("claude_code", "codex", "opencode"):
        provider = find_provider(name)(place)
        health = provider.check(provider.program())
        assert (health.logged_in, advice.log_in(name) in health.problem) == (False, True), health
        assert bench.follow(f"{advice.log_in(name)} --help", PATH=path).returncode == 0


@follows("install_program")
def a_program_that_is_missing_is_installed_by_the_line_that_is_told(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    bare = str(bench.root / "bin")
    (bench.home / "lib").mkdir()
    for name in ("claude_code", "codex", "opencode"):
        told = bench.do("run", "Hello.", "--provider", name, *bench.at, PATH=bare)
        line = bench.told("install_program", told.stderr)
        assert line == advice.install_program(name)
        env = {"npm_config_dry_run": "true", "npm_config_prefix": str(bench.home), "PATH": os.environ["PATH"]}
        done = bench.follow(line, **env)
        assert done.returncode == 0, done.stderr


# Installing


@functools.cache
def _pip() -> list[str]:
    """A pip of our own: an environment that uv made has none."""
    home = command_line._scratch("pip")
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    return [str(home / "bin" / "python"), "-m", "pip"]


@functools.cache
def _wheel() -> Path:
    """A wheel of what is tested."""
    folder = command_line._scratch("wheel")
    subprocess.run(
        [*_pip(), "wheel", "--no-deps", "--quiet", "--wheel-dir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (found,) = folder.glob("clew-*.whl")
    return found


def _venv(bench: Bench) -> dict[str, str]:
    """An environment of its own, whose pip finds Clew in the wheel alone: no index is asked for anything."""
    home = bench.root / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    wheels = bench.root / "wheels"
    download = [*_pip(), "download", "--quiet", "--dest", str(wheels), f"{_wheel()}[server]"]
    subprocess.run(download, check=True, capture_output=True)
    return {
        "PATH": f"{home / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PYTHONPATH": "",
        "CLEW_TEST_ADVICE": "",
    }


@follows("install", "upgrade")
def the_lines_that_install_clew_do_so_from_a_wheel_built_here(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    env = _venv(bench)
    assert str(NewerFormat("this log", 2, 1)).endswith(f"Upgrade with: {advice.upgrade()}")
    upgraded = bench.follow(advice.upgrade(), **env)
    assert upgraded.returncode == 0, upgraded.stderr
    refused = bench.follow("clew serve --port 0", **env)
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False), refused.stderr
    (line,) = re.findall(r"Install it: (.*)", refused.stderr)
    assert line == advice.install("server")
    assert bench.follow(line, **env).returncode == 0
    assert bench.follow(advice.new_token(), **env).returncode == 0


def test_every_extra_that_is_advised_is_one_of_the_wheel() -> None:
    from email.parser import Parser
    from zipfile import ZipFile

    with ZipFile(_wheel()) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        extras = set(Parser().parsestr(wheel.read(name).decode()).get_all("Provides-Extra") or [])
    source = ROOT / "src" / "clew"
    found = set()
    for path in source.rglob("*.py"):
        found |= set(re.findall(r'MissingExtra\([^()]*?,\s*"(\w+)"\)', path.read_text()))
    assert found, "the extras are named in another way now"
    assert found <= extras
    assert str(MissingExtra("a thing", "postgres")).endswith(advice.install("postgres"))


# The service and its pages


@follows("new_token")
def a_token_is_made_by_the_command_that_a_service_without_one_prints(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    file = bench.root / "my tokens.jsonl"
    file.touch()
    open_to_all = bench.do("serve", "--host", "0.0.0.0", *bench.at)
    assert open_to_all.returncode == 2
    bench.told("new_token", open_to_all.stderr)
    empty = bench.do("serve", "--token-file", str(file), *bench.at)
    assert bench.follow(bench.told("new_token", empty.stderr)).returncode == 0
    from clew.server.token_file import read_tokens

    assert len(read_tokens(file)) == 1


@follows("list_tokens")
def the_tokens_that_there_are_are_listed_by_the_command_that_an_unknown_one_prints(
    bench: Bench, patch: pytest.MonkeyPatch
) -> None:
    at = ("--file", str(bench.root / "my tokens.jsonl"))
    assert bench.do("tokens", "new", "ci", *at).returncode == 0
    unknown = bench.do("tokens", "revoke", "cl", *at)
    assert unknown.returncode == 2
    assert "ci" in bench.follow(bench.told("list_tokens", unknown.stderr)).stdout


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return html.unescape(answer.read().decode())


@follows("resume", "start", "files")
def the_commands_on_the_pages_of_the_inspector_find_its_store(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    with serving(bench.url) as server:
        start = re.findall(r"<pre[^>]*>(clew run .*?)</pre>", _page(server.url))[0]
        model = bench.script("nap", asks("write_file", path="long.txt", content="x" * 2_000_000), *NAP)
        here = os.pathsep.join([str(bench.folder), bench.env["PYTHONPATH"]])
        more = f"--model {model} --tool shop:nap --workspace work --thread t --max-turns 2"
        started = bench.follow(f"{start} {more}", PYTHONPATH=here)
        assert started.returncode == 1, started.stderr
        page = _page(server.url + thread_url("t"))
        command = re.findall(r'<code id="resume-command"[^>]*>(.*?)</code>', page)[0]
        assert command == advice.resume("t", max_turns=4, store=server.url)
        (bench.folder / "awake").touch()
        assert bench.follow(command, PYTHONPATH=here).stdout == "Rested.\n"
        long = _page(server.url + thread_url("t", "/files?path=long.txt"))
        files = re.findall(r"<code[^>]*>(clew files .*?)</code>", long)[0]
        assert bench.follow(files).returncode == 0
        assert (bench.elsewhere / advice.FOLDER / "long.txt").stat().st_size == 2_000_000


def test_a_page_of_a_thread_of_a_program_shows_how_it_goes_on_there(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    asyncio.run(_ask(own_agent(bench, max_turns=1)))
    with serving(bench.url) as server:
        page = _page(server.url + thread_url("t"))
    assert "agent.resume(thread_id='t', max_turns=2)</code>" in page
    assert "clew resume" not in page


def test_a_service_with_tokens_names_itself_as_the_store() -> None:
    with serving(tokens=(a_token("secret-secret-secret-secret"),)) as server:
        page = _page(f"{server.url}/login")
    assert advice.new_token() in page


# All of them


@pytest.mark.parametrize("scenario", list(_all()))
def test_what_is_advised_works_when_it_is_followed(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario(Bench(tmp_path), monkeypatch)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_kind_of_advice_is_without_a_scenario_that_follows_it(kind: str) -> None:
    assert SCENARIOS.get(kind), f"nothing produces and follows advice.{kind}: write a scenario for it"
