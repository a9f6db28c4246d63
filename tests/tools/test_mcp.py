"""Tools of MCP servers, over stdio and HTTP, with real servers."""

from __future__ import annotations

import asyncio
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clew.errors import InvalidInput, MissingExtra, Unavailable, UsageError
from clew.messages import File, Image, Json, Text, ToolResult
from clew.tools import AnyTool, OutcomeUnknown, ToolContext, call_tool, mcp_tools
from clew.tools.mcp import read_result
from tests.clock import Clock
from tests.limits import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
SERVER = [sys.executable, str(Path(__file__).parent / "mcp_server.py")]
STDIO = [*SERVER, "stdio"]


def start_http() -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*SERVER, "http", str(port)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    for _ in range(400):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process, f"http://127.0.0.1:{port}/mcp"
        time.sleep(0.05)
    process.kill()
    raise AssertionError("the server did not start")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    process, url = start_http()
    yield url
    process.terminate()
    process.wait()


def by_name(tools: list[AnyTool]) -> dict[str, AnyTool]:
    return {made.name: made for made in tools}


async def call(made: AnyTool, **arguments: Any) -> ToolResult:
    return await call_tool(made, arguments, ToolContext(call_id="c1"))


async def check_tools(tools: dict[str, AnyTool]) -> None:
    assert {name: tools[name].effect for name in ("add", "put", "fail")} == {
        "add": "none",
        "put": "idempotent",
        "fail": "once",
    }
    assert tools["add"].description == "Add two numbers."
    assert tools["add"].schema["required"] == ["a"]
    assert await call(tools["add"], a=2) == ToolResult("c1", (Text("3"),))
    assert await call(tools["send_mail"], to="Ada") == ToolResult("c1", (Text("sent to Ada"),))
    assert await call(tools["send_mail_2"], to="Ada") == ToolResult("c1", (Text("sent again to Ada"),))
    failed, wrong = await call(tools["fail"]), await call(tools["add"], a="x")
    assert failed.is_error
    assert "no such thing" in str(failed.content)
    assert wrong.is_error
    shown = await call(tools["show"])
    assert [type(block) for block in shown.content] == [Text, Image, Text, File, Text]
    assert shown.content[1] == Image("image/png", b"\x89PNG")
    assert shown.content[3] == File("file:///b", "x/y", b"\x89PNG")


async def test_tools_over_stdio() -> None:
    async with mcp_tools(STDIO) as tools:
        await check_tools(by_name(tools))


async def test_tools_over_http(url: str) -> None:
    async with mcp_tools(url) as tools:
        await check_tools(by_name(tools))


async def test_a_command_may_be_a_text_with_an_environment_and_a_folder(tmp_path: Path) -> None:
    server = mcp_tools(shlex.join(STDIO), env={"CLEW_TEST": "there"}, cwd=tmp_path, prefix="t_")
    async with server as tools:
        found = await call(by_name(tools)["t_environment"], name="CLEW_TEST")
        assert found.content == (Text("there"),)
        await call(by_name(tools)["t_put"], path="file")
    assert (tmp_path / "file").read_text() == "put"


async def test_headers_go_with_every_request(url: str) -> None:
    async with mcp_tools(url, headers={"x-clew": "yes"}) as tools:
        assert (await call(by_name(tools)["header"], name="x-clew")).content == (Text("yes"),)


@pytest.mark.slow
async def test_effects_can_be_said_better_than_the_server_does() -> None:
    async with mcp_tools(STDIO, effects={"add": "once", "send.mail": "idempotent"}) as tools:
        found = by_name(tools)
        assert (found["add"].effect, found["send_mail"].effect, found["put"].effect) == (
            "once",
            "idempotent",
            "idempotent",
        )


@pytest.mark.slow
async def test_a_server_that_dies_in_a_call_leaves_it_in_doubt_and_is_started_again() -> None:
    async with mcp_tools(STDIO) as tools:
        found = by_name(tools)
        with pytest.raises(OutcomeUnknown, match="die: the MCP server did not answer"):
            await call(found["die"])
        assert (await call(found["add"], a=1)).content == (Text("2"),)


async def test_a_call_without_effect_is_made_again_when_the_server_dies(tmp_path: Path) -> None:
    async with mcp_tools(STDIO) as tools:
        result = await call(by_name(tools)["die_once"], marker=str(tmp_path / "marker"))
        assert result.content == (Text("alive"),)


async def test_a_call_that_times_out_is_in_doubt_and_the_connection_stays(tmp_path: Path, clock: Clock) -> None:
    async with mcp_tools(STDIO, timeout=600) as tools:
        found, marker = by_name(tools), tmp_path / "marker"
        calling = asyncio.create_task(call(found["never_done"], marker=str(marker)))
        await clock.advance_when(marker.exists, 600)
        with pytest.raises(OutcomeUnknown, match="timed out"):
            await calling
        assert (await call(found["add"], a=1)).content == (Text("2"),)


async def test_an_http_server_that_is_gone_leaves_a_call_in_doubt() -> None:
    process, url = start_http()
    try:
        async with mcp_tools(url) as tools:
            found = by_name(tools)
            with pytest.raises(OutcomeUnknown):
                await call(found["die"])
            never_sent = await call(found["send_mail"], to="Ada")
            assert never_sent.is_error
            assert "the call was not made" in str(never_sent.content)
            assert (await call(found["add"], a=1)).is_error
    finally:
        process.wait()


@pytest.mark.slow
async def test_a_call_given_up_while_the_server_starts_does_not_spoil_the_next() -> None:
    async with mcp_tools(STDIO) as tools:
        found = by_name(tools)
        with pytest.raises(OutcomeUnknown):
            await call(found["die"])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await call(found["add"], a=1)
        assert (await call(found["add"], a=1)).content == (Text("2"),)


@pytest.mark.slow
async def test_it_may_be_opened_and_closed_in_different_tasks() -> None:
    server = mcp_tools(STDIO)
    tools = by_name(await asyncio.create_task(server.open()))
    assert (await asyncio.create_task(call(tools["add"], a=1))).content == (Text("2"),)
    await asyncio.create_task(server.close())
    assert "connection is closed" in str((await call(tools["add"], a=1)).content)
    with pytest.raises(UsageError):
        await tools["add"].fn(a=1)


async def test_calls_run_side_by_side() -> None:
    async with mcp_tools(STDIO) as tools:
        found = by_name(tools)
        met = await asyncio.wait_for(asyncio.gather(*(call(found["meet"], count=4) for _ in range(4))), PATIENCE)
        assert [result.content for result in met] == [(Text("all are here"),)] * 4


@pytest.mark.parametrize(
    "server", [["/nowhere/server"], [sys.executable, "-c", "print('hello')"], "http://127.0.0.1:9/mcp?key=secret"]
)
async def test_a_server_that_cannot_be_reached_is_unavailable(server: Any) -> None:
    with pytest.raises(Unavailable) as raised:
        await mcp_tools(server, connect_timeout=PATIENCE).open()
    assert "secret" not in str(raised.value)


async def test_a_server_that_says_nothing_is_given_up() -> None:
    silent = mcp_tools([sys.executable, "-c", "import time; time.sleep(3600)"], connect_timeout=0.5)
    with pytest.raises(Unavailable, match="TimeoutError"):
        await asyncio.wait_for(silent.open(), PATIENCE)


async def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match=r"clew\[mcp\]"):
        await mcp_tools(STDIO).open()


async def test_the_query_of_a_url_is_never_told(url: str) -> None:
    with pytest.raises(Unavailable) as raised:
        await mcp_tools(url.replace("http://", "http://me:secret@").replace("/mcp", "/nothing?key=secret")).open()
    assert "/nothing" in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("server", ["", [], "  "])
def test_no_server_is_refused(server: Any) -> None:
    with pytest.raises(InvalidInput):
        mcp_tools(server)


def test_structured_content_stands_in_for_content_that_is_missing() -> None:
    assert read_result({"content": [], "structuredContent": {"a": 1}}) == ToolResult("", (Json({"a": 1}),))
    assert read_result({"content": [{"type": "text", "text": "x"}], "structuredContent": {}}).content == (Text("x"),)
    assert read_result({}) == ToolResult("", (Text("done"),))
    assert read_result({"content": [{"type": "new", "x": 1}]}).content == (Json({"type": "new", "x": 1}),)
