"""Print a text whole on a terminal, page by page, so that a user who is asked about it has seen all of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from clew._runtime.text import visible
from clew.cli.output.console import read_line

__all__ = ["fits_terminal", "print_whole"]

_MORE = "-- more: Enter shows the next page, q leaves -- "
_SIZE = os.terminal_size((80, 24))


def print_whole(text: str) -> bool:
    """Print a text on the standard error with nothing cut, and with control characters made visible. If it is longer
    than the terminal is high, it is printed page by page, and the user goes on to the next page with Enter.

    Returns False if the user left before the last page. Without a terminal everything is printed at once.
    """
    shown = visible(text).expandtabs(4)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        sys.stderr.write(f"{shown}\n")
        return True
    size = _terminal_size()
    page = max(1, size.lines - 2)
    for number, row in enumerate(_rows(shown, max(1, size.columns))):
        if number and number % page == 0 and read_line(_MORE) not in ("\n", "\r\n"):  # empty where the input ends
            return False
        sys.stderr.write(f"{row}\n")
    return True


def fits_terminal(text: str) -> bool:
    """Tell whether the whole text can be on the terminal at once, with two lines to spare."""
    size = _terminal_size()
    return sum(1 for _ in _rows(visible(text).expandtabs(4), max(1, size.columns))) <= size.lines - 2


def _terminal_size() -> os.terminal_size:
    try:
        found = os.get_terminal_size(sys.stderr.fileno())
    except OSError:
        return _SIZE
    return found if found.columns and found.lines else _SIZE


def _rows(text: str, width: int) -> Iterator[str]:
    """Yield the lines of the text as rows of the terminal: a line that is wider than the terminal takes several."""
    from rich.cells import chop_cells

    for line in text.split("\n"):
        yield from chop_cells(line, width) if line else [""]
