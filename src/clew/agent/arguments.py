"""Check the arguments of `Agent` and of its methods. A wrong argument is refused before anything is opened or recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec

from clew.agent.settings import Budget, Folder, Overflow, PriceUnknown, Settings
from clew.checkpointers.checks import check_thread_id
from clew.errors import InvalidInput
from clew.models import Model, Price
from clew.models.prices import has_price
from clew.models.windows import context_window
from clew.threads.redact import redactor
from clew.threads.thread import Durability
from clew.tools import AnyTool, Tool, as_tool
from clew.workspace.folders import absolute

__all__ = [
    "check_arguments",
    "check_budget",
    "check_choice",
    "check_count",
    "check_flags",
    "check_folder",
    "check_has_folder",
    "check_label",
    "check_mapping",
    "check_name",
    "check_place",
    "check_price",
    "check_redact",
    "check_share",
    "check_signals",
    "check_takeover",
    "check_text",
    "check_timeout",
    "check_tools",
    "in_own_folder",
    "make_folder",
    "refuse_once",
    "tools_by_name",
    "window_of",
]


def check_choice(argument: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise `InvalidInput` unless the value is one of the choices. `argument` is the argument's name, for the message."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidInput(f"{argument} is one of {', '.join(choices)}, not {value!r}")


def check_count(argument: str, value: object, least: int = 1, *, optional: bool = False) -> None:
    """Raise `InvalidInput` unless the value is a whole number of at least `least`. With `optional`, None is allowed
    too. `argument` is the argument's name, for the message."""
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidInput(
            f"{argument} is a whole number, {least} or more{', or None' if optional else ''}, not {value!r}"
        )


def check_share(argument: str, value: object) -> None:
    """Raise `InvalidInput` unless `value` is None or a number above 0 and up to 1, which stands for a share of the
    model's context window. `argument` is the argument's name, for the message."""
    if value is not None and (not isinstance(value, int | float) or not 0 < value <= 1):
        raise InvalidInput(
            f"{argument} is a share of the context window, more than 0 and at most 1, or None, not {value!r}"
        )


def check_timeout(timeout: object) -> None:
    """Raise `InvalidInput` unless `timeout` is a number of seconds above 0, or None for no limit."""
    if timeout is None:
        return
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not timeout > 0:
        raise InvalidInput(f"timeout is a number of seconds above 0, not {timeout!r}. None is no timeout.")


def check_text(argument: str, value: object) -> None:
    """Raise `InvalidInput` unless the value is text that can be stored as UTF-8. `argument` is the argument's name, for
    the message."""
    if not isinstance(value, str):
        raise InvalidInput(f"{argument} is text, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{argument} has a character that cannot be stored as UTF-8: {error}") from None


def check_name(name: object) -> None:
    """Raise `InvalidInput` unless the agent's name is text that can be stored as UTF-8, and is short enough to begin a
    thread id: Clew makes random thread ids from the name and 13 more characters. An empty name is allowed."""
    check_text("name", name)
    try:
        check_thread_id(f"{name}-000000000000")
    except InvalidInput as error:
        raise InvalidInput(f"name={name!r} cannot begin the id of a thread: {error}") from None


def check_flags(**flags: object) -> None:
    """Raise `InvalidInput` unless every keyword argument is True or False. The message names the first argument that is
    not."""
    for argument, value in flags.items():
        if not isinstance(value, bool):
            raise InvalidInput(f"{argument} is True or False, not {value!r}")


def check_redact(redact: Any) -> None:
    """Raise `InvalidInput` unless `redact` is None, a function, or a list or another iterable of regular expressions.
    Also raises it if one of the expressions cannot be compiled. Those of an iterator are not checked, because it can be
    read only once."""
    if redact is None or callable(redact):
        return
    if not isinstance(redact, Iterable):
        raise InvalidInput(f"redact is a function from text to text, or a list of patterns, not {redact!r}")
    if isinstance(redact, str | Collection):  # another iterable may be read only once
        redactor(redact)


def check_signals(value: object) -> None:
    """Raise `InvalidInput` unless the argument `handle_signals` is True, False or a function. The function is not
    called here. When a run is stopped by a signal, the function gets the thread's id and returns the command that
    resumes the thread."""
    if not isinstance(value, bool) and not callable(value):
        raise InvalidInput(
            "handle_signals is True, False, or a function from the thread's id to the command that resumes it, "
            f"not {value!r}"
        )


def check_mapping(argument: str, value: Any, of: type = object) -> None:
    """Raise `InvalidInput` unless the value is None, or a mapping from text to values of the type `of`. `argument` is
    the argument's name, for the message."""
    if value is None:
        return
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInput(f"{argument} is a dict with names for keys, or None, not {value!r}")
    for key, item in value.items():
        if not isinstance(item, of):
            raise InvalidInput(f"{argument}[{key!r}] is a {of.__name__}, not {item!r}")


def check_folder(argument: str, value: object) -> None:
    """Raise `InvalidInput` unless the value is None, or a path that is not empty, as text or as a path object.
    `argument` is the argument's name, for the message."""
    if value is None:
        return
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise InvalidInput(f"{argument} is the path of a folder, not {value!r}")


def check_place(argument: str, value: object) -> None:
    """Raise `InvalidInput` unless the value is a folder's path, a function that returns the path for a thread's id,
    `...` or None. `argument` is the argument's name, for the message."""
    if value is not ... and not callable(value):
        check_folder(argument, value)


def in_own_folder(settings: Settings, folders: Callable[[str], Folder] | None, thread_id: str) -> Settings:
    """Return the settings for a run on this thread. If `folders` is a function and the settings name no folder, the
    folder is the one that the function returns for the thread's id."""
    if folders is None or settings.workspace is not None:
        return settings
    folder = folders(thread_id)
    check_folder(f"the folder that workspace= returns for {thread_id!r}", folder)
    return msgspec.structs.replace(settings, workspace=absolute(folder))


def check_takeover(takeover: object) -> None:
    """Raise `InvalidInput` unless `takeover` is True, False, or a function that decides by the lease."""
    if not isinstance(takeover, bool) and not callable(takeover):
        raise InvalidInput(
            f"takeover is True, False, or a function that is given the lease and returns one of them, not {takeover!r}"
        )


def check_label(label: object) -> None:
    """Raise `InvalidInput` unless the label is text of at most 200 characters: it is part of a thread's head, which is
    small."""
    check_text("label", label)
    if isinstance(label, str) and len(label) > _LONGEST_LABEL:
        raise InvalidInput(f"label has {len(label)} characters, and may have {_LONGEST_LABEL}")


def check_arguments(**given: Any) -> None:
    """Check those arguments of `Agent` whose checks need no other argument. Raises `InvalidInput`, which names the first
    that is wrong."""
    for argument, value in given.items():
        _CHECKS[argument](argument, value)


def check_tools(tools: object) -> None:
    """Raise `InvalidInput` unless `tools` is a list or another iterable. Its elements are not checked."""
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Iterable):
        raise InvalidInput(f"tools is a list of functions, tools and agents, not {tools!r}")


def check_budget(budget: object) -> None:
    """Raise `InvalidInput` unless the budget is a `Budget` or None."""
    if budget is not None and not isinstance(budget, Budget):
        raise InvalidInput(f"budget is a Budget such as Budget(usd=2), or None, not {budget!r}")


def check_has_folder(settings: Settings, way_out: str) -> None:
    """Raise `InvalidInput` if the agent has tools that need a folder but has no workspace. Otherwise each call of such
    a tool would fail. `way_out` is a sentence that says what the user can do; it ends the message."""
    named = ", ".join(tool.name for tool in settings.tools.values() if tool.needs_workspace)
    if settings.workspace is None and named:
        who = f"the agent {settings.name!r}" if settings.name else "this agent"
        raise InvalidInput(f"{who} has no folder to work in, and these tools need one: {named}. {way_out}")


def make_folder(workspace: Path | None) -> None:
    """Make the workspace folder if it does not exist; None means that there is no workspace, and does nothing. Raises
    `InvalidInput` if the folder cannot be made. Call this before the thread is opened, so that the mistake is not
    recorded as a failure of the run."""
    try:
        if workspace is not None:
            workspace.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"the workspace {workspace} cannot be made: {error.strerror}. Choose another folder."
        ) from error


def tools_by_name(tools: Iterable[AnyTool | Callable[..., Any]]) -> dict[str, AnyTool]:
    found: dict[str, AnyTool] = {}
    for given in tools:
        made = given if isinstance(given, Tool) else as_tool(given)
        if made.name in found:
            raise InvalidInput(f"two tools are called {made.name!r}. Give one another name: @tool(name=…)")
        found[made.name] = made
    return found


def check_price(settings: Settings) -> None:
    if settings.budget.usd is not None and not has_price(settings.model.name, settings.prices):
        raise PriceUnknown(settings.model.name, "Give its price: Agent(…, prices={name: Price(input, output)})")


def window_of(model: Model, given: int | None, share: float | None) -> int | None:
    """Return how many tokens a conversation may have at most before a summary replaces its older messages.

    The number is the context window of the model, in tokens, times `share`. `given` is the size of the window if the
    user has set it; else the one that the model names, or that Clew knows for its name, is used. Returns None, for no
    limit, if the size is not known or `share` is None.
    """
    window = model.context_window or context_window(model.name) if given is None else given
    return None if window is None or share is None else int(window * share)


def refuse_once(once: list[str]) -> None:
    if once:
        raise InvalidInput(
            f"with durability='exit' nothing is on record before the run ends, and {', '.join(once)} must not run twice. "
            "Use durability='sync', say effect='none' or 'idempotent' where that is true, or accept it: allow_repeats=True."
        )


def _alone(check: Callable[[Any], None]) -> Callable[[str, Any], None]:
    """Return a check that takes the argument's name too, and does not need it."""
    return lambda argument, value: check(value)


_LONGEST_LABEL = 200
_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "allow_repeats": lambda argument, value: check_flags(allow_repeats=value),
    "budget": _alone(check_budget),
    "compact_at": check_share,
    "context_window": partial(check_count, optional=True),
    "data_dir": check_folder,
    "durability": partial(check_choice, choices=get_args(Durability)),
    "handle_signals": _alone(check_signals),
    "label": _alone(check_label),
    "max_tokens": partial(check_count, optional=True),
    "max_turns": check_count,
    "name": _alone(check_name),
    "on_overflow": partial(check_choice, choices=get_args(Overflow)),
    "options": check_mapping,
    "prices": partial(check_mapping, of=Price),
    "redact": _alone(check_redact),
    "restore_files": lambda argument, value: check_flags(restore_files=value),
    "snapshot_every": check_count,
    "system_prompt": check_text,
    "takeover": _alone(check_takeover),
    "tools": _alone(check_tools),
    "warn_turns": partial(check_count, least=0),
    "workspace": check_place,
}
"""How each argument of `Agent` is checked, by its name."""
