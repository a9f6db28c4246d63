"""Texts of a thread at a terminal: no character of them is obeyed, none is hidden."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.cli.command_line import clew, objects, terminal
from tests.cli.workshop import Workshop
from tests.hidden_text import OBEYED, write_everywhere

pytestmark = [pytest.mark.slow, pytest.mark.attack]

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202eback\u2066\u2028\u0085\x7f\u200f\U000e0041z"
COLOUR = re.compile("\x1b\\[[0-9;]*m")
SOURCE = Path(__file__).parents[2] / "src" / "clew" / "cli"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with a thread that has such a text everywhere, and that a process with such a label holds."""
    made = f"sqlite:///{tmp_path}/clew.db"
    asyncio.run(write_everywhere(made, HOSTILE))
    return made


COMMANDS = [
    ("ls",),
    ("ls", "--json"),
    ("show", HOSTILE),
    ("show", HOSTILE, "--full"),
    ("show", HOSTILE, "--json"),
    ("show", HOSTILE, "--entries"),
    ("show", HOSTILE, "--entries", "--json"),
    ("show", HOSTILE, "--raw"),
    ("why", HOSTILE),
    ("why", HOSTILE, "--json"),
    ("search", "back"),
    ("search", "back", "--json"),
    ("stats",),
    ("verify",),
    ("export", HOSTILE, "--markdown", "-"),
    ("export", HOSTILE, "--as-json", "-"),
    ("unlock", HOSTILE),
    ("resume", HOSTILE, "Go.", "--model", "openai:none"),
    ("resume", f"{HOSTILE}?"),
    ("diff", HOSTILE),
    ("files", HOSTILE),
    ("fork", HOSTILE),
    ("rm", HOSTILE, "--yes"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command).replace(HOSTILE, "ID"))
def test_no_command_passes_on_a_character_that_a_terminal_obeys(url: str, command: tuple[str, ...]) -> None:
    run = clew(*command, store=url)
    assert OBEYED.search(run.stdout) is None, repr(run.stdout)
    assert OBEYED.search(run.stderr) is None, repr(run.stderr)


@pytest.mark.parametrize("command", ["ls", "show", "why"])
def test_at_a_terminal_only_colours_of_clew_are_left_and_all_text_is_shown(url: str, command: str) -> None:
    with terminal(command, *([] if command == "ls" else [HOSTILE]), store=url) as shown:
        assert shown.end() == 0
    plain = COLOUR.sub("", shown.shown)
    assert OBEYED.search(plain.replace("\r", "")) is None, repr(plain)
    assert "\\x1b]0;owned\\x07" in plain.replace("\n", "")


def test_the_answer_of_a_run_in_a_pipe_is_not_obeyed_by_what_shows_it(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    run = shop.clew("run", "Hi.", "--model", shop.script("talk", HOSTILE))
    assert OBEYED.search(run.stdout) is None, repr(run.stdout)
    assert "\\x1b]0;owned\\x07" in run.stdout


def test_json_stands_for_the_very_text(url: str) -> None:
    (head,) = objects(clew("ls", "--json", store=url))
    assert (head["thread_id"], head["title"]) == (HOSTILE, HOSTILE)


def test_every_line_of_the_command_passes_through_one_function() -> None:
    """`say`, a console of `console.py`, or JSON: nothing else prints, but for texts that Clew itself makes."""
    allowed = {"console.py", "pages.py", "demo.py", "doctor_worker.py", "serve.py", "app.py"}
    printing = re.compile(r"typer\.s?echo\(|(?<![\w.])print\(|Console\(")
    found = [path.name for path in SOURCE.rglob("*.py") if printing.search(path.read_text())]
    assert set(found) <= allowed
