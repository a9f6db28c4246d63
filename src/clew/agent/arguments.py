"""Checks of the arguments that agents are made with: a wrong one is refused before anything is opened or recorded."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from clew.agent.settings import Budget
from clew.checkpointers.checks import check_thread_id
from clew.errors import InvalidInput
from clew.threads.redact import redactor

__all__ = [
    "check_budget",
    "check_choice",
    "check_count",
    "check_flags",
    "check_folder",
    "check_mapping",
    "check_name",
    "check_redact",
    "check_signals",
    "check_text",
    "check_timeout",
    "check_tools",
]


def check_choice(argument: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise `InvalidInput` unless the value is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidInput(f"{argument} is one of {', '.join(choices)}, not {value!r}")


def check_count(argument: str, value: object, least: int = 1, *, optional: bool = False) -> None:
    """Raise `InvalidInput` unless the value is a whole number of at least `least`, or None where it is optional."""
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidInput(
            f"{argument} is a whole number, {least} or more{', or None' if optional else ''}, not {value!r}"
        )


def check_timeout(timeout: object) -> None:
    """Raise `InvalidInput` for a timeout that is not a number of seconds above 0. None is no timeout."""
    if timeout is None:
        return
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not timeout > 0:
        raise InvalidInput(f"timeout is a number of seconds above 0, not {timeout!r}. None is no timeout.")


def check_text(argument: str, value: object) -> None:
    """Raise `InvalidInput` unless the value is text that can be stored as UTF-8."""
    if not isinstance(value, str):
        raise InvalidInput(f"{argument} is text, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{argument} has a character that cannot be stored as UTF-8: {error}") from None


def check_name(name: object) -> None:
    """Raise `InvalidInput` unless the name can begin the ids of the agent's threads. An empty name is allowed."""
    check_text("name", name)
    try:
        check_thread_id(f"{name}-000000000000")
    except InvalidInput as error:
        raise InvalidInput(f"name={name!r} cannot begin the id of a thread: {error}") from None


def check_flags(**flags: object) -> None:
    """Raise `InvalidInput` for a switch that is neither True nor False."""
    for argument, value in flags.items():
        if not isinstance(value, bool):
            raise InvalidInput(f"{argument} is True or False, not {value!r}")


def check_redact(redact: Any) -> None:
    """Raise `InvalidInput` unless `redact` is None, a function, or patterns that can be compiled."""
    if redact is None or callable(redact):
        return
    if not isinstance(redact, Iterable):
        raise InvalidInput(f"redact is a function from text to text, or a list of patterns, not {redact!r}")
    if isinstance(redact, str | Collection):  # another iterable may be read only once
        redactor(redact)


def check_signals(value: object) -> None:
    """Raise `InvalidInput` unless `handle_signals` is True, False or a function from a thread's id to a command."""
    if not isinstance(value, bool) and not callable(value):
        raise InvalidInput(
            "handle_signals is True, False, or a function from the thread's id to the command that resumes it, "
            f"not {value!r}"
        )


def check_mapping(argument: str, value: Any, of: type = object) -> None:
    """Raise `InvalidInput` unless the value is None, or a mapping from text to values of the type `of`."""
    if value is None:
        return
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInput(f"{argument} is a dict with names for keys, or None, not {value!r}")
    for key, item in value.items():
        if not isinstance(item, of):
            raise InvalidInput(f"{argument}[{key!r}] is a {of.__name__}, not {item!r}")


def check_folder(argument: str, value: object) -> None:
    """Raise `InvalidInput` unless the value is a path of text, or None."""
    if value is None:
        return
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise InvalidInput(f"{argument} is the path of a folder, not {value!r}")


def check_tools(tools: object) -> None:
    """Raise `InvalidInput` unless the tools are given as a list or another iterable of them."""
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Iterable):
        raise InvalidInput(f"tools is a list of functions, tools and agents, not {tools!r}")


def check_budget(budget: object) -> None:
    """Raise `InvalidInput` unless the budget is a `Budget` or None."""
    if budget is not None and not isinstance(budget, Budget):
        raise InvalidInput(f"budget is a Budget such as Budget(usd=2), or None, not {budget!r}")
