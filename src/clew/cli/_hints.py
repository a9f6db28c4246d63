"""What is said beside the answer, on the standard error."""

from __future__ import annotations

import typer

__all__ = ["hint", "many"]


def hint(text: str) -> None:
    """A line that helps, and that no program has to skip."""
    typer.secho(text, err=True, dim=True)


def many(count: int, what: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count} {what}{'' if count == 1 else 's'}"
