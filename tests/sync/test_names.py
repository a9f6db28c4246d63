"""The blocking names and the async ones never drift apart."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import clew
import clew.checkpointers
import clew.sync
from clew.sync._blocking import ASYNC_CLASSES, OWN_METHODS, is_turned, public_names, return_annotation
from tests.sync.stub import STUB, Stub
from tests.test_import import HEAVY, imported_by

SHARED = {clew.ToolContext}
"""With async methods, and the same in both worlds: tools are given one, and there `ctx.blocking` is for those that block."""


def pairs() -> list[Any]:
    """Every class that is turned, beside what it is turned into."""
    originals = {name: getattr(clew, name) for name in clew.__all__}
    originals |= {name: getattr(clew.checkpointers, name) for name in clew.checkpointers.__all__}
    return [
        pytest.param(original, getattr(clew.sync, name), id=name)
        for name, original in originals.items()
        if isinstance(original, type) and is_turned(original)
    ]


def test_every_public_name_is_there_and_nothing_but_the_checkpointers_beside() -> None:
    assert set(clew.__all__) <= set(clew.sync.__all__)
    stores = {param.id for param in pairs()} - set(clew.__all__)
    assert set(clew.sync.__all__) - set(clew.__all__) == stores
    assert set(clew.sync.__all__) <= set(dir(clew.sync))


def test_what_is_not_async_is_the_very_same() -> None:
    for name in clew.__all__:
        original = getattr(clew, name)
        if not is_turned(original):
            assert getattr(clew.sync, name) is original
    assert clew.sync.tool is clew.tool
    assert clew.sync.ToolContext is clew.ToolContext


def test_every_public_class_with_async_methods_is_turned() -> None:
    for name in clew.__all__:
        original = getattr(clew, name)
        if (
            isinstance(original, type)
            and original not in SHARED
            and any(
                inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
                for _, member in inspect.getmembers(original)
            )
        ):
            assert issubclass(original, ASYNC_CLASSES), f"add {name} to clew.sync._blocking.ASYNC_CLASSES"


@pytest.mark.parametrize(("original", "form"), pairs())
def test_a_class_has_the_same_names_and_signatures(original: Any, form: Any) -> None:
    names = {OWN_METHODS.get(name, name) for name in public_names(original)}
    assert {name for name in dir(form) if name in names or not name.startswith("_")} == names
    for name in public_names(original):
        ours, theirs = getattr(form, OWN_METHODS.get(name, name)), getattr(original, name)
        if inspect.isroutine(theirs):
            signature = inspect.signature(theirs)
            result = return_annotation(name, signature.return_annotation)
            assert inspect.signature(ours) == signature.replace(return_annotation=result)
            assert "Async" not in result
            assert not inspect.iscoroutinefunction(ours)
        else:
            assert isinstance(ours, property)


def test_a_function_has_the_same_signature() -> None:
    assert inspect.signature(clew.sync.open_checkpointer) == inspect.signature(clew.open_checkpointer)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Tread'"):
        _ = clew.sync.Tread  # type: ignore[attr-defined]


def parts(stub: str) -> tuple[set[str], list[str]]:
    """Imports in any order, and all the rest."""
    imports: set[str] = set()
    rest: list[str] = []
    for node in ast.parse(stub).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            home = node.module if isinstance(node, ast.ImportFrom) else ""
            imports |= {f"{home} {alias.name} {alias.asname}" for alias in node.names}
        else:
            rest.append(ast.dump(_bare(node)))
    return imports, rest


def _bare(node: ast.stmt) -> ast.stmt:
    """With its documentation as it reads: formatters and newer Pythons indent it in ways of their own."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            inner.value = inspect.cleandoc(inner.value)
    return node


@pytest.mark.slow
def test_the_types_are_those_of_the_async_originals() -> None:
    assert parts(STUB.read_text()) == parts(Stub().text()), "write the stub again: python -m tests.sync.stub"


@pytest.mark.slow
def test_a_type_checker_sees_blocking_types(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(
        "from typing import assert_type\n"
        "from collections.abc import Callable, Iterator\n"
        "from clew.checkpointers import Head\n"
        "from clew.agent import Event\n"
        "from clew.sync import Agent, Checkpoint, Checkpointer, Run, RunResult, Session, Thread, ToolContext\n"
        "from clew.sync import open_checkpointer, tool\n"
        "@tool(effect='none')\n"
        "def look(at: str, ctx: ToolContext) -> int: return len(at)\n"
        "assert_type(look('x', ToolContext()), int)\n"
        "with open_checkpointer('memory://') as store, Thread.open(store, 't') as thread:\n"
        "    assert_type(store, Checkpointer)\n"
        "    assert_type(thread, Thread)\n"
        "    assert_type(thread.checkpoint, Checkpoint)\n"
        "    assert_type(Thread.load(store, 't'), Checkpoint)\n"
        "    assert_type(Thread.list(store), Iterator[Head])\n"
        "    assert_type(store.heads(), Iterator[Head])\n"
        "    with Agent('openai:gpt-5', name='child') as child:\n"
        "        assert_type(child, Agent)\n"
        "    agent = Agent('openai:gpt-5', tools=[look, child], checkpointer=store)\n"
        "    assert_type(agent.stream('x'), Run[RunResult])\n"
        "    assert_type(agent.stream('x').result, RunResult)\n"
        "    assert_type(agent.run('x'), RunResult)\n"
        "    assert_type(agent.resume(thread_id='t', answer=True), RunResult)\n"
        "    assert_type([event for event in agent.stream('x')], list[Event])\n"
        "    assert_type(agent.aclose, Callable[[], None])\n"
        "    with agent.session(resume=True) as session:\n"
        "        assert_type(session, Session)\n"
        "        assert_type(session.run('x'), RunResult)\n"
        "    assert_type(agent.resume_session(agent.start_session().resume_handle), Session)\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(tmp_path / "c"), "user.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_importing_it_brings_none_of_the_extras() -> None:
    assert imported_by("import clew.sync") & HEAVY == set()
