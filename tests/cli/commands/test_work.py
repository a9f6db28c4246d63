"""`clew work`: a worker as a process of its own, started, watched, stopped and killed."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clew import Thread, open_checkpointer
from clew.checkpointers import Head
from clew.workers import enqueue
from tests.cli import command_line, shop_agents
from tests.cli.command_line import clew, environment, objects, terminal
from tests.limits import PATIENCE
from tests.server.serving import a_token, serving
from tests.sqlite_files import database

pytestmark = pytest.mark.slow


class Shop:
    """A folder with a module of agents and a store, and workers that are started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'clew.db'}"
        (folder / "shop.py").write_text(Path(shop_agents.__file__).read_text())

    def clew(self, *arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
        return clew(*arguments, store=how.pop("store", self.url), cwd=self.folder, **how)

    @contextmanager
    def worker(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "clew", "work", "shop:clerk", *arguments],
            cwd=self.folder,
            env=environment(self.url, None),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=command_line.hear_signals,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def enqueue(self, *prompts: str, **options: Any) -> None:
        async def work() -> None:
            async with open_checkpointer(self.url) as store:
                for number, prompt in enumerate(prompts):
                    await enqueue(store, f"t-{number}", prompt, agent="clerk", **options)

        asyncio.run(work())

    def head(self, thread_id: str = "t-0") -> Head:
        async def work() -> Head:
            async with open_checkpointer(self.url) as store:
                head = await store.head(thread_id)
                assert head is not None
                return head

        return asyncio.run(work())

    def wait_for_nap(self, thread_id: str = "t-0") -> int:
        path = self.folder / f"napping-{thread_id}"
        wait_until(lambda: path.exists() and path.read_text())
        return int(path.read_text())

    def wake(self) -> None:
        (self.folder / "awake").touch()


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_queued_threads_are_run_and_each_has_two_lines(shop: Shop) -> None:
    shop.enqueue("Go.", "Go on.")
    run = shop.clew("work", "shop:clerk", "--until-empty")
    assert run.returncode == 0
    lines = sorted(run.stdout.splitlines())
    assert [line.split()[:2] for line in lines] == [
        ["done", "t-0"],
        ["done", "t-1"],
        ["taken", "t-0"],
        ["taken", "t-1"],
    ]
    assert "2 threads taken: 2 done" in run.stderr
    assert "a module prints this" in run.stderr


def test_json_lines_are_nothing_but_events(shop: Shop) -> None:
    shop.enqueue("Go.")
    events = objects(shop.clew("work", "shop:clerk", "--until-empty", "--json"))
    assert [event["type"] for event in events] == ["started", "taken", "ended", "summary"]
    assert events[2]["status"] == "done"
    assert events[3]["ended"] == {"done": 1}


@pytest.mark.parametrize("named", ["shop:everybody", "shop:by_name", "shop:hired", "shop:hired_later"])
def test_agents_come_in_lists_dicts_and_functions(shop: Shop, named: str) -> None:
    run = shop.clew("work", named, "shop:clerk", "--until-empty", "--json")
    assert objects(run)[0]["agents"] == ["clerk", "writer"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["shop"], "write module:name"),
        (["nowhere:clerk"], "there is no module 'nowhere'"),
        (["shop:boss"], "shop has no 'boss'"),
        (["shop:number"], "has a value of the type int"),
        (["shop:nobody"], "has no agents"),
        (["shop:twins"], "two agents are called 'clerk'"),
        (["shop:on_strike"], "the function failed: RuntimeError: no work today"),
        (["broken:clerk"], "broken cannot be imported: ValueError: half"),
        (["quitting:clerk"], "quitting cannot be imported: SystemExit"),
        (["shop:forgetful"], "in memory, where no other process"),
        (["shop:clerk", "--limit", "clerk=3"], "is no limit"),
        (["shop:clerk", "--limit", "agent:clerk=many"], "is not a limit"),
        (["shop:clerk", "--listen", "9090"], "Write HOST:PORT"),
        (["shop:clerk", "--tag", "x"], "is not a tag"),
        (["shop:clerk", "--timeout", "0"], "is not a time"),
    ],
)
def test_what_cannot_work_is_refused_with_a_reason(shop: Shop, arguments: list[str], said: str) -> None:
    (shop.folder / "broken.py").write_text("raise ValueError('half')")
    (shop.folder / "quitting.py").write_text("import sys; sys.exit(3)")
    run = shop.clew("work", *arguments)
    assert (run.returncode, run.stdout) == (2, "")
    assert said in " ".join(run.stderr.split())


def test_a_store_that_cannot_be_reached_is_an_error_with_the_way_out(shop: Shop) -> None:
    run = shop.clew("work", "shop:clerk", "--store", "redis://127.0.0.1:1/0")
    assert run.returncode == 5
    assert "name another with --store" in run.stderr


def test_a_token_that_may_only_read_is_refused_at_the_start(shop: Shop) -> None:
    tokens = {"CLEW_SERVE_TOKENS": ""}
    with serving(shop.url, tokens=[a_token("secret", scopes=("read",))]) as server:
        run = shop.clew("work", "shop:clerk", "--store", server.url, env={**tokens, "CLEW_TOKEN": "secret"})
    assert run.returncode == 2
    assert "a token with the scopes read and write" in run.stderr


def test_a_failed_thread_is_an_exit_code_and_its_escapes_do_not_reach_the_terminal(shop: Shop) -> None:
    shop.enqueue("fail \x1b[2J", tags={"\x1b[1m": "\x1b]0;owned\x07"})
    with terminal("work", "shop:clerk", "--until-empty", "--tries", "1", store=shop.url, cwd=shop.folder) as shown:
        assert shown.end() == 1
    assert "set aside after 1 tries" in shown.shown
    assert "[31mred" in shown.shown
    assert "\x1b[31mred" not in shown.shown
    assert "\x1b[2J" not in shown.shown
    why = shop.clew("why", "t-0")
    assert "clew enqueue t-0 --again" in why.stdout
    assert shop.clew("enqueue", "t-0", "--again").returncode == 0
    assert shop.head().status == "queued"


def test_a_signal_drains_the_worker_and_its_threads_go_on_elsewhere(shop: Shop) -> None:
    shop.enqueue("nap")
    with shop.worker() as worker:
        shop.wait_for_nap()
        worker.send_signal(signal.SIGTERM)
        assert worker.stderr is not None
        said = next(line for line in worker.stderr if "draining" in line)
        assert "waits for 1 thread" in said
        assert worker.poll() is None
        shop.wake()
        out, _ = worker.communicate(timeout=PATIENCE)
        assert worker.returncode == 0
    assert "put back    t-0  its worker was shut down" in out
    assert (shop.head().status, shop.head().turns) == ("queued", 1)
    assert shop.clew("work", "shop:clerk", "--until-empty").returncode == 0
    assert (shop.head().status, (shop.folder / "naps").read_text()) == ("done", "t-0\n")


def test_a_second_signal_stops_at_once_and_the_thread_is_queued(shop: Shop) -> None:
    shop.enqueue("nap")
    with shop.worker() as worker:
        shop.wait_for_nap()
        worker.send_signal(signal.SIGINT)
        assert worker.stderr is not None
        assert next(line for line in worker.stderr if "draining" in line)
        worker.send_signal(signal.SIGINT)
        assert worker.wait(PATIENCE) == 130
    assert shop.head().status == "queued"
    assert shop.head().lease is None


def test_the_thread_of_a_worker_that_was_killed_is_taken_by_another(shop: Shop) -> None:
    shop.enqueue("nap")
    with shop.worker() as first, shop.worker("--json") as second:
        pid = shop.wait_for_nap()
        victim, other = (first, second) if first.pid == pid else (second, first)
        (shop.folder / "napping-t-0").unlink()
        victim.kill()
        victim.wait()
        assert shop.wait_for_nap() == other.pid
        shop.wake()
        wait_until(lambda: shop.head().status == "done")
        other.send_signal(signal.SIGTERM)
        assert other.wait(PATIENCE) == 0
    assert (shop.folder / "naps").read_text() == "t-0\n"


def test_workers_that_start_at_once_run_each_thread_once(shop: Shop) -> None:
    shop.wake()
    shop.enqueue(*["nap"] * 20)
    with shop.worker("--until-empty") as first, shop.worker("--until-empty") as second:
        outs = [worker.communicate(timeout=PATIENCE)[0] for worker in (first, second)]
    assert sorted((shop.folder / "naps").read_text().split()) == sorted(f"t-{number}" for number in range(20))
    assert sum(out.count("done ") for out in outs) == 20


def test_it_answers_probes(shop: Shop) -> None:
    shop.enqueue("nap")
    with shop.worker("--listen", "127.0.0.1:0", "--json") as worker:
        assert worker.stdout is not None
        url = json.loads(worker.stdout.readline())["url"]
        shop.wait_for_nap()
        assert _get(f"{url}/healthz") == "ok\n"
        assert "clew_worker_running 1\n" in _get(f"{url}/metrics")
        worker.send_signal(signal.SIGTERM)
        assert json.loads(next(line for line in worker.stdout if "draining" in line))["running"] == 1
        shop.wake()
        assert worker.wait(PATIENCE) == 0


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return str(answer.read().decode())


def test_a_head_that_is_damaged_keeps_no_other_thread_from_being_run(shop: Shop) -> None:
    shop.enqueue("Go.", "Go.")
    with database(shop.folder / "clew.db") as db:
        db.execute("UPDATE heads SET head = ? WHERE thread_id = ?", (b"\x00broken", "t-0"))
    run = shop.clew("work", "shop:clerk", "--until-empty")
    assert run.returncode == 0
    assert "done        t-1" in run.stdout
    assert "t-0" in run.stderr


def test_it_goes_on_when_nobody_reads_its_lines_any_more(shop: Shop) -> None:
    with shop.worker() as worker:
        assert worker.stdout is not None
        worker.stdout.close()
        worker.stdout = None
        shop.enqueue("Go.", "Go.")
        wait_until(lambda: shop.head("t-1").status == "done")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0


def test_only_threads_with_the_tag_are_taken(shop: Shop) -> None:
    shop.enqueue("Go.", tags={"customer": "acme"})
    assert (
        objects(shop.clew("work", "shop:clerk", "--tag", "customer=other", "--until-empty", "--json"))[-1]["taken"] == 0
    )
    run = shop.clew("work", "shop:clerk", "--tag", "customer=acme", "--limit", "tag:customer=acme=1", "--until-empty")
    assert "done        t-0" in run.stdout
    assert asyncio.run(_count(shop.url)) == 1


async def _count(url: str) -> int:
    async with open_checkpointer(url) as store:
        return len([head async for head in Thread.list(store)])
