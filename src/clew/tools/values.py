"""JSON-like values: check, copy and show them, with and without pydantic.

Pydantic is never imported here: whoever passes a pydantic model has imported it already.
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
    """Copy a value into the form in which a log returns it: tuples become lists. Raises `InvalidInput` with the place
    of a value that is not JSON-like.

    A step's value is copied so that it is the same in the run that made it and in a run that replays it.
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
    """Format a value as a model would write it, shortened to fit into a message."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= longest else text[:longest] + "…"


def needs_pydantic(hint: Any) -> bool:
    """Return whether a type is, contains or is annotated with something of pydantic's."""
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
    """Return the pydantic adapter that validates this type. Raises if pydantic cannot handle the type."""
    return sys.modules["pydantic"].TypeAdapter(hint)


def schemas(adapters: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the JSON schema of each adapter, and the definitions that they share."""
    if not adapters:
        return {}, {}
    made, shared = sys.modules["pydantic"].TypeAdapter.json_schemas(
        [(name, "validation", adapter) for name, adapter in adapters.items()], ref_template="#/$defs/{model}"
    )
    return {name: made[name, "validation"] for name in adapters}, shared.get("$defs", {})


def validate(adapter: Any, value: Any) -> tuple[Any, list[tuple[str, str, Any]]]:
    """Return the validated value, or the errors: place, what was expected and what was given."""
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
    """Convert a pydantic object to JSON-like values. Raises `NotImplementedError` for anything else."""
    found = sys.modules.get("pydantic")
    if found is not None and isinstance(value, found.BaseModel):
        return msgspec.json.decode(value.model_dump_json())
    raise NotImplementedError
