"""Pydantic, for those who use it. It is never imported here: whoever has a model of it has imported it already."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, get_args, get_type_hints, is_typeddict

import msgspec

__all__ = ["dump", "make_adapter", "needs_pydantic", "schemas", "validate"]


def needs_pydantic(hint: Any) -> bool:
    """Whether a type is, holds or is annotated with something of pydantic's."""
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
    """What pydantic validates such a type with; raises if it cannot."""
    return sys.modules["pydantic"].TypeAdapter(hint)


def schemas(adapters: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The JSON schema of each, and the definitions that they share."""
    if not adapters:
        return {}, {}
    made, shared = sys.modules["pydantic"].TypeAdapter.json_schemas(
        [(name, "validation", adapter) for name, adapter in adapters.items()], ref_template="#/$defs/{model}"
    )
    return {name: made[name, "validation"] for name in adapters}, shared.get("$defs", {})


def validate(adapter: Any, value: Any) -> tuple[Any, list[tuple[str, str, Any]]]:
    """The value, or what is wrong with it: the place, what was expected, and what was given."""
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
    """A pydantic object as JSON-like values; `NotImplementedError` for anything else."""
    found = sys.modules.get("pydantic")
    if found is not None and isinstance(value, found.BaseModel):
        return msgspec.json.decode(value.model_dump_json())
    raise NotImplementedError
