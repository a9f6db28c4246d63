"""The checks of a release find what is wrong with it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tools import release


def a_wheel(folder: Path, names: set[str]) -> Path:
    path = folder / "clew-0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name in names:
            wheel.writestr(name, "")
    return path


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The files that git is said to know, as the wheel names them."""
    known = {*release.REQUIRED, "clew/server/inspector/static/inspector.css"}
    monkeypatch.setattr(release, "output", lambda *command: "\n".join(f"src/{name}" for name in known))
    return known


def test_a_whole_wheel_is_right(tmp_path: Path, sources: set[str]) -> None:
    wheel = a_wheel(tmp_path, {*sources, "clew-0.dist-info/METADATA", "clew-0.dist-info/licenses/LICENSE"})
    assert list(release.check_wheel(wheel)) == []


def test_a_missing_and_an_unknown_file_are_named(tmp_path: Path, sources: set[str]) -> None:
    names = {*sources, "clew-0.dist-info/METADATA", "tests/test_release.py"} - {"clew/py.typed"}
    assert list(release.check_wheel(a_wheel(tmp_path, names))) == [
        "clew/py.typed is missing in the wheel",
        "tests/test_release.py should not be in the wheel",
        "the wheel has no LICENSE",
    ]


def test_the_changelog_names_the_version_of_the_sources() -> None:
    assert list(release.check_changelog(release.version(), final=False)) == []


def test_another_version_or_no_date_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.0 (unreleased)\n\n## 1.1.0 (2026-01-02)\n")
    assert list(release.check_changelog("1.2.0", final=False)) == []
    assert list(release.check_changelog("1.2.0", final=True)) == [
        "CHANGELOG.md says 1.2.0 (unreleased): write the date of the release"
    ]
    assert list(release.check_changelog("1.3.0", final=False)) == [
        "the newest heading of CHANGELOG.md names 1.2.0, the sources are 1.3.0"
    ]
