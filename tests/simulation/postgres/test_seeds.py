"""The PostgreSQL store keeps its promises under every seed, and the simulation finds bugs that the store had or could have
had."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Awaitable
from typing import Any

import msgspec
import pytest
from blake3 import blake3

from clew._runtime.aio import Job
from clew.checkpointers.heads import thread_digest
from clew.checkpointers.patience import Patience
from clew.checkpointers.postgres.engine import WRITERS, Engine
from clew.checkpointers.postgres.store import PostgresCheckpointer
from clew.checkpointers.postgres.values import BYTES, Statement
from clew.checkpointers.postgres.wire import LATE, LOST, Failure
from clew.checkpointers.sql import deletion
from clew.errors import ClewError, Conflict, Unavailable
from tests.sampling import only_in_full
from tests.simulation.history import Broken
from tests.simulation.postgres.work import simulate
from tests.simulation.seeds import FIRST, PARTS, simulate_all, simulate_for_a_while

PART = 100


def test_the_store_keeps_its_promises() -> None:
    simulate_all(simulate, range(FIRST, FIRST + 20))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_the_store_keeps_its_promises_under_a_thousand_seeds(part: int) -> None:
    simulate_all(simulate, range(FIRST + part * PART, FIRST + (part + 1) * PART))


@only_in_full
@pytest.mark.parametrize("part", range(PARTS))
def test_the_store_keeps_its_promises_under_as_many_seeds_as_there_is_time_for(part: int) -> None:
    simulate_for_a_while(simulate, part)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 3))
def test_one_seed_gives_one_trace(seed: int) -> None:
    assert simulate(seed) == simulate(seed)


@pytest.mark.slow
def test_one_seed_gives_one_trace_in_every_process() -> None:
    code = (
        "from tests.simulation.postgres.work import simulate\n"
        f"print(*[line for seed in range({FIRST}, {FIRST} + 20) for line in simulate(seed)], sep='\\n')"
    )
    traces = set()
    for hashes in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": hashes}, capture_output=True, check=True
        )
        traces.add(blake3(done.stdout).hexdigest())
        assert done.stdout.count(b"\n") > 1000
    assert len(traces) == 1


# What the simulation finds: mends taken out, and bugs planted


def found(most: int = 1000) -> str:
    """Return what is broken under the first seed that finds something, or "" if none does."""
    for seed in range(most):
        try:
            simulate(seed)
        except Broken as broken:
            print(str(broken).partition("\n")[0])
            return str(broken).partition("\n")[0]
    return ""


async def wait_for_ever(patience: Patience, work: Awaitable[Any] | Job) -> Any:
    return await work


def grow_at_once(engine: Engine) -> None:
    """`Engine._grow` as it was when it began a new attempt as soon as one of two had failed."""
    wanted = len(engine._requests) + (1 if engine._appends and engine._batches < WRITERS else 0)
    most = engine.address.connections if engine._ready else 1
    room = most - len(engine._open) - len(engine._connecting)
    if engine._open and engine.loop.time() < engine._grow_after:
        return
    for _ in range(min(wanted - len(engine._connecting), room)):
        task = engine.loop.create_task(engine._connect())
        engine._connecting.add(task)
        task.add_done_callback(engine._connected)


def test_it_finds_calls_that_never_end_while_the_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "_grow", grow_at_once)
    monkeypatch.setattr(Patience, "limit", wait_for_ever)
    monkeypatch.setattr(Patience, "finish", wait_for_ever)
    assert re.search("without a sign of the server|in one second", found())


@pytest.mark.slow
def test_it_finds_a_client_that_tries_to_connect_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "_grow", grow_at_once)
    assert "in one second" in found()


def test_it_finds_calls_that_wait_in_the_queue_of_a_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Patience, "finish", wait_for_ever)
    assert "without a sign of the server" in found()


@pytest.mark.slow
def test_it_finds_a_close_that_waits_for_the_next_attempt_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stop(engine: Engine) -> None:
        if engine._under_way():
            engine._drained = engine.loop.create_future()
            await engine._drained
        for task in engine._connecting:
            task.cancel()
        for connection in list(engine._open):
            connection.close()

    monkeypatch.setattr(Engine, "stop", stop)
    assert "close of " in found()


@pytest.mark.slow
def test_it_finds_a_deletion_that_runs_after_it_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion that is given up, or sent again, takes nothing with it that is written later."""

    async def delete(store: PostgresCheckpointer, thread_id: str) -> None:
        statement = Statement(b'SELECT "clew".clew_delete($1, $2)', (BYTES, BYTES))
        await store._use().write(statement, store._space, thread_digest(thread_id))

    monkeypatch.setattr(PostgresCheckpointer, "delete", delete)
    assert "is gone" in found()


@pytest.mark.slow
def test_it_finds_a_deletion_of_a_thread_that_was_written_since(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "MOST_ATTEMPTS", 0)
    assert "is gone" in found()


def test_it_finds_an_append_that_is_made_again_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = PostgresCheckpointer.append

    async def append(store: PostgresCheckpointer, thread: str, frames: Any, *, at: int, head: Any, refs: Any) -> None:
        try:
            await sound(store, thread, frames, at=at, head=head, refs=refs)
        except Unavailable:
            now = await store.head(thread)
            if now is None or now.log_id != head.log_id:
                raise
            head = msgspec.structs.replace(now, frames=now.frames + len(frames))
            await sound(store, thread, frames, at=now.frames, head=head, refs=refs)

    monkeypatch.setattr(PostgresCheckpointer, "append", append)
    assert "a frame twice" in found()


@pytest.mark.slow
def test_it_finds_a_lost_answer_that_is_told_as_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Engine._explain

    def explain(engine: Engine, failure: Failure) -> ClewError:
        return Conflict("?", "lost") if failure.code in (LOST, LATE) else sound(engine, failure)

    monkeypatch.setattr(Engine, "_explain", explain)
    assert "that was refused" in found()


@pytest.mark.slow
def test_it_finds_appends_to_one_thread_that_overtake_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(set[Any]):
        def __contains__(self, place: object) -> bool:
            return False

    sound = Engine.__init__

    def init(engine: Engine, *given: Any) -> None:
        sound(engine, *given)
        engine._busy_threads = Forgetful()

    monkeypatch.setattr(Engine, "__init__", init)
    assert "overtook" in found()
