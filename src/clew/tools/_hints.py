"""The types that a function's parameters are annotated with, also where annotations are texts."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from clew.errors import InvalidInput
from clew.tools.context import ToolContext

__all__ = ["bare_function", "is_context", "read_hints"]


def bare_function(fn: Any) -> Any:
    """The function inside partials, wrappers, bound methods and callable objects."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif inspect.ismethod(fn):
            fn = fn.__func__
        elif not inspect.isfunction(fn) and inspect.ismethod(getattr(fn, "__call__", None)):  # noqa: B004
            fn = fn.__call__.__func__
        else:
            return fn


def read_hints(fn: Callable[..., Any], what: str, namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The types of the parameters. That of the return value is not looked at, so it may be anything."""
    inner = bare_function(fn)
    annotations = {name: hint for name, hint in getattr(inner, "__annotations__", {}).items() if name != "return"}
    known = getattr(inner, "__globals__", {})
    local = {name: value for name, value in {"ToolContext": ToolContext, **namespace}.items() if name not in known}
    holder = types.SimpleNamespace(__annotations__=annotations)
    try:
        return get_type_hints(holder, dict(known), local, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise InvalidInput(
            f"{what} has an annotation that cannot be read: {error}. Import its type where the function is defined, "
            "not under TYPE_CHECKING."
        ) from error


def is_context(hint: Any) -> bool:
    """`ToolContext`, or that or None."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(is_context(choice) for choice in get_args(hint))
    return hint is ToolContext
