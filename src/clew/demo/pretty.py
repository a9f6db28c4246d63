"""Show the demo on a terminal: a progress bar for each process, and a table of the result."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from clew.agent import TurnFinished
from clew.demo.compare import Report, Row
from clew.demo.job import TURNS, Asked, Began, Line
from clew.demo.process import Process
from clew.demo.views import HEADINGS, INTRODUCTION, Role, cells, costs, outcome, verdict

__all__ = ["PrettyView"]

_COLOURS: dict[Role, str] = {"undisturbed": "cyan", "killed": "red", "resumed": "green"}


class PrettyView:
    """Shows the demo on a terminal, with colours and a moving progress bar for each process."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: list[_Bar] = []
        self._live = Live(console=console, get_renderable=lambda: Group(*self._bars), refresh_per_second=12)

    def open(self) -> None:
        self._console.print(Text(INTRODUCTION), "", sep="\n")
        self._live.start()

    def began(self, role: Role, pid: int) -> None:
        done = self._bars[-1].done if role == "resumed" else 0
        self._bars.append(_Bar(role, pid, done))

    def heard(self, role: Role, line: Line) -> None:
        bar = self._bars[-1]
        if isinstance(line, TurnFinished):
            bar.done = line.turn
        elif isinstance(line, Asked):
            bar.note = f"asks the model for turn {line.turn}"
        elif isinstance(line, Began):
            bar.note = f"{line.tool} {line.invoice}"

    def ended(self, role: Role, process: Process) -> None:
        self._bars[-1].note = outcome(role, process)

    def close(self) -> None:
        self._live.stop()
        self._console.print()

    def show(self, report: Report) -> None:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", border_style="dim")
        for heading in HEADINGS:
            table.add_column(heading, justify="right" if heading else "left")
        for row, line in zip(report.rows, cells(report), strict=True):
            table.add_row(*(Text(cell, _style(row, heading)) for cell, heading in zip(line, HEADINGS, strict=True)))
        facts = Table.grid(padding=(0, 2))
        for label, value in costs(report):
            facts.add_row(Text(label, "dim"), Text(value))
        style = "bold green" if report.is_whole else "bold red"
        self._console.print(table, "", facts, "", Text(verdict(report), style), sep="\n")


class _Bar:
    """The progress bar of a process: how many turns it has done. The line below the bar says what the process does, or
    how it ended."""

    def __init__(self, role: Role, pid: int, done: int) -> None:
        self._role: Role = role
        self._pid = pid
        self.done = done
        self.note = "starts"

    def __rich__(self) -> Group:
        colour = _COLOURS[self._role]
        line = Table.grid(padding=(0, 1))
        bar = ProgressBar(TURNS, self.done, width=36, complete_style=colour, finished_style=colour)
        pid = Text(f"process {self._pid}", "dim")
        line.add_row(Text(f"{self._role:<11}", f"bold {colour}"), bar, f"{self.done:>2}/{TURNS} turns", pid)
        return Group(line, Padding(Text(self.note, "dim"), (0, 0, 0, 12)))


def _style(row: Row, heading: str) -> str:
    """Return the style of one cell in the table of the demo's result: the cell of `row` in the column `heading`. In the
    columns `lost` and `repeated`, 0 is green and any other number red; other columns have no style."""
    if heading not in ("lost", "repeated"):
        return ""
    return "bold red" if (row.lost if heading == "lost" else row.repeated) else "green"
