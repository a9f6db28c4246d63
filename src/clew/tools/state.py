"""The values that a thread's tools share: a mapping that knows what was changed in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from threading import RLock
from typing import Any

import msgspec

from clew.errors import InvalidInput
from clew.tools._values import json_like

__all__ = ["State"]

_RESERVED = "clew:"


class State(MutableMapping[str, Any]):
    """A thread's values, by text. What tools change here, the agent records, and a resumed thread has again.

    Values are JSON-like. A list or dict may be changed in place. Usable from every thread. A key that is deleted is on
    record as None, for a log has no other way to say it; so None reads as absent.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._recorded = {key: value for key, value in (values or {}).items() if value is not None}
        self._now: dict[str, Any] = {}
        """Only what was asked for or set: copies, which tools may change without changing what is on record."""
        self._lock = RLock()

    def __getitem__(self, key: str) -> Any:
        with self._lock:
            if key not in self._now:
                self._now[key] = json_like(self._recorded[key], f"state[{key!r}]")
            if self._now[key] is None:
                raise KeyError(key)
            return self._now[key]

    def __setitem__(self, key: str, value: Any) -> None:
        json_like({key: None}, "state")
        if key.startswith(_RESERVED):
            raise InvalidInput(f"the key {key!r} begins with {_RESERVED!r}, which is for Clew's own. Choose another.")
        kept = json_like(value, f"state[{key!r}]")
        with self._lock:
            self._now[key] = kept

    def __delitem__(self, key: str) -> None:
        with self._lock:
            if key not in self:
                raise KeyError(key)
            self._now[key] = None

    def __contains__(self, key: object) -> bool:
        with self._lock:
            return (self._now[key] if key in self._now else self._recorded.get(key)) is not None  # type: ignore[call-overload]

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            keys = [key for key in {**self._recorded, **self._now} if key in self]
        return iter(keys)

    def __len__(self) -> int:
        with self._lock:
            return sum(key in self for key in {**self._recorded, **self._now})

    def __repr__(self) -> str:
        return f"State({dict(self)!r})"

    def take_changes(self) -> dict[str, Any]:
        """What changed since the last time, to be recorded; None for a key that was deleted. From then on it is what is
        on record. `InvalidInput` if a value was changed in place into one that cannot be stored."""
        with self._lock:
            now = {key: json_like(value, f"state[{key!r}]") for key, value in self._now.items()}
            changed = {key: value for key, value in now.items() if _encode(value) != _encode(self._recorded.get(key))}
            self._recorded.update(changed)
            self._recorded = {key: value for key, value in self._recorded.items() if value is not None}
            return {key: json_like(value, key) for key, value in changed.items()}


def _encode(value: Any) -> bytes:
    """1, 1.0 and True are equal in Python, and are three values in a log."""
    return msgspec.msgpack.encode(value)
