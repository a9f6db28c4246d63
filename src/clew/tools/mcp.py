"""The tools of an MCP server (Model Context Protocol), over stdio or streamable HTTP. Needs the official `mcp` package
(the extra `mcp`)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from os import PathLike
from types import TracebackType
from typing import Any

from clew._runtime.aio import settle
from clew.errors import InvalidInput, MissingExtra, Unavailable, UsageError
from clew.messages import File, Image, Json, Text, ToolResult
from clew.tools.call import error_text
from clew.tools.decorator import AnyTool, Effect, Tool
from clew.tools.schema import Parameters
from clew.tools.signals import OutcomeUnknown, ToolError

__all__ = ["MCPTools", "mcp_tools", "read_result"]


log = logging.getLogger("clew.tools")
_CLOSED, _TIMED_OUT = -32000, (-32001, 408)
_LOST = {"BrokenResourceError", "ClosedResourceError", "EndOfStream"}
_MOST_PAGES = 100
_CLOSING = 10.0


def mcp_tools(
    server: str | Sequence[str],
    *,
    headers: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | PathLike[str] | None = None,
    prefix: str = "",
    effects: Mapping[str, Effect] | None = None,
    timeout: float | None = None,
    connect_timeout: float = 30.0,
) -> MCPTools:
    """Return a connection that gives the tools of an MCP server: `async with mcp_tools("https://…") as tools: …`.

    Args:
        server: a URL (streamable HTTP), or the command that starts a server which speaks over stdio, as a text or a list.
        headers: additional headers of each HTTP request, such as an authorization.
        env: environment variables that the command gets in addition to a few usual ones, such as `PATH`.
        cwd: the folder in which the command is started.
        prefix: a text to put before the name of each tool, so that tools of two servers have different names.
        effects: the `Effect` of a tool, by the server's name for the tool. Without it the server's hints decide: with
            `readOnlyHint` the effect is `"none"`, with `idempotentHint` `"idempotent"`, otherwise `"once"`. If you do
            not trust the hints of a server, give the effects here.
        timeout: how many seconds a call may take. After that its outcome is in doubt.
        connect_timeout: how many seconds the server has to start, to answer, and to list its tools.
    """
    if isinstance(server, str) and not re.match(r"https?://", server):
        server = shlex.split(server)
    if not server:
        raise InvalidInput("mcp_tools takes the URL of a server or the command that starts one, and this is empty.")
    return MCPTools(
        server if isinstance(server, str) else list(server),
        dict(headers or {}),
        dict(env) if env is not None else None,
        cwd,
        prefix,
        dict(effects or {}),
        timeout,
        connect_timeout,
    )


class MCPTools:
    """A connection to an MCP server. `open` returns the server's tools. If the connection is lost, the next call of a
    tool opens a new one."""

    def __init__(
        self,
        server: str | list[str],
        headers: dict[str, str],
        env: dict[str, str] | None,
        cwd: str | PathLike[str] | None,
        prefix: str,
        effects: dict[str, Effect],
        timeout: float | None,
        connect_timeout: float,
    ) -> None:
        self._server = server
        self._headers = headers
        self._env = env
        self._cwd = cwd
        self._prefix = prefix
        self._effects = effects
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._client: Any = None
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Any] | None = None
        self._stop = asyncio.Event()
        self._connecting = asyncio.Lock()
        self._open = False

    async def open(self) -> list[AnyTool]:
        """Connect and return the server's tools. Raises `Unavailable` if the server cannot be reached."""
        self._open = True
        try:
            async with asyncio.timeout(self._connect_timeout):
                return self._tools(await self._list(await self._connected()))
        except BaseException as error:
            await self.close()
            if isinstance(error, Exception) and not isinstance(error, (MissingExtra, InvalidInput)):
                raise Unavailable(f"the MCP server {self._named()} cannot be used: {self._reason(error)}") from error
            raise

    async def close(self) -> None:
        """Close the connection. If the server was started by this object, end it."""
        self._open = False
        await settle(self._disconnect())

    async def __aenter__(self) -> list[AnyTool]:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _connected(self) -> Any:
        async with self._connecting:
            if not self._open:
                raise UsageError(
                    "the MCP server's connection is closed. Use its tools inside `async with mcp_tools(…)`."
                )
            if self._client is None or self._task is None or self._task.done():
                await self._disconnect()  # stops an earlier attempt whose caller gave up
                self._stop = asyncio.Event()
                self._ready = asyncio.get_running_loop().create_future()
                self._task = asyncio.create_task(self._hold(self._ready, self._stop))
                self._client = await self._ready
            return self._client

    async def _hold(self, ready: asyncio.Future[Any], stop: asyncio.Event) -> None:
        """Open the connection and keep it open until `stop` is set. Both are done in one asyncio task, because the
        `mcp` package must close a connection in the task that opened it. `ready` gets the client with which the
        server's tools are called, or the error."""
        try:
            async with _client(self._server, self._headers, self._env, self._cwd) as client:
                if not ready.done():
                    ready.set_result(client)
                    await stop.wait()
        except Exception as error:  # noqa: BLE001  # passed on through `ready`
            if not ready.done():
                ready.set_exception(error)
            else:
                log.warning("the connection to the MCP server %s ended with %s", self._named(), type(error).__name__)

    async def _disconnect(self) -> None:
        task, self._task, self._client = self._task, None, None
        if task is None:
            return
        self._stop.set()
        if self._ready is not None and self._ready.done() and not self._ready.cancelled():
            await asyncio.wait([task], timeout=_CLOSING)  # otherwise it is still being opened: cancel at once
        task.cancel()
        await asyncio.wait([task])

    async def _list(self, client: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = _plain(await client.list_tools(**({} if cursor is None else {"cursor": cursor})))
            found += page["tools"]
            cursor = page.get("nextCursor")
            if not cursor:
                break
        return found

    def _tools(self, described: list[dict[str, Any]]) -> list[AnyTool]:
        names: set[str] = set()
        return [self._tool(each, names) for each in described]

    def _tool(self, described: dict[str, Any], taken: set[str]) -> AnyTool:
        theirs, hints = str(described["name"]), described.get("annotations") or {}
        hinted: Effect = (
            "none" if hints.get("readOnlyHint") else "idempotent" if hints.get("idempotentHint") else "once"
        )
        effect = self._effects.get(theirs, hinted)

        async def call(**arguments: Any) -> ToolResult:
            return await self._call(theirs, effect, arguments)

        name = _free_name(self._prefix + theirs, taken)
        taken.add(name)
        schema = {"type": "object", "properties": {}, **(described.get("inputSchema") or {})}
        return Tool(
            call,
            name=name,
            description=str(described.get("description") or described.get("title") or ""),
            parameters=Parameters.unchecked(schema),
            effect=effect,
            timeout=self._timeout,
            retries=0 if effect == "once" else 1,
            goes_on=True,
        )

    async def _call(self, name: str, effect: Effect, arguments: dict[str, Any]) -> ToolResult:
        try:
            client = await self._connected()
        except UsageError:
            raise
        except Exception as error:
            raise ConnectionError(f"the call was not made: {self._reason(error)}") from error
        try:
            return read_result(_plain(await client.call_tool(name, arguments)))
        except Exception as error:
            code = getattr(getattr(error, "error", None), "code", None)
            if code is not None and code != _CLOSED and code not in _TIMED_OUT:
                raise ToolError(f"The MCP server says: {self._reason(error)}") from error
            lost = type(error).__name__ in _LOST or (code == _CLOSED and "closed" in str(error).lower())
            if lost and client is self._client:
                await self._disconnect()
            if effect == "once":
                raise OutcomeUnknown(name, f"the MCP server did not answer: {self._reason(error)}") from error
            raise ConnectionError(f"the MCP server did not answer: {self._reason(error)}") from error

    def _reason(self, error: BaseException) -> str:
        """Describe an error in text. If the text contains the server's URL, as some HTTP clients write it, user and
        query are cut out of the URL, because they may hold secrets."""
        text = error_text(error)
        return text.replace(self._server, self._named().strip("'")) if isinstance(self._server, str) else text

    def _named(self) -> str:
        """Return a name for the server without secrets: a command without its arguments, or a URL without user and
        query."""
        if not isinstance(self._server, str):
            return repr(self._server[0])
        return repr(re.sub(r"^(https?://)(?:[^/?#]*@)?([^?#]*).*$", r"\1\2", self._server, flags=re.DOTALL))


@asynccontextmanager
async def _client(
    server: str | list[str], headers: dict[str, str], env: dict[str, str] | None, cwd: Any
) -> AsyncIterator[Any]:
    """Connect to a server inside this context, and yield an object that lists and calls its tools: `mcp.Client` of the
    package's version 2, or a session of version 1. `server` is a URL, to which `headers` are sent, or the words of a
    command, which is started in the folder `cwd` with the variables `env`. Raises `MissingExtra` if the package is not
    installed."""
    try:
        import mcp
        from mcp.client import streamable_http
    except ImportError as error:
        raise MissingExtra("an MCP server", "mcp") from error
    async with AsyncExitStack() as stack:
        if isinstance(server, str):
            if hasattr(streamable_http, "streamable_http_client"):
                from mcp.shared._httpx_utils import create_mcp_http_client

                http = await stack.enter_async_context(create_mcp_http_client(headers=headers))
                transport: Any = streamable_http.streamable_http_client(server, http_client=http)
            else:
                transport = getattr(streamable_http, "streamablehttp_client")(server, headers=headers)  # noqa: B009
        else:
            transport = mcp.stdio_client(
                mcp.StdioServerParameters(command=server[0], args=server[1:], env=env, cwd=cwd)
            )
        if hasattr(mcp, "Client"):
            yield await stack.enter_async_context(mcp.Client(transport, cache=None))
        else:
            streams = await stack.enter_async_context(transport)
            session = await stack.enter_async_context(mcp.ClientSession(streams[0], streams[1]))
            await session.initialize()
            yield session


def _plain(model: Any) -> dict[str, Any]:
    """Convert an object of the `mcp` package to a dict with the field names of the protocol, which are the same in all
    versions of the package."""
    plain: dict[str, Any] = model.model_dump(by_alias=True, mode="json", exclude_none=True)
    return plain


def _free_name(wanted: str, taken: set[str]) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]", "_", wanted)[:64] or "tool"
    number = 2
    while name in taken:
        name = f"{re.sub(r'[^A-Za-z0-9_-]', '_', wanted)[:60]}_{number}"
        number += 1
    return name


def read_result(result: dict[str, Any]) -> ToolResult:
    """Convert the result of an MCP tool, as a dict with the protocol's field names, to a result with Clew's blocks.

    Structured content is used only if there is no other content, because servers repeat it as text.
    """
    content = tuple(_block(block) for block in result.get("content") or ())
    if not content and result.get("structuredContent") is not None:
        content = (Json(result["structuredContent"]),)
    return ToolResult("", content or (Text("done"),), is_error=bool(result.get("isError")))


def _block(block: dict[str, Any]) -> Text | Json | Image | File:
    kind, media_type = block.get("type"), str(block.get("mimeType") or "")
    if kind == "text":
        return Text(str(block.get("text", "")))
    if kind in ("image", "audio") and (data := _bytes(block.get("data"))) is not None:
        return Image(media_type, data) if kind == "image" else File("", media_type, data)
    resource = block.get("resource")
    if kind == "resource" and isinstance(resource, dict):
        name, media_type = str(resource.get("uri", "")), str(resource.get("mimeType") or "")
        if isinstance(resource.get("text"), str):
            return Text(resource["text"], {"uri": name})
        if (data := _bytes(resource.get("blob"))) is not None:
            return File(name, media_type, data)
    if kind == "resource_link":
        said = " ".join(str(block[key]) for key in ("title", "name", "description") if block.get(key))
        return Text(f"{block.get('uri', '')} {said}".strip())
    return Json(block)


def _bytes(text: Any) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        return None
