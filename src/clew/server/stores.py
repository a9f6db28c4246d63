"""The open checkpointers of a service: one for each namespace (a part of the store with threads of its own) in use,
opened at the first request for that namespace."""

from __future__ import annotations

from collections import OrderedDict
from types import TracebackType

from clew._runtime.aio import Locks
from clew.checkpointers import Checkpointer, MemoryCheckpointer, SealedCheckpointer, open_checkpointer
from clew.checkpointers.sealed import without_keys
from clew.server.channels import Channels
from clew.server.quotas import Ledger, Metered

__all__ = ["Stores", "Use"]

MOST_OPEN = 64
"""If more checkpointers than this are open, those that nobody uses are closed. Without this limit, tenants could
exhaust the server by inventing namespaces."""


class _Open:
    __slots__ = ("store", "users")

    def __init__(self, store: Checkpointer) -> None:
        self.store = store
        self.users = 0


class Use:
    """A context manager that gives the checkpointer of a namespace, a part of the store with threads of its own, and
    keeps it open until the block ends."""

    __slots__ = ("_entry", "_given", "_stores")

    def __init__(self, stores: Stores, entry: _Open, given: Checkpointer) -> None:
        self._stores = stores
        self._entry = entry
        self._given = given

    async def __aenter__(self) -> Checkpointer:
        self._entry.users += 1
        return self._given

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entry.users -= 1
        await self._stores.shrink()


class Stores:
    """The checkpointers of one store, one for each namespace (a part of the store with threads of its own) in use.

    If more than `MOST_OPEN` are open, those that were unused for longest are closed. They are opened again on demand.
    """

    def __init__(self, url: str, ledger: Ledger | None = None) -> None:
        self._url = url
        self._ledger = ledger
        self.locks = Locks()
        """A lock for each thread, by its namespace and id, for an append that is checked against what is stored."""
        self.channels = Channels()
        """The threads that somebody follows now."""
        self._first = open_checkpointer(url)  # so that a wrong URL or a missing extra is reported at once
        self._open: OrderedDict[str, _Open] = OrderedDict({"": _Open(self._first)})

    def use(self, namespace: str, tenant: str = "", *, is_opaque: bool = False) -> Use:
        """Return a context manager that gives the checkpointer of this namespace (a part of the store with threads of
        its own). It is opened if it is not open yet. `tenant` names the tenant whose quotas apply; if it is empty, or
        if the service has no quotas, none apply.

        With `is_opaque`, the checkpointer has no encryption keys even if the service has some. This is for clients that
        encrypt their data themselves, with keys that the service need not know.
        """
        entry = self._open.get(namespace)
        if entry is None:
            entry = self._open[namespace] = _Open(self._make(namespace))
        self._open.move_to_end(namespace)
        store = without_keys(entry.store) if is_opaque else entry.store
        if self._ledger is not None and tenant:
            return Use(self, entry, Metered(store, self._ledger, tenant, namespace))
        return Use(self, entry, store)

    async def close(self) -> None:
        """Close every checkpointer, even one that is being used."""
        entries, self._open = list(self._open.values()), OrderedDict()
        for entry in entries:
            await entry.store.close()
        await self._first.close()
        if self._ledger is not None:
            self._ledger.close()

    def _make(self, namespace: str) -> Checkpointer:
        first = without_keys(self._first)
        if isinstance(first, MemoryCheckpointer):
            beside = MemoryCheckpointer(namespace, beside=first)
            return beside if self._first.keys is None else SealedCheckpointer(beside, self._first.keys)
        return open_checkpointer(self._url, namespace)

    async def shrink(self) -> None:
        """Close checkpointers that nobody uses, those unused for longest first, until at most `MOST_OPEN` are open."""
        if len(self._open) <= MOST_OPEN:
            return
        idle = [name for name, entry in self._open.items() if not entry.users]
        unused = [self._open.pop(name) for name in idle[: len(self._open) - MOST_OPEN]]
        for entry in unused:
            if entry.store is not self._first:
                await entry.store.close()
