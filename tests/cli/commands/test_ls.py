"""`clew ls`."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.log import Described, MessageAdded, StatusChanged, ThreadStarted
from clew.messages import user
from tests.cli.command_line import Samples, clew, objects, terminal

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("store"))


def _ids(samples: Samples, *options: str) -> list[str]:
    run = samples.clew("ls", "--json", *options)
    assert run.returncode == 0, run.stderr
    return [found["thread_id"] for found in objects(run)]


def test_every_thread_is_listed_once_with_what_is_known_of_it(samples: Samples) -> None:
    run = samples.clew("ls")
    heading, *rows = run.stdout.splitlines()
    assert heading.split() == ["ID", "STATUS", "TITLE", "AGENT", "MODEL", "TURNS", "TOKENS", "COST", "AGE", "HOLDER"]
    assert [row.split()[:2] for row in rows] == [
        ["report", "interrupted"],
        ["old", "failed"],
        ["visa", "waiting"],
        ["trip-b", "done"],
        ["trip", "done"],
    ]
    assert all(word in rows[-1] for word in ("Plan a trip to Paris.", "planner", "scripted", "7.7k", "$0.04"))
    assert "\x1b" not in run.stdout
    assert run.stderr == ""


def test_filters_all_hold_and_the_newest_come_first(samples: Samples) -> None:
    assert _ids(samples, "--status", "waiting", "--status", "interrupted") == ["report", "visa"]
    assert _ids(samples, "--agent", "planner", "--prefix", "trip", "--since", "1d") == ["trip-b", "trip"]
    assert _ids(samples, "--text", "YEAR") == ["old"]
    assert _ids(samples, "--since", "2999-01-01") == []


def test_json_has_the_same_keys_for_every_thread_and_no_secret(samples: Samples) -> None:
    found = {one["thread_id"]: one for one in objects(samples.clew("ls", "--json"))}
    keys = (
        "thread_id status title agent model turns input_tokens output_tokens cost_usd created_at updated_at parent tags"
    )
    assert {tuple(one) for one in found.values()} == {(*keys.split(), "holder", "queue")}
    assert found["trip-b"]["parent"] == {"thread_id": "trip", "turn": 2}
    assert found["report"]["holder"] is None


def test_a_limit_says_that_there_are_more(samples: Samples) -> None:
    run = samples.clew("ls", "--limit", "2", "--json")
    assert [one["thread_id"] for one in objects(run)] == ["report", "old"]
    assert run.stderr == ""
    assert "--all" in samples.clew("ls", "--limit", "2").stderr
    assert samples.clew("ls", "--limit", "2", "--all").stdout.count("\n") == 6


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--status", "sleeping"], "sleeping"),
        (["--tag", "colour"], "name=value"),
        (["--since", "yesterday"], "--since"),
        (["--limit", "0"], "--limit"),
        (["--watch"], "--watch --json"),
    ],
)
def test_a_wrong_option_is_told_and_is_2(samples: Samples, options: list[str], named: str) -> None:
    run = samples.clew("ls", *options)
    assert (run.returncode, run.stdout) == (2, "")
    assert named in run.stderr


async def test_a_store_without_threads_says_so_on_the_standard_error(tmp_path: Path) -> None:
    for options, said in [
        ((), "There are no threads yet."),
        (("--agent", "nobody"), "No thread in this store matches."),
    ]:
        run = clew("ls", *options, store="memory://")
        assert (run.returncode, run.stdout) == (0, "")
        assert said in run.stderr


@pytest.mark.parametrize("options", [(), ("--json",), ("--all",)], ids=" ".join)
def test_a_damaged_thread_is_named_and_hides_no_other(tmp_path: Path, options: tuple[str, ...]) -> None:
    samples = Samples(tmp_path)
    samples.damage_head("old")
    run = samples.clew("ls", *options)
    assert run.returncode == 6
    assert "'old'" in run.stderr
    assert "clew verify old --repair" in run.stderr
    assert [name in run.stdout for name in ("report", "visa", "trip-b")] == [True, True, True]


async def test_tags_children_holders_and_hostile_titles(tmp_path: Path) -> None:
    """One store, as it may be found: text that a terminal would obey is shown and not obeyed."""
    url = f"sqlite:///{tmp_path / 'clew.db'}"
    async with open_checkpointer(url) as store:
        async with Thread.open(store, "mother") as thread:
            await thread.append(Described("\x1b[2JA\u202eB\n\x07C", {"team": "red"}), StatusChanged("done"))
        async with Thread.open(store, "mother/finder:00ff") as thread:
            await thread.append(ThreadStarted("finder", parent=("mother", 1)), StatusChanged("done"))
        async with Thread.open(store, "held", label="night shift") as thread:
            await thread.append(MessageAdded(user("Wait.")))
            listed = {one["thread_id"]: one for one in objects(clew("ls", "--json", store=url))}
            plain = clew("ls", store=url).stdout
            assert thread.head.lease is not None
            token = thread.head.lease.token
        tagged = objects(clew("ls", "--json", "--tag", "team=red", store=url))
        children = objects(clew("ls", "--json", "--children", "--limit", "3", store=url))
    assert set(listed) == {"mother", "held"}
    assert (listed["held"]["status"], listed["held"]["holder"]["label"]) == ("running", "night shift")
    assert token not in str(listed)
    assert "(night shift)" in plain
    assert [line for line in plain.splitlines() if "\\x1b[2JA\\u202eB \\x07C" in line]
    assert "\x1b" not in plain
    assert "\u202e" not in plain
    assert [one["thread_id"] for one in tagged] == ["mother"]
    assert [one["thread_id"] for one in children] == ["held", "mother/finder:00ff", "mother"]


async def test_watching_shows_what_comes_until_ctrl_c(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    with terminal("ls", "--watch", store=samples.url) as shell:
        shell.wait_for("Ctrl+C ends")
        assert "\x1b[" in shell.shown
        async with open_checkpointer(samples.url) as store, Thread.open(store, "new one"):
            await asyncio.to_thread(shell.wait_for, "new one")
            await asyncio.to_thread(shell.wait_for, "running")
        shell.process.send_signal(signal.SIGINT)
        assert shell.end() == 130
    assert "Traceback" not in shell.shown


async def test_watching_in_a_pipe_gives_a_line_for_each_change(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    command = [sys.executable, "-m", "clew", "ls", "--watch", "--json", "--prefix", "v", "--store", samples.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            first = json.loads(await asyncio.to_thread(process.stdout.readline))
            async with open_checkpointer(samples.url) as store, Thread.open(store, "visa"):
                second = json.loads(await asyncio.to_thread(process.stdout.readline))
        finally:
            process.kill()
    assert [(one["thread_id"], one["status"]) for one in (first, second)] == [("visa", "waiting"), ("visa", "running")]
