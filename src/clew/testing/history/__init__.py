"""Histories: records of the calls that several processes made of one store, with the answers that they got, and a check
whether a correct store could have given these answers. Record a history with `Recorder`, read it with `read_history`,
check it with `check_history`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
    from clew.testing.history.calls import Call, Journal, Outcome, read_history
    from clew.testing.history.check import check_history
    from clew.testing.history.recorder import Recorder

__all__ = ["Call", "Journal", "Outcome", "Recorder", "check_history", "read_history"]

__getattr__, __dir__ = exports(
    __name__,
    {
        "Call": "clew.testing.history.calls",
        "Journal": "clew.testing.history.calls",
        "Outcome": "clew.testing.history.calls",
        "Recorder": "clew.testing.history.recorder",
        "check_history": "clew.testing.history.check",
        "read_history": "clew.testing.history.calls",
    },
)
