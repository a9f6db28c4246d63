"""What users and other programs see of a stored folder of threads: the JSON of the command, and the service's answers.

`python -m tests.golden.observed FOLDER` prints it as JSON. It uses the command and HTTP alone, so that any version of Clew
can be asked, and two versions compared.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.limits import PATIENCE

__all__ = ["COMMANDS", "observe"]

ROOT = Path(__file__).parents[2]
_PROSE = {"description", "message", "summary"}

COMMANDS = [
    "ls --all --json",
    "show trip --json",
    "show trip --entries --json",
    "show trip --raw",
    "show visa --json",
    "show old --json",
    "show trip-b --json",
    "why trip --json",
    "why visa --json",
    "why old --json",
    "stats --json",
    "verify --json",
    "files trip --json",
    "search museum --json",
    "diff trip 1 4 --json",
    "fork trip --turn 2 --as fork-of-trip --json",
    "rewind trip --turn 3 --conversation --yes --json",
    "rm visa --yes --json",
    "resume nobody --json",
]


def observe(folder: Path) -> dict[str, Any]:
    """Return the output of every command and the answers to every request, on copies of the stored folder."""
    return {"commands": _commands(folder), "http": _answers(folder)}


def _copied(folder: Path, to: Path) -> Path:
    """Copy the store with the modes that Clew gives it: a checkout makes files that everybody may read."""
    shutil.copytree(folder, to)
    for path in (to, *to.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return to


def _environment(home: Path, store: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "CLEW_CACHE": str(home / "cache"),
        "CLEW_STORE": f"file:{store}",
        "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT / "src")),
        "TZ": "UTC",
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }


def _commands(folder: Path) -> dict[str, Any]:
    found = {}
    for line in COMMANDS:
        with tempfile.TemporaryDirectory() as name:
            home = Path(name)
            store = _copied(folder, home / "store")
            done = subprocess.run(
                [sys.executable, "-m", "clew", *line.split()],
                env=_environment(home, store),
                cwd=home,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
            )
            found[line] = [done.returncode, done.stdout.replace(str(home), "HOME").splitlines()]
            assert done.stdout or done.returncode, f"clew {line} printed nothing: {done.stderr}"
    return found


_TOKEN = "a-token-with-all-rights"


def _answers(folder: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        store = _copied(folder, home / "store")
        command = [sys.executable, "-m", "clew", "serve", "--port", "0", "--no-access-log"]
        with subprocess.Popen(
            command,
            env={**_environment(home, store), "CLEW_SERVE_TOKENS": _TOKEN},
            cwd=home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as service:
            try:
                assert service.stdout is not None
                return _ask_all(json.loads(service.stdout.readline())["url"])
            finally:
                service.terminate()


def _ask_all(url: str) -> dict[str, Any]:
    def named(thread_id: str) -> str:
        return base64.urlsafe_b64encode(thread_id.encode()).decode().rstrip("=")

    trip = f"/v1/threads/{named('trip')}"
    query = json.dumps({"agent": "planner"}).encode()
    found = {}
    for method, path, body in [
        ("GET", "/openapi.json", b""),
        ("GET", trip, b""),
        ("GET", f"{trip}/frames", b""),
        ("GET", f"{trip}/frames?start=2&stop=4", b""),
        ("GET", f"{trip}/refs", b""),
        ("GET", f"/v1/threads/{named('nobody')}", b""),
        ("POST", "/v1/threads/query", b"{}"),
        ("POST", "/v1/threads/query", query),
        ("GET", "/v1/blobs/" + "0" * 64, b""),
        ("GET", "/v1/blobs/nonsense", b""),
        ("DELETE", trip, b""),
        ("PUT", trip, b""),
        ("GET", "/v1/nothing", b""),
    ]:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {_TOKEN}"}
        connection.request(method, path, body or None, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        given = {name.lower(): value for name, value in answer.getheaders()}
        kept = {name: given[name] for name in sorted(given) if name not in {"date", "server", "content-length"}}
        found[f"{method} {path} {body.decode()}".strip()] = [answer.status, kept, _readable(data)]
    return found


def _readable(data: bytes) -> Any:
    """Return a body as JSON, as text, or as base64 of what is neither."""
    with suppress(ValueError):
        return _without_prose(json.loads(data))
    with suppress(UnicodeDecodeError):
        return data.decode()
    return {"base64": base64.b64encode(data).decode()}


def _without_prose(value: Any) -> Any:
    """Leave out what only people read: the words of errors and descriptions may become clearer."""
    if isinstance(value, dict):
        return {key: _without_prose(one) for key, one in value.items() if key not in _PROSE}
    return [_without_prose(one) for one in value] if isinstance(value, list) else value


if __name__ == "__main__":
    print(json.dumps(observe(Path(sys.argv[1])), indent=1, ensure_ascii=False))
