"""Check, copy and show JSON-like values (None, bool, int, float, str, list, dict), and validate values with pydantic.

Pydantic is never imported here: a program that passes a pydantic model has imported it already.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any, get_args, get_type_hints, is_typeddict

import msgspec

from clew.errors import InvalidInput

__all__ = ["dump", "json_like", "make_adapter", "needs_pydantic", "schemas", "shown", "validate"]


_LEAST, _MOST = -(2**63), 2**64
_DEEPEST = 100


def json_like(value: Any, what: str) -> Any:
    """Return a copy of a value as a log would return it: tuples become lists. Raises `InvalidInput` if a part of it is
    not JSON-like; the message names the part, beginning with `what`.

    The value of a step, a recorded part of a tool's work, is copied with this function. So the run that made the value
    gets the same as a later run that reads the value from the log.
    """
    return _copy(value, what, 0)


def _copy(value: Any, place: str, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return value
    if kind is str:
        if value.isascii() or _is_text(value):
            return value
        raise InvalidInput(f"{place} is a text with half a surrogate pair, which cannot be stored.")
    if kind is int:
        if _LEAST <= value < _MOST:
            return value
        raise InvalidInput(f"{place} is an integer of more than 64 bits. Keep it as text.")
    if depth > _DEEPEST:
        raise InvalidInput(f"{place} is nested more than {_DEEPEST} levels deep, or holds itself.")
    if kind is list or kind is tuple:
        return [_copy(inner, f"{place}[{index}]", depth + 1) for index, inner in enumerate(value)]
    if kind is dict:
        for key in value:
            if type(key) is not str or not _is_text(key):
                raise InvalidInput(f"{place} has the key {key!r}, and only texts can be keys.")
        return {key: _copy(inner, f"{place}[{key!r}]", depth + 1) for key, inner in value.items()}
    raise InvalidInput(
        f"{place} is of the type {kind.__qualname__}, which is not JSON-like. Use None, bool, int, float, str, list and "
        "dict; msgspec.to_builtins or model_dump turn an object into these."
    )


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: Any, longest: int = 120) -> str:
    """Format a value as JSON, or as Python shows it if that is not possible. Cut off after `longest` characters."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= longest else text[:longest] + "…"


def needs_pydantic(hint: Any) -> bool:
    """Return whether a type is a pydantic model, contains one, or is annotated with an object of pydantic, such as a
    `Field`."""
    return "pydantic" in sys.modules and _mentions(hint, set())


def _mentions(hint: Any, seen: set[int]) -> bool:
    if id(hint) in seen:
        return False
    seen.add(id(hint))
    if isinstance(hint, type) and hasattr(hint, "__pydantic_core_schema__"):
        return True
    if any(type(mark).__module__.partition(".")[0] == "pydantic" for mark in getattr(hint, "__metadata__", ())):
        return True
    if is_typeddict(hint) or (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
        try:
            inner = tuple(get_type_hints(hint, include_extras=True).values())
        except (NameError, TypeError):
            inner = ()
        return any(_mentions(part, seen) for part in inner)
    return any(_mentions(part, seen) for part in get_args(hint))


def make_adapter(hint: Any) -> Any:
    """Return the pydantic adapter that validates this type. Raises pydantic's own error if it cannot handle the type."""
    return sys.modules["pydantic"].TypeAdapter(hint)


def schemas(adapters: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the JSON schema of each of these pydantic adapters, by name, and the definitions that the schemas share."""
    if not adapters:
        return {}, {}
    made, shared = sys.modules["pydantic"].TypeAdapter.json_schemas(
        [(name, "validation", adapter) for name, adapter in adapters.items()], ref_template="#/$defs/{model}"
    )
    return {name: made[name, "validation"] for name in adapters}, shared.get("$defs", {})


def validate(adapter: Any, value: Any) -> tuple[Any, list[tuple[str, str, Any]]]:
    """Validate a value with a pydantic adapter. Return the validated value and an empty list, or None and a list of
    errors. Each error has three fields: the path to the wrong part inside the value, the reason, and the wrong part
    itself."""
    try:
        return adapter.validate_python(value), []
    except sys.modules["pydantic"].ValidationError as error:
        return None, [
            (_place(problem["loc"]), _lower(str(problem["msg"])), problem["input"])
            for problem in error.errors(include_url=False, include_context=False)
        ]


def _place(parts: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def dump(value: Any) -> Any:
    """Convert a pydantic model to JSON-like values. Raises `NotImplementedError` for any other value."""
    found = sys.modules.get("pydantic")
    if found is not None and isinstance(value, found.BaseModel):
        return msgspec.json.decode(value.model_dump_json())
    raise NotImplementedError
