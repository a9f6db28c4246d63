"""The interface by which the agent calls a model, the classes that call models through the vendors' APIs, and the
prices of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
    from clew.models.base import (
        Model,
        ModelEvent,
        ModelRequest,
        ModelResponse,
        Retrying,
        TextDelta,
        ThinkingDelta,
        ToolSpec,
    )
    from clew.models.prices import PRICES, Price, cost_of
    from clew.models.resolve import resolve_model

__all__ = [
    "PRICES",
    "Model",
    "ModelEvent",
    "ModelRequest",
    "ModelResponse",
    "Price",
    "Retrying",
    "TextDelta",
    "ThinkingDelta",
    "ToolSpec",
    "cost_of",
    "resolve_model",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "Model": "clew.models.base",
        "ModelEvent": "clew.models.base",
        "ModelRequest": "clew.models.base",
        "ModelResponse": "clew.models.base",
        "PRICES": "clew.models.prices",
        "Price": "clew.models.prices",
        "Retrying": "clew.models.base",
        "TextDelta": "clew.models.base",
        "ThinkingDelta": "clew.models.base",
        "ToolSpec": "clew.models.base",
        "cost_of": "clew.models.prices",
        "resolve_model": "clew.models.resolve",
    },
)
