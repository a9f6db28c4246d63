"""Programs that are too old are refused before they are asked anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.checkpointers import MemoryCheckpointer
from clew.errors import ProviderMissing, ProviderOutdated
from clew.providers import registry
from clew.providers.base import Program, Provider
from clew.providers.claude_code import ClaudeCode
from clew.providers.codex import Codex
from clew.providers.opencode import OpenCode
from clew.providers.registry import PROVIDERS, find_provider
from clew.providers.status import check_providers, is_untried, outdated
from tests.providers.toy import Toy, toy_place
from tests.providers.toys import toy_agent

pytestmark = pytest.mark.anyio


class Aged(Toy):
    """A toy whose program, of version 1, is too old."""

    name = "aged"
    oldest = "2.0.0"

    def program(self) -> Program | None:
        found = super().program()
        return None if found is None else Program(found.path, "1.9.12")


@pytest.fixture(autouse=True)
def aged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._BUILT_IN, "aged", f"{__name__}:Aged")


async def test_a_program_that_is_too_old_is_refused_with_its_version_the_oldest_that_works_and_the_way_out(
    tmp_path: Path,
) -> None:
    store = MemoryCheckpointer()
    with pytest.raises(ProviderOutdated, match=r"1\.9\.12 .* versions before 2\.0\.0 .* make toy"):
        await toy_agent(toy_place(tmp_path), store, "aged").start_session().send("say hello")
    assert [head async for head in store.heads()] == [], "nothing was begun"


async def test_of_several_providers_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer(), ["aged", "toy"]).start_session()
    assert (await session.send("say hello")).provider == "toy"


async def test_a_check_of_a_program_that_is_too_old_says_so_and_asks_it_nothing(tmp_path: Path) -> None:
    (health,) = await check_providers("aged", live=True, place=toy_place(tmp_path))
    assert (health.outdated, health.ready, health.answers) == (True, False, None)
    assert "1.9.12" in health.problem
    assert "make toy" in health.problem


@pytest.mark.parametrize(
    ("kind", "version", "refused"),
    [
        (ClaudeCode, "2.1.75", True),
        (ClaudeCode, "1.0.128", True),
        (ClaudeCode, "2.1.89", True),
        (ClaudeCode, "2.1.90", False),
        (ClaudeCode, "2.1.325", False),
        (ClaudeCode, "3.0", False),
        (Codex, "0.119.9", True),
        (Codex, "0.120.0", False),
        (Codex, "codex-cli 0.166.0", False),
        (Codex, "1.0.0-alpha.3", False),
        (OpenCode, "1.15.13", True),
        (OpenCode, "1.18.2", True),
        (OpenCode, "v1.18.3", False),
        (OpenCode, "0.0.0-dev-202611161200", False),
        (OpenCode, "local", False),
        (ClaudeCode, "", False),
    ],
)
def test_a_version_is_refused_if_it_is_known_to_be_too_old(
    kind: type[Provider], version: str, refused: bool, tmp_path: Path
) -> None:
    found = outdated(kind(toy_place(tmp_path)), Program(tmp_path / "program", version))
    assert (found is not None) == refused
    if found is not None:
        assert isinstance(found, ProviderMissing)
        assert (found.version, found.oldest) == (version, kind.oldest)
        assert found.install.startswith("npm install -g ")
        assert found.install.endswith("@latest")


def test_every_provider_names_the_oldest_version_that_works_and_the_newest_that_was_tried() -> None:
    for name in PROVIDERS:
        kind = find_provider(name)
        assert kind.oldest
        assert not is_untried(kind, kind.newest)
        assert is_untried(kind, "999.0.0")
        assert not is_untried(kind, "")
