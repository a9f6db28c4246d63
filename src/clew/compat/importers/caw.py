"""Reads the sessions of caw, a library that wraps coding agents. They are in a data_dir, in which each session has a
folder with a file `trajectory.json`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
from blake3 import blake3

from clew._runtime import files
from clew._runtime.text import plural
from clew.agent.exchanges import Spent, ended
from clew.compat.importers.base import Conversation, Source
from clew.errors import Corrupt, InvalidInput
from clew.log import (
    Described,
    Entry,
    MessageAdded,
    ProviderKey,
    Spend,
    StatusChanged,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    Usage,
)
from clew.messages import Assistant, Block, Message, Text, Thinking, Tool, ToolCall, ToolResult, tool_calls, user
from clew.providers import PROVIDERS

__all__ = ["KEYS", "TRAJECTORY", "CawSource"]

TRAJECTORY = "trajectory.json"
"""The name of the file that holds a session."""
KEYS = {"codex": "thread_id", "opencode": "opencode_session_id"}
"""Where the metadata of a session hold the provider's own id. For Claude Code it is the session's id itself."""
_SESSIONS = "sessions"
_CREATED = re.compile(rb'"created_at": *"([^"]{1,64})"')
_NOT_KNOWN = "It is not known what came of this call: caw was stopped while it ran."
_BEGINNING = 4096
"""How many bytes of a file are read to learn when the session was created."""


class CawSource(Source):
    """Reads the sessions that caw (a library that wraps coding agents) keeps in a data_dir, its folder for all
    sessions; or a single session, if the path is the folder of that session. The thread made from a session has the id
    of the session.

    A handle of caw, the text by which caw resumes a session, leads to the imported thread if it is given to
    `Agent(provider=…, checkpointer=…).resume_session`. If the coding agent's own copy of the session is still on this
    machine, the agent goes on with that copy; otherwise a new one is written from the thread.
    """

    kind = "caw"

    def __init__(self, folders: dict[str, Path]) -> None:
        """`folders` maps the key of each session, which is the session's id, to the folder of the session."""
        self._folders = folders

    @classmethod
    def open(cls, path: Path) -> Self:
        looked_for = f"Looked for {_SESSIONS}/*/{TRAJECTORY}, as caw keeps them in its data_dir."
        try:
            if not path.exists():
                raise InvalidInput(f"there is no {path}. {looked_for}")
            if (path / TRAJECTORY).is_file():
                return cls({path.resolve().name: path})
            inside = path if path.name == _SESSIONS else path / _SESSIONS
            found = [folder for folder in inside.glob("*") if folder.is_dir()]
            if not any((folder / TRAJECTORY).is_file() for folder in found):
                raise InvalidInput(f"{path} has no sessions of caw. {looked_for}")
            dated = sorted((_created(folder), folder.name, folder) for folder in found)
        except OSError as error:
            raise files.explain(error, path) from error
        return cls({name: folder for _, name, folder in dated})

    def keys(self) -> Sequence[str]:
        return list(self._folders)

    def version(self, key: str) -> str:
        return blake3(self._bytes(key)).hexdigest()

    def read(self, key: str) -> Conversation:
        path = self._folder(key) / TRAJECTORY
        try:
            session = msgspec.json.decode(self._bytes(key), type=_Session)
        except msgspec.DecodeError as error:
            raise Corrupt(f"{path} is not a trajectory of caw, or is damaged: {error}") from None
        made = _Translation(session, session.session_id or key)
        entries = list(made.entries())
        return Conversation(thread_id=made.thread_id, entries=entries, losses=made.losses)

    def _folder(self, key: str) -> Path:
        if key not in self._folders:
            raise InvalidInput(f"there is no session {key!r} here.")
        return self._folders[key]

    def _bytes(self, key: str) -> bytes:
        path = self._folder(key) / TRAJECTORY
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise InvalidInput(
                f"{path.parent} has no {TRAJECTORY}: caw writes it with the first words or tool call, and this session has "
                "none."
            ) from None
        except OSError as error:
            raise files.explain(error, path) from error


class _Amounts(msgspec.Struct, frozen=True):
    """The tokens and the cost that caw writes into a file. Unlike in Clew, tokens of the cache are not part of
    `input_tokens`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = None

    @property
    def usage(self) -> Usage:
        cached = self.cache_read_tokens, self.cache_write_tokens
        return Usage(self.input_tokens + sum(cached), self.output_tokens, *cached)

    def plus(self, other: _Amounts) -> _Amounts:
        return _Amounts(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )

    def since(self, before: _Amounts) -> _Amounts | None:
        """Return these running totals of tokens minus the earlier ones in `before`. The result has the cost of this
        object. Returns None if a total is smaller than in `before`: then they do not continue those in `before`."""
        counts = (
            self.input_tokens - before.input_tokens,
            self.output_tokens - before.output_tokens,
            self.cache_read_tokens - before.cache_read_tokens,
            self.cache_write_tokens - before.cache_write_tokens,
        )
        return None if min(counts) < 0 else _Amounts(*counts, self.cost_usd)


class _Block(msgspec.Struct, frozen=True):
    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    arguments: Any = {}
    output: str = ""
    is_error: bool = False
    subagent_trajectory: Any = None


class _Turn(msgspec.Struct, frozen=True):
    input: str
    output: list[_Block] = []
    usage: _Amounts = _Amounts()
    duration_ms: float = 0
    status: str = ""
    """How the turn ended. Only Clew writes it, and with it usage that is of this turn alone."""


class _Session(msgspec.Struct, frozen=True):
    agent: str
    turns: list[_Turn]
    model: str = ""
    session_id: str = ""
    created_at: str = ""
    completed_at: str = ""
    system_prompt: str = ""
    reasoning: str = ""
    mcp_servers: list[Any] = []
    metadata: dict[str, Any] = {}


class _Translation:
    """Translates one session of caw into the entries of a thread. `losses` lists what could not be carried over."""

    def __init__(self, session: _Session, thread_id: str) -> None:
        self._session = session
        self.thread_id = thread_id
        self.losses: list[str] = []
        self._ids: set[str] = set()
        self._length = 0
        """How many messages the entries so far have."""
        self._prompts = 0
        self._unanswered: set[str] = set()
        """The ids of tool calls without a result. Each is the last thing that was done in its turn."""
        self._open: tuple[ToolIntent, str] | None = None
        """The call without a result in the turn that was translated last, with its id."""
        self._sub_agents = 0
        self._silent = 0
        """How many tool calls of Codex have no output: caw does not keep it."""

    def entries(self) -> Iterator[Entry]:
        """Yield the entries of the thread's log, in order. `losses`, the list of what could not be carried over, is
        complete once all entries were taken."""
        session = self._session
        yield ThreadStarted(session.agent, session.model, session.system_prompt, limits=self._limits())
        times = {"created_at": session.created_at, "completed_at": session.completed_at}
        given = {name: value for name, value in session.metadata.items() if _is_tag(name, value)}
        tags = {name: value for name, value in {**given, **times}.items() if value}
        yield Described(tags=tags)
        status = "done"
        for turn, amounts in zip(session.turns, self._amounts(), strict=True):
            status = _status(turn)
            yield from self._exchange(turn, amounts, status)
        key = _resume_key(session.agent, self.thread_id, session.metadata)
        if key and session.agent in PROVIDERS:
            yield ProviderKey(session.agent, key, messages=self._length)
        yield StatusChanged("done") if status == "done" else StatusChanged("interrupted")
        self._note_losses()

    def _limits(self) -> dict[str, Any]:
        if self._session.agent in PROVIDERS:
            return {"provider": self._session.agent}
        self.losses.append(f"the provider {self._session.agent!r}, which Clew does not know: its own session is left")
        return {}

    def _amounts(self) -> Iterator[tuple[Usage | None, float | None]]:
        """Yield a pair for each turn: its usage and its cost in dollars, each None if it is not known. For Codex, caw
        writes with each turn the totals of the whole conversation so far, so the totals before the turn are subtracted.
        A cost of 0 in the file means that caw knew no price."""
        before, turns = _Amounts(), self._session.turns
        for turn in turns:
            own = now = turn.usage
            if self._session.agent == "codex" and not turn.status:
                own = now.since(before) or now
                before = before if now.usage == Usage() else now
            else:
                before = before.plus(own)
            known = own.usage if now.usage != Usage() else None
            yield known, (own.cost_usd or None) if known else None
        if self._session.agent == "codex" and sum(not turn.status for turn in turns) > 1:
            self.losses.append("the usage as caw has it, which counts Codex's running totals again with each turn")

    def _exchange(self, turn: _Turn, amounts: tuple[Usage | None, float | None], status: str) -> Iterator[Entry]:
        """Yield the log entries for one turn of caw: the prompt, what was said and done, and how the turn ended.
        `amounts` are its usage and its cost, and `status` says how it ended. The last tool call of a turn that was
        stopped is recorded as one that may have begun. If another turn follows, that call first gets a result which
        says that its outcome is not known."""
        if self._open is not None:
            intent, call_id = self._open
            yield ToolOutcome(intent.message, intent.index, ToolResult(call_id, (Text(_NOT_KNOWN),), True))
            self._length, self._open = self._length + 1, None
        asked, self._prompts = self._length, self._prompts + 1
        yield MessageAdded(user(turn.input))
        self._length += 1
        for message in self._messages(turn, status):
            if isinstance(message, Tool) and self._open is not None:
                for index, result in enumerate(message.content):
                    if isinstance(result, ToolResult):
                        yield ToolOutcome(self._length - 1, index, result)
                continue
            yield MessageAdded(message)
            calls = tool_calls(message)
            if calls and calls[-1].id in self._unanswered:
                self._open = ToolIntent(self._length, len(calls) - 1), calls[-1].id
                yield self._open[0]
            self._length += 1
        usage, cost = amounts
        seconds = turn.duration_ms / 1000
        reason = "" if status == "done" or turn.status else "caw did not write how this turn ended"
        spent = Spent(usage, cost, seconds)
        agent, model = self._session.agent, self._session.model
        prompt_id = f"caw:{self.thread_id}:{self._prompts}"
        yield ended(asked, self._length, agent, model, prompt_id, status, reason, spent)
        if usage is not None:
            yield Spend(usage, cost, seconds)

    def _messages(self, turn: _Turn, status: str) -> Iterator[Message]:
        """Yield what was said and done in a turn as messages: each response of the model, and after it the results of
        its tool calls. caw does not record where a response ends, so a response is taken to end after its tool calls.
        `status` says how the turn ended: in an interrupted turn, a tool call at the end without output gets no result.
        """
        content: list[Block] = []
        results: list[ToolResult] = []
        for number, block in enumerate(turn.output):
            if block.type != "tool_use" and results:
                yield from self._flush(content, results)
                content, results = [], []
            if block.type == "text":
                content.append(Text(block.text))
            elif block.type == "thinking":
                content.append(Thinking(block.text))
            elif block.type == "tool_use":
                call_id = self._unique(block.id)
                content.append(ToolCall(call_id, block.name, block.arguments))
                self._sub_agents += block.subagent_trajectory is not None
                is_open = status == "interrupted" and number == len(turn.output) - 1 and not block.output
                if is_open:
                    self._unanswered.add(call_id)
                else:
                    self._silent += self._session.agent == "codex" and not block.output
                    said = (Text(block.output),) if block.output else ()
                    results.append(ToolResult(call_id, said, block.is_error))
            else:
                self.losses.append(f"a part of the kind {block.type!r}, which Clew does not know")
        yield from self._flush(content, results)

    def _flush(self, content: list[Block], results: list[ToolResult]) -> Iterator[Message]:
        if content:
            yield Assistant(tuple(content), self._session.model)
        if results:
            yield Tool(tuple(results))

    def _unique(self, call_id: str) -> str:
        """Return an id for a tool call that no other call of the session has: `call_id`, with a number added if that id
        is taken. Codex numbers its calls anew with each prompt, so the same id may occur several times in a session."""
        wanted, number = call_id or "call", 1
        while wanted in self._ids:
            number += 1
            wanted = f"{call_id or 'call'}-{number}"
        self._ids.add(wanted)
        return wanted

    def _note_losses(self) -> None:
        session = self._session
        if self._silent:
            calls = plural(self._silent, "tool call")
            self.losses.append(f"the outputs of {calls} of Codex, which caw does not keep")
        if self._sub_agents:
            self.losses.append(f"what {plural(self._sub_agents, 'sub-agent')} did; the results are carried over")
        if session.mcp_servers:
            count = plural(len(session.mcp_servers), "MCP server")
            self.losses.append(f"the settings of {count}: give them to {session.agent} in its own configuration")
        if session.reasoning:
            self.losses.append(f"the reasoning effort {session.reasoning!r}: give it again, in options=")
        for name, value in session.metadata.items():
            if name not in KEYS.values() and not _is_tag(name, value):
                self.losses.append(f"the metadata {name!r}, which cannot be a tag of a thread")


def _created(folder: Path) -> str:
    """Return when a session was created, as one of the two files of caw in its folder says it; empty if none does. Only
    the beginning of a file is read."""
    for name in (TRAJECTORY, "traj.jsonl"):
        try:
            with (folder / name).open("rb") as file:
                found = _CREATED.search(file.read(_BEGINNING))
        except FileNotFoundError:
            continue
        if found is not None:
            return found[1].decode(errors="replace")
    return ""


def _status(turn: _Turn) -> str:
    """Return how a turn ended: `done`, `failed` or `interrupted`. If the file does not say it, a turn without usage
    that does not end with text counts as interrupted, because caw writes the usage of a turn when the turn ends."""
    if turn.status in ("done", "failed", "interrupted"):
        return turn.status
    has_answer = bool(turn.output) and turn.output[-1].type == "text"
    return "interrupted" if turn.usage.usage == Usage() and not has_answer else "done"


def _is_tag(name: str, value: object) -> bool:
    """Return whether a value in the metadata of a session, which has the name `name` there, becomes a tag of the
    thread. Only texts do. The provider's own id of the session does not, nor does a value whose name begins with
    `clew:`, because such tags have a meaning for Clew."""
    return isinstance(value, str) and name not in KEYS.values() and not name.startswith("clew:")


def _resume_key(agent: str, session_id: str, metadata: dict[str, Any]) -> str:
    """Return the id by which the provider `agent` knows a session of caw; empty if the id is not known. `session_id` is
    caw's own id of the session, and `metadata` is the metadata in the session's file."""
    found = metadata.get(KEYS[agent], "") if agent in KEYS else session_id
    return found if isinstance(found, str) else ""
