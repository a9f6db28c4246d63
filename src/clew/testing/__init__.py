"""Tools for testing your own agents and stores: models that answer from a script, an HTTP server that answers from a
script like the vendors' APIs, and tests that every store has to pass.

The HTTP server and the tests of stores need the extra `testing`. Each name is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
    from clew.testing.contract.histories import Visitor
    from clew.testing.contract.suite import CheckpointerContract, FreezableStore, OpenStore
    from clew.testing.history.calls import Journal, read_history
    from clew.testing.history.check import check_history
    from clew.testing.history.recorder import Recorder
    from clew.testing.model_server.faults import Fault
    from clew.testing.model_server.records import RecordedRequest
    from clew.testing.model_server.server import ModelServer
    from clew.testing.scripted_model import Reply, Response, ScriptedModel, call, reply, say, think, turns_in

__all__ = [
    "CheckpointerContract",
    "Fault",
    "FreezableStore",
    "Journal",
    "ModelServer",
    "OpenStore",
    "RecordedRequest",
    "Recorder",
    "Reply",
    "Response",
    "ScriptedModel",
    "Visitor",
    "call",
    "check_history",
    "read_history",
    "reply",
    "say",
    "think",
    "turns_in",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "CheckpointerContract": "clew.testing.contract.suite",
        "Fault": "clew.testing.model_server.faults",
        "FreezableStore": "clew.testing.contract.suite",
        "Journal": "clew.testing.history.calls",
        "ModelServer": "clew.testing.model_server.server",
        "OpenStore": "clew.testing.contract.suite",
        "RecordedRequest": "clew.testing.model_server.records",
        "Recorder": "clew.testing.history.recorder",
        "Reply": "clew.testing.scripted_model",
        "Response": "clew.testing.scripted_model",
        "ScriptedModel": "clew.testing.scripted_model",
        "Visitor": "clew.testing.contract.histories",
        "call": "clew.testing.scripted_model",
        "check_history": "clew.testing.history.check",
        "read_history": "clew.testing.history.calls",
        "reply": "clew.testing.scripted_model",
        "say": "clew.testing.scripted_model",
        "think": "clew.testing.scripted_model",
        "turns_in": "clew.testing.scripted_model",
    },
)
