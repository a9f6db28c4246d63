"""What a worker tells whoever started it, a line of JSON each. A pipe keeps what was written to it, SIGKILL or not."""

from __future__ import annotations

import os

import msgspec

from clew.agent import ToolFinished, ToolInDoubt, ToolReplayed, TurnFinished

__all__ = ["Asked", "Began", "Ended", "InBank", "Line", "decode", "say"]


class Asked(msgspec.Struct, frozen=True, tag="asked"):
    """The model is called, for the response of this turn."""

    turn: int


class Began(msgspec.Struct, frozen=True, tag="began"):
    """The body of a tool runs."""

    tool: str
    invoice: str


class InBank(msgspec.Struct, frozen=True, tag="in-bank"):
    """The money is gone, the tool still waits for the bank's answer, and so its outcome is not on record."""

    turn: int
    tool: str
    invoice: str


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The run is over: how, and what it measured of itself."""

    status: str
    turns: int
    waited: float
    """Seconds that it waited for its record to be durable."""
    seconds: float
    """All of the run."""


Line = Asked | Began | InBank | Ended | TurnFinished | ToolFinished | ToolReplayed | ToolInDoubt

_encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Line).decode


def say(line: Line) -> None:
    os.write(1, _encode(line) + b"\n")
