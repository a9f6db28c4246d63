"""How the providers on this machine are, and whether they answer."""

from __future__ import annotations

import asyncio
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from clew._runtime import plugins as _plugins
from clew.errors import InvalidInput
from clew.providers import registry
from clew.providers.base import Command, Health, Job, Place, Program
from clew.providers.registry import PROVIDERS
from clew.providers.status import check_providers
from clew.testing import ModelServer
from tests.clock import Clock
from tests.limits import PATIENCE
from tests.providers.toy import Toy, toy_place
from tests.providers.worker import is_running
from tests.sampling import FULL
from tests.servers.clis import Machine, answering

pytestmark = pytest.mark.anyio


class Slow(Toy):
    """One whose program never ends."""

    name = "slow"

    def command(self, program: Program, job: Job) -> Command:
        pid = self.place.home / "pid"
        return Command(("/bin/sh", "-c", f"echo $$ > {pid}; exec sleep 1000"))


class LoggedOut(Toy):
    """One that finds out only when it is asked that its login is no longer good."""

    name = "logged_out"

    def command(self, program: Program, job: Job) -> Command:
        return Command(super().command(program, job).argv, b"fail login the token has run out")


class Broken(Toy):
    """One whose files cannot be read."""

    name = "broken"

    def check(self, program: Program | None) -> Health:
        raise PermissionError("may not be read")


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = (Toy, Slow, LoggedOut, Broken)
    plugins = [EntryPoint(kind.name, f"{kind.__module__}:{kind.__name__}", registry.GROUP) for kind in kinds]
    for module in (_plugins, registry):
        monkeypatch.setattr(module, "entry_points", lambda group: plugins)


async def test_what_is_not_installed_says_how_to_install_it(tmp_path: Path) -> None:
    found = await check_providers(PROVIDERS, live=True, place=Place(tmp_path, {"HOME": str(tmp_path), "PATH": ""}))
    assert [health.provider for health in found] == list(PROVIDERS)
    for health in found:
        assert (health.program, health.ready, health.answers) == (None, False, None)
        assert "npm install -g" in health.problem


async def test_nobody_is_asked_unless_that_is_wanted(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    (health,) = await check_providers("toy", place=place)
    assert (health.ready, health.answers, list((place.home / "toy").glob("*"))) == (True, None, [])


async def test_one_that_answers_says_so_and_leaves_nothing_in_the_folder(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    (health,) = await check_providers(["toy"], live=True, place=place)
    assert (health.answers, health.logged_in, health.problem) == (True, True, "")
    assert list(place.cwd.iterdir()) == []


async def test_one_at_its_limit_does_not_answer_and_says_why(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    (place.home / "toy-is-at-its-limit").touch()
    (health,) = await check_providers(["toy"], live=True, place=place)
    assert (health.answers, health.logged_in, health.ready, health.problem) == (False, True, False, "no quota")


async def test_a_login_that_turns_out_to_be_bad_is_none(tmp_path: Path) -> None:
    (health,) = await check_providers(["logged_out"], live=True, place=toy_place(tmp_path))
    assert (health.logged_in, health.answers, health.problem) == (False, False, "the token has run out")


async def test_one_that_is_logged_out_is_not_asked(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    (place.home / "toy-is-logged-out").touch()
    (health,) = await check_providers(["toy"], live=True, place=place)
    assert (health.ready, health.answers, health.problem) == (False, None, "no login")


async def test_one_that_does_not_answer_in_time_is_ended(tmp_path: Path, clock: Clock) -> None:
    place = toy_place(tmp_path)
    pid = place.home / "pid"
    checking = asyncio.create_task(check_providers(["slow"], live=True, place=place, timeout=300))
    await clock.advance_when(lambda: pid.exists() and pid.read_text(), 300)
    (health,) = await checking
    assert (health.answers, health.problem) == (False, "no answer within 300 s.")
    assert not is_running(int(pid.read_text())), Path(f"/proc/{pid.read_text().strip()}/status").read_text()


async def test_trouble_with_one_is_told_and_the_others_are_checked_all_the_same(tmp_path: Path) -> None:
    broken, toy = await check_providers(["broken", "toy"], place=toy_place(tmp_path))
    assert (broken.provider, broken.ready, broken.problem) == ("broken", False, "may not be read")
    assert (toy.provider, toy.ready) == ("toy", True)


async def test_a_provider_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no provider 'codx'"):
        await check_providers(["codx"])


@pytest.mark.slow
async def test_the_real_programs_answer(tmp_path: Path) -> None:
    names = PROVIDERS if FULL else ("codex",)
    with ModelServer(answering(lambda request: "OK")) as server:
        machine = Machine(tmp_path, server)
        found = await check_providers(names, live=True, place=machine.place(), timeout=PATIENCE)
        assert [(health.provider, health.answers, health.problem) for health in found] == [
            (name, True, "") for name in names
        ]
        assert len(machine.asked) == len(names)
