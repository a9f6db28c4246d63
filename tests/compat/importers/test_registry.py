"""Kinds of data are found by their names, and their modules are imported only then."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from clew._runtime import plugins
from clew.compat.importers import KINDS, Source, find_source, open_source, registry, source_kinds
from clew.errors import InvalidInput, MissingExtra
from tests.compat.importers.sources import Told


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_class_that_knows_its_name(kind: str, tmp_path: Path) -> None:
    found = find_source(kind)
    assert issubclass(found, Source)
    assert found.kind == kind
    with pytest.raises(InvalidInput, match="nowhere"):
        open_source(kind, tmp_path / "nowhere")


def test_an_unknown_kind_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidInput, match=r"no importer for 'lllm'. Did you mean 'llm'\? Known here: .*native"):
        find_source("lllm")


def test_installed_packages_add_kinds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    added = [
        EntryPoint("told", "tests.compat.importers.sources:Told", registry.GROUP),
        EntryPoint("odd", "tests.compat.importers.sources:said", registry.GROUP),
        EntryPoint("gone", "tests.no_such_module:Source", registry.GROUP),
    ]
    for module in (plugins, registry):
        monkeypatch.setattr(module, "entry_points", lambda group: EntryPoints(added))
    assert {*source_kinds()} == {*KINDS, "told", "odd", "gone"}
    assert find_source("told") is Told
    with pytest.raises(InvalidInput, match="is not a subclass"):
        find_source("odd")
    with pytest.raises(MissingExtra):
        find_source("gone")


def test_a_path_may_begin_with_a_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InvalidInput, match=str(tmp_path)):
        open_source("native", "~/nowhere")


def test_what_the_system_does_not_let_us_read_is_an_error_of_clew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(find_source("native"), "open", refuse)
    with pytest.raises(InvalidInput, match=f"{tmp_path} cannot be read: Permission denied"):
        open_source("native", tmp_path)


def test_finding_a_kind_imports_no_other_kind() -> None:
    code = (
        "import sys\nfrom clew.compat.importers import find_source\nfind_source('llm')\n"
        "assert not {'clew.providers.opencode', 'clew.compat.importers.native'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
