"""Tables: as wide as the terminal at most, whatever is in them, and whole in a pipe."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from clew.cli.output.tables import Cell, Column, laid_out

COLUMNS = [
    Column("id"),
    Column("title", gives_way=True),
    Column("model", spare=2),
    Column("cost", right=True, spare=1),
]
ROW = [Cell("thread-1"), Cell("A title that is rather long"), Cell("a-model"), Cell("$1.00")]


def shown(width: int | None, row: list[Cell] = ROW) -> list[str]:
    return ["".join(cell.text for cell in line) for line in laid_out(COLUMNS, [row], width)]


def test_columns_are_cut_and_then_left_out_and_the_first_is_never() -> None:
    assert shown(None) == [
        "ID        TITLE                        MODEL     COST",
        "thread-1  A title that is rather long  a-model  $1.00",
    ]
    assert shown(50)[1] == "thread-1  A title that is rather …  a-model  $1.00"
    assert shown(45)[1] == "thread-1  A title that is rather long  $1.00"
    assert shown(40)[1] == "thread-1  A title that is rather…  $1.00"
    assert shown(30)[1] == "thread-1  A title that is rat…"


@given(st.lists(st.text("aé漢🙂 ", max_size=40), min_size=4, max_size=4), st.integers(48, 120))
def test_no_line_is_wider_than_the_terminal(words: list[str], width: int) -> None:
    for line in shown(width, [Cell(word) for word in words]):
        assert cell_len(line) <= width
