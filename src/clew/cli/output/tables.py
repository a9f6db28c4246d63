"""Print tables: fitted to the width of a terminal, and uncut in a pipe.

rich is imported inside functions: it takes 50 ms, and a table in a pipe does not need its console.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from clew._runtime.text import visible

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["Cell", "Column", "is_plain", "laid_out", "print_table", "styled"]

_GAP = 2
_NARROWEST = 20
"""The fewest characters to which a column is cut."""
_FORCING = ("FORCE_COLOR", "TTY_COMPATIBLE")


class Column(NamedTuple):
    """A column of a table: its heading, and how it is laid out."""

    name: str
    right: bool = False
    """Whether the cells are aligned to the right, as numbers are."""
    gives_way: bool = False
    """Whether this column is cut before the others on a narrow terminal."""
    spare: int = 0
    """The order in which columns are left out if cutting them is not enough: the column with the highest number goes
    first. A column with 0 is never left out."""


class Cell(NamedTuple):
    """A piece of text, and the style in which rich prints it."""

    text: str
    style: str = ""


Line = list[Cell]
"""A line of a table: the texts of its cells and the spaces between them, each with its style."""


def is_plain() -> bool:
    """Tell whether the standard output is certainly not a terminal. Does not import rich, which would take long."""
    return not sys.stdout.isatty() and not any(map(os.environ.get, _FORCING))


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table with its heading. Each row has a cell for every column. On a terminal the table is coloured and
    fitted to the width; in a pipe it is plain and uncut."""
    if is_plain():
        sys.stdout.write("".join(_plain(line) + "\n" for line in laid_out(columns, rows, None)))
        sys.stdout.flush()
        return
    from clew.cli.output.console import console

    out = console()
    for line in laid_out(columns, rows, out.width if out.is_terminal else None):
        out.print(styled(line), soft_wrap=True)


def _plain(line: Line) -> str:
    return "".join(cell.text for cell in line)


def styled(line: Line) -> Text:
    from rich.text import Text

    return Text.assemble(*line, no_wrap=True, overflow="ignore")


def laid_out(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None) -> list[Line]:
    """Return the lines of a table: the heading, then one for each row. A line is a list of cells, which hold the texts
    and the spaces between them, each with its style. No line is wider than `width` characters; None is no limit."""
    from rich.cells import cell_len

    rows = [[Cell(visible(cell.text).replace("\n", " "), cell.style) for cell in row] for row in rows]
    widths = [
        max(len(column.name), *(cell_len(row[place].text) for row in rows)) if rows else len(column.name)
        for place, column in enumerate(columns)
    ]
    shown = _fitted(columns, widths, width)
    heading = [Cell(column.name.upper(), "dim") for column in columns]
    return [_line(columns, row, widths, shown) for row in (heading, *rows)]


def _fitted(columns: Sequence[Column], widths: list[int], width: int | None) -> list[int]:
    """Return the indices of the columns to show in `width` characters; None shows all. Reduces `widths`, the widths of
    the columns, in place until the shown ones fit."""
    shown = list(range(len(columns)))
    if width is None:
        return shown
    least = [min(each, _NARROWEST) if column.gives_way else each for column, each in zip(columns, widths, strict=True)]
    spare = sorted((place for place in shown if columns[place].spare), key=lambda place: columns[place].spare)
    while spare and _total(least, shown) > width:
        shown.remove(spare.pop())
    for place in sorted(shown, key=lambda place: not columns[place].gives_way):
        excess = max(0, _total(widths, shown) - width)
        widths[place] = max(min(widths[place], _NARROWEST), widths[place] - excess)
    return shown


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[place] for place in shown) + _GAP * (len(shown) - 1)


def _line(columns: Sequence[Column], row: Sequence[Cell], widths: list[int], shown: list[int]) -> Line:
    from rich.cells import cell_len, set_cell_size

    line: Line = []
    gap = ""
    for place in shown:
        text, style = row[place]
        if cell_len(text) > widths[place]:
            text = set_cell_size(text, max(0, widths[place] - 1)) + "…"
        pad = " " * (widths[place] - cell_len(text))
        line.append(Cell(gap + pad if columns[place].right else gap))
        line.append(Cell(text, style))
        gap = " " * _GAP if columns[place].right else pad + " " * _GAP
    while line and not line[-1].text.strip():
        line.pop()
    return line
