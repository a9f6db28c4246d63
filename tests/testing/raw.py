"""Requests without a vendor's client, to see the bytes that a server sends."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from clew.testing import ModelServer
from tests.limits import PATIENCE

HI = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "anthropic": ("/v1/messages", {"model": "m", "max_tokens": 9, "messages": HI}),
    "openai-chat": ("/v1/chat/completions", {"model": "m", "messages": HI}),
    "openai-responses": ("/v1/responses", {"model": "m", "input": HI}),
    "gemini": ("/v1beta/models/m:generateContent", {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}),
}
"""Where to ask, and what at least, by dialect."""


def connect(server: ModelServer) -> http.client.HTTPConnection:
    where = urlsplit(server.url)
    return http.client.HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE)


def request_of(dialect: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    """The path and the body of a request with these fields. Gemini's API has the word for a stream in the path."""
    path, body = BODIES[dialect]
    if dialect == "gemini" and fields.pop("stream", False):
        path = path.replace("generateContent", "streamGenerateContent") + "?alt=sse"
    return path, {**body, **fields}


def ask(server: ModelServer, dialect: str, **fields: Any) -> tuple[int, dict[str, str], bytes]:
    path, body = request_of(dialect, **fields)
    connection = connect(server)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return response.status, headers, response.read()
    finally:
        connection.close()


def events_of(stream: bytes) -> list[tuple[str | None, Any]]:
    """The events of a stream: their names and data."""
    found = []
    for block in stream.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        data = fields["data"]
        found.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return found
