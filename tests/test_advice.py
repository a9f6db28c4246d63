"""The one place that commands come from: how they are quoted, and that no other module writes one out."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import clew
from clew import advice
from clew.advice import KINDS, budget_words, quoted
from clew.cli.app import COMMANDS
from clew.cli.setups import read_budget
from tests.servers.npm import VERSIONS

SOURCE = Path(clew.__file__).parent
HOSTILE = [
    *("-x", "--help", "a b", "it's", 'say "hi"', "$(touch pwned)", "`id`", "a\nb", "a\n", "\x1b[31mred", "a\tb"),
    *("ü\u202e", " ", "{a}", "~", "*", "a;b", "#", "!", "\\"),
]
"""Ids that a shell or a terminal would take for something else."""
_COMMAND = re.compile(
    rf"(?<![.\w])(?:clew (?:{'|'.join(COMMANDS)})\b|pip install|npm install|(?:codex|auth) login|agent\.resume\()"
)


def test_every_function_that_makes_a_command_is_on_the_list() -> None:
    helpers = {"budget_words", "for_shell", "quoted"}
    made = {name for name in advice.__all__ if callable(getattr(advice, name))} - helpers
    assert made == set(KINDS)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_shell_reads_a_quoted_text_as_exactly_that_text(text: str) -> None:
    written = subprocess.run(["sh", "-c", f"printf '%s.' {quoted(text)}"], capture_output=True, check=True).stdout
    assert written.decode() == text + "."


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20))
def test_nothing_that_a_terminal_obeys_is_printed(text: str) -> None:
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", quoted(text))


@pytest.mark.parametrize("thread_id", HOSTILE)
def test_a_command_names_the_thread_whatever_its_id(thread_id: str) -> None:
    command = advice.resume(thread_id, "-p", max_turns=3, store="sqlite:////a b.db")
    script = f'clew() {{ for word in "$@"; do printf \'%s\\001\' "$word"; done; }}; {command}'
    said = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout.decode().split("\1")[:-1]
    assert said == ["resume", "--max-turns", "3", "--store", "sqlite:////a b.db", "--", thread_id, "-p"]


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "tokens": st.integers(1, 10**12),
            "usd": st.floats(1e-9, 1e6),
            "seconds": st.floats(1e-3, 1e8),
        },
    ).filter(bool)
)
def test_a_budget_that_is_written_is_read_as_the_same(limits: dict[str, float]) -> None:
    assert read_budget(budget_words(**limits)).limits == limits


def test_the_programs_that_are_installed_are_those_that_are_tested() -> None:
    named = {shlex.split(advice.install_program(name))[-1] for name in ("claude_code", "codex", "opencode")}
    assert named == set(VERSIONS)


def _words(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """All texts of a module but its docstrings, which are read by people who have the code before them."""
    documents = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                documents.add(statement.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documents:
            yield node.lineno, node.value


def _written_out() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if place == "advice.py":
            continue
        for line, text in _words(ast.parse(path.read_text())):
            if found := _COMMAND.search(text):
                yield f"{place}:{line}: {found[0]}"
    for path in sorted(SOURCE.rglob("*.html")):
        for found in _COMMAND.finditer(path.read_text()):
            yield f"{path.relative_to(SOURCE).as_posix()}: {found[0]}"


def test_no_other_module_writes_out_a_command() -> None:
    """But for names, of the process that did something, of what is explained, of what needs an extra; and for the form of
    a command whose PATH only the user knows."""
    assert [re.sub(r":\d+", "", where) for where in _written_out()] == [
        "cli/commands/adopt.py: clew sessions",
        "cli/commands/doctor_checks.py: clew doctor",
        "cli/commands/doctor_worker.py: clew doctor",
        "cli/commands/import_.py: clew resume",
        "cli/commands/import_.py: clew import",
        "cli/commands/import_.py: clew export",
        "cli/commands/serve.py: clew serve",
        "cli/commands/tokens.py: clew tokens",
        "compat/locus/memory/backends.py: clew import",
        "compat/locus/memory/backends.py: clew show",
        "compat/locus/memory/backends.py: clew serve",
        "compat/locus/memory/checkpointer.py: clew gc",
        "demo/worker.py: clew demo",
        "server/inspector/templates/error.html: clew verify",
    ]
