"""The protocol by which the agent calls a model, the clients for the vendors' APIs, and the prices of models."""

from __future__ import annotations

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
