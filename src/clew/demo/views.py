"""What the demo shows: its texts, and the class that prints them as plain lines."""

from __future__ import annotations

from typing import Literal, Protocol, TextIO

from clew._runtime.text import size
from clew.agent import ToolInDoubt, TurnFinished
from clew.demo.compare import Report
from clew.demo.job import THINKING, TURNS, Asked, InBank, Line
from clew.demo.process import Process

__all__ = ["HEADINGS", "INTRODUCTION", "PlainView", "Role", "View", "cells", "costs", "outcome", "verdict"]

Role = Literal["undisturbed", "killed", "resumed"]

INTRODUCTION = (
    f"An agent has {TURNS} turns of work: it pays invoices, each exactly once, and files\n"
    "receipts. First undisturbed; then in a process that is killed, and one that resumes."
)
HEADINGS = ("", "undisturbed", "before kill", "after", "lost", "repeated")


class View(Protocol):
    """Shows the demo to the user. `open` is called at the start. `began`, `heard` and `ended` are called when a process
    of the demo starts, prints an event, and ends. Then `close` is called, and at the end `show` with the report."""

    def open(self) -> None: ...
    def began(self, role: Role, pid: int) -> None: ...
    def heard(self, role: Role, line: Line) -> None: ...
    def ended(self, role: Role, process: Process) -> None: ...
    def close(self) -> None: ...
    def show(self, report: Report) -> None: ...


class PlainView:
    """Shows the demo as plain lines of text."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def open(self) -> None:
        self._print(INTRODUCTION, "")

    def began(self, role: Role, pid: int) -> None:
        pass

    def heard(self, role: Role, line: Line) -> None:
        pass

    def ended(self, role: Role, process: Process) -> None:
        self._print(f"{role:<13}process {process.pid}: {outcome(role, process)}")

    def close(self) -> None:
        self._print("")

    def show(self, report: Report) -> None:
        table = [HEADINGS, *cells(report)]
        widths = [max(len(line[column]) for line in table) for column in range(len(HEADINGS))]
        for line in table:
            first, *numbers = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            self._print("  ".join([line[0].ljust(len(first)), *numbers]))
        self._print("")
        facts = costs(report)
        width = max(len(label) for label, _ in facts)
        for label, value in facts:
            self._print(f"{label:<{width}}  {value}")
        self._print("", verdict(report))

    def _print(self, *lines: str) -> None:
        for line in lines:
            print(line, file=self._out, flush=True)


def outcome(role: Role, process: Process) -> str:
    """Describe in a line how a process of the demo ended. `role` says which of the three it was: undisturbed, killed or
    resumed."""
    turns, calls = len(process.all(TurnFinished)), len(process.all(Asked))
    if role == "killed":
        [bank] = [line for line in process.lines if isinstance(line, InBank)]
        return f"SIGKILL in turn {bank.turn}, in {bank.tool}: {bank.invoice} paid, not on record"
    doubts = [line for line in process.lines if isinstance(line, ToolInDoubt)]
    went_on = "".join(f"{doubt.name} in doubt: {doubt.becomes}; " for doubt in doubts)
    seconds = process.result.seconds if process.result else 0.0
    return f"{went_on}{turns} turns, {calls} model calls, {seconds:.1f} s"


def cells(report: Report) -> list[tuple[str, ...]]:
    """Return the rows of the demo's report as a table. Each row is a tuple with the texts of its cells, in the order of
    `HEADINGS`."""
    return [
        (row.what, *(f"{n:,}" for n in (row.undisturbed, row.before, row.after, row.lost, row.repeated)))
        for row in report.rows
    ]


def costs(report: Report) -> list[tuple[str, str]]:
    """Return what it cost that the demo's agent was killed and that its work is written to disk, as pairs of a label
    and a value: extra model calls, the time waited for the disk, the time to resume, and the size of the store."""
    each, share = report.waited / report.turns, report.waited / report.seconds
    return [
        ("extra model calls", str(report.extra_model_calls)),
        (
            "waited for the disk",
            f"{report.waited * 1000:.0f} ms, {each * 1000:.1f} ms a turn: {share:.1%} of the run, at "
            f"{THINKING * 1000:.0f} ms a model call",
        ),
        ("resumed after", f"{report.opened_after * 1000:.0f} ms, the start of the process included"),
        ("the store", f"{size(report.bytes)} of SQLite: {report.messages} messages, {report.files} files"),
    ]


def verdict(report: Report) -> str:
    """Return a sentence that sums up the demo's report: whether anything was lost or repeated."""
    if report.is_whole:
        return "Nothing was lost, nothing was repeated, and no model call was made beyond those of an undisturbed run."
    wrong = [row for row in report.rows if row.lost or row.repeated]
    said = "; ".join(f"{row.what}: {row.lost} lost, {row.repeated} repeated" for row in wrong)
    return f"It is NOT as in an undisturbed run. {said[0].upper()}{said[1:]}."
