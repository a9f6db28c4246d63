"""`clew run`."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from clew import open_checkpointer
from clew.agent.settings import kept_setup
from clew.messages import plain_text
from clew.testing import ModelServer, Response, call, reply, say
from tests.cli.command_line import objects
from tests.cli.workshop import Workshop
from tests.limits import PATIENCE

pytestmark = pytest.mark.anyio

TEA: tuple[Any, ...] = (
    {"think": "The price first.", "say": "I look it up.", "call": {"name": "price", "arguments": {"item": "tea"}}},
    {"call": {"name": "order", "arguments": {"item": "tea"}}},
    "Your tea is on its way.",
)
NAP: tuple[Any, ...] = ({"say": "One moment.", "call": {"name": "nap", "arguments": {"seconds": 60}}}, "Awake.")


def test_in_a_pipe_the_answer_alone_is_on_stdout_and_the_rest_on_stderr(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    run = shop.clew("run", "Order tea.", "--model", shop.script("tea", *TEA), "--tool", "shop:ALL", "--thread", "t")
    assert (run.returncode, run.stdout) == (0, "Your tea is on its way.\n")
    assert "a tool prints this\n" in run.stderr
    shown = run.stderr.replace("a tool prints this\n", "").splitlines()
    assert shown[:6] == [
        "t: script:tea",
        "The price first.",
        "I look it up.",
        '● price(item="tea")',
        "  ↳ price: tea: 3 francs",
        '● order(item="tea")',
    ]
    assert shown[-2].startswith("✓ done · 3 turns · ")
    assert " tokens · ? · " in shown[-2]
    assert shown[-1] == "To go on: clew resume t 'what to do next'"


def test_with_json_every_event_is_a_line_and_the_last_is_the_result(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    run = shop.clew("run", "Order tea.", "--model", shop.script("tea", *TEA), "--tool", "shop:ALL", "--json")
    events = objects(run)
    result = events[-1]
    assert events[0] == {"type": "started", "thread_id": result["thread_id"]}
    assert "run-started" not in {event["type"] for event in events}, "the thread is told once"
    assert "".join(event["text"] for event in events if event["type"] == "thinking") == "The price first."
    assert [event["name"] for event in events if event["type"] == "tool-finished"] == ["price", "order"]
    assert (result["type"], result["status"], result["output"]) == ("result", "done", "Your tea is on its way.")
    assert (result["turns"], result["resume"]) == (3, f"clew resume {result['thread_id']} 'what to do next'")
    assert result["thread_id"].startswith("run-")


def test_at_a_terminal_all_of_it_is_shown_as_it_comes(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    told = "\x1b]0;a title\x07Red \x1b[31mtea."
    model = shop.script("tea", TEA[0], told)
    with shop.terminal("run", "Order.", "--model", model, "--tool", "shop:price") as shown:
        assert shown.end() == 0
    assert "\x1b[2;3mThe" in shown.shown
    assert "I look it up." in shown.shown
    assert '● price(item="tea")' in shown.shown
    assert "\\x1b]0;a title\\x07Red \\x1b[31mtea." in shown.shown
    assert "\x1b]0;" not in shown.shown
    assert "To go on: clew resume run-" in shown.shown


async def test_killed_inside_a_tool_it_goes_on_with_nothing_repeated_and_nothing_said_again(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    (shop.folder / "die").touch()
    script: list[Response] = [reply(say("I order."), call("order", item="tea")), "It may be on its way."]
    with ModelServer(script) as server:
        shop.env |= server.env()
        options = ("--model", "openai:gpt-5", "--tool", "shop:order", "--workspace", "out", "--system", "Be brief.")
        killed = shop.clew("run", "Order tea.", *options, "--budget", "2usd", "--max-turns", "7")
        assert killed.returncode == -signal.SIGKILL
        resumed = shop.clew("resume", "--last", "--json")
        assert server.calls == 2
    result = objects(resumed)[-1]
    assert (resumed.returncode, result["output"], result["drift"]) == (0, "It may be on its way.", {})
    assert [event["becomes"] for event in objects(resumed) if event["type"] == "tool-in-doubt"] == ["told to the model"]
    assert shop.read("orders") == ["tea"]
    setup = kept_setup(await shop.load(result["thread_id"]))
    assert setup is not None
    assert (setup.model, setup.tools, setup.system, setup.max_turns) == (
        "openai:gpt-5",
        ("shop:order",),
        "Be brief.",
        7,
    )
    assert (setup.workspace, setup.folder, setup.budget.usd) == (str(shop.folder / "out"), str(shop.folder), 2.0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_with_130_and_the_line_that_resumes_it(number: signal.Signals, tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    with shop.process("run", "Nap.", "--model", shop.script("nap", *NAP), "--tool", "shop:nap", "--thread", "t") as run:
        shop.until("napping")
        run.send_signal(number)
        out, told = run.communicate(timeout=PATIENCE)
    assert (run.returncode, out) == (130, "")
    assert told.splitlines()[-1] == "Stopped; all is on record. To go on: clew resume t"
    assert "Traceback" not in told
    state = await shop.load("t")
    assert (state.status, state.calls[0].status) == ("interrupted", "in_doubt")
    (shop.folder / "awake").touch()
    again = shop.clew("resume", "t")
    assert (again.returncode, again.stdout) == (0, "Awake.\n")


async def test_a_workspace_brings_tools_for_its_files_as_far_as_is_permitted(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    write = {"call": {"name": "write_file", "arguments": {"path": "a.txt", "content": "A"}}}
    model = shop.script("files", write, "Done.")
    for permissions, tools in (
        ((), "edit_file list_files read_file write_file"),
        (("--permissions", "read"), "list_files read_file"),
        (("--permissions", "full"), "edit_file list_files read_file run_command write_file"),
    ):
        run = shop.clew("run", "Write.", "--model", model, "--workspace", f"w{len(permissions)}", *permissions)
        assert run.returncode == 0
        assert shop.calls("files")[-1][1:] == tools.split()
    assert (shop.folder / "w0" / "a.txt").read_text() == "A"


async def test_on_a_thread_that_is_there_it_goes_on_with_what_that_has_on_record(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    model = shop.script("talk", "One.", "Two.")
    shop.clew("run", "First.", "--model", model, "--thread", "t", "--name", "ada")
    again = shop.clew("run", "-", "--thread", "t", given="Second.\n")
    assert (again.returncode, again.stdout) == (0, "Two.\n")
    state = await shop.load("t")
    assert state.agent == "ada"
    assert [plain_text(message) for message in state.messages] == ["First.", "One.", "Second.\n", "Two."]


@pytest.mark.parametrize(
    ("options", "reason", "more"),
    [(("--max-turns", "1"), "max_turns: 1", " --max-turns 2"), (("--timeout", "0.5"), "timeout: 0.5 s", "")],
)
def test_a_task_that_stops_short_ends_with_1_and_says_why(
    options: tuple[str, ...], reason: str, more: str, tmp_path: Path
) -> None:
    shop = Workshop(tmp_path)
    if "--max-turns" in options:
        (shop.folder / "awake").touch()
    run = shop.clew("run", "Nap.", "--model", shop.script("nap", *NAP), "--tool", "shop:nap", "--thread", "t", *options)
    assert (run.returncode, run.stdout) == (1, "")
    *_, ending, last = run.stderr.splitlines()
    assert ending.startswith(f"! interrupted: {reason} · 1 turn · ")
    assert last == f"To go on: clew resume t{more}"


def test_a_model_that_refuses_is_told_in_a_line_with_the_way_back(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    with ModelServer(["never"], key="another") as server:
        env = {**server.env(), "OPENAI_API_KEY": "sk-wrong-0123456789"}
        run = shop.clew("run", "Hello.", "--thread", "t", env={**env, "CLEW_MODEL": "openai:gpt-5"})
    assert (run.returncode, run.stdout) == (1, "")
    told, way = run.stderr.splitlines()[-2:]
    assert told.startswith("Error: openai:gpt-5: the request was refused (HTTP 401")
    assert way == "  To go on: clew resume t"
    assert "sk-wrong-0123456789" not in run.stderr


@pytest.mark.slow
async def test_tools_of_an_mcp_server_are_found_again_by_a_resume_and_its_secret_is_not_on_record(
    tmp_path: Path,
) -> None:
    shop = Workshop(tmp_path)
    server = Path(__file__).parents[2] / "tools" / "mcp_server.py"
    asks = {"call": {"name": "environment", "arguments": {"name": "SHOP_TOKEN"}}}
    model = shop.script("mcp", asks, "Done.", asks, "Done again.")
    command = f"SHOP_TOKEN=$MY_TOKEN {shlex.quote(sys.executable)} {shlex.quote(str(server))} stdio"
    first = shop.clew("run", "Ask.", "--model", model, "--mcp", command, "--thread", "t", env={"MY_TOKEN": "hidden-1"})
    assert "↳ environment: hidden-1" in first.stderr
    unset = shop.clew("resume", "t", "Again.")
    assert (unset.returncode, "MY_TOKEN" in unset.stderr) == (2, True)
    second = shop.clew("resume", "t", "Again.", env={"MY_TOKEN": "hidden-2"})
    assert second.stdout == "Done again.\n"
    assert "↳ environment: hidden-2" in second.stderr
    setup = kept_setup(await shop.load("t"))
    assert setup is not None
    assert setup.mcp == (command,)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "which model? Give --model"),
        (("--model", "gpt-5"), "Write openai:gpt-5."),
        (("--provider", "codx"), "Did you mean 'codex'?"),
        (("--provider", "codex", "--tool", "shop:price"), "--tool: codex has its own loop and tools"),
        (("--model", "script:tea", "--tool", "shop:prise"), "shop has no 'prise'"),
        (("--model", "script:tea", "--tool", "shop:price", "--tool", "shop:ALL"), "two tools called 'price'"),
        (("--model", "script:tea", "--budget", "2usd"), "in its place: --budget 100ktokens or --budget 10min"),
        (("--model", "script:tea", "--budget", "0usd"), "allows nothing. Give more than 0, or none for no limit"),
        (("--model", "script:tea", "--timeout", "0"), "--timeout 0 is not a time to stop after. Give a number"),
        (("--model", "script:tea", "--budget", "10m"), "Write 2usd, 100ktokens or 10min"),
        (("--model", "script:tea", "--mcp", "serve --token abc"), "looks like a secret (--token)"),
        (("--model", "script:tea", "--workspace", "shop.py"), "is a file, not a folder"),
        (("--model", "script:tea", "--workspace", "shop.py/x"), "cannot be made"),
        (("--model", "script:tea", "--permissions", "read"), "Give it: --workspace FOLDER"),
        (("--model", "script:tea", "--tool", "clew.tools:read_file"), "read_file. Give it: --workspace FOLDER"),
    ],
)
async def test_a_mistake_is_told_before_anything_is_on_record(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    shop = Workshop(tmp_path)
    shop.script("tea", *TEA)
    run = shop.clew("run", "Order tea.", *arguments, env={"CLEW_MODEL": ""})
    assert (run.returncode, run.stdout) == (2, "")
    assert words in run.stderr.replace("\n", " ")
    assert not any(spoken in run.stderr for spoken in ("Agent(", "Price(", "None"))
    async with open_checkpointer(shop.url) as store:
        assert [head async for head in store.heads()] == []


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf"])
def test_a_timeout_that_allows_nothing_is_refused_before_a_store_is_made_or_a_thread_looked_for(
    timeout: str, tmp_path: Path
) -> None:
    shop = Workshop(tmp_path)
    shop.script("tea", *TEA)
    for arguments in (
        ("run", "Order tea.", "--model", "script:tea"),
        ("run", "say hello", "--provider", "toy"),
        ("resume", "nobody"),
    ):
        refused = shop.clew(*arguments, "--timeout", timeout)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert (
            refused.stderr
            == f"Error: --timeout {timeout} is not a time to stop after. Give a number of seconds above 0.\n"
        )
    assert not (shop.folder / "clew.db").exists()


def test_what_keeps_it_from_starting_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    model = shop.script("tea", *TEA)
    assert shop.clew("run", " ", "--model", model).returncode == 2
    assert shop.clew("run", "Order.", "--model", model, "--store", "sqlite:////proc/none/clew.db").returncode == 5
    (shop.folder / "bad.db").write_bytes(b"no database at all" * 500)
    assert shop.clew("run", "Order.", "--model", model, "--store", "sqlite:///bad.db").returncode == 6
    away = shop.clew("run", "Order.", "--model", model, "--mcp", os.devnull)
    assert (away.returncode, "the MCP server '/dev/null' cannot be used" in away.stderr) == (5, True)


@pytest.mark.slow
def test_after_a_kill_every_command_says_which_turn_the_files_are_of(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    (shop.folder / "die").touch()
    write = {"call": {"name": "write_file", "arguments": {"path": "a.txt", "content": "A"}}}
    model = shop.script("killed", write, TEA[1], "It may be on its way.")
    killed = shop.clew("run", "Go.", "--model", model, "--tool", "shop:order", "-w", "out", "--thread", "t")
    assert killed.returncode == -signal.SIGKILL
    standing = "he files on record are those of turn 1"
    assert standing in shop.clew("show", "t").stdout
    assert standing in shop.clew("why", "t").stdout
    assert objects(shop.clew("why", "t", "--json"))[0]["files"] == f"t{standing}"
    listed = shop.clew("files", "t")
    assert ("a.txt" in listed.stdout, standing in listed.stdout + listed.stderr) == (True, True)
    resumed = shop.clew("resume", "t", "--workspace", "elsewhere")
    assert (resumed.returncode, resumed.stdout) == (0, "It may be on its way.\n")
    assert (
        "Its files are as they were at turn 1, but it is at turn 2. The model gets a note about this." in resumed.stderr
    )
    assert (shop.folder / "elsewhere" / "a.txt").read_text() == "A"
    assert standing not in shop.clew("show", "t").stdout + shop.clew("why", "t").stdout
