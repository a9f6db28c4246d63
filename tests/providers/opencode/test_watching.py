from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clew.messages import Text, ToolCall, ToolResult
from clew.providers.events import ProviderEvent, Response, Result
from clew.providers.opencode import OpenCode
from clew.providers.opencode.events import OpenCodeReader, RunningCalls
from tests.providers.opencode.kept import ANSWERED, change, database, machine

_LATER = 1_794_764_999_000
_ENDED = {"start": 1, "end": 2}


def _message(opencode: OpenCode, name: str) -> None:
    info = json.dumps({"role": "assistant"})
    change(opencode, f"INSERT INTO message VALUES ('{name}', '{ANSWERED}', {_LATER}, {_LATER}, '{info}')")


def _part(opencode: OpenCode, message: str, name: str, **data: Any) -> None:
    row = f"'{name}', '{message}', '{ANSWERED}', {_LATER}, {_LATER}, '{json.dumps(data)}'"
    change(opencode, f"INSERT OR REPLACE INTO part VALUES ({row})")


def _tool(status: str, command: str, **more: Any) -> dict[str, Any]:
    state = {"status": status, "input": {"command": command}, **more}
    return {"type": "tool", "tool": "bash", "callID": f"call-{command}", "state": state}


def _read(reader: OpenCodeReader, lines: list[bytes]) -> list[ProviderEvent]:
    return [happening for line in lines for happening in reader.read(line)]


def test_a_call_is_told_once_it_runs_with_what_was_said_before_it_and_never_twice(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    watch = RunningCalls(database(opencode), ANSWERED)
    reader = OpenCodeReader(lambda *_: [])
    _message(opencode, "msg_x")
    _part(opencode, "msg_x", "prt_1", type="text", text="I look", time=_ENDED)
    _part(opencode, "msg_x", "prt_2", **_tool("pending", "ls"))
    assert watch.look() == []
    _part(opencode, "msg_x", "prt_2", **_tool("running", "ls"))
    _part(opencode, "msg_x", "prt_3", type="text", text="not yet wh", time={"start": 3})
    seen = _read(reader, watch.look())
    call = ToolCall("call-ls", "bash", {"command": "ls"})
    assert seen == [Response((Text("I look"),), "msg_x"), Response((call,), "msg_x")]
    _part(opencode, "msg_x", "prt_2", **_tool("running", "ls", metadata={"output": "so far"}))
    assert watch.look() == []
    done = {"id": "prt_2", "messageID": "msg_x", **_tool("completed", "ls", output="a b", title="ls", time=_ENDED)}
    said = {"id": "prt_1", "messageID": "msg_x", "type": "text", "text": "I look", "time": _ENDED}
    printed = [json.dumps({"type": kind, "part": part}).encode() for kind, part in (("text", said), ("tool_use", done))]
    assert _read(reader, printed) == [Result(ToolResult("call-ls", (Text("a b"),)))]
    watch.close()


def test_a_call_that_an_earlier_run_left_running_is_not_told_as_begun_now(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    _message(opencode, "msg_old")
    _part(opencode, "msg_old", "prt_old", **_tool("running", "before"))
    watch = RunningCalls(database(opencode), ANSWERED)
    assert watch.look() == []
    _message(opencode, "msg_x")
    _part(opencode, "msg_x", "prt_x", **_tool("running", "now"))
    (line,) = watch.look()
    assert json.loads(line)["part"]["state"]["input"] == {"command": "now"}
    watch.close()


def test_a_database_that_is_not_there_or_cannot_be_read_shows_nothing_until_it_can(tmp_path: Path) -> None:
    absent = RunningCalls(tmp_path / "no.db", ANSWERED)
    assert absent.look() == []
    opencode = machine(tmp_path)
    path = database(opencode)
    whole = path.read_bytes()
    path.write_bytes(b"no database at all")
    watch = RunningCalls(path, ANSWERED)
    assert watch.look() == []
    path.write_bytes(whole)
    _message(opencode, "msg_x")
    _part(opencode, "msg_x", "prt_x", **_tool("running", "now"))
    assert any(b'"now"' in line for line in watch.look())
    watch.close()
