"""Turns and calls while their log is read: what is known of them so far."""

from __future__ import annotations

from typing import Any

import msgspec

from clew.log import Usage, WorkspaceSnapshot
from clew.messages import Assistant, Message, ToolCall, ToolResult

__all__ = ["DraftCall", "DraftTurn"]


class DraftCall:
    """A call as far as it has come."""

    def __init__(self, index: int, call: ToolCall, asked: int | None) -> None:
        self.index, self.call = index, call
        self.asked = asked
        self.begun: int | None = None
        self.lease = -1
        """The lease under which it was begun last, counted from the first."""
        self.attempts = 0
        self.result: ToolResult | None = None
        self.ended: int | None = None
        self.replayed = self.doubted = False

    @property
    def open(self) -> bool:
        return self.result is None

    def finish(self, result: ToolResult, now: int | None) -> None:
        if self.result is None:
            self.result, self.ended = result, now

    def begin(self, attempt: int, lease: int, now: int) -> None:
        self.begun, self.lease, self.attempts = now, lease, max(attempt, self.attempts + 1)


class DraftTurn:
    """A turn as far as it has come."""

    def __init__(self, position: int, number: int, message: int, response: Assistant, frame: int) -> None:
        self.position, self.number, self.message, self.frame = position, number, message, frame
        self.response = response
        self.prompts: tuple[Message, ...] = ()
        self.calls: list[DraftCall] = []
        self.started: int | None = None
        self.responded: int | None = None
        self.idle = 0
        self.usage: Usage | None = None
        self.cost: float | None = None
        self.snapshot: WorkspaceSnapshot | None = None
        self.metadata: dict[str, Any] = {}
        self.rewound = self.inherited = False

    @property
    def open(self) -> bool:
        return not self.rewound and any(call.open for call in self.calls)

    @property
    def ended(self) -> int | None:
        times = [self.responded, *(call.ended for call in self.calls)]
        return None if self.open else max((time for time in times if time is not None), default=None)

    def spend(self, usage: Usage, cost: float | None) -> None:
        before = self.usage or Usage()
        added = map(sum, zip(msgspec.structs.astuple(before), msgspec.structs.astuple(usage), strict=True))
        self.cost = None if cost is None or (self.usage and self.cost is None) else (self.cost or 0.0) + cost
        self.usage = Usage(*added)
