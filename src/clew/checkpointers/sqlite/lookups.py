"""Finds the rows of threads, and raises `Corrupt` where a damaged index would hide a thread or give another thread's
row.

SQLite notices a page that is not a page of the expected kind. It does not notice a changed bit inside a key of an
index. Because of such a bit, a search may not find a thread that exists, or may find the row of another thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import apsw

from clew.checkpointers.heads import thread_digest
from clew.errors import Corrupt

__all__ = ["Listed", "ThreadRow", "find_id", "find_thread", "list_rows"]

_NEAR = 200
"""How many entries of the index before and after a missing key are checked. A page of the index holds at most this
many, so every entry on the page where the key would be is checked."""


class ThreadRow(NamedTuple):
    """A thread's row in the table `heads`: the row's id, the number of frames, the log's id, the time of creation in
    microseconds since 1970, and the stored head."""

    id: int
    frames: int
    log_id: str
    created: int
    head: object


def find_thread(db: apsw.Cursor, namespace: str, thread_id: str, where: str) -> ThreadRow | None:
    """Return the row of a thread, or None if there is no such thread. Raises `Corrupt` if the row holds another
    thread's id, if its head does not count all frames of the log, or if the index by which threads are found is damaged
    near this thread. `where` names the database in errors."""
    key = thread_digest(thread_id)
    found = db.execute(_FIND, (namespace, key)).fetchone()
    if found is None:
        _check_absent(db, namespace, key, thread_id, where)
        return None
    named, is_behind, *columns = found
    row = ThreadRow(*columns)
    if named != thread_id:
        raise _damage(thread_id, where, "its row holds another thread")
    if not isinstance(row.frames, int):
        raise _damage(thread_id, where, "it does not say how many frames it has")
    if is_behind:
        raise _damage(thread_id, where, f"its head is older than its log, and says {row.frames} frames")
    return row


def find_id(db: apsw.Cursor, namespace: str, thread_id: str, where: str) -> int | None:
    """Return the id of a thread's row, for deleting the row, or None if there is no such thread. Unlike `find_thread`,
    this accepts a damaged row, so that a damaged thread can be deleted. Raises `Corrupt` if the index by which threads
    are found is damaged, because another thread could be deleted then. `where` names the database in errors."""
    key = thread_digest(thread_id)
    found: int | None = db.execute("SELECT id FROM main.heads WHERE ns = ? AND key = ?", (namespace, key)).get
    if found is None:
        _check_absent(db, namespace, key, thread_id, where)
    elif db.execute(_KEY, (found,)).fetchone() != (namespace, key):
        raise _damage(thread_id, where, "the index by which threads are found is damaged")
    return found


_KEY = "SELECT ns, key FROM main.heads NOT INDEXED WHERE id = ?"
_FIND = """
SELECT thread_id, EXISTS (SELECT 1 FROM frames WHERE thread = heads.id AND number >= heads.frames)
        OR (SELECT number + count FROM packs WHERE thread = heads.id ORDER BY number DESC LIMIT 1) > heads.frames,
    id, frames, log_id, created, head
FROM main.heads WHERE ns = ? AND key = ?
"""


def _check_absent(db: apsw.Cursor, namespace: str, key: bytes, thread_id: str, where: str) -> None:
    """Raise `Corrupt` if the index of threads is damaged where `key` (the hash of the thread's id) would be. Called
    when the key was not found: in a damaged index, a search may miss a key that exists. `thread_id` and `where` name
    the thread and the database in the error.

    A changed key is usually out of order among its neighbours, so the order of `_NEAR` entries on either side is
    checked. A change in the last bytes of a key may leave the order as it was. Such an entry is next to where this key
    would be, so the two entries there are compared with their rows in the table."""
    before = db.execute(_BEFORE, (namespace, key, _NEAR)).fetchall()[::-1]
    after = db.execute(_AFTER, (namespace, key, _NEAR)).fetchall()
    near = [*before, *after]
    is_sound = all(isinstance(ns, str) and isinstance(found, bytes) for ns, found, _ in near)
    is_sound = is_sound and all(here[:2] < following[:2] for here, following in pairwise(near))
    is_sound = is_sound and all(
        db.execute(_KEY, here[2:]).fetchone() == here[:2] for here in (*before[-1:], *after[:1])
    )
    first = before[0][:2] if len(before) == _NEAR else ("", b"")
    last = after[-1][:2] if len(after) == _NEAR else (b"", b"")
    # The same entries, read in one go: the two searches above may each have skipped a damaged entry.
    is_sound = is_sound and db.execute(_BETWEEN, (*first, *last)).fetchall() == near
    if not is_sound:
        raise _damage(thread_id, where, "the index by which threads are found is damaged")


_BETWEEN = """
SELECT ns, key, id FROM main.heads INDEXED BY heads_by_key WHERE (ns, key) >= (?, ?) AND (ns, key) <= (?, ?) ORDER BY ns, key
"""
_BEFORE = """
SELECT ns, key, id FROM main.heads INDEXED BY heads_by_key WHERE (ns, key) < (?, ?) ORDER BY ns DESC, key DESC LIMIT ?
"""
_AFTER = """
SELECT ns, key, id FROM main.heads INDEXED BY heads_by_key WHERE (ns, key) > (?, ?) ORDER BY ns, key LIMIT ?
"""


def list_rows(db: apsw.Cursor, statement: str, values: Sequence[object], everything_in: str | None) -> Listed:
    """Run a statement that lists threads, and return its rows, each with a thread's stored head and id.

    If the statement lists all threads of a namespace, `everything_in` is that namespace. Then the rows are counted, and
    the result says whether they are as many as in the table. A damaged index could hide a thread, and gc, which deletes
    all blobs to which no listed thread refers, would delete the blobs of that thread.
    """
    rows = db.execute(statement, values).fetchall()
    if everything_in is None:
        return Listed(rows, True)
    count = db.execute("SELECT count(*) FROM main.heads NOT INDEXED WHERE ns = ?", (everything_in,)).get
    return Listed(rows, count == len(rows) == len({thread_id for _, thread_id in rows}))


class Listed(NamedTuple):
    """The rows of a listing of threads. `is_whole` is False if the listing lacks threads of the namespace or has one
    twice, because the database's index of threads is damaged."""

    rows: list[Any]
    is_whole: bool


def _damage(thread_id: str, where: str, what: str) -> Corrupt:
    return Corrupt(f"thread {thread_id!r} in {where}: {what}. Restore a copy.")
