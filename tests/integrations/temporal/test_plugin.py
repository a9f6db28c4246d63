"""What is refused before any worker runs, and where threads have their files."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from clew import Agent
from clew.errors import InvalidInput, MissingExtra
from clew.integrations.temporal import ClewPlugin
from clew.integrations.temporal.agents import placed
from clew.providers import ProviderAgent
from clew.testing import ScriptedModel
from tests.providers.toys import with_toys


def an_agent(name: str = "biller", **settings: Any) -> Agent:
    return Agent(ScriptedModel(["Hi."]), name=name, checkpointer=None, **settings)


def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "temporalio", None)
    monkeypatch.delitem(sys.modules, "clew.integrations.temporal")
    with pytest.raises(MissingExtra, match=r"clew\[temporal\]"):
        importlib.import_module("clew.integrations.temporal")


def test_agents_are_told_apart_by_their_names() -> None:
    with pytest.raises(InvalidInput, match="Give it one"):
        ClewPlugin(an_agent(""))
    with pytest.raises(InvalidInput, match="two agents have the name 'biller'"):
        ClewPlugin(an_agent(), an_agent())
    with pytest.raises(InvalidInput, match="takes agents"):
        ClewPlugin("biller")  # type: ignore[arg-type]


def test_threads_do_not_share_the_folder_of_an_agent(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="would share"):
        ClewPlugin(an_agent(workspace=tmp_path))
    assert ClewPlugin(an_agent(workspace=tmp_path), workspaces=tmp_path).agents


def test_an_agent_at_a_place_works_there_and_restores_its_files(tmp_path: Path) -> None:
    with_toys()
    own, provided = placed(an_agent(), tmp_path), placed(Agent(provider="toy", name="toy"), tmp_path)
    assert (own._settings.workspace, own._settings.restore_files) == (tmp_path, True)
    assert isinstance(provided, ProviderAgent)
    assert (provided.settings.workspace, provided.settings.restore_files) == (tmp_path, True)
    assert provided.settings.place.cwd == tmp_path
