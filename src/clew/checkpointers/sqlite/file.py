"""Opens connections to the SQLite file of a store. The first one creates or migrates the store."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from clew._runtime import files
from clew.checkpointers.sqlite import schema
from clew.checkpointers.sqlite.connection import (
    FAULTS,
    LockWait,
    check_writable,
    configure,
    connect,
    connect_to_read,
    explain,
    is_read_only,
    library,
)
from clew.errors import Corrupt, InvalidInput, Unavailable

__all__ = ["Reader", "StoreFile", "closed_on_error"]

log = logging.getLogger("clew.checkpointers.sqlite")


class StoreFile:
    """The database file of a store. All methods block, and any OS thread may call them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = str(path)
        self._opened = False
        self._read_only = False
        self._file: tuple[int, int] | None = None
        self._opening = threading.Lock()

    def connect_writer(self, wait: LockWait) -> apsw.Connection:
        """Open the connection that writes. On this connection SQLite does not move its write-ahead log into the database
        by itself. `wait` decides how long the connection's statements wait for the locks of other processes."""
        connection = self._connect(wait)
        with self.explained(), closed_on_error(connection):
            if self._read_only:
                raise apsw.ReadOnlyError("attempt to write a readonly database")
            check_writable(connection, wait)
            connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    def connect_reader(self, wait: LockWait) -> apsw.Connection:
        """Open a connection that reads. If this process may not write the store, an older version of its tables cannot
        be migrated; the connection then shows them as if they had the current version. `wait` decides how long the
        connection's statements wait for the locks of other processes."""
        connection = self._connect(wait)
        if self._read_only:
            with self.explained(), closed_on_error(connection):
                schema.show_as_newest(connection, self._name)
        return connection

    def check(self) -> None:
        """Raise `Unavailable` if the database file was deleted or replaced since it was opened. Writes to a deleted
        file seem to succeed, but are lost."""
        try:
            found = os.stat(self._name)
        except OSError as error:
            raise files.explain(error, self.path) from error
        if (found.st_dev, found.st_ino) != self._file:
            raise Unavailable(
                f"{self.path} was deleted or replaced while it was open. Close the store and open it again."
            )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn errors of `apsw` and of the operating system inside the `with` block into a `ClewError`."""
        try:
            yield
        except FAULTS as error:
            raise explain(error, self.path) from error
        except OSError as error:
            raise files.explain(error, self.path) from error

    def _connect(self, wait: LockWait) -> apsw.Connection:
        with self.explained(), self._alone(wait):
            if self._opened:
                self.check()
            else:
                self._prepare()
            connection = connect_to_read(self.path, wait) if self._read_only else connect(self.path, wait=wait)
            with closed_on_error(connection):
                if not self._opened:
                    self._open(connection, wait)
                configure(connection)
            return connection

    @contextmanager
    def _alone(self, wait: LockWait) -> Iterator[None]:
        """Let only one OS thread at a time open a connection: the one in this `with` block. Raises `apsw.BusyError` if
        another OS thread is opening one for longer than `wait` allows, for example because a process has locked the
        database."""
        if not self._opening.acquire(timeout=max(0.0, wait.left_now())):
            raise apsw.BusyError("database is locked")
        try:
            yield
        finally:
            self._opening.release()

    def _open(self, connection: apsw.Connection, wait: LockWait) -> None:
        """Check on this process's first connection that the database is a store. Bring the store to the current version,
        unless it can only be read. `wait` decides how long to wait for the locks of other processes."""
        schema.check(connection, self._name)
        if not self._read_only:
            files.make_private(self.path, *(Path(f"{self.path}{suffix}") for suffix in ("-wal", "-shm")))
            schema.migrate(connection, self._name, wait)
            check_writable(connection, wait)
        found = os.stat(self.path)
        self._file = found.st_dev, found.st_ino
        self._opened = True
        log.debug("%s: opened, %s", self.path, library())

    def _prepare(self) -> None:
        """Create the store if it is missing. The new file can be read only by this user, and survives a power cut.
        Raises `InvalidInput` if the path is something else than a file or is on a network file system, and `Corrupt` if
        it is an empty file."""
        if self.path.is_dir():
            raise InvalidInput(f"{self.path} is a folder. A SQLite store is a file: sqlite:///{self.path}/clew.db")
        if (special := files.special_kind(self.path)) is not None:
            raise InvalidInput(f"{self.path} is a {special}. A SQLite store is a regular file: name another path.")
        files.make_private_folder(self.path.parent)
        kind = files.network_file_system(self.path.parent)
        if kind is not None:
            raise InvalidInput(
                f"{self.path} is on a network file system ({kind}), where SQLite's WAL can lose data. "
                "Put the store on a local disk, or use a server such as postgresql:// or redis://."
            )
        if not os.path.lexists(self.path):
            schema.create(self.path)
        elif not self.path.stat().st_size:
            raise Corrupt(
                f"{self.path} is an empty file, and a store never is one: its content is lost. Restore it from a copy, or "
                "delete the file to start a new store."
            )
        self._read_only = is_read_only(self.path)


class Reader:
    """A connection that reads, opened for the first call that needs it. A call waits for up to `seconds` while another
    process has locked the database."""

    def __init__(self, file: StoreFile, seconds: float) -> None:
        self._file = file
        self._connection: apsw.Connection | None = None
        self._wait = LockWait(file.path, seconds)

    def connection_for(self, since: float) -> apsw.Connection:
        """Return the connection that reads, and open it if it is not open. It is for a call that was made at the time
        `since` of the steady clock: the time that its statements may wait for a lock is counted from then."""
        self._wait.allow(since)
        if self._connection is None:
            self._connection = self._file.connect_reader(self._wait)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


@contextmanager
def closed_on_error(connection: apsw.Connection) -> Iterator[None]:
    """Close the connection if the `with` block raises an error."""
    try:
        yield
    except BaseException:
        connection.close()
        raise
