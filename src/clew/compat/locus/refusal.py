"""Raises an error for keywords of Locus (another agent library) that Clew does not have. The error says what Clew has
instead."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from clew.errors import InvalidInput

__all__ = ["refuse"]


def refuse(call: str, given: Mapping[str, Any], known: Collection[str], instead: Mapping[str, str]) -> None:
    """Raise `InvalidInput` if `given`, the keywords of a call that are not among its parameters, is not empty. `call`
    is the name of what was called, and `known` are the keywords that it takes, which the error lists. `instead` says
    for some keywords of Locus what Clew has in their place."""
    if not given:
        return
    said = []
    for name in given:
        if name in instead:
            said.append(f"{name}= is not taken: {instead[name]}")
        else:
            close = [other for other in known if other.startswith(name)] or difflib.get_close_matches(name, known, n=1)
            said.append(f"{name}= is not known" + (f"; did you mean {close[0]}=?" if close else ""))
    raise InvalidInput(f"{call}: {'. '.join(said)}. It takes {', '.join(known)}.")
