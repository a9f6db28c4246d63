"""`clew resume`."""

from __future__ import annotations

import json
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from clew import Agent, Budget, Thread, open_checkpointer, tool
from clew.agent.handles import write_handle
from clew.agent.prompts import is_prompt
from clew.agent.settings import kept_setup
from clew.messages import plain_text
from clew.testing import ScriptedModel, call
from tests.cli.command_line import Samples, objects
from tests.cli.workshop import Workshop

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PAY: tuple[Any, ...] = ({"call": {"name": "pay", "arguments": {"amount": 900}}}, "Paid.", "Nothing more.")
ASK: tuple[Any, ...] = ({"calls": [{"name": "ask_size"}, {"name": "pay", "arguments": {"amount": 5}}]}, "Done.")


async def test_a_thread_that_waits_shows_its_question_and_takes_the_answer(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    first = shop.clew("run", "Pay.", "--model", shop.script("pay", *PAY), "--tool", "shop:pay", "--thread", "t")
    assert (first.returncode, first.stdout) == (1, "")
    for waits in (first, shop.clew("resume", "t")):
        assert waits.returncode == 1
        *_, question, standing, way = waits.stderr.splitlines()
        assert question.startswith("? May pay be run with these arguments?")
        assert question.endswith(" pay(amount=900)")
        assert standing.startswith("? waiting · 1 turn · ")
        assert way == "To answer: clew resume t --answer yes"
    (shown,) = objects(shop.clew("resume", "t", "--json"))
    assert (shown["status"], shown["questions"][0]["id"]) == ("waiting", "1:0:clew:approval")
    assert len(shop.calls("pay")) == 1
    answered = shop.clew("resume", "t", "--answer", "true")
    assert (answered.returncode, answered.stdout) == (0, "Paid.\n")
    assert "↳ pay: paid 900" in answered.stderr


async def test_a_prompt_to_a_thread_that_waits_is_on_record_and_asked_after_the_answer(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.clew("run", "Pay.", "--model", shop.script("pay", *PAY), "--tool", "shop:pay", "--thread", "t")
    for _ in range(2):  # given again, it is on record once
        waits = shop.clew("resume", "t", "And then?")
        assert (waits.returncode, waits.stdout) == (1, "")
        *_, question, prompt, standing, way = waits.stderr.splitlines()
        assert question.startswith("? May pay be run with these arguments?")
        assert prompt == "On record, and asked after that is answered: And then?"
        assert (standing.split(" · ")[0], way) == ("? waiting", "To answer: clew resume t --answer yes")
    assert objects(shop.clew("resume", "t", "--json"))[-1]["prompts"] == ["And then?"]
    assert "To be asked then: And then?" in shop.clew("why", "t").stdout
    assert len(shop.calls("pay")) == 1
    answered = shop.clew("resume", "t", "--answer", "true")
    assert (answered.returncode, answered.stdout) == (0, "Paid.\n")
    asked = [plain_text(message) for message in (await shop.load("t")).messages if is_prompt(message)]
    assert asked == ["Pay.", "And then?"]


def test_at_a_terminal_what_is_asked_is_answered_at_once_or_left_open(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    options = ("--model", shop.script("ask", *ASK), "--tool", "shop:pay", "--tool", "shop:ask_size", "--thread", "t")
    with shop.terminal("run", "Ask.", *options) as shown:
        shown.wait_for("Your answer (empty: answer later): ")
        shown.type("\n")
        assert shown.end() == 1
    with shop.terminal("resume", "t") as shown:
        shown.wait_for("Your answer (empty: answer later): ")
        shown.process.send_signal(signal.SIGINT)
        assert shown.end() == 130
    with shop.terminal("resume", "t") as shown:
        shown.wait_for("Your answer (empty: answer later): ")
        shown.type('{"size": 2}\n')
        shown.wait_for("y, n, or why not (empty: decide later): ")
        shown.type("n\n")
        assert shown.end() == 0
    assert "ask_size: {'size': 2}" in shown.shown
    assert "The user did not allow this call." in shown.shown
    assert "Done." in shown.shown


def test_where_nothing_is_left_to_do_it_says_so(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.clew("run", "Hi.", "--model", shop.script("talk", "Hello.", "Bye."), "--thread", "t")
    done = shop.clew("resume", "t")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("✓ done: nothing is left to do · 1 turn · ")
    assert done.stderr.endswith("To go on: clew resume t 'what to do next'\n")
    (told,) = objects(shop.clew("resume", "--last", "--json"))
    assert (told["status"], told["reason"]) == ("done", "nothing is left to do")
    assert shop.clew("resume", "--last", "Go.").stdout == "Bye.\n"
    assert len(shop.calls("talk")) == 2


async def test_json_of_a_programs_thread_whose_budget_is_spent_has_the_budget_that_it_needs(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)

    @tool
    async def look() -> str:
        return "a row"

    budget = Budget(tokens=40)
    async with Agent(ScriptedModel(["Two rows."]), tools=[look], checkpointer=shop.url, budget=budget) as agent:
        await agent.run("How many rows are there in this table? " * 20, thread_id="t")
    (told,) = objects(shop.clew("resume", "t", "--json", env={"CLEW_MODEL": shop.script("any", "Fine.")}))
    (why,) = objects(shop.clew("why", "t", "--json"))
    assert told["status"] == why["status"] == "done"
    assert told["resume"] == why["next"] == "agent.resume('what to do next', thread_id='t')"
    assert told["program_budget"] == why["program_budget"]
    assert f"with budget=Budget(tokens={why['program_budget']['tokens']})" in shop.clew("why", "t").stdout


async def test_a_dollar_budget_on_record_does_not_keep_a_thread_from_a_model_without_a_price(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.clew("run", "say hello", "--provider", "toy", "--thread", "t", "--budget", "2usd")
    model = ("--provider", "clew", "--model", shop.script("talk", *["Hello."] * 9))
    refused = shop.clew("resume", "t", "Go on.", *model)
    assert (refused.returncode, "Agent(" in refused.stderr) == (2, False)
    assert "--budget 100ktokens or --budget 10min; --budget none is no limit" in refused.stderr
    for budget in ("100ktokens", "10min", "none"):
        assert shop.clew("resume", "t", f"Go on with {budget}.", *model, "--budget", budget).stdout == "Hello.\n"


async def test_a_thread_without_a_prompt_says_so_and_the_command_names_the_model_that_it_needs(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    async with open_checkpointer(shop.url) as store, Thread.open(store, "t") as thread:
        await thread.append()
    ask = "clew resume t 'what to do next' --model VENDOR:MODEL"
    for env in ({"CLEW_MODEL": ""}, {"CLEW_MODEL": "script:talk"}):
        refused = shop.clew("resume", "t", env=env)
        assert refused.returncode == 2
        assert refused.stderr == (
            f"Error: thread 't' has no prompt to go on with: nothing was asked, or all was rewound.\n  To ask it: {ask}\n"
        )
    why = shop.clew("why", "t").stdout
    assert "There is no prompt to go on with: nothing was asked, or all was rewound." in why
    assert why.splitlines()[-1] == f"Go on: {ask}"
    words = shlex.split(ask.replace("VENDOR:MODEL", shop.script("talk", "Hello.")))
    assert shop.clew(*words[1:], env={"CLEW_MODEL": ""}).stdout == "Hello.\n"
    assert shop.clew("why", "t").stdout.splitlines()[-1] == "Go on: clew resume t 'what to do next'"


def test_an_answer_or_turns_for_a_coding_agent_are_refused_with_what_works(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.clew("run", "say hello", "--provider", "toy", "--thread", "t")
    answered = shop.clew("resume", "t", "--answer", "yes")
    assert (answered.returncode, answered.stdout) == (2, "")
    assert answered.stderr == (
        "Error: --answer: toy never waits for an answer. Give your answer as a prompt: "
        "clew resume t 'what to do next'\n"
    )
    turns = shop.clew("resume", "t", "More.", "--max-turns", "3")
    assert turns.returncode == 2
    assert turns.stderr.endswith("use the built-in agent: --provider clew --model NAME\n")
    own = ("--provider", "clew", "--model", shop.script("talk", *["Hello."] * 3))
    assert shop.clew("resume", "t", "More.", "--max-turns", "3", *own).stdout == "Hello.\n"


def test_a_question_is_shown_wherever_a_command_with_an_answer_is_advised(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.clew("run", "Pay.", "--model", shop.script("pay", *PAY), "--tool", "shop:pay", "--thread", "t")
    shop.clew("fork", "t")
    shop.clew("rewind", "t", "--turn", "1", "--yes")
    for thread_id in ("t", "t-at-1"):
        why = shop.clew("why", thread_id).stdout
        assert why.splitlines()[-1] == f"Go on: clew resume {thread_id} --answer yes"
        assert "pay asks (approval): May pay be run with these arguments?" in why
        assert shop.clew("resume", thread_id, "--answer", "yes").stdout == "Paid.\n"


def test_an_empty_prompt_is_refused_before_a_thread_is_looked_for(tmp_path: Path) -> None:
    refused = Workshop(tmp_path).clew("resume", "nobody", " ")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "Error: the prompt is empty. Write what to do, or leave it out to go on without a prompt.\n"
    )


async def test_options_are_in_place_of_what_is_on_record_and_that_is_said_and_kept(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.script("b", "One.", "Two.", "Three.")
    shop.clew("run", "First.", "--model", shop.script("a", "One."), "--thread", "t", "--tool", "shop:price")
    other = ("--model", "script:b", "--tool", "shop:pay", "--max-turns", "3", "--budget", "100ktokens")
    second = shop.clew("resume", "t", "Second.", *other)
    assert second.stdout == "Two.\n"
    assert second.stderr.splitlines()[:6] == [
        "t: goes on from turn 1 with script:b",
        "model: script:a → script:b",
        "tools: shop:price → shop:pay",
        "turns: none → 3",
        "budget: none → 100000 tokens",
        "Without a tool that it had before: price. Give it with --tool module:function.",
    ]
    third = shop.clew("resume", "t", "Third.", "--json")
    assert (objects(third)[-1]["output"], objects(third)[-1]["drift"]) == ("Three.", {})
    setup = kept_setup(await shop.load("t"))
    assert setup is not None
    assert (setup.model, setup.tools, setup.max_turns) == ("script:b", ("shop:pay",), 3)


async def test_a_thread_goes_on_from_a_handle_a_part_of_its_id_and_another_folder(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    asks = {"call": {"name": "price", "arguments": {"item": "tea"}}}
    model = shop.script("talk", "One.", asks, "Two.", "Three.")
    shop.clew("run", "First.", "--model", model, "--thread", "morning-tea", "--tool", "shop:price")
    (tmp_path / "elsewhere").mkdir()
    handle = write_handle("clew", "morning-tea", "morning-tea")
    second = shop.clew("resume", handle, "Second.", cwd=tmp_path / "elsewhere")
    assert second.stdout == "Two.\n"
    assert "↳ price: tea: 3 francs" in second.stderr
    assert shop.clew("resume", "morn", "Third.").stdout == "Three.\n"


def test_what_cannot_go_on_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    assert samples.clew("resume", "nobody").returncode == 3
    several = samples.clew("resume", "tri")
    assert (several.returncode, "trip, trip-b" in several.stderr or "trip-b, trip" in several.stderr) == (2, True)
    unnamed = samples.clew("resume")
    assert unnamed.returncode == 2
    assert "which thread? Give its id, or --last" in unnamed.stderr
    assert "  visa · waiting · " in unnamed.stderr
    assert samples.clew("resume", "trip", "Go.", "--last").returncode == 2
    assert samples.clew("resume", "visa", "--answer", "null").returncode == 2
    assert samples.clew("resume", "--last", "--store", f"sqlite:///{tmp_path}/empty.db").returncode == 3
    assert samples.clew("resume", "trip", "--store", "http://127.0.0.1:1").returncode == 5
    samples.damage_frame("trip", 1)
    assert samples.clew("resume", "trip").returncode == 6


async def test_a_thread_that_another_process_works_on_is_busy_and_says_the_way_out(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.clew("run", "First.", "--model", shop.script("a", "One.", "Two."), "--thread", "t")
    async with open_checkpointer(shop.url) as store, Thread.open(store, "t"):
        for changed in ((), ("--max-turns", "3")):
            busy = shop.clew("resume", "t", "Second.", *changed)
            assert busy.returncode == 4
            assert busy.stderr.endswith("Wait, stop that process, or take over: clew unlock t --force\n")
        assert shop.clew("resume", "--last").returncode == 3


def test_a_thread_of_a_program_does_not_go_on_without_its_tools_unless_that_is_asked_for(tmp_path: Path) -> None:
    shop, samples = Workshop(tmp_path), Samples(tmp_path)
    env = {**shop.env, "CLEW_MODEL": shop.script("any", *["Fine."] * 9)}
    refused = samples.clew("resume", "trip", "Add the museum.", "--trust", env=env)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.splitlines() == [
        "Error: thread 'trip' has tools that the command line does not know: look_up, write_plan. A program made it, and "
        "its record does not say where they are. Nothing was changed.",
        "  In the program that made it: agent.resume('Add the museum.', thread_id='trip')",
        "  With the module that has each of them: clew resume trip 'Add the museum.' --tool MODULE:look_up "
        "--tool MODULE:write_plan",
        "  Without them: clew resume trip 'Add the museum.' --without-tools",
    ]
    trip = samples.clew("resume", "trip", "Add the museum.", "--without-tools", "--trust", env=env)
    assert (trip.returncode, trip.stdout) == (0, "Fine.\n")
    assert "Without tools that it had before: look_up, write_plan.\n" in trip.stderr
    assert trip.stderr.count("look_up") == 1
    assert "model: scripted → script:any" in trip.stderr
    refused = samples.clew("resume", "report", "--trust", env=env)
    assert refused.returncode == 2
    assert "in the middle of a call of send_mail" in refused.stderr
    tool = ("--tool", "tests.cli.samples:ask_traveller")
    answered = samples.clew("resume", "visa", "--answer", "A Swiss one.", *tool, "--trust", env=env)
    assert (answered.returncode, "↳ ask_traveller: A Swiss one." in answered.stderr) == (0, True)


@pytest.mark.slow
async def test_ways_out_for_a_programs_thread_repeat_what_was_asked_and_allow_more_than_was_used_up(
    tmp_path: Path,
) -> None:
    shop = Workshop(tmp_path)
    model = shop.script("m", "Fine.")

    @tool(effect="none")
    async def price(item: str) -> str:
        return "3 francs"

    @tool(approve=True)
    async def pay(amount: int) -> str:
        return "paid"

    async def made(name: str, response: Any, **limits: Any) -> None:
        scripted = ScriptedModel([response] * 9, name=model)
        async with Agent(scripted, tools=[price, pay], checkpointer=shop.url, **limits) as agent:
            await agent.run("Go.", thread_id=name)

    def ways(*words: str) -> list[str]:
        refused = shop.clew("resume", *words, "--trust")
        assert refused.returncode == 2, refused.stderr
        return [line.strip() for line in refused.stderr.splitlines()[1:]]

    await made("turns", call("price", item="bread"), max_turns=2)
    with_tools = "--tool MODULE:pay --tool MODULE:price"
    assert ways("turns") == [
        "In the program that made it: agent.resume(thread_id='turns', max_turns=4)",
        f"With the module that has each of them: clew resume turns --max-turns 4 {with_tools}",
        "Without them: clew resume turns --max-turns 4 --without-tools",
    ]
    folder = tmp_path / "a folder"
    asked = ways("turns", "And?", "--max-turns", "9", "--model", "script:n", "--workspace", str(folder))
    assert asked[0].endswith(": agent.resume('And?', thread_id='turns', max_turns=9)")
    assert asked[2].endswith(
        f": clew resume turns 'And?' --max-turns 9 --without-tools --model script:n --workspace '{folder}'"
    )
    await made("spent", call("price", item="bread"), budget=Budget(tokens=50))
    program, given, without = ways("spent", "And?")
    assert re.fullmatch(
        r".* made it, with budget=Budget\(tokens=\d+\): agent.resume\('And\?', thread_id='spent'\)", program
    )
    assert re.search(r"clew resume spent 'And\?' --budget \d+tokens --tool", given)
    assert re.search(r"clew resume spent 'And\?' --budget \d+tokens --without-tools", without)
    assert "clew resume spent --budget none --without-tools" in ways("spent", "--budget", "none")[2]
    await made("asked", call("pay", amount=3))
    for answer, value in (("yes", "'yes'"), ('"42"', "'42'"), ("false", "False")):
        assert ways("asked", "--answer", answer) == [
            f"In the program that made it: agent.resume(thread_id='asked', answer={value})",
            f"With the module that has it: clew resume asked --answer {shlex.quote(answer)} --tool MODULE:pay",
        ]


async def test_a_thread_goes_on_at_the_provider_that_had_it_and_at_another_if_asked(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    (tmp_path / "home").mkdir()
    first = shop.clew("run", "say hello", "--provider", "toy", "--permissions", "full", "--thread", "t", "--json")
    assert objects(first)[-1]["status"] == "done"
    second = shop.clew("resume", "t", "say again")
    assert (second.returncode, second.stderr.splitlines()[0]) == (0, "t: goes on from turn 1 with toy")
    moved = shop.clew("resume", "t", "say there", "--provider", "twin")
    assert moved.returncode == 0
    assert "provider: toy → twin" in moved.stderr
    home = shop.clew("resume", "t", "And?", "--provider", "clew", "--model", shop.script("home", *["At home."] * 9))
    assert home.stdout == "At home.\n"
    state = await shop.load("t")
    prompts = [plain_text(message) for message in state.messages if message.__struct_config__.tag == "user"]
    assert prompts == ["say hello", "say again", "say there", "And?"]
    refused = shop.clew("resume", "t", "--provider", "toy", "--answer", "yes")
    assert (refused.returncode, "--answer: toy never waits for an answer" in refused.stderr) == (2, True)


@pytest.mark.slow
async def test_a_thread_that_does_not_come_to_a_provider_keeps_its_tools_and_the_command_says_where_it_was_to_go(
    tmp_path: Path,
) -> None:
    shop = Workshop(tmp_path)
    calls = [{"call": {"name": "price", "arguments": {"item": "bread"}}}] * 3
    options = ("--model", shop.script("m", *calls, "Three francs."), "--tool", "shop:price", "--max-turns", "2")
    shop.clew("run", "How much?", *options, "--thread", "t")
    absent = shop.clew("resume", "t", "And cake?", "--provider", "codex", "--model", "small", env={"PATH": "/nowhere"})
    assert "tools: shop:price → none" in absent.stderr
    assert absent.stderr.endswith("To go on: clew resume t 'And cake?' --provider codex --model small\n")
    refused = shop.clew("resume", "t", "--provider", "toy", "--answer", "yes")
    assert refused.returncode == 2
    home = shop.clew("resume", "t", "--max-turns", "9")
    assert (home.returncode, home.stdout) == (0, "Three francs.\n"), home.stderr


def test_a_prompt_that_a_budget_kept_from_a_provider_is_in_the_command_that_goes_on(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.clew("run", "say hello", "--provider", "toy", "--thread", "t")
    refused = shop.clew("resume", "t", "say it's late", "--budget", "1tokens")
    command = refused.stderr.splitlines()[-1].removeprefix("To go on: ")
    assert re.fullmatch(r"""clew resume t 'say it'"'"'s late' --budget \d+tokens""", command)
    assert shop.clew(*shlex.split(command)[1:]).stdout == "it's late\n"


def test_a_session_that_the_store_does_not_know_goes_on_from_its_handle_if_it_is_here(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    (tmp_path / "home" / "toy").mkdir(parents=True)
    row = {"role": "user", "text": "say hello"}
    (tmp_path / "home" / "toy" / "abc").write_text(json.dumps(row) + "\n")
    here, gone = write_handle("toy", "s", "abc"), write_handle("toy", "s", "xyz")
    assert shop.clew("resume", gone, "say again").returncode == 3
    run = shop.clew("resume", here, "say again")
    assert run.returncode == 0
    assert run.stderr.endswith("To go on: clew resume s 'what to do next'\n")
    assert shop.clew("resume", "s", "say more").returncode == 0
