"""The part of OCI Object Storage's HTTP interface that Clew uses, for the real SDK to talk to. No live one is to be had.

Written from Oracle's description of the API: conditions of puts are honoured, listings come in pages, and errors have the
status and code that the service gives.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4

__all__ = ["BUCKET", "TENANCY", "OCIDouble", "oci_double"]

TENANCY, BUCKET = "tenancy", "bucket"
_OBJECTS = f"/n/{TENANCY}/b/{BUCKET}/o"


class _Object(NamedTuple):
    data: bytes
    etag: str
    modified: datetime


class OCIDouble:
    """Its objects, the requests it was sent, and what to construct a checkpointer with."""

    def __init__(self, config_file: Path, endpoint: str) -> None:
        self.options: dict[str, Any] = {"config_file": str(config_file), "endpoint": endpoint}
        self.objects: dict[str, _Object] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        """The method and the headers that carry conditions, in order."""
        self.lock = threading.Lock()
        self.fail_with: list[tuple[int, str]] = []
        """Answers to the next requests, in place of what they ask for."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024
    """Connections that may wait to be accepted. With the 5 that are usual, a store that asks many things at once finds some
    of its connections reset."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    double: OCIDouble

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
        """Nothing on the terminal."""

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        with self.double.lock:
            key = self._admitted()
            if key is None:
                return
            there = self.double.objects.get(key)
            wanted = self.headers.get("if-match")
            if self.headers.get("if-none-match") == "*" and there is not None:
                self._fail(412, "IfNoneMatchFailed")
            elif wanted is not None and (there is None or there.etag != wanted):
                self._fail(412, "IfMatchFailed")
            else:
                new = self.double.objects[key] = _Object(data, str(uuid4()), datetime.now(UTC))
                self._answer(200, b"", {"etag": new.etag})

    def do_GET(self) -> None:
        with self.double.lock:
            key = self._admitted()
            there = self.double.objects.get(key or "")
            if key is None:
                return
            if not key:
                self._answer(200, self._page(), {"content-type": "application/json"})
            elif there is None:
                self._fail(404, "ObjectNotFound")
            else:
                self._show(there)

    def _show(self, there: _Object) -> None:
        headers = {"etag": there.etag, "last-modified": format_datetime(there.modified, usegmt=True)}
        start, end = 0, len(there.data)
        if wanted := self.headers.get("range"):
            start, end = map(int, wanted.removeprefix("bytes=").split("-"))
        if wanted and start >= len(there.data):
            self._fail(416, "InvalidRange")
        else:
            self._answer(206 if wanted else 200, there.data[start : end + 1], headers)

    def do_DELETE(self) -> None:
        with self.double.lock:
            key = self._admitted()
            if key is None:
                return
            if self.double.objects.pop(key, None) is None:
                self._fail(404, "ObjectNotFound")
            else:
                self._answer(204, b"", {})

    def _admitted(self) -> str | None:
        """The key that the request is about, empty for a listing; None if the request was answered already."""
        given = {name: self.headers[name] for name in ("if-match", "if-none-match", "range") if name in self.headers}
        self.double.requests.append((self.command, given))
        path = urlsplit(self.path).path
        if not self.headers.get("authorization", "").startswith("Signature"):
            self._fail(401, "NotAuthenticated")
        elif self.double.fail_with:
            self._fail(*self.double.fail_with.pop(0))
        elif not path.startswith(_OBJECTS):
            self._fail(404, "BucketNotFound")
        else:
            return unquote(path[len(_OBJECTS) + 1 :])
        return None

    def _page(self) -> bytes:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        names = sorted(name for name in self.double.objects if name.startswith(query.get("prefix", "")))
        names = [name for name in names if name >= query.get("start", "") and name > query.get("startAfter", "")]
        limit = min(int(query.get("limit", "1000")), 50)  # the service may give fewer than asked for
        shown = [(name, self.double.objects[name]) for name in names[:limit]]
        answer = {
            "objects": [
                {"name": name, "size": len(there.data), "etag": there.etag, "timeModified": there.modified.isoformat()}
                for name, there in shown
            ],
            "nextStartWith": names[limit] if len(names) > limit else None,
        }
        return json.dumps(answer).encode()

    def _fail(self, status: int, code: str) -> None:
        error = json.dumps({"code": code, "message": "told by the double"}).encode()
        self._answer(status, error, {"content-type": "application/json"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def oci_double(folder: Path) -> Iterator[OCIDouble]:
    class Handler(_Handler):
        """One that knows its double."""

    with _Server(("127.0.0.1", 0), Handler) as server:
        double = Handler.double = OCIDouble(_config(folder), f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield double
        finally:
            server.shutdown()
            thread.join()


def _config(folder: Path) -> Path:
    """A configuration file of the SDK, with a key of its own."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    (folder / "key.pem").chmod(0o600)
    config = folder / "config"
    config.write_text(
        "[DEFAULT]\nuser=ocid1.user.oc1..aaaa\ntenancy=ocid1.tenancy.oc1..aaaa\nregion=eu-frankfurt-1\n"
        f"fingerprint={':'.join(['00'] * 16)}\nkey_file={folder / 'key.pem'}\n"
    )
    config.chmod(0o600)
    return config
