"""When a folded state is worth writing into a log."""

from __future__ import annotations

import msgspec

__all__ = ["LogSize"]

RATIO = 4
"""A folded state is written once the bytes it spares a reader are this many times its own: at most a quarter more."""
LEAST = 64 * 1024
"""Bytes that every reader reads soon enough: no folded state is written for fewer."""


class LogSize(msgspec.Struct, frozen=True, gc=False):
    """How large the end of a log is, and how large its state may be: in bytes of frames."""

    since: int = 0
    """Frames after the newest folded state."""
    snapshot: int = 0
    """The folded state when it was last written, or tried."""
    kept: float = 0.0
    """An estimate of all that the state keeps: it grows with the log, unless the log holds much that a fold drops."""

    def grown(self, size: int, kept: float) -> LogSize:
        """With one more frame, of which this share stays in the state."""
        return LogSize(self.since + size, self.snapshot, self.kept + size * kept)

    def may_pay(self) -> bool:
        """Whether it is worth finding out: encoding a state costs as much as it is large, so a guess comes first."""
        return self.since > LEAST and self.since > RATIO * max(self.snapshot, self.kept / 2)

    def pays(self, snapshot: int) -> bool:
        return self.since > RATIO * snapshot
