"""What others store for the same conversations: LangGraph's SQLite saver and the OpenAI Agents SDK's SQLiteSession.

Both are optional: they are imported only when asked for, and without them their rows are left out.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import msgspec

from bench.corpus import Corpus
from bench.lanes import SQLITE, Lane, Prepared, Save, clew_sqlite, interleave, prepare
from bench.results import Result, paired, spread
from bench.scale import Scale, files_size, progress, scratch
from bench.show import micros, size

__all__ = ["HOW_TO_INSTALL", "SESSION", "Session", "beside_peers", "has_agents", "new_session", "versions"]

SESSION, SAVER = "SQLiteSession", "LangGraph saver"
HOW_TO_INSTALL = "peers left out; install them with: pip install --group peers"
_FILES = {SQLITE: "clew.db", SESSION: "session.db", SAVER: "saver.db"}
_ROOM = 2.5
"""Of the bytes LangGraph's saver is expected to write, how many times as many must be free."""
_REPEATED = 200
"""Conversations longer than this are saved once only: the saver writes all of the past again with every turn."""


class Session(Protocol):
    async def add_items(self, items: list[dict[str, object]]) -> None: ...

    async def get_items(self) -> list[Any]: ...

    def close(self) -> None: ...


def has_agents() -> bool:
    return find_spec("agents") is not None and find_spec("agents.memory") is not None


def has_langgraph() -> bool:
    return find_spec("langgraph") is not None and find_spec("langgraph.checkpoint.sqlite") is not None


def versions() -> dict[str, str]:
    """The peers that are installed."""
    found = {}
    for name in ("langgraph-checkpoint-sqlite", "openai-agents"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def new_session(session_id: str, path: Path) -> Session:
    session: Session = import_module("agents.memory").SQLiteSession(session_id, path)
    return session


async def beside_peers(scale: Scale) -> list[Result]:
    lanes: dict[str, Lane] = {SQLITE: clew_sqlite}
    if has_agents():
        lanes[SESSION] = sqlite_session
    if has_langgraph():
        lanes[SAVER] = langgraph_saver
    if len(lanes) < 3:
        progress(f"peers: {HOW_TO_INSTALL}")
    conversation = prepare(Corpus().conversation(max(scale.turns)))
    if SAVER in lanes:
        conversation = [msgspec.structs.replace(turn, langchain=_langchain(turn)) for turn in conversation]
    results: list[Result] = []
    for turns in scale.turns:
        results += await _compare(lanes, conversation[:turns], scale.repeats if turns <= _REPEATED else 1)
    return results


async def _compare(lanes: dict[str, Lane], conversation: list[Prepared], repeats: int) -> list[Result]:
    turns = len(conversation)
    runs: list[dict[str, list[float]]] = []
    taken: dict[str, int] = {}
    for repeat in range(repeats):
        progress(f"peers: {turns} turns, repeat {repeat + 1} of {repeats}")
        with scratch() as folder:
            if shutil.disk_usage(folder).free < _ROOM * turns / 2 * sum(len(turn.json) for turn in conversation):
                progress(f"peers: too little room on the disk for {turns} turns of {SAVER}; left out")
                lanes = {name: lane for name, lane in lanes.items() if name != SAVER}
            runs.append(await interleave(lanes, conversation, folder))
            taken = {name: files_size(folder / _FILES[name]) for name in lanes}
    results = []
    for name in lanes:
        if name == SQLITE:
            continue
        ours, theirs = [run[SQLITE] for run in runs], [run[name] for run in runs]
        middle = [statistics.median(map(statistics.median, times)) for times in (ours, theirs)]
        what = f"{turns} turns: {SQLITE} / {name}"
        results.append(Result(f"append, {what}", micros(middle[0]), micros(middle[1]), paired(ours, theirs)))
        ratio = spread([taken[SQLITE] / taken[name]])
        results.append(Result(f"bytes on disk, {what}", size(taken[SQLITE]), size(taken[name]), ratio))
    return results


@asynccontextmanager
async def sqlite_session(folder: Path) -> AsyncIterator[Save]:
    session = new_session("bench", folder / _FILES[SESSION])
    yield lambda turn: session.add_items(turn.messages)
    session.close()


@asynccontextmanager
async def langgraph_saver(folder: Path) -> AsyncIterator[Save]:
    """A checkpoint after each turn, with the messages channel as a graph has it: the whole list so far."""
    base = import_module("langgraph.checkpoint.base")
    new_id = import_module("langgraph.checkpoint.base.id").uuid6
    config: dict[str, Any] = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
    messages: list[Any] = []
    saver_class = import_module("langgraph.checkpoint.sqlite.aio").AsyncSqliteSaver
    async with saver_class.from_conn_string(str(folder / _FILES[SAVER])) as saver:
        await saver.setup()

        async def save(turn: Prepared) -> None:
            nonlocal config
            messages.extend(turn.langchain)
            step = len(messages) // 3
            versions = {"messages": f"{step:032}.0"}
            checkpoint = {
                **base.empty_checkpoint(),
                "id": str(new_id(clock_seq=step)),
                "channel_values": {"messages": list(messages)},
                "channel_versions": versions,
            }
            config = await saver.aput(config, checkpoint, {"source": "loop", "step": step, "parents": {}}, versions)

        yield save


def _langchain(turn: Prepared) -> tuple[object, ...]:
    """The turn as LangGraph's users have it."""
    return tuple(import_module("langchain_core.messages").convert_to_messages(turn.messages))
