"""An MCP server for tests: `python mcp_server.py stdio`, or `python mcp_server.py http PORT`."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import (
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

server = MCPServer("tests")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def put(path: str) -> str:
    Path(path).write_text("put")
    return "put it"


@server.tool(name="send.mail")
def send(to: str) -> str:
    return f"sent to {to}"


@server.tool(name="send/mail")
def send_again(to: str) -> str:
    return f"sent again to {to}"


@server.tool()
def fail() -> str:
    raise ToolError("no such thing")


@server.tool(structured_output=False)
def show() -> list[Any]:
    data = base64.b64encode(b"\x89PNG").decode()
    return [
        TextContent(type="text", text="here"),
        ImageContent(type="image", data=data, mime_type="image/png"),
        EmbeddedResource(type="resource", resource=TextResourceContents(uri="file:///a", text="words")),
        EmbeddedResource(type="resource", resource=BlobResourceContents(uri="file:///b", blob=data, mime_type="x/y")),
        ResourceLink(type="resource_link", name="doc", uri="file:///c"),
    ]


@server.tool()
def die() -> str:
    os._exit(1)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def die_once(marker: str) -> str:
    if not Path(marker).exists():
        Path(marker).write_text("died")
        os._exit(1)
    return "alive"


_here: list[None] = []


@server.tool()
async def meet(count: int) -> str:
    """Return once so many calls of this wait at the same time."""
    _here.append(None)
    while len(_here) < count:
        await asyncio.sleep(0.01)
    return "all are here"


@server.tool()
async def never_done(marker: str) -> str:
    """Leave a file, and do not end."""
    Path(marker).touch()
    await asyncio.Event().wait()
    return "never"


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def environment(name: str) -> str:
    return os.environ.get(name, "not set")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def header(name: str, ctx: Context) -> str:
    headers: Any = ctx.headers
    return str(headers.get(name)) if headers else "no headers"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
