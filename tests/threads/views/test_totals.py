"""What threads add up to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from clew.checkpointers import FileCheckpointer, Head, MemoryCheckpointer
from clew.checkpointers.files.root import RESERVE
from clew.threads.views.totals import add_up, stored_bytes

pytestmark = pytest.mark.anyio

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)


async def heads() -> AsyncIterator[Head]:
    for number, (status, agent, cost) in enumerate(
        [("done", "a", 1.0), ("done", "b", None), ("failed", "a", 0.5), ("done", "a", 0.25)]
    ):
        yield Head(
            thread_id=str(number),
            frames=1,
            status=status,  # type: ignore[arg-type]
            agent=agent,
            turns=2,
            input_tokens=10,
            output_tokens=1,
            cost_usd=cost,
            created_at=NOON,
            updated_at=NOON + timedelta(hours=9 * number),
        )


async def test_every_thread_counts_once_in_each_sum() -> None:
    totals = await add_up(heads(), UTC)
    assert (totals.all.threads, totals.all.turns, totals.all.cost_usd, totals.all.unpriced) == (4, 8, 1.75, 1)
    assert {name: total.threads for name, total in totals.by_status.items()} == {"done": 3, "failed": 1}
    assert {name: total.cost_usd for name, total in totals.by_agent.items()} == {"a": 1.75, "b": 0.0}
    days = {day: total.threads for day, total in totals.by_day.items()}
    assert days == {date(2025, 3, 1): 2, date(2025, 3, 2): 2}


async def test_the_room_of_a_store_is_that_of_its_own_files(tmp_path: Path) -> None:
    async with FileCheckpointer(tmp_path / "store") as store:
        await store.put_blobs({})
        (tmp_path / "store" / "sub").mkdir(parents=True)
        (tmp_path / "store" / "sub" / "file").write_bytes(bytes(1000))
        assert 1000 <= (stored_bytes(store) or 0) - RESERVE < 10_000
    async with MemoryCheckpointer() as memory:
        assert stored_bytes(memory) is None
