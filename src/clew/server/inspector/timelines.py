"""A cache of timelines. With it, showing more of a long thread, or the changes of one that is running, does not read
the whole log again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from clew.checkpointers import Checkpointer, Head
from clew.errors import ThreadNotFound
from clew.threads.heads import is_part
from clew.threads.views.timeline import TimelineReader, reader_of

__all__ = ["Readers"]

_MOST = 8
"""The most threads whose timelines are kept in memory."""


class _Kept:
    __slots__ = ("lock", "log_id", "reader")

    def __init__(self, log_id: str, thread_id: str) -> None:
        self.log_id = log_id
        self.reader = TimelineReader(thread_id)
        self.lock = asyncio.Lock()


class Readers:
    """Keeps timeline readers in memory for the threads that were looked at last, at most `_MOST`. A timeline reader
    turns a thread's log into turns, and marks for events such as a crash."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()

    async def read(self, store: Checkpointer, namespace: str, thread_id: str) -> tuple[TimelineReader, Head]:
        """Return a reader that has read the whole log of a thread, and the thread's head at that moment. `namespace` is
        the namespace of `store`, because two namespaces may have threads with the same id.

        If the thread is in the cache, only the frames that are new since the last call are read. Raises
        `ThreadNotFound` if there is no such thread. An error while reading, such as `Corrupt`, is raised too, and
        removes the thread from the cache.
        """
        head = await store.head(thread_id)
        if head is None or is_part(head):
            raise ThreadNotFound(thread_id)
        name = namespace, thread_id
        kept = self._kept.get(name)
        if kept is None or kept.log_id != head.log_id:
            kept = self._kept[name] = _Kept(head.log_id, thread_id)
        self._kept.move_to_end(name)
        while len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        async with kept.lock:
            if kept.reader.frames >= head.frames:
                return kept.reader, head
            try:
                return await reader_of(store, thread_id, head=head, reader=kept.reader)
            except BaseException:
                self._kept.pop(name, None)
                raise
