"""A process that is frozen inside a tool until after its lease has ended: another one takes its thread over, and then it
wakes up. What happens twice is exactly what the guide names."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.crash.frozen_worker import POINTS, Ended, Job
from tests.crash.processes import FULL, PATIENCE, Speaker
from tests.servers.postgres import running_postgres
from tests.tally import count

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.xdist_group("postgres")]

TIMES = 50 if FULL else 4
LEASE = 0.5
BEFORE, BETWEEN, AFTER = POINTS


class Payer:
    """Runs of the agent that pays, one after the other."""

    def __init__(self, parent: Speaker) -> None:
        self._parent = parent
        self._pid = 0

    def start(self, job: Job) -> None:
        self._parent.say(msgspec.json.encode(job).decode())
        self._pid = int(self._parent.hear().removeprefix("pid "))

    def wait_until_frozen(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while Path(f"/proc/{self._pid}/stat").read_text().rpartition(") ")[2][0] != "T":
            assert time.monotonic() < deadline, "it does not freeze"
            time.sleep(0.002)

    def wake(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def end(self) -> Ended:
        ended = msgspec.json.decode(self._parent.hear(), type=Ended)
        assert self._parent.hear() == "exit 0"
        self._pid = 0
        return ended

    def kill(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)


@contextmanager
def payer() -> Iterator[Payer]:
    with Speaker("tests.crash.frozen_worker") as parent:
        made = Payer(parent)
        try:
            yield made
        finally:
            made.kill()


@contextmanager
def stores(kind: str, folder: Path) -> Iterator[Iterator[str]]:
    """URLs of empty stores of a kind, as many as are asked for."""
    if kind == "sqlite":
        yield (f"sqlite:///{folder}/{number}.db" for number in range(10**6))
        return
    with running_postgres() as server:
        yield (f"{server.url()}?schema={server.new_schema()}" for _ in range(10**6))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("reconcile", [True, False], ids=["with reconcile", "without reconcile"])
def test_a_payer_that_is_frozen_past_its_lease_pays_once_or_the_model_is_told_or_it_is_the_case_the_guide_names(
    kind: str, reconcile: bool, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        frozen, other = stack.enter_context(payer()), stack.enter_context(payer())
        urls = stack.enter_context(stores(kind, tmp_path))
        for number in range(TIMES):
            point, bank = POINTS[number % 3], tmp_path / f"bank-{number}"
            job = Job(url=next(urls), bank=str(bank), reconcile=reconcile, fence=number % 4 != 3)
            frozen.start(msgspec.structs.replace(job, point=point, lease=LEASE))
            frozen.wait_until_frozen()
            count("holders frozen past their lease")
            other.start(msgspec.structs.replace(job, takeover=number % 2 == 1))
            ended = other.end()
            paid_by_other = len(bank.read_text().split()) - (point == AFTER) if bank.exists() else 0
            frozen.wake()
            assert frozen.end().error == "LeaseLost"
            assert (ended.error, ended.output) == ("", "Done.")
            assert ended.doubts == ["reconciled" if reconcile else "told to the model"]
            assert paid_by_other == (reconcile and point != AFTER)
            paid = bank.read_text().split() if bank.exists() else []
            # The guide names the case with two: frozen between the fence and the act, or anywhere before the act
            # without a fence. The key shows the bank that it is the same payment.
            by_frozen = point != BEFORE or not job.fence
            assert len(paid) == paid_by_other + by_frozen, f"frozen {point}"
            assert len(set(paid)) <= 1
