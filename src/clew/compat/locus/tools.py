"""`tool`, Clew's decorator for tools. It refuses the option `idempotent`, which means something else in Locus (another
agent library) than in Clew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from clew import tools
from clew.compat.locus.refusal import refuse
from clew.errors import InvalidInput
from clew.tools import Tool

__all__ = ["checked_tools", "tool"]

P = ParamSpec("P")
R = TypeVar("R")

_KNOWN = ["name", "description", "effect", "reconcile", "in_doubt", "timeout", "retries", "approve", "needs_workspace"]
_INSTEAD = {
    "idempotent": "in Locus it answers a repeated call from the earlier result. Clew runs each call that the model makes; "
    "what may happen after a crash says effect='none', 'idempotent' or 'once', the default, which is never run again unseen",
}


@overload
def tool(fn: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, **options: Any
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a tool that an agent can call: `@tool`, or `@tool(name="look", effect="none")`. The options are
    those of `clew.tool`; any other one raises `InvalidInput`.

    The function receives the context of a call in its parameter of the type `ToolContext`, whatever the name of the
    parameter.
    """
    refuse("tool", {name: value for name, value in options.items() if name not in _KNOWN}, _KNOWN, _INSTEAD)
    return tools.tool(**options) if fn is None else tools.tool(fn)


def checked_tools(given: list[Any]) -> list[Any]:
    """Return the tools in `given`. Raises `InvalidInput` if one of them was made by the decorator of Locus and not by
    Clew's."""
    for one in given:
        if not isinstance(one, Tool) and hasattr(one, "fn") and hasattr(one, "parameters"):
            raise InvalidInput(
                f"the tool {getattr(one, 'name', one)!r} was made by another decorator. Take the one of clew.compat.locus: "
                "from clew.compat.locus import tool"
            )
    return given
