"""The agent of the demo. In each turn it pays an invoice, which must happen exactly once, and files a receipt."""

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
"""Seconds that the scripted model takes for a response. A real model takes about a hundred times as long."""
BANK_ANSWERS = 10.0
"""Seconds that the bank takes to answer in the turn in which the process is killed: long enough for the kill to come
first."""


class Places:
    """The paths that a run of the demo uses, such as its store and its workspace. All are in one folder."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store" / "clew.db"
        self.files = folder / "files"
        self.ledger = folder / "ledger.txt"
        """The bank's own list of payments. It is outside the workspace, so that Clew cannot restore it."""
        self.cache = folder / "cache"


def make_agent(places: Places, *, slow_at: int = 0, effect: Effect = "once") -> Agent:
    """Make the agent of the demo. In the turn number `slow_at` the bank takes the money at once and answers late; with
    0, it never answers late.

    `effect` is what the payment tool declares about running twice. Any value but "once" is wrong for a payment, and
    makes the demo show repeated payments.
    """

    def was_paid(ctx: ToolContext, invoice: str, cents: int) -> str | NotDone:
        """Look in the ledger, the bank's list of payments, for the payment of this invoice with the call's idempotency
        key. Returns the tool's result if the payment was made, else `NOT_DONE`. Called for a payment that was begun and
        whose outcome is not on record."""
        lines = places.ledger.read_text().splitlines() if places.ledger.exists() else []
        return _paid(invoice, cents) if f"{invoice} {cents} {ctx.idempotency_key}" in lines else NOT_DONE

    @tool(effect=effect, reconcile=was_paid if effect == "once" else None)
    async def pay_invoice(invoice: str, cents: int, ctx: ToolContext) -> str:
        """Pay an invoice. Write the payment to the bank's ledger."""
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
        """Write the receipt of an invoice into the workspace."""
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
    """The model of the demo, which gives prepared responses. It prints an event for each request, so that the requests
    of a process that is killed are counted too."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        say(Asked(turns_in(request) + 1))
        return super().stream(request)


def script() -> list[Response]:
    """Return the prepared responses of the demo's model: two tool calls in every turn but the last, which has the final
    answer."""
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
    """Event that the demo prints when its model is asked for the response of the turn number `turn`."""

    turn: int


class Began(msgspec.Struct, frozen=True, tag="began"):
    """Event that the demo prints: a tool has started to run for this invoice."""

    tool: str
    invoice: str


class InBank(msgspec.Struct, frozen=True, tag="in-bank"):
    """Event that the demo prints: the payment is made, but the tool still waits for the bank's answer, so the outcome
    of the call is not stored."""

    turn: int
    tool: str
    invoice: str


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """Event that the demo prints: the run has ended. Has the run's status, its number of turns, how many seconds it
    took, and how many of them it waited for writes to disk."""

    status: str
    turns: int
    waited: float
    """Seconds that the run waited until its writes were safe on the disk."""
    seconds: float
    """Duration of the run."""


Line = Asked | Began | InBank | Ended | TurnFinished | ToolFinished | ToolReplayed | ToolInDoubt

_encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Line).decode


def say(line: Line) -> None:
    """Print an event as a line of JSON. It is written without a buffer, so that a kill does not lose it."""
    os.write(1, _encode(line) + b"\n")
