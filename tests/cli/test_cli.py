"""The `clew` command."""

from __future__ import annotations

import importlib
import io
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from clew import __version__
from clew.cli.commands.demo import _view
from clew.demo.views import PlainView
from tests.limits import PATIENCE

ROOT = Path(__file__).parent.parent.parent
FORCING = {"FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TTY_COMPATIBLE"}


def clew(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a pipe, and without what a CI says to have colours there too."""
    env = {name: value for name, value in os.environ.items() if name not in FORCING} | {"COLUMNS": "80"}
    command = [sys.executable, "-m", "clew", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_the_commands_and_has_an_example(flag: str) -> None:
    run = clew(flag)
    assert run.returncode == 0
    assert "demo" in run.stdout
    assert "Example: clew demo" in run.stdout


def test_help_of_the_demo_names_its_options_and_has_an_example() -> None:
    run = clew("demo", "--help")
    assert run.returncode == 0
    assert all(word in run.stdout for word in ("--keep", "--plain", "clew demo --keep ./demo"))


def test_help_in_a_pipe_has_no_escape_codes() -> None:
    assert "\x1b" not in clew("--help").stdout


def test_version() -> None:
    assert clew("--version").stdout == f"clew {__version__}\n"


def test_a_command_that_is_not_there_is_a_wrong_use() -> None:
    run = clew("dome")
    assert run.returncode == 2
    assert "dome" in run.stderr


def test_the_demo_does_not_work_in_a_folder_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    run = clew("demo", "--keep", str(tmp_path))
    assert run.returncode == 2
    assert "--keep" in run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_demo_says_what_is_wrong_with_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = clew("demo", "--keep", str(tmp_path / "file" / "folder"))
    assert run.returncode == 1
    assert run.stderr.startswith("Error: ")
    assert "Traceback" not in run.stderr


def test_the_installed_command_is_the_same() -> None:
    target = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["clew"]
    module, _, name = target.partition(":")
    assert getattr(importlib.import_module(module), name) is importlib.import_module("clew.__main__").main


@pytest.mark.parametrize(
    "statement", ["import clew", "import clew.agent", "import clew.demo", "import clew.demo.worker"]
)
def test_only_the_command_imports_typer_and_rich(statement: str) -> None:
    check = f"import sys; {statement}; sys.exit(bool({{'typer', 'rich'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("terminal", "term", "plain", "is_plain"),
    [
        (True, "xterm", False, False),
        (True, "xterm", True, True),
        (True, "dumb", False, True),
        (False, "xterm", False, True),
    ],
)
def test_the_demo_is_plain_in_a_pipe_or_if_asked(
    terminal: bool, term: str, plain: bool, is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal() if terminal else io.StringIO())
    monkeypatch.setenv("TERM", term)
    assert isinstance(_view(plain), PlainView) == is_plain
