"""Routing for the model server, a test server that imitates the vendors' APIs: finds out which API a request is for,
and answers requests that are not model calls, such as a list of models."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec

from clew.errors import ClewError
from clew.testing.model_server.anthropic import ANTHROPIC
from clew.testing.model_server.calls import CallResponder, Refused, read_body
from clew.testing.model_server.gemini import GEMINI, asked_by, gemini_model
from clew.testing.model_server.http import JSON, Abandoned, BadRequest, Connection, HttpRequest
from clew.testing.model_server.openai_chat import CHAT
from clew.testing.model_server.openai_responses import RESPONSES
from clew.testing.model_server.records import RecordedRequest, Records, without_secrets
from clew.testing.model_server.wire import Body, Problem, Wire
from clew.testing.replies import estimate

__all__ = ["Dispatcher"]

_WIRES = {"/chat/completions": CHAT, "/messages": ANTHROPIC, "/responses": RESPONSES}
"""The vendor's API for each ending of a request's path. Only the ending counts, so that any base URL works."""
_COUNT = "/messages/count_tokens"
_GEMINI_COUNT = "countTokens"
_KEYS = ("x-api-key", "x-goog-api-key", "api-key")
_RELEASED = "2025-01-01T00:00:00Z"


class Dispatcher:
    """Serves the connections of a model server: passes model calls on to a `CallResponder`, and answers all other
    requests itself. Runs on the server's own event loop."""

    def __init__(self, responder: CallResponder, records: Records, *, key: str | None, models: tuple[str, ...]) -> None:
        self._responder = responder
        self._records = records
        self._key = key
        self._models = models

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other, until the client or this server closes the
        connection."""
        connection = Connection(reader, writer)
        with suppress(Abandoned, ConnectionError):
            try:
                while (request := await connection.read()) is not None:
                    await self._answer(request, connection)
            except BadRequest as error:
                body = msgspec.json.encode({"error": {"message": str(error)}})
                await connection.refuse(error.status, JSON, body)

    async def _answer(self, request: HttpRequest, connection: Connection) -> None:
        path = request.path.rstrip("/")
        wire, named = _wire(path)
        record = RecordedRequest(
            method=request.method, path=request.path, headers=without_secrets(request.headers), body=None
        )
        is_call = wire is not None and request.method == "POST"
        if is_call and wire is not None:
            record.dialect = wire.dialect
        problem = self._problem_of_key(request)
        try:
            record.body = read_body(request.body) if request.body else None
        except Refused as refused:
            problem = problem or refused.problem
        self._records.add(record, is_call=is_call)
        if problem is not None:
            await _refuse(wire or _vendor(request), problem, record, connection)
        elif is_call and wire is not None:
            await self._responder.answer(wire, record, connection, named)
        else:
            await self._answer_other(request, path, record, connection)

    def _problem_of_key(self, request: HttpRequest) -> Problem | None:
        given = next((request.headers[name] for name in _KEYS if request.headers.get(name)), "")
        given = given or request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._key is None or given == self._key:
            return None
        return Problem(status=401, message="Incorrect API key provided." if given else "No API key was given.")

    async def _answer_other(
        self, request: HttpRequest, path: str, record: RecordedRequest, connection: Connection
    ) -> None:
        vendor = _vendor(request)
        try:
            body = self._other(request, path, record, vendor)
        except Refused as refused:
            await _refuse(vendor, refused.problem, record, connection)
            return
        record.outcome = "answered"
        await connection.send(200, JSON, msgspec.json.encode(body))

    def _other(self, request: HttpRequest, path: str, record: RecordedRequest, vendor: Wire) -> Any:
        if path.endswith(_COUNT) and request.method == "POST":
            return {"input_tokens": _count(ANTHROPIC, record, record.body or {})}
        asked = asked_by(path)
        if asked is not None and asked[0] == _GEMINI_COUNT and request.method == "POST":
            body = record.body or {}
            return {"totalTokens": _count(GEMINI, record, body.get("generateContentRequest") or body)}
        if request.method in ("GET", "HEAD"):
            if path in ("", "/v1"):
                return {}
            if path.endswith("/models"):
                return self._list(vendor)
            parent, _, name = path.rpartition("/")
            if parent.endswith("/models") and name in self._models:
                return _model(name, vendor)
        if "upgrade" in request.headers:
            raise Refused(Problem(status=426, message="this server speaks HTTP and server-sent events alone"))
        raise Refused(Problem(status=404, message=f"no {request.method} {request.path} here"))

    def _list(self, vendor: Wire) -> dict[str, Any]:
        data = [_model(name, vendor) for name in self._models]
        if vendor is GEMINI:
            return {"models": data}
        if vendor is not ANTHROPIC:
            return {"object": "list", "data": data}
        ends = {"first_id": self._models[0], "last_id": self._models[-1]} if data else {}
        return {"data": data, "has_more": False, **ends}


def _vendor(request: HttpRequest) -> Wire:
    """Return the vendor's API whose form the server uses to answer a request that is not a model call, such as a list
    of models. It is Anthropic's if the request has the header `anthropic-version` or a path with `/messages`, Gemini's
    if it has the header `x-goog-api-key` or a path with `/v1beta/`, otherwise OpenAI's."""
    if "x-goog-api-key" in request.headers or "/v1beta/" in request.path:
        return GEMINI
    return ANTHROPIC if "anthropic-version" in request.headers or "/messages" in request.path else CHAT


def _wire(path: str) -> tuple[Wire | None, Body]:
    """Find out which vendor's API a model call with this path is for. Returns two things: the functions that read and
    write the form of that API, and the fields of the request that are in the path and not in the body. For a path that
    is not one of a model call, returns None and no fields."""
    asked = asked_by(path)
    if asked is not None and asked[0] != _GEMINI_COUNT:
        return GEMINI, asked[1]
    return next((wire for ending, wire in _WIRES.items() if path.endswith(ending)), None), {}


def _model(name: str, vendor: Wire) -> dict[str, Any]:
    if vendor is GEMINI:
        return gemini_model(name)
    if vendor is ANTHROPIC:
        return {"type": "model", "id": name, "display_name": name, "created_at": _RELEASED, "lifecycle": "active"}
    return {"id": name, "object": "model", "created": 1735689600, "owned_by": "clew"}


def _count(wire: Wire, record: RecordedRequest, body: Body) -> int:
    try:
        record.dialect = wire.dialect
        record.request = asked = wire.request(body)
    except ClewError as error:
        raise Refused(Problem(status=400, message=str(error))) from None
    return estimate(asked.messages, asked.system, asked.tools, ()).input_tokens


async def _refuse(wire: Wire, problem: Problem, record: RecordedRequest, connection: Connection) -> None:
    record.outcome, record.reason = "refused", problem.message
    await connection.send(problem.status, JSON, msgspec.json.encode(wire.error(problem)))
