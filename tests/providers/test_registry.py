"""From a name to a provider, and where it works."""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from clew._runtime import plugins as _plugins
from clew.errors import InvalidInput, MissingExtra
from clew.providers import registry
from clew.providers.claude_code import ClaudeCode
from clew.providers.codex import Codex
from clew.providers.registry import PROVIDERS, default_place, find_provider, provider_names, wanted


class Own(Codex):
    """A provider of somebody else's."""

    name = "own"


def test_every_built_in_provider_is_found_by_the_name_it_has() -> None:
    assert [find_provider(name).name for name in PROVIDERS] == ["claude_code", "codex", "opencode"]


@pytest.mark.parametrize("name", ["claude", "claude-code", "claude_code"])
def test_claude_code_may_be_written_in_several_ways(name: str) -> None:
    assert find_provider(name) is ClaudeCode


def test_a_typo_is_told_the_name_that_was_meant() -> None:
    with pytest.raises(InvalidInput, match=r"no provider 'codx'\. Did you mean 'codex'"):
        find_provider("codx")


def test_the_built_in_agent_is_no_provider() -> None:
    with pytest.raises(InvalidInput, match="built-in agent"):
        find_provider("clew")


def test_others_add_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = [
        EntryPoint("own", f"{__name__}:Own", registry.GROUP),
        EntryPoint("broken", "no_such_module:Provider", registry.GROUP),
        EntryPoint("odd", "os:path", registry.GROUP),
    ]
    for module in (_plugins, registry):
        monkeypatch.setattr(module, "entry_points", lambda group: plugins)
    assert find_provider("own") is Own
    assert provider_names() == (*PROVIDERS, "broken", "odd", "own")
    with pytest.raises(MissingExtra):
        find_provider("broken")
    with pytest.raises(InvalidInput, match="'odd' is installed, but is not a subclass"):
        find_provider("odd")


def test_who_asks_for_providers_gets_each_once_and_all_if_none_is_named() -> None:
    assert wanted(["codex", "claude", "claude_code"]) == ["codex", "claude_code"]
    assert wanted("codex") == ["codex"]
    assert wanted(None) == list(PROVIDERS)
    with pytest.raises(InvalidInput, match="no provider"):
        wanted(["codex", "nobody"])


def test_a_place_is_this_process_s_own_or_what_is_given_in_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLEW_TEST", "here")
    monkeypatch.chdir(tmp_path)
    assert default_place().cwd == Path.cwd()
    assert default_place("sub").cwd == Path.cwd() / "sub"
    assert default_place().env == dict(os.environ)
    place = default_place(tmp_path, {"HOME": "/elsewhere", "CLEW_TEST": "there"})
    assert (place.home, dict(place.env)) == (Path("/elsewhere"), {"HOME": "/elsewhere", "CLEW_TEST": "there"})
