"""The audit log of a service: who did what, when, and from where. A JSON line is written before a request is carried out
and another with its outcome, so that a request which cannot be recorded can be refused."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path

import msgspec

from clew._runtime import files
from clew._runtime.clock import now
from clew.checkpointers.http.protocol import NAMESPACE_HEADER
from clew.errors import ClewError, InvalidInput
from clew.server.auth import NOBODY, Scope
from clew.server.failures import Refused
from clew.server.request import Request

__all__ = ["Audit"]

logger = logging.getLogger("clew.server")


class Audit:
    """Writes the audit log to a file that only this user can read. Without a path, it writes nothing.

    With `required`, a request whose line cannot be written is refused, and the line of a change is on the disk before
    the change is made. Otherwise the service goes on, and its own log says that a line is missing. If the file is moved
    away, as log rotation does, a new one is begun.
    """

    def __init__(self, path: Path | None, *, required: bool = False) -> None:
        """Open the audit log at `path`, which is made if it does not exist; None writes no log. With `required`,
        requests that cannot be recorded are refused. Raises `InvalidInput` if the file cannot be opened."""
        self._path = path
        self._required = required
        self._file = -1
        self._is_torn = False
        if path is not None:
            try:
                self._open(path)
            except OSError as error:
                raise InvalidInput(f"{path}: the audit log cannot be written: {error.strerror}") from None

    async def begin(self, request: Request, scope: Scope | None) -> None:
        """Record that a request is about to be carried out. `scope` is the scope (a right, such as `read`) that the
        request's token must have. If it is None, the request needs no token and nothing is recorded, because such a
        request reveals and changes nothing.

        Raises `Refused` if the line cannot be written and the settings require an audit log.
        """
        if self._path is None or scope is None:
            return
        request.audit_id = secrets.token_hex(8)
        if "thread" in request.path_params:
            with suppress(ClewError):  # its route refuses an id that is not valid
                _ = request.thread_id
        try:
            self._write(request, {"event": "begin"})
            if self._required and scope != "read":
                await asyncio.to_thread(files.sync, self._file)
        except OSError as error:
            self._complain(error)
            if self._required:
                raise Refused(
                    "unavailable",
                    "the audit log of the server cannot be written, so it does nothing. Tell its operator.",
                ) from None

    def end(self, request: Request, status: int) -> None:
        """Record the outcome of a request: its status code. Also records logins, whether they succeeded or not, and
        requests that were refused although their token is known, because the token does not allow them."""
        by_link = request.method == "GET" and status == 303
        is_login = request.route == "/login" and (by_link or (request.method == "POST" and status in (303, 401)))
        is_refused = request.token is not NOBODY and status == 403
        if self._path is None or not (request.audit_id or is_login or is_refused):
            return
        try:
            self._write(request, {"event": "end", "status": status})
        except OSError as error:
            self._complain(error)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, request: Request, what: dict[str, object]) -> None:
        token = request.token
        line = {
            "time": now().isoformat(timespec="milliseconds"),
            **what,
            "id": request.audit_id,
            "token": token.id,
            "label": token.label,
            "tenant": token.namespace,
            "namespace": request.headers.get(NAMESPACE_HEADER.encode(), b"").decode("latin-1")[:1400],
            "from": request.address,
            "method": request.method[:16],
            "route": request.route,
            "thread": request.thread,
        }
        self._reopen()
        data = msgspec.json.encode(line) + b"\n"
        try:
            files.write_all(self._file, b"\n" + data if self._is_torn else data)
        except OSError:
            self._is_torn = True  # so that the next line does not continue half of this one
            raise
        self._is_torn = False

    def _reopen(self) -> None:
        """Open a new file at the path of the audit log if the open file is not there any more, because log rotation has
        moved it away."""
        assert self._path is not None  # noqa: S101 - the callers have checked it
        try:
            here, open_one = os.stat(self._path), os.fstat(self._file)
            is_same = (here.st_dev, here.st_ino) == (open_one.st_dev, open_one.st_ino)
        except OSError:
            is_same = False
        if not is_same:
            self._open(self._path)

    def _open(self, path: Path) -> None:
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.close()
        self._file = opened
        self._is_torn = False

    def _complain(self, error: OSError) -> None:
        event = {"event": "error", "kind": "audit", "message": f"the audit log cannot be written: {error.strerror}"}
        logger.error(msgspec.json.encode(event).decode())
