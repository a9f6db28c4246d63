"""A model that does what the prompt says, and machines with the three real coding agents that ask it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clew.checkpointers import Checkpointer
from clew.log import Usage
from clew.messages import Message, Text, Tool, ToolResult, User, plain_text, tool_calls
from clew.models.base import ModelRequest
from clew.providers import ProviderAgent
from clew.testing import Fault, ModelServer, RecordedRequest, Response, call
from tests.servers.clis import Machine, answering

__all__ = ["NAMES", "Desk", "desk", "has_call", "texts"]

NAMES = ("claude_code", "codex", "opencode")
_SHELLS = {"Bash": "command", "exec_command": "cmd", "bash": "command", "run_command": "command"}
"""What a tool for commands is called in each program, and its argument."""
_SUB_AGENTS = {"Agent": "general-purpose", "Task": "general-purpose", "task": "general"}


def _answer(request: ModelRequest) -> Response | Fault:
    """`RUN command` asks for a tool, and `BREAK command` too, but its result is refused with status 400; `DELEGATE words`
    asks for a sub-agent that is told them; `STREAM words` begins to say them, and hangs; all else is answered at once."""
    last = request.messages[-1]
    words = next((plain_text(message) for message in reversed(request.messages) if _is_prompt(message)), "")
    verb, _, rest = words.strip().splitlines()[-1].partition(" ") if words.strip() else ("", "", "")
    if isinstance(last, Tool):
        return Fault(status=400, message="no more") if verb == "BREAK" else f"It printed: {_output(last)}"
    if verb in ("RUN", "BREAK"):
        offered = {tool.name for tool in request.tools}
        name = next(name for name in _SHELLS if name in offered)
        extra = {"description": "as asked"} if name in ("Bash", "bash") else {}
        return call(name, {_SHELLS[name]: rest, **extra})
    if verb == "DELEGATE":
        offered = {tool.name for tool in request.tools}
        name = next(name for name in ("Agent", "Task", "task") if name in offered)
        return call(name, {"description": "as asked", "prompt": rest, "subagent_type": _SUB_AGENTS[name]})
    if verb == "STREAM":
        return Fault(hang=True, saying=rest)
    return f"Answer to: {verb} {rest}"


def _is_prompt(message: Message) -> bool:
    return isinstance(message, User) and bool(plain_text(message).strip())


def _output(message: Tool) -> str:
    parts = [part for block in message.content if isinstance(block, ToolResult) for part in block.content]
    return " ".join(part.text for part in parts if isinstance(part, Text)).strip()[-200:]


class Desk:
    """One model, any number of machines that ask it, and one store that they share."""

    def __init__(self, root: Path, server: ModelServer) -> None:
        self._root = root
        self._server = server
        self.url = f"sqlite:///{root}/clew.db"

    def machine(self, name: str = "here", **versions: str) -> Machine:
        return Machine(self._root / name, self._server, **versions)

    @property
    def calls(self) -> list[RecordedRequest]:
        """The calls of a model that were answered, those beside the conversations too."""
        return [record for record in self._server.requests if record.call and record.outcome == "answered"]

    def agent(self, machine: Machine, provider: str, store: Checkpointer | str, **settings: Any) -> ProviderAgent:
        where: dict[str, Any] = {"cwd": machine.cwd, "permissions": "full", "timeout": 60, **settings}
        model = machine.models[provider]
        return ProviderAgent(model, provider=provider, env=machine.env, checkpointer=store, **where)

    def job(self, machine: Machine, provider: str, prompt: str, **more: Any) -> dict[str, Any]:
        """For a worker."""
        return {"provider": provider, "model": machine.models[provider], "prompt": prompt, **more}


@contextmanager
def desk(root: Path, usage: Usage | None = None) -> Iterator[Desk]:
    """With a `usage`, that is what the model says of each answer."""
    with ModelServer(answering(_answer), strict=False, usage=usage) as server:
        yield Desk(root, server)


def texts(messages: tuple[Message, ...]) -> str:
    """All words of a request, for a look at what the model was told."""
    return "\n".join(map(plain_text, messages))


def has_call(messages: tuple[Message, ...], command: str, output: str) -> bool:
    """Whether a call of this command is there, followed by a result with this output."""
    calls = {call.id for message in messages for call in tool_calls(message) if command in str(call.arguments)}
    results = [block for message in messages for block in message.content if isinstance(block, ToolResult)]
    return any(result.call_id in calls and output in str(result.content) for result in results)
