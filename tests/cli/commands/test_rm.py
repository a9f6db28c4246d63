"""`clew rm`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clew import Agent, Thread, open_checkpointer
from clew.log import MessageAdded
from clew.messages import user
from clew.testing import ScriptedModel, call
from tests.cli.command_line import Samples, objects, terminal

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def _ids(url: str) -> set[str]:
    async def look() -> set[str]:
        async with open_checkpointer(url) as store:
            return {head.thread_id async for head in Thread.list(store)}

    return asyncio.run(look())


def test_several_threads_go_and_each_is_told(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    run = samples.clew("rm", "old", "rep", "--yes")
    assert (run.returncode, run.stdout) == (0, "old: deleted\nreport: deleted\n")
    assert "clew gc" in run.stderr
    assert _ids(samples.url) == {"trip", "trip-b", "visa"}


def test_where_there_is_no_terminal_nothing_goes_without_yes(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    run = samples.clew("rm", "old", "visa")
    assert (run.returncode, run.stdout) == (2, "")
    assert "--yes" in run.stderr
    assert {"old", "visa"} <= _ids(samples.url)


def test_at_a_terminal_only_a_yes_deletes(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    for answer, code, left in [("\n", 1, True), ("y\n", 0, False)]:
        with terminal("rm", "old", store=samples.url) as shell:
            shell.wait_for("Delete thread old? [y/N]")
            shell.type(answer)
            assert shell.end() == code
        assert ("old" in _ids(samples.url)) == left


def test_one_that_is_not_there_keeps_the_others_from_being_deleted(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    assert samples.clew("rm", "old", "nobody", "--yes").returncode == 3
    assert samples.clew("rm", "old", "tri", "--yes").returncode == 2
    assert "old" in _ids(samples.url)


async def test_a_purge_removes_the_large_values_at_once(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    async with open_checkpointer(samples.url) as store:
        async with Thread.open(store, "large") as thread:
            await thread.append(MessageAdded(user("".join(map(str, range(100_000))))))
        refs = await store.refs("large")
        (gone,) = objects(samples.clew("rm", "large", "--purge", "--yes", "--json"))
        assert await store.missing_blobs(refs) == refs
    assert refs
    assert (gone["thread_id"], gone["blobs"], gone["freed"] > 0) == ("large", len(refs), True)


async def test_threads_of_sub_agents_go_only_with_children(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    async with open_checkpointer(samples.url) as store:
        child = Agent(ScriptedModel(["Found."]), name="scout")
        agent = Agent(ScriptedModel([call("scout", task="Look."), "Done."]), tools=[child], checkpointer=store)
        for name in ("one", "two"):
            await agent.run("Find it.", thread_id=name)
        run = samples.clew("rm", "one", "--yes")
        assert run.stdout == "one: deleted\n"
        deleted = [gone["thread_id"] for gone in objects(samples.clew("rm", "two", "--children", "--yes", "--json"))]
        assert len(deleted) == 2
        left = [head.thread_id async for head in Thread.list(store)]
    assert [name for name in left if "scout" in name and name.startswith("one/")]
    assert not [name for name in left if name.startswith("two")]


async def test_a_thread_that_somebody_works_on_is_never_deleted(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    async with open_checkpointer(samples.url) as store, Thread.open(store, "trip", label="test"):
        run = samples.clew("rm", "old", "trip", "--yes")
        assert await store.head("old") is not None
    assert run.returncode == 4
    assert "clew unlock trip --force" in run.stderr


def test_a_thread_whose_head_is_damaged_can_be_deleted_by_its_whole_id(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.damage_head("trip")
    assert samples.clew("rm", "trip", "--purge", "--yes").returncode == 6
    assert samples.clew("rm", "trip", "--yes").stdout == "trip: deleted\n"
    assert _ids(samples.url) == {"trip-b", "visa", "report", "old"}
