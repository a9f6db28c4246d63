"""A model is known by several names: with its prefix, without it, with the date of its snapshot, without that."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

_SNAPSHOT = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8}|latest)$")
_T = TypeVar("_T")


def find(names: str | Iterable[str], table: Mapping[str, _T]) -> _T | None:
    """What the table says of the first of these names that it has, each tried as it is before it is shortened.

    Nothing is guessed from a name that merely begins alike: `gpt-5-pro` is no `gpt-5`.
    """
    for name in [names] if isinstance(names, str) else names:
        for form in _forms(name):
            if form in table:
                return table[form]
    return None


def _forms(name: str) -> Iterator[str]:
    for form in (name, name.partition(":")[2]):
        if form:
            yield form
            if (short := _SNAPSHOT.sub("", form)) != form:
                yield short
