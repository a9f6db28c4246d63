"""A private MariaDB, from the packages of the system: one for the whole test process, a table prefix for each store."""

from __future__ import annotations

import asyncio
import getpass
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncmy

from tests.servers.running import ServerProcess, free_port, lacking

__all__ = ["PASSWORD", "MariaDBServer", "running_mariadb"]

PASSWORD = "päss'w@rd/ü\\%"
"""Of the user `clew`: characters that a URL, a latin-1 driver or an SQL string would stumble over."""


class MariaDBServer:
    """MariaDB in a folder of its own, on a port of 127.0.0.1 and on a Unix socket. It has a database `clew`, and a user of
    that name who may do everything there and nothing elsewhere."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.socket = folder / "socket"
        options = {
            "datadir": str(folder / "data"),
            "user": getpass.getuser(),
            "port": str(self.port),
            "bind-address": "127.0.0.1",
            "socket": str(self.socket),
            "pid-file": str(folder / "pid"),
            "innodb-buffer-pool-size": "64M",
            "innodb-log-file-size": "64M",
            "max-connections": "200",
            "performance-schema": "OFF",
            **settings,
        }
        command = [_program("mariadbd"), "--no-defaults", *(f"--{name}={value}" for name, value in options.items())]
        self._process = ServerProcess(command, folder / "log", self._answers)
        self._stores = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def create(self) -> None:
        """Make the data folder."""
        command = [_program("mariadb-install-db"), "--no-defaults", f"--datadir={self.folder / 'data'}"]
        command += ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        command += [f"--user={getpass.getuser()}"]
        subprocess.run(command, check=True, capture_output=True)

    def start(self) -> None:
        """To be called on the main thread: the server ends with the thread that started it."""
        self._process.start()

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        """As a crash would end it."""
        self._process.kill()

    def url(self, *, socket: bool = False, port: int | None = None, **options: str) -> str:
        """How the user `clew` reaches it: through TCP, or through its Unix socket."""
        if socket:
            options = {"unix_socket": str(self.socket), **options}
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())
        user = f"clew:{quote(PASSWORD, safe='')}"
        return f"mysql://{user}@127.0.0.1:{port or self.port}/clew" + (f"?{query}" if query else "")

    def new_prefix(self) -> str:
        """Of tables that no store has yet."""
        self._stores += 1
        return f"s{self._stores}_"

    async def empty(self, prefix: str) -> None:
        """Empty the store with this prefix, if there is one: many times quicker than making the tables of another."""
        names = await self.execute(f"SHOW TABLES LIKE '{prefix}%'")
        tables = [name for (name,) in names if name != f"{prefix}meta"]
        if tables:
            await self.execute(";".join(f"DELETE FROM {name}" for name in tables))

    async def execute(self, sql: str, database: str | None = "clew") -> list[tuple[Any, ...]]:
        """Run this as the superuser; returns the rows, if it gives any."""
        connection = await asyncmy.connect(
            user="root", unix_socket=str(self.socket), database=database, autocommit=True
        )
        try:
            async with connection.cursor() as cursor:
                await cursor.execute(sql)
                return list(await cursor.fetchall()) if cursor.description else []
        finally:
            await connection.ensure_closed()

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            probe.connect(str(self.socket))
            return probe.recv(5)[4:] == b"\n"  # the greeting of protocol 10


@contextmanager
def running_mariadb(**settings: str) -> Iterator[MariaDBServer]:
    """A server with these settings, gone afterwards with all it kept."""
    with tempfile.TemporaryDirectory(prefix="clew-my-") as folder:
        server = MariaDBServer(Path(folder), **settings)
        server.create()
        server.start()
        try:
            asyncio.run(_make_database(server))
            yield server
        finally:
            server.stop()


async def _make_database(server: MariaDBServer) -> None:
    quoted = PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
    await server.execute("CREATE DATABASE clew", None)
    await server.execute(f"SET sql_mode = ''; CREATE USER clew@'%' IDENTIFIED BY '{quoted}'", None)
    await server.execute("GRANT ALL ON clew.* TO clew@'%'", None)


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/local/bin:/opt/homebrew/bin")
    if found is None:
        lacking(f"no {name} here", install="mariadb-server")
    return found
