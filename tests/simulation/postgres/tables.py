"""The tables of a simulated PostgreSQL server, and its transactions: what others see, which rows are locked, and who waits
for whom. Transactions are READ COMMITTED, as the store's are: every statement sees what was committed before it began."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

__all__ = ["Refused", "Row", "Tables", "Transaction"]

Key = tuple[str, Hashable]
"""A row: the name of its table, and its primary key."""
Row = dict[str, Any]


class Refused(Exception):
    """The server answers a statement with an error, and its transaction has no effect. `code` is the SQLSTATE."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class Tables:
    """All committed rows, and the lock of each row that a transaction has changed and not yet committed."""

    def __init__(self) -> None:
        self.rows: dict[Key, Row] = {}
        self.exists = False
        self._last_id = 0
        self._holders: dict[Key, Transaction] = {}
        self._queues: dict[Key, deque[tuple[Transaction, asyncio.Future[None]]]] = {}

    def new_id(self) -> int:
        """Return the next value of the identity column. As on a real server, a value is used up even if its transaction
        is rolled back."""
        self._last_id += 1
        return self._last_id

    def of(self, table: str) -> list[Row]:
        """Return all committed rows of a table."""
        return [row for (name, _), row in self.rows.items() if name == table]

    async def lock(self, transaction: Transaction, key: Key) -> None:
        """Wait until this transaction holds the lock of a row. Raises `Refused` if it would wait for ever, because the
        holder waits for a row of this transaction."""
        holder = self._holders.get(key)
        if holder is transaction:
            return
        if holder is None:
            self._holders[key] = transaction
            transaction.locks.append(key)
            return
        if self._waits_for(holder, transaction):
            raise Refused("40P01", "deadlock detected")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        transaction.waits_at = key
        self._queues.setdefault(key, deque()).append((transaction, turn))
        try:
            await turn
        finally:
            transaction.waits_at = None

    def unlock(self, transaction: Transaction) -> None:
        """Pass the locks of an ended transaction to those who wait longest for them."""
        for key in transaction.locks:
            del self._holders[key]
            queue = self._queues.get(key, deque())
            while queue:
                waiter, turn = queue.popleft()
                if not turn.done():  # a session that was ended no longer waits
                    self._holders[key] = waiter
                    waiter.locks.append(key)
                    turn.set_result(None)
                    break
            if not queue:
                self._queues.pop(key, None)
        transaction.locks.clear()

    def _waits_for(self, one: Transaction, other: Transaction) -> bool:
        while one.waits_at is not None:
            one = self._holders[one.waits_at]
            if one is other:
                return True
        return False


class Transaction:
    """One transaction of a session. Others see what it writes when it has committed, all at once."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.locks: list[Key] = []
        self.waits_at: Key | None = None
        self._written: dict[Key, Row | None] = {}

    def get(self, table: str, key: Hashable) -> Row | None:
        """Return the row that a statement of this transaction sees: its own if it wrote it, else the committed one."""
        place = table, key
        return self._written[place] if place in self._written else self.tables.rows.get(place)

    async def change(
        self, table: str, key: Hashable, matches: Callable[[Row], bool], new: Callable[[Row], Row | None]
    ) -> Row | None:
        """Run an UPDATE or DELETE of one row: replace it with what `new` returns for it, or delete it if that is None.
        Returns the old row, or None if there was none that `matches`.

        A row that matches is locked first, and looked at again once it is locked. If it was deleted meanwhile, nothing is
        found, even if somebody has made another row with the same key: the statement does not see that one.
        """
        seen = self.get(table, key)
        if seen is None or not matches(seen):
            return None
        await self.tables.lock(self, (table, key))
        row = self.get(table, key)
        if row is None or row["id"] != seen["id"] or not matches(row):
            return None
        self._written[table, key] = new(row)
        return row

    async def insert(self, table: str, key: Hashable, row: Row) -> Row | None:
        """Insert a row, and return None. If there is one with this key, return that one, locked and unchanged. Waits for
        a transaction that is inserting or deleting it."""
        await self.tables.lock(self, (table, key))
        there = self.get(table, key)
        if there is None:
            self._written[table, key] = {"id": self.tables.new_id(), **row}
        return there

    def put(self, table: str, key: Hashable, row: Row | None) -> None:
        """Write or delete a row that nobody else can have locked, because it belongs to a row that this transaction has
        locked."""
        self._written[table, key] = row

    def commit(self) -> None:
        """Make everything that was written visible at once, and release the locks."""
        for place, row in self._written.items():
            if row is None:
                self.tables.rows.pop(place, None)
            else:
                self.tables.rows[place] = row
        self.rollback()

    def rollback(self) -> None:
        """Forget what was written, and release the locks. Does nothing after `commit`."""
        self._written.clear()
        self.tables.unlock(self)
