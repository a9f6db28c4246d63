"""No process opens the file of a store with two SQLite libraries: closing the file in one drops the locks of the other."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import Samples, environment
from tests.limits import PATIENCE

ROOT = Path(__file__).parents[2]
FOREIGN = {
    *(
        f"src/clew/providers/opencode/{name}.py"
        for name in ("database", "events", "installation", "provider", "schema", "storage")
    ),
    "src/clew/compat/importers/database.py",
    *(f"bench/{name}.py" for name in ("lanes", "listing", "machine", "opening")),
}
"""The modules that import Python's own library: for the files of opencode and of other systems whose data is imported, and
for tables that a benchmark compares with."""

_WATCHED = """
import os, runpy, sys

def watch(event, given):
    if event == "sqlite3.connect" and os.path.basename(os.fspath(given[0])).partition("?")[0] == "clew.db":
        os.write(2, f"opened with Python's own library: {given[0]}\\n".encode())
        os._exit(99)

sys.addaudithook(watch)
sys.argv = ["clew", *sys.argv[1:]]
runpy.run_module("clew", run_name="__main__")
"""


def test_pythons_own_library_is_imported_only_for_the_files_of_other_programs() -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in ("src", "bench", "tools")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if {"sqlite3", "_sqlite3"} & {name.partition(".")[0] for name in _imported(node)}
    }
    assert found == FOREIGN


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


@pytest.mark.slow
def test_no_command_opens_a_store_with_pythons_own_library(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    commands = (
        ("doctor", "--live"),
        ("verify",),
        ("stats",),
        ("search", "Paris"),
        ("export", "report", "report.clew"),
        ("import", "report.clew", "--as", "again"),
        ("sessions",),
        ("copy", samples.url, f"sqlite:///{tmp_path}/other/clew.db"),
        ("fork", "report", "--as", "forked"),
        ("rm", "forked", "--yes"),
        ("prune", "--older-than", "1000d", "--yes"),
        ("gc",),
    )
    for command in commands:
        run = subprocess.run(
            [sys.executable, "-c", _WATCHED, *command],
            cwd=samples.folder,
            env=environment(samples.url, {"PYTHONPATH": os.pathsep.join(sys.path)}),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert run.returncode == 0, (command, run.stdout, run.stderr)


def test_the_watch_finds_a_store_that_is_opened_with_pythons_own_library(tmp_path: Path) -> None:
    opening = _WATCHED.partition("sys.argv")[0] + "import sqlite3; sqlite3.connect('clew.db')"
    run = subprocess.run([sys.executable, "-c", opening], cwd=tmp_path, capture_output=True, check=False)
    assert run.returncode == 99
