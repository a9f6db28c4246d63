"""The checkpointers behind the service: one for each namespace in use, opened when it is first asked for."""

from __future__ import annotations

from collections import OrderedDict
from types import TracebackType

from clew.checkpointers import Checkpointer, MemoryCheckpointer, open_checkpointer

__all__ = ["Stores", "Use"]

MOST_OPEN = 64
"""Namespaces kept open when nobody is using them, so that tenants cannot fill the server by inventing names."""


class _Open:
    __slots__ = ("store", "users")

    def __init__(self, store: Checkpointer) -> None:
        self.store = store
        self.users = 0


class Use:
    """A block in which a checkpointer stays open."""

    __slots__ = ("_entry", "_stores")

    def __init__(self, stores: Stores, entry: _Open) -> None:
        self._stores = stores
        self._entry = entry

    async def __aenter__(self) -> Checkpointer:
        self._entry.users += 1
        return self._entry.store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entry.users -= 1
        await self._stores.shrink()


class Stores:
    """One store, by namespace. Those unused for longest are closed, and opened again when they are asked for."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._first = open_checkpointer(url)  # says at once what is wrong with the URL, or which extra is missing
        self._open: OrderedDict[str, _Open] = OrderedDict({"": _Open(self._first)})

    def use(self, namespace: str) -> Use:
        """The checkpointer of this namespace, open for as long as the block runs."""
        entry = self._open.get(namespace)
        if entry is None:
            entry = self._open[namespace] = _Open(self._make(namespace))
        self._open.move_to_end(namespace)
        return Use(self, entry)

    async def close(self) -> None:
        entries, self._open = list(self._open.values()), OrderedDict()
        for entry in entries:
            await entry.store.close()
        await self._first.close()

    def _make(self, namespace: str) -> Checkpointer:
        if isinstance(self._first, MemoryCheckpointer):
            return MemoryCheckpointer(namespace, beside=self._first)
        return open_checkpointer(self._url, namespace)

    async def shrink(self) -> None:
        """Close what is too much, if nobody is using it."""
        if len(self._open) <= MOST_OPEN:
            return
        idle = [name for name, entry in self._open.items() if not entry.users]
        for name in idle[: len(self._open) - MOST_OPEN]:
            entry = self._open.pop(name)
            if entry.store is not self._first:
                await entry.store.close()
