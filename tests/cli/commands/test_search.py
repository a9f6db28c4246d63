"""`clew search`."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.checkpointers.opensearch.store import OpenSearchCheckpointer
from clew.log import MessageAdded
from clew.messages import assistant, user
from tests.cli.command_line import Samples, clew, objects, terminal

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("store"))


def test_titles_come_first_and_messages_are_searched_in_any_case(samples: Samples) -> None:
    found = objects(samples.clew("search", "PARIS", "--json"))
    assert [one["thread_id"] for one in found] == ["trip-b", "trip"]
    assert [hit["where"] for hit in found[1]["hits"]] == ["title", "user", "call", "result", "call", "call"]
    assert [hit["turn"] for hit in found[1]["hits"]] == [None, 1, 1, 1, 2, 4]
    (passport,) = objects(samples.clew("search", "ask_traveller", "--json"))
    assert (passport["thread_id"], passport["hits"][0]["where"]) == ("visa", "call")


def test_what_is_found_is_shown_with_where_it_stands(samples: Samples) -> None:
    run = samples.clew("search", "the  tower")
    assert "trip  ✓ done · Plan a trip to Paris." in run.stdout
    assert "  turn 4, user: Add the tower." in run.stdout
    assert "… 1 more in this thread" in run.stdout
    with terminal("search", "the tower", store=samples.url) as shell:
        assert shell.end() == 0
    assert "\x1b[1;33mthe tower" in shell.shown


def test_a_limit_and_nothing_found_are_said_on_the_standard_error(samples: Samples) -> None:
    run = samples.clew("search", "paris", "--limit", "1")
    assert ("trip-b" in run.stdout, "--limit" in run.stderr) == (True, True)
    nothing = samples.clew("search", "no such words")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "No thread of this store matches.\n")
    assert objects(samples.clew("search", "paris", "--json", "--since", "2999-01-01")) == []


def test_a_thread_that_cannot_be_read_does_not_hide_the_others_and_is_no_thread_without_it(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.damage_frame("trip", 3)
    run = samples.clew("search", "museum", "--json")
    assert [one["thread_id"] for one in objects(run)] == ["trip-b"]
    assert run.returncode == 6
    assert "thread 'trip' could not be read" in run.stderr


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.xdist_group("opensearch")
async def test_a_store_with_an_index_is_asked_that_and_says_so() -> None:
    pytest.importorskip("opensearchpy")
    from tests.servers.opensearch import shared_node

    url = f"{shared_node().url}/command?index_messages=true"
    async with open_checkpointer(url) as store, Thread.open(store, "indexed") as thread:
        assert isinstance(store, OpenSearchCheckpointer)
        await thread.append(MessageAdded(user("A walk by the river.")), MessageAdded(assistant("Along the old weir.")))
        await store.index_text("indexed", "Along the old weir.")
        asked = clew("search", "weir", "--json", store=url)
        scanned = clew("search", "weir", "--json", "--scan", store=url)
    assert [one["thread_id"] for one in objects(asked)] == ["indexed"]
    assert "--scan" in asked.stderr
    assert [hit["where"] for one in objects(scanned) for hit in one["hits"]] == ["assistant"]


@pytest.mark.parametrize("arguments", [[" "], [], ["paris", "--limit", "0"], ["paris", "--since", "x"]])
def test_a_wrong_use_is_2(samples: Samples, arguments: list[str]) -> None:
    run = samples.clew("search", *arguments)
    assert (run.returncode, run.stdout) == (2, "")
