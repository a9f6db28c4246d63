"""Histories made by hand: each call with the moments at which it began and ended."""

from __future__ import annotations

from itertools import count
from typing import Any

from clew.testing.history import Call
from clew.testing.history.calls import Method

__all__ = ["append", "call", "delete", "head", "listing", "read"]

_numbers = count()


def call(method: Method, began: int, ended: int | None, **fields: Any) -> Call:
    """A call; without an end its process died meanwhile."""
    outcome = "unknown" if ended is None else "ok"
    given = {"process": "p", "number": next(_numbers), "outcome": outcome, **fields}
    return Call(method=method, began=began, ended=ended, **given)


def append(began: int, ended: int | None, at: int, *frames: str, log: str = "L", **fields: Any) -> Call:
    """Writes a head that is named for its last frame and position, unless `head` is given."""
    name = f"head of {frames[-1] if frames else at}"
    given = {"thread_id": "t", "log_id": log, "at": at, "frames": frames, "head": name, **fields}
    return call("append", began, ended, **given)


def read(began: int, ended: int, *frames: str, at: int = 0, **fields: Any) -> Call:
    return call("read", began, ended, thread_id="t", at=at, frames=frames, **fields)


def head(began: int, ended: int, of: str = "", **fields: Any) -> Call:
    """Returns the head that the append of this frame wrote, or none."""
    return call("head", began, ended, thread_id="t", head=of and f"head of {of}", **fields)


def delete(began: int, ended: int | None, **fields: Any) -> Call:
    return call("delete", began, ended, thread_id="t", **fields)


def listing(began: int, ended: int, **shown: str) -> Call:
    """Lists whole threads: the id of each, with the frame whose append wrote its head."""
    heads = {thread_id: f"head of {of}" for thread_id, of in shown.items()}
    return call("heads", began, ended, heads=heads, is_whole=True)
