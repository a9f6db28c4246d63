"""The ledger of a lab: what really happened, outside the store. Any process adds lines to it, each in one write."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal, NamedTuple

__all__ = ["Deed", "Ledger"]

Kind = Literal["asked", "charged", "paid", "looked", "put", "stepped", "wrong", "died"]


class Deed(NamedTuple):
    """One line of the ledger. `at` is in microseconds since 1970, and `life` names the process that did it."""

    at: int
    life: str
    kind: str
    thread_id: str
    number: str
    """Which call of the thread did it, or, for `asked`, which response of the thread was asked for."""
    key: str
    """The idempotency key of the call; for `wrong`, what is wrong."""


class Ledger:
    def __init__(self, path: Path, life: str = "test") -> None:
        """`life` names this process in the lines that it writes."""
        self._path = path
        self.life = life

    def add(self, kind: Kind, thread_id: str, number: int | str, key: str = "") -> None:
        """Append one line. The line is there whatever happens to this process afterwards."""
        line = "\t".join((str(time.time_ns() // 1000), self.life, kind, thread_id, str(number), key))
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)

    def deeds(self) -> list[Deed]:
        if not self._path.exists():
            return []
        rows = (line.split("\t") for line in self._path.read_text().splitlines())
        return [Deed(int(at), life, kind, thread_id, number, key) for at, life, kind, thread_id, number, key in rows]

    def has(self, kind: Kind, key: str) -> bool:
        """Return whether any process has done this for a call with this idempotency key."""
        wanted = f"\t{key}\n"
        with self._path.open() as file:
            return any(line.endswith(wanted) and f"\t{kind}\t" in line for line in file)
