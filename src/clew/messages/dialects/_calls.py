"""Ids and names of tool calls, made to fit what a vendor takes. The same call gets the same id in every request."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Literal

import msgspec

from clew.messages.blocks import ToolCall
from clew.messages.dialects.loss import At, Notes

_ODD = re.compile(r"[^A-Za-z0-9_-]")


class CallRules(msgspec.Struct, frozen=True):
    """What a vendor demands of the ids and names of calls, and whether a result can say that it is an error."""

    id_pattern: str
    id_length: int
    unique_in: Literal["conversation", "response"]
    name_length: int
    has_errors: bool


class Ids:
    """Hands out an id for each call, in order. An id that fits and is free is kept as it is."""

    def __init__(self, rules: CallRules) -> None:
        self._rules = rules
        self._fits = re.compile(rules.id_pattern, re.ASCII)
        self._used: set[str] = set()
        self._seen: dict[str, int] = {}

    def next_response(self) -> None:
        if self._rules.unique_in == "response":
            self._used.clear()
            self._seen.clear()

    def give(self, wanted: str) -> str:
        chosen = wanted
        while chosen in self._used or len(chosen) > self._rules.id_length or not self._fits.fullmatch(chosen):
            number = self._seen[wanted] = self._seen.get(wanted, 0) + 1
            tail = blake2b(f"{number} {wanted}".encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
            chosen = f"{_ODD.sub('_', wanted)[: self._rules.id_length - 11] or 'call'}_{tail}"
        self._used.add(chosen)
        return chosen


def fitted(call: ToolCall, ids: Ids, rules: CallRules, at: At, notes: Notes) -> ToolCall:
    """The call with an id and a name that the vendor takes."""
    given = ids.give(call.id)
    name = _ODD.sub("_", call.name)[: rules.name_length] or "unnamed"
    if given != call.id:
        notes.add(at, "the id of a tool call", "the API refuses it, or it is taken; another is sent in its place")
    if name != call.name:
        notes.add(at, "the name of a tool call", "the API takes only letters, digits, _ and -, and not too many")
    return msgspec.structs.replace(call, id=given, name=name)
