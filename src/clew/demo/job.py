"""The work of the demo's agent: in each of its turns it pays an invoice, which must happen once, and files a receipt."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from clew.agent import Agent, ToolFinished, ToolInDoubt, ToolReplayed, TurnFinished
from clew.models import ModelRequest, Price
from clew.models.base import ModelEvent
from clew.testing.scripted_model import Response, ScriptedModel, call, reply, turns_in
from clew.testing.scripted_model import say as words
from clew.tools import NOT_DONE, Effect, NotDone, ToolContext, tool

__all__ = [
    "PROMPT",
    "THINKING",
    "THREAD",
    "TURNS",
    "Asked",
    "Began",
    "Ended",
    "InBank",
    "Line",
    "Places",
    "decode",
    "make_agent",
    "say",
]


TURNS = 30
THREAD = "quarter"
PROMPT = "Pay every open invoice of the quarter, and file a receipt of each."
THINKING = 0.040
"""Seconds that the model takes for a response; a real one takes a hundred times as long."""
BANK_ANSWERS = 10.0
"""Seconds that the bank takes to answer where it is slow: long enough to be killed meanwhile."""


class Places:
    """Where a run keeps its things."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store" / "clew.db"
        self.files = folder / "files"
        self.ledger = folder / "ledger.txt"
        """The bank's own book: outside of the workspace, and nothing that Clew could restore."""
        self.cache = folder / "cache"


def make_agent(places: Places, *, slow_at: int = 0, effect: Effect = "once") -> Agent:
    """`slow_at`: the turn in which the bank takes the money at once and answers late. `effect` is what is promised of
    paying; with any other than "once" it is a lie, and shows how the demo's table looks then."""

    def was_paid(ctx: ToolContext, invoice: str, cents: int) -> str | NotDone:
        """Asked about a payment that was begun and has no outcome on record: the ledger knows it by its key."""
        lines = places.ledger.read_text().splitlines() if places.ledger.exists() else []
        return _paid(invoice, cents) if f"{invoice} {cents} {ctx.idempotency_key}" in lines else NOT_DONE

    @tool(effect=effect, reconcile=was_paid if effect == "once" else None)
    async def pay_invoice(invoice: str, cents: int, ctx: ToolContext) -> str:
        """Pay an invoice."""
        say(Began("pay_invoice", invoice))
        with places.ledger.open("a") as ledger:
            ledger.write(f"{invoice} {cents} {ctx.idempotency_key}\n")
            ledger.flush()
            os.fsync(ledger.fileno())
        if invoice == _name(slow_at):
            say(InBank(slow_at, "pay_invoice", invoice))
            await asyncio.sleep(BANK_ANSWERS)
        return _paid(invoice, cents)

    @tool(effect="idempotent")
    async def file_receipt(invoice: str, text: str, ctx: ToolContext) -> str:
        """Write the receipt of an invoice."""
        say(Began("file_receipt", invoice))
        assert ctx.workspace is not None  # noqa: S101 - the agent below has one
        receipts = ctx.workspace / "receipts"
        receipts.mkdir(exist_ok=True)
        (receipts / f"{invoice}.txt").write_text(text)
        return f"filed receipts/{invoice}.txt"

    return Agent(
        Model(script(), delay=THINKING),
        name="bookkeeper",
        tools=[pay_invoice, file_receipt],
        checkpointer=f"sqlite:///{places.store}",
        workspace=places.files,
        prices={"scripted": Price(3, 15)},
    )


class Model(ScriptedModel):
    """A model that says each time it is asked, so that calls can be counted whatever becomes of the process."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        say(Asked(turns_in(request) + 1))
        return super().stream(request)


def script() -> list[Response]:
    """Two calls at once in every turn but the last, which is the last word."""
    turns: list[Response] = []
    for number in range(1, TURNS):
        invoice, cents = _name(number), 1117 * number
        receipt = f"Invoice {invoice}\nAmount  {cents / 100:.2f} euros\n"
        calls = call("pay_invoice", invoice=invoice, cents=cents) + call("file_receipt", invoice=invoice, text=receipt)
        turns.append(reply(words(f"{invoice} is due."), calls))
    return [*turns, f"All {TURNS - 1} invoices are paid, and their receipts are in receipts/."]


def _name(number: int) -> str:
    return f"INV-{number:03}"


def _paid(invoice: str, cents: int) -> str:
    return f"{invoice} is paid: {cents / 100:.2f} euros"


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
