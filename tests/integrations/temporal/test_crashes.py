"""Workers that are killed or shut down while they work: another goes on, and no effect happens twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clew.log import LeaseTaken
from tests.integrations.temporal.child import in_child
from tests.integrations.temporal.fleet import a_worker, effects, open_gate, until
from tests.integrations.temporal.test_threads import a_handle, activities

pytestmark = pytest.mark.slow


@in_child
async def test_a_worker_killed_inside_a_tool_is_replaced_and_the_effect_happens_once(
    temporal: str, tmp_path: Path, shared: str
) -> None:
    handle = await a_handle(temporal, tmp_path, shared)
    with a_worker(temporal, tmp_path, shared, named="first") as first:
        waiting = asyncio.create_task(handle.ask("pay slow-A"))
        await until(lambda: effects(tmp_path), "the tool did not begin")
        first.kill()
        with a_worker(temporal, tmp_path, shared, named="second"):
            result = await waiting
            after = await handle.ask("pay B")
    assert (result.status, result.output) == ("done", "slow-A was paid")
    assert after.output == "paid B"
    assert effects(tmp_path) == ["paid slow-A", "paid B"]


@in_child
async def test_a_worker_on_another_machine_does_not_wait_for_the_lease_of_one_that_temporal_has_given_up(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    with a_worker(temporal, tmp_path, sqlite, named="first", machine="one") as first:
        waiting = asyncio.create_task(handle.ask("pay slow-A"))
        await until(lambda: effects(tmp_path), "the tool did not begin")
        first.kill()
        with a_worker(temporal, tmp_path, sqlite, named="second", machine="two"):
            result = await waiting
    assert (result.status, result.output) == ("done", "slow-A was paid")
    assert effects(tmp_path) == ["paid slow-A"]
    owners = [line.entry.owner async for line in handle.events(follow=False) if isinstance(line.entry, LeaseTaken)]
    assert len({owner.partition(" (")[0] for owner in owners}) == 2


@in_child
async def test_a_worker_killed_again_and_again_pays_each_order_once(temporal: str, tmp_path: Path, shared: str) -> None:
    handle = await a_handle(temporal, tmp_path, shared)
    orders = [f"slow-{number}" for number in range(3)]
    ids = [await handle.post(f"pay {order}") for order in orders]
    for number in range(3):
        with a_worker(temporal, tmp_path, shared, named=f"worker-{number}") as worker:
            await until(lambda number=number: len(effects(tmp_path)) > number, "the tool did not begin")
            worker.kill()
    with a_worker(temporal, tmp_path, shared, named="last"):
        results = [await handle.result(prompt_id) for prompt_id in ids]
    assert [result.output for result in results] == [f"{order} was paid" for order in orders]
    assert effects(tmp_path) == [f"paid {order}" for order in orders]


@in_child
async def test_a_sub_agent_whose_worker_is_killed_goes_on_elsewhere(temporal: str, tmp_path: Path, sqlite: str) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    with a_worker(temporal, tmp_path, sqlite, named="first") as first:
        waiting = asyncio.create_task(handle.ask("helper pay slow-A"))
        await until(lambda: effects(tmp_path), "the tool did not begin")
        first.kill()
        with a_worker(temporal, tmp_path, sqlite, named="second"):
            result = await waiting
    assert result.output == "slow-A was paid", result
    assert effects(tmp_path) == ["paid slow-A"]


@in_child
async def test_a_worker_that_is_shut_down_ends_the_open_turn_and_another_goes_on(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    with a_worker(temporal, tmp_path, sqlite, named="first") as first:
        waiting = asyncio.create_task(handle.ask("look slow-A"))
        await until(lambda: effects(tmp_path), "the tool did not begin")
        stopping = asyncio.create_task(asyncio.to_thread(first.stop))
        await asyncio.sleep(0.5)
        assert not stopping.done()
        open_gate(tmp_path)
        await stopping
        assert "shut down" in (tmp_path / "first.log").read_text()
        status = await handle.status()
        assert status.turns == 1
        assert "shut down" in status.problem
        with a_worker(temporal, tmp_path, sqlite, named="second"):
            result = await waiting
    assert (result.status, result.output, result.turns) == ("done", "looked slow-A", 2)
    assert effects(tmp_path) == ["looked slow-A"]
    assert await activities(handle) == ["activity_task_completed_event_attributes"]


@in_child
async def test_a_turn_that_outlasts_the_grace_of_a_shutdown_is_interrupted_and_goes_on_elsewhere(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    with a_worker(temporal, tmp_path, sqlite, named="first", grace=1) as first:
        waiting = asyncio.create_task(handle.ask("look slow-A"))
        await until(lambda: effects(tmp_path), "the tool did not begin")
        await asyncio.to_thread(first.stop)
        assert "shut down" in (tmp_path / "first.log").read_text()
        open_gate(tmp_path)
        with a_worker(temporal, tmp_path, sqlite, named="second"):
            result = await waiting
    assert (result.status, result.output, result.turns) == ("done", "looked slow-A", 2)
    assert effects(tmp_path) == ["looked slow-A"] * 2


@in_child
async def test_a_worker_that_is_killed_as_it_shuts_down_loses_nothing(
    temporal: str, tmp_path: Path, sqlite: str
) -> None:
    handle = await a_handle(temporal, tmp_path, sqlite)
    with a_worker(temporal, tmp_path, sqlite, named="first") as first:
        waiting = asyncio.create_task(handle.ask("pay slow-A"))
        await until(lambda: effects(tmp_path), "the tool did not begin")
        stopping = asyncio.create_task(asyncio.to_thread(first.stop))
        await asyncio.sleep(0.2)
        first.kill()
        await stopping
        with a_worker(temporal, tmp_path, sqlite, named="second"):
            result = await waiting
    assert result.output == "slow-A was paid", result
    assert effects(tmp_path) == ["paid slow-A"]
