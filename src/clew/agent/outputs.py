"""Structured output: the last words of the model as a value of the type that was asked for."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from clew.errors import InvalidInput
from clew.tools import values

__all__ = ["Output"]

_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?```\s*", re.DOTALL)


class Output:
    """A type that the model's answer is to have: a msgspec struct, a dataclass, a TypedDict, a pydantic model, any of
    Python's own."""

    def __init__(self, wanted: Any) -> None:
        self.wanted = wanted
        self._adapter = values.make_adapter(wanted) if values.needs_pydantic(wanted) else None
        try:
            self.schema: dict[str, Any] = self._adapter.json_schema() if self._adapter else msgspec.json.schema(wanted)
        except TypeError as error:
            raise InvalidInput(f"output={wanted!r} is no type that an answer can have: {error}") from error

    def read(self, text: str) -> tuple[Any, str]:
        """The value; or what to tell the model, if its words are none."""
        fenced = _FENCED.fullmatch(text)
        words = fenced[1] if fenced else text
        if self._adapter is not None:
            try:
                return self._adapter.validate_json(words), ""
            except ValueError as error:
                return None, self._correction(str(error))
        try:
            return msgspec.json.decode(words, type=self.wanted), ""
        except (msgspec.MsgspecError, UnicodeError) as error:
            return None, self._correction(str(error))

    def _correction(self, reason: str) -> str:
        schema = msgspec.json.encode(self.schema).decode()
        return (
            "Your answer could not be read. It is to be JSON of this schema, and nothing else: "
            f"{schema}\nWhat is wrong: {reason}"
        )
