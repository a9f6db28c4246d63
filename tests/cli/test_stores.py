"""The store that a command works on: what is made, what is not, and how it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import open_checkpointer
from clew.cli import stores
from clew.cli.stores import shown_store
from tests.cli.command_line import Samples, clew, objects

pytestmark = pytest.mark.slow

LOOKING = [("ls",), ("show", "trip"), ("stats",), ("gc",), ("resume", "--last"), ("fork", "trip", "--turn", "1")]


@pytest.mark.parametrize("scheme", ["sqlite:///", "file:"])
def test_a_store_that_is_not_there_is_3_and_is_not_made(scheme: str, tmp_path: Path) -> None:
    place = tmp_path / "typo"
    for command in LOOKING if scheme == "file:" else LOOKING[:2]:
        run = clew(*command, "--store", f"{scheme}{place}")
        assert (run.returncode, run.stdout) == (3, ""), command
        assert run.stderr.startswith(f"Error: there is no store at {place}. "), command
        assert "a new store is made by the first run" in run.stderr
    assert clew("ls", store=f"{scheme}{place}").returncode == 3
    assert clew("copy", f"{scheme}{place}", f"{scheme}{place}-copy").returncode == 3
    assert not any(path.name == "typo" for path in tmp_path.iterdir())


def test_the_default_store_may_be_absent_and_is_then_empty(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    listed, shown = clew("ls", env=env), clew("show", "trip", env=env)
    assert (listed.returncode, listed.stdout) == (0, "")
    assert listed.stderr == "There are no threads yet. Start one: clew run 'Plan a trip to Paris.'\n"
    assert (shown.returncode, "no thread 'trip'" in shown.stderr) == (3, True)
    assert not any(tmp_path.iterdir())


def test_what_brings_a_thread_makes_a_store_that_is_new(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.clew("export", "trip", "trip.clew")
    for scheme in ("sqlite:///", "file:"):
        url = f"{scheme}{tmp_path / 'new'}-{scheme[:4]}"
        assert samples.clew("import", "trip.clew", "--store", url).returncode == 0
        assert [one["thread_id"] for one in objects(clew("ls", "--json", store=url))] == ["trip"]


def test_a_store_that_cannot_be_looked_at_is_not_taken_for_one_that_is_not_there(tmp_path: Path) -> None:
    run = clew("ls", "--store", f"sqlite:///{tmp_path / ('x' * 300)}")
    assert (run.returncode, "File name too long" in run.stderr) == (2, True)


@pytest.mark.parametrize(
    "url",
    [
        "postgres://ada:hunter2@db.example/clew",
        "https://clew.example/?token=hunter2",
        "postgres://db.example/clew?note=a@hunter2",
    ],
)
def test_a_command_that_is_shown_has_no_password(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    stores._say_where_credentials_go.cache_clear()
    assert [shown_store(url), shown_store(url)] == ["", ""]
    (said,) = capsys.readouterr().err.splitlines()
    assert "CLEW_STORE" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("url", ["sqlite:////my files/clew.db", "file:/a@b", "http://127.0.0.1:8420", "s3://b@c/d"])
def test_a_url_without_credentials_is_shown_as_it_is(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    stores._say_where_credentials_go.cache_clear()
    assert shown_store(url) == url
    assert shown_store(None) == ""
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///clew.db", "sqlite:///{here}/clew.db"),
        ("file:threads", "file://{here}/threads"),
        ("sqlite:///~/clew.db", "sqlite:///{home}/clew.db"),
        ("file:~/threads", "file://{home}/threads"),
    ],
)
def test_a_store_of_this_folder_or_of_the_home_folder_is_shown_so_that_it_is_found_from_any_folder(
    url: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    wanted = shown.format(here=here, home=home)
    assert shown_store(url) == wanted
    assert open_checkpointer(url).own_files == open_checkpointer(wanted).own_files
    monkeypatch.setenv("CLEW_STORE", url)
    assert shown_store(None) == wanted
