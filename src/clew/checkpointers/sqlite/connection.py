"""Connections to SQLite files, the settings that each of them needs, and the explanation of SQLite's errors.

The library is `apsw`, which brings a SQLite of its own. The SQLite that comes with Python is mostly older than 3.51.3. It
has a race in which several processes that write to one file in WAL mode can lose a committed transaction. No process may
open a file with both libraries: when one of them closes the file, the operating system drops the locks of the other.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import apsw

from clew._runtime import files
from clew._runtime.text import size as size_text
from clew.checkpointers.sql.steps import STEPS, StepLimit
from clew.errors import ClewError, Corrupt, Unavailable

__all__ = [
    "CHECKPOINT_AT_MOST",
    "FAULTS",
    "ROOM_NEEDED",
    "LockWait",
    "check_writable",
    "commit",
    "configure",
    "connect",
    "explain",
    "is_busy",
    "library",
    "limit_steps",
    "roll_back",
    "setting",
    "use_wal",
]

FAULTS = (apsw.Error, UnicodeDecodeError, MemoryError)
"""The errors that calls of `apsw` raise. `UnicodeDecodeError` is raised for a text in a damaged database that is not
UTF-8. `MemoryError` is raised if Python lacks memory, and `apsw.NoMemError`, an `apsw.Error`, if SQLite does."""
_DAMAGE = (
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.FormatError,
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.SQLError,
    UnicodeDecodeError,
)
"""The errors that show that a database is damaged. Clew's statements are valid and keep all constraints. So if SQLite
rejects one of them, the tables are not as Clew created them."""
_ENDING = (apsw.NoMemError, apsw.IOError, apsw.FullError, apsw.InterruptError, MemoryError)
"""The errors after which SQLite ends a transaction by itself."""
CHECKPOINT_AT_MOST = 1024
"""When the WAL (SQLite's write-ahead log) has this many pages, SQLite itself moves them to the database before a commit
returns. Not for appends: the writer counts their pages, and moves them later."""
ROOM_NEEDED = 2**20
"""Bytes of free disk space that suffice to open a store and to delete everything in it, if its WAL (SQLite's
write-ahead log) has already been moved into the database."""
_SHARED_MEMORY = 32 * 1024
"""Bytes of the file that SQLite keeps beside a database while it is open in WAL mode."""
_CACHED_STATEMENTS = 256
_SHORTEST, _LONGEST = 0.001, 0.05
"""Seconds between attempts to get a lock that another process holds: the first pause and the longest."""


class LockWait:
    """Decides how long the statements of one connection wait while another process has locked the database. SQLite
    calls this object each time that a statement finds the database locked.

    A call of the store gives up when `seconds` have passed both since it was made and since something was last written
    to the WAL (SQLite's write-ahead log): a WAL that grows shows that other transactions end, and that the disk works.
    All statements of a call share its time, and the time that the call spends in a queue counts too.

    Statements wait only after `allow` was called, or in a `with` block of `allowed`. Otherwise they fail at once.
    """

    __slots__ = ("_seconds", "_since", "_wal")

    def __init__(self, path: Path, seconds: float) -> None:
        self._wal = f"{path}-wal"
        self._seconds = seconds
        self._since: float | None = None

    def allow(self, since: float) -> None:
        """From now on, let statements wait while the database is locked. They belong to a call that was made at the
        time `since` of the steady clock, from which the time that they may wait is counted."""
        self._since = since

    @contextlib.contextmanager
    def allowed(self, since: float) -> Iterator[None]:
        """Let statements wait while the database is locked, but only during the `with` block. They belong to a call
        that was made at the time `since` of the steady clock, from which the time that they may wait is counted."""
        self._since = since
        try:
            yield
        finally:
            self._since = None

    def left(self, since: float) -> float:
        """Return how many seconds more a call may wait that was made at the time `since` of the steady clock. Returns 0
        or less if its time is over."""
        left = since + self._seconds - time.monotonic()
        return left if left > 0 else max(left, self._seconds - self._age())

    def left_now(self) -> float:
        """Return how many seconds more statements may now wait for a lock. The result is 0 if they may not wait, and 0
        or less if the time of their call is over."""
        return 0.0 if self._since is None else self.left(self._since)

    def _age(self) -> float:
        """Return how many seconds ago something was written to the WAL (SQLite's write-ahead log). Returns infinity if
        there is no WAL, or if the time is in the future: then the clock was set, and the time says nothing."""
        try:
            age = time.time() - os.stat(self._wal).st_mtime
        except OSError:
            return math.inf
        return age if age >= 0 else math.inf

    def __call__(self, tries: int) -> bool:
        """Wait a moment before another attempt to get the lock, and return True, which makes SQLite try again. `tries`
        is how many attempts were made before. Returns False at once, which makes the statement fail, if the call of the
        store to which the statement belongs has no time left."""
        left = self.left_now()
        if left <= 0:
            return False
        time.sleep(min(left, _LONGEST, _SHORTEST * 1.5 ** min(tries, 20)))
        return True


def library() -> str:
    """Return the name and version of the SQLite library that the store uses."""
    return f"SQLite {apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})"


def connect(path: Path, options: str = "mode=rw", *, wait: LockWait | None = None) -> apsw.Connection:
    """Open a connection to an existing SQLite file. `options` are the parameters of SQLite's file URL; by default the
    file is opened for reading and writing. Raises `apsw.CantOpenError` if there is no such file, or if it cannot be
    opened with these options. `wait` decides how long a statement waits while another process has locked the
    database; without it, a statement does not wait."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(f"{path.as_uri()}?{options}", flags=flags, statementcachesize=_CACHED_STATEMENTS)
    if options == "mode=rw" and connection.readonly("main"):  # SQLite opens it read-only if it cannot open it to write
        connection.close()
        raise apsw.CantOpenError("the file could not be opened for writing")
    connection.set_busy_handler(wait)
    _distrust(connection)
    return connection


def _distrust(connection: apsw.Connection) -> None:
    """Forbid this connection to run anything that the database file defines: triggers, views, and functions in an index
    or a default value. Clew creates none of these, so if the file has one, somebody has tampered with it. Temporary
    views that the connection itself makes still work."""
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    for option in _POWERS:
        connection.config(option, 0)
    connection.execute("PRAGMA cell_size_check = ON")


_POWERS = (
    apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA,
    apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER,
    apsw.SQLITE_DBCONFIG_ENABLE_VIEW,
    apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION,
)


def limit_steps(connection: apsw.Connection, path: Path) -> None:
    """Limit the work of the transaction that begins next on this connection, because a damaged or hostile file could
    keep SQLite busy for years. If the transaction takes more steps of SQLite's virtual machine than reading the
    database at `path` can need, its statement is ended and raises `apsw.InterruptError`."""
    connection.set_progress_handler(StepLimit(path), STEPS)


def connect_to_read(path: Path, wait: LockWait) -> apsw.Connection:
    """Open a connection to a SQLite file that this process may not write. Raises `Unavailable` if the file needs changes
    before it can be read, because a process that was killed has left its write-ahead log. `wait` decides how long the
    connection's statements wait for the locks of other processes."""
    connection = connect(path, "mode=ro", wait=wait)
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
        connection.close()
        if files.size(f"{path}-wal"):
            raise Unavailable(
                f"{path} cannot be read where it is, because the file {path.name}-wal beside it holds newer data and "
                "SQLite has to write in the folder to read it. Copy both files into a folder that can be written to."
            ) from error
        return connect(path, "mode=ro&immutable=1", wait=wait)
    return connection


def is_read_only(path: Path) -> bool:
    """Return True if this process may not write to this existing file, or may not write in its folder."""
    return not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def remove(path: Path) -> None:
    """Delete a SQLite file that nobody has open, and the files that SQLite keeps beside it."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")


def configure(connection: apsw.Connection) -> None:
    """Apply the settings that every connection needs. With them a write that was acknowledged is on the disk, not in a
    cache."""
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_AT_MOST}")
    connection.execute("PRAGMA temp_store = MEMORY")
    if sys.platform == "darwin":
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA checkpoint_fullfsync = ON")


def use_wal(connection: apsw.Connection, where: str, wait: LockWait) -> None:
    """Make sure that the database is in WAL mode, and change it to that mode if it is not. Raises `Unavailable` if that
    fails. `where` names the database in errors. `wait` decides how long to wait while other processes have it open.

    A copy that SQLite's `VACUUM INTO` made, a restored dump, or a store whose first open failed can be in the mode
    `delete`. In that mode a power cut can take back acknowledged appends.
    """
    tries = 0
    while connection.execute("PRAGMA journal_mode").get != "wal":
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").get
        except apsw.BusyError:
            if not wait(tries):
                raise
            tries += 1
            continue
        if mode != "wal":
            raise Unavailable(
                f"{where} is in SQLite's journal mode {mode!r} and cannot be changed to WAL mode, without which a power "
                "cut can take back acknowledged appends. Put the store on a local disk with a common file system."
            )


def check_writable(connection: apsw.Connection, wait: LockWait) -> None:
    """Raise `apsw.ReadOnlyError` if nothing can be written through this connection. Changes nothing.

    If SQLite once fails to open a file beside the database for writing, it opens that file read-only and does not try
    again. This affects the one connection, or all connections of the process to this database until the last of them is
    closed. So this is called for the first connection of a process, and for each that is opened for writing. The check
    does not wait for a lock. At its end `wait` is set, which decides how long later statements wait for one.
    """
    connection.set_busy_handler(None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except apsw.BusyError:
        pass  # another process writes, so it can be written
    finally:
        connection.set_busy_handler(wait)


def commit(db: apsw.Cursor, *, count_pages: bool) -> None:
    """Commit the transaction. With `count_pages`, which is for transactions that changed an unknown number of pages,
    SQLite itself counts the pages of the WAL (its write-ahead log), and moves them to the database if there are
    `CHECKPOINT_AT_MOST` or more. Otherwise it moves none."""
    with setting(db, "wal_autocheckpoint", CHECKPOINT_AT_MOST) if count_pages else contextlib.nullcontext():
        db.execute("COMMIT")


def roll_back(connection: apsw.Connection) -> None:
    """Roll back the transaction of this connection, if there is one. It is no error if SQLite has already ended the
    transaction, as it does if a statement fails for lack of memory or because of the disk. The caller must first close
    the cursors that it used in the transaction."""
    if connection.in_transaction:
        try:
            connection.execute("ROLLBACK")
        except apsw.SQLError:
            if connection.in_transaction:
                raise


@contextlib.contextmanager
def setting(db: apsw.Cursor, name: str, value: int) -> Iterator[None]:
    """Set the PRAGMA `name` to `value` while the `with` block runs, then set it back to 0, its usual value on the
    connection that writes."""
    db.execute(f"PRAGMA {name} = {value}")
    try:
        yield
    finally:
        db.execute(f"PRAGMA {name} = 0")


def is_busy(error: BaseException | None) -> bool:
    """Return whether an error says that another process has locked the database."""
    return isinstance(error, apsw.BusyError)


def explain(error: Exception, path: Path) -> ClewError:
    """Return the `ClewError` for an error of `apsw`. It says what happened, to which file, and what to do.

    If the error only says that a transaction could not be rolled back because SQLite had ended it, the earlier error
    for which SQLite ended the transaction is explained instead.
    """
    if isinstance(error, apsw.SQLError) and isinstance(error.__context__, _ENDING):
        error = error.__context__
    if isinstance(error, _DAMAGE):
        return Corrupt(f"{path} is not a sound SQLite database ({error}). Restore it from a copy, or move it away.")
    if isinstance(error, apsw.InterruptError):
        return Corrupt(
            f"{path} takes far more steps to read than its size explains, so its pages point at each other in a circle or "
            "many times over. Restore it from a copy, or move it away."
        )
    if isinstance(error, (apsw.IOError, apsw.CantOpenError)) and _is_full(path):
        return Unavailable(
            f"{path}: {error}: the disk is full, and SQLite needs some room even to open a store. Nothing stored was "
            f"harmed. Free about {size_text(ROOM_NEEDED)} on that disk and try again."
        )
    if isinstance(error, MemoryError):
        return files.explain(error, path)
    for kind, hint in _HINTS.items():
        if isinstance(error, kind):
            return Unavailable(f"{path}: {error}: {hint}.")
    return Unavailable(f"{path}: {error}: try again.")


def _is_full(path: Path) -> bool:
    """Return whether the disk has no room for the smallest file that SQLite needs beside a database."""
    try:
        return shutil.disk_usage(path.parent).free < _SHARED_MEMORY
    except OSError:
        return False


_HINTS: dict[type[apsw.Error], str] = {
    apsw.BusyError: "another process held its lock and wrote nothing for as long as a call waits; try again, or end that "
    "process",
    apsw.LockedError: "it is locked; try again",
    apsw.FullError: "the disk is full; nothing stored was harmed. Free some space and try again",
    apsw.ReadOnlyError: "it is read-only; make the file and its folder writable",
    apsw.CantOpenError: "it cannot be opened; check that the folder exists and may be written to",
    apsw.NoMemError: files.NO_MEMORY,
    apsw.IOError: "the disk failed a read or write; check it, then try again",
}
