"""What `import clew` costs and brings."""

from __future__ import annotations

import importlib
import os
import statistics
import subprocess
import sys

import pytest

HEAVY = {
    "aiomysql", "anthropic", "anyio", "apsw", "asyncio", "asyncmy", "asyncpg", "blake3", "cryptography", "google", "h11",
    "httpx",
    "jinja2", "mcp", "msgspec", "obstore", "oci", "openai", "opensearchpy", "oracledb", "psycopg", "pydantic", "pytest",
    "redis", "rich", "sqlite3", "temporalio", "typer", "uvicorn", "zstandard",
}  # fmt: skip
"""Packages of the extras, and those of our own dependencies that take time."""

LIGHT = {"_runtime", "advice", "cli", "errors"}
"""The packages of Clew that the help and the completion of a command may import."""

LIMIT = 0.060


def imported_by(statement: str) -> set[str]:
    """The packages that a statement imports, in a fresh interpreter."""
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", statement], capture_output=True, text=True, check=True
    )
    lines = [line.rsplit("|", 1)[1].strip() for line in run.stderr.splitlines() if line.startswith("import time:")]
    return {name.split(".")[0] for name in lines[1:]}


def test_importing_clew_brings_none_of_the_extras() -> None:
    brought = imported_by("import clew") - imported_by("pass")
    assert brought & HEAVY == set()
    assert "clew" in brought


def test_the_errors_import_without_any_dependency() -> None:
    assert imported_by("import clew.errors") & HEAVY == set()


def test_opening_a_checkpointer_does_not_bring_the_tools_for_tests() -> None:
    assert "pytest" not in imported_by("import clew; clew.open_checkpointer('memory://')")


def modules_after(code: str, *arguments: str, **environment: str) -> set[str]:
    """The modules that are there after this code has run in a fresh interpreter."""
    code = f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {code}"
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return set(run.stderr.split())


@pytest.mark.parametrize("package", ["agent", "checkpointers", "models", "testing", "threads", "tools", "workspace"])
def test_a_package_brings_nothing_until_one_of_its_names_is_used(package: str) -> None:
    brought = modules_after(f"import clew.{package}")
    own = {f"clew.{package}", "clew._runtime", "clew._runtime.lazy"}
    assert {name for name in brought if name.startswith("clew.")} == own
    assert brought & HEAVY == set()


def test_completing_the_options_of_a_command_brings_nothing_that_it_works_with() -> None:
    words = {"_CLEW_COMPLETE": "complete_bash", "COMP_WORDS": "clew ls --", "COMP_CWORD": "2"}
    brought = modules_after("from clew.cli import main; main()", **words)
    assert "clew.cli.commands.ls" in brought
    assert brought & (HEAVY - {"typer"}) == set()


def test_no_command_brings_another_or_what_it_works_with_before_it_is_called() -> None:
    code = """
import sys
from clew.cli.app import COMMANDS, LazyGroup, app
import typer
group = typer.main.get_command(app)
for name in COMMANDS:
    before = set(sys.modules)
    group.get_command(typer.Context(group), name)
    print(name, *(set(sys.modules) - before))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = [line.split() for line in run.stdout.splitlines()]
    assert len(lines) > 20
    for name, *brought in lines:
        assert {module.split(".")[0] for module in brought} & HEAVY == set(), name
        commands = [module for module in brought if module.startswith("clew.cli.commands.")]
        assert commands == [f"clew.cli.commands.{name if name != 'import' else 'import_'}"], name
        assert {module.split(".")[1] for module in brought if module.startswith("clew.")} <= LIGHT, name


def test_importing_clew_brings_few_modules() -> None:
    count = subprocess.run(
        [sys.executable, "-c", "import sys; before = len(sys.modules); import clew; print(len(sys.modules) - before)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(count.stdout) < 60, "each takes time; it was 30, nearly all of them Python's own"


@pytest.mark.slow
def test_importing_clew_takes_less_than_60_ms() -> None:
    def seconds(statement: str) -> float:
        """Of processor time, which other work on the machine does not stretch as it does the clock's."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", statement], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return float(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    resource = pytest.importorskip("resource")
    seconds("import clew")  # compiles what is not compiled yet
    costs = [seconds("import clew") - seconds("pass") for _ in range(9)]
    assert statistics.median(costs) < LIMIT


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (
            "clew",
            [
                "Agent",
                "Budget",
                "Checkpoint",
                "Run",
                "RunResult",
                "Session",
                "Thread",
                "ToolContext",
                "ToolError",
                "__version__",
                "open_checkpointer",
                "tool",
            ],
        ),
        (
            "clew.checkpointers",
            [
                "Checkpointer",
                "FileCheckpointer",
                "Head",
                "HeadQuery",
                "Lease",
                "MemoryCheckpointer",
                "Owner",
                "SQLiteCheckpointer",
                "Status",
                "open_checkpointer",
            ],
        ),
        (
            "clew.errors",
            [
                "ClewError",
                "Conflict",
                "Corrupt",
                "InvalidInput",
                "LeaseLost",
                "MissingBlob",
                "MissingExtra",
                "NewerFormat",
                "ThreadBusy",
                "ThreadNotFound",
                "Unavailable",
                "UsageError",
            ],
        ),
        ("clew.testing", ["CheckpointerContract", "OpenStore"]),
        ("clew.agent", ["Agent", "Session", "TurnFinished"]),
        ("clew.models", ["Model", "resolve_model"]),
        ("clew.threads", ["Thread"]),
        ("clew.tools", ["DEFAULT_TOOLS", "ToolContext", "tool"]),
        ("clew.workspace", ["Workspace"]),
    ],
)
def test_every_public_name_can_be_imported(module: str, names: list[str]) -> None:
    found = importlib.import_module(module)
    assert set(names) <= set(found.__all__)
    for name in found.__all__:
        assert getattr(found, name) is not None
        assert name in dir(found)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    import clew

    with pytest.raises(AttributeError, match="no attribute 'Tread'"):
        _ = clew.Tread


def test_the_contract_without_pytest_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "from clew.errors import MissingExtra\n"
        "try: from clew.testing import CheckpointerContract\n"
        "except MissingExtra as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "pip install 'clew[testing]'" in said
