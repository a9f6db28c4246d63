"""`clew unlock`."""

from __future__ import annotations

import signal
import time
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from clew import Thread, open_checkpointer
from clew.checkpointers import Lease, Owner
from clew.errors import LeaseLost
from clew.log import StatusChanged
from tests.cli.command_line import Samples, objects, terminal

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_a_thread_whose_process_is_gone_is_free_afterwards_and_says_who_held_it(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    run = samples.clew("unlock", "report")
    assert run.returncode == 0
    assert run.stdout.startswith("report: taken from process ")
    assert "is gone" in run.stdout
    async with open_checkpointer(samples.url) as store:
        head = await store.head("report")
    assert head is not None
    assert (head.lease, head.status) == (None, "interrupted")
    assert objects(samples.clew("unlock", "report", "--json"))[0]["holder"] is None


def test_a_thread_that_nobody_holds_stays_as_it_stood(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    assert samples.clew("unlock", "visa").stdout == "visa: nobody holds it\n"


async def test_a_live_holder_keeps_its_thread_unless_forced(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    async with open_checkpointer(samples.url) as store:
        thread = await Thread.open(store, "visa", label="test").__aenter__()
        refused, asked = samples.clew("unlock", "visa"), samples.clew("unlock", "visa", "--force")
        await thread.append(StatusChanged("waiting", "for the test"))
        taken = samples.clew("unlock", "visa", "--force", "--yes", "--json")
        (forced,) = objects(taken)
        with pytest.raises(LeaseLost):
            await thread.append(StatusChanged("done"))
        thread.abandon()
        head = await store.head("visa")
    assert (refused.returncode, asked.returncode) == (4, 2)
    assert "--force" in refused.stderr
    assert taken.stderr == "", "whom it was taken from is said once"
    assert (forced["was_live"], "(test)" in forced["holder"]) == (True, True)
    assert head is not None
    assert (head.status, head.lease) == ("waiting", None)


@pytest.mark.parametrize("command", [("unlock", "visa"), ("rm", "visa", "--yes")])
async def test_a_holder_that_cannot_be_seen_is_waited_for_and_the_user_is_told(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    samples = Samples(tmp_path)
    async with open_checkpointer(samples.url) as store:
        head = await store.head("visa")
        assert head is not None
        then = head.updated_at - timedelta(hours=1)
        owner = Owner(host="elsewhere", boot="of another machine", pid=7, started="then", label="")
        lease = Lease(owner=owner, token="t", expires_at=then + timedelta(seconds=2))
        held = msgspec.structs.replace(head, status="running", lease=lease, updated_at=then)
        await store.append("visa", [], at=head.frames, head=held)
    assert (
        "Probably held by nobody: the lease of process 7 on elsewhere has ended" in samples.clew("why", "visa").stdout
    )
    began = time.monotonic()
    run = samples.clew(*command)
    assert run.returncode == 0
    assert time.monotonic() - began >= 2
    assert "process 7 on elsewhere" in run.stderr
    assert "Waiting up to 2 s" in run.stderr


async def test_ctrl_c_at_the_question_ends_it_with_130_and_nothing_changed(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    async with open_checkpointer(samples.url) as store, Thread.open(store, "trip") as thread:
        with terminal("unlock", "trip", "--force", store=samples.url) as shell:
            shell.wait_for("[y/N]")
            shell.process.send_signal(signal.SIGINT)
            assert shell.end() == 130
        await thread.append(StatusChanged("done"))


def test_a_thread_that_is_not_there_is_not_found_and_none_is_made(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    assert samples.clew("unlock", "nobody").returncode == 3
    assert samples.clew("fork", "nobody").returncode == 3
