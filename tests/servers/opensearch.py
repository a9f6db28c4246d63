"""A private node of OpenSearch, made from the jars on Maven Central. Java and Maven have to be on the machine."""

from __future__ import annotations

import atexit
import fcntl
import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from blake3 import blake3

from tests.limits import PATIENCE
from tests.servers.running import ServerProcess, free_port, lacking

__all__ = ["OpenSearchNode", "shared_node"]

_POM = Path(__file__).with_name("opensearch-pom.xml")
_MAIN = Path(__file__).with_name("OpenSearchNode.java")
_JVM = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class OpenSearchNode:
    """One node in a folder of its own. It can be killed and started again with what is on its disk."""

    def __init__(self, folder: Path) -> None:
        java, jars = _program("java"), _jars()
        self.port = free_port()
        (folder / "config").mkdir(parents=True)
        command = [java, *_JVM, f"-Djava.io.tmpdir={folder}", "-cp", f"{jars}/*", str(_MAIN)]
        command += [str(folder), str(self.port), str(free_port())]
        self.process = ServerProcess(command, folder / "node.log", self._has_its_shards)

    @property
    def url(self) -> str:
        return f"opensearch://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What the node answers to a request that goes past every client."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read())

    def _has_its_shards(self) -> bool:
        health = self.ask("GET", "/_cluster/health?wait_for_status=yellow&timeout=10s")
        return health["status"] in ("green", "yellow")


@functools.cache
def shared_node() -> OpenSearchNode:
    """The one node of this test process: it takes seconds to start. It ends with the process."""
    folder = Path(tempfile.mkdtemp(prefix="clew-opensearch-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    node = OpenSearchNode(folder)
    node.process.start()
    atexit.register(node.process.kill)
    return node


def _jars() -> Path:
    """The folder with the jars that the POM names, filled once on a machine."""
    pom = _POM.read_text()
    found = re.search(r"<opensearch.version>(.+?)<", pom)
    assert found is not None, f"{_POM} names no version"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clew-tests"
    jars = cache / f"opensearch-{found[1]}-{blake3(pom.encode()).hexdigest()[:8]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "opensearch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.exists():
            _fetch(jars)
    return jars


def _fetch(jars: Path) -> None:
    mvn = _program("mvn")
    with tempfile.TemporaryDirectory(dir=jars.parent) as folder:
        target = Path(folder) / "jars"
        command = [mvn, "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies", f"-DoutputDirectory={target}"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-500:]
            lacking(f"no OpenSearch: Maven did not bring its jars: {said}", install="maven")
        target.rename(jars)


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        lacking(f"no OpenSearch: it needs {name} on the path", install="openjdk-17-jdk-headless and maven")
    return path
