"""Tests that run in a process of their own, which ends by `os._exit`: Temporal's SDK aborts now and then while Python
ends, and would take the process of all other tests with it."""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import os
import subprocess
import sys
import traceback
import typing
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.limits import PATIENCE

__all__ = ["in_child"]

Scenario = Callable[..., Coroutine[Any, Any, None]]


def in_child(scenario: Scenario) -> Callable[..., None]:
    """Decorate an async test whose fixtures are texts and paths."""

    @functools.wraps(scenario)
    def test(**fixtures: str | Path) -> None:
        given = json.dumps({name: str(value) for name, value in fixtures.items()})
        command = [sys.executable, "-m", __name__, scenario.__module__, scenario.__name__, given]
        root = Path(__file__).parents[3]
        ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=PATIENCE)
        assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-8000:]

    return test


def main(module: str, name: str, given: str) -> int:
    scenario: Scenario = getattr(importlib.import_module(module), name).__wrapped__
    kinds = typing.get_type_hints(scenario)
    try:
        asyncio.run(scenario(**{name: kinds[name](value) for name, value in json.loads(given).items()}))
    except BaseException:  # noqa: BLE001 - the process reports it and ends
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
