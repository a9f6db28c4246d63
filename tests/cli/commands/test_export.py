"""`clew export` and `clew import`."""

from __future__ import annotations

import json
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.log import Checkpoint
from tests.cli.command_line import Samples, clew, objects, terminal
from tests.limits import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def _state(url: str, thread_id: str) -> Checkpoint:
    async with open_checkpointer(url) as store:
        return await Thread.load(store, thread_id)


async def test_a_thread_goes_through_a_file_to_another_store_and_is_the_same(tmp_path: Path) -> None:
    samples, there = Samples(tmp_path), f"sqlite:///{tmp_path / 'there.db'}"
    run = samples.clew("export", "trip", "t.clew")
    assert (run.returncode, run.stdout) == (0, "t.clew\n")
    assert stat.S_IMODE((samples.folder / "t.clew").stat().st_mode) == 0o600
    (done,) = objects(samples.clew("import", "t.clew", "--as", "from a friend", "--store", there, "--json"))
    assert (done["thread_id"], done["status"], done["turns"]) == ("from a friend", "done", 5)
    assert await _state(there, "from a friend") == await _state(samples.url, "trip")


async def test_a_thread_goes_through_a_pipe(tmp_path: Path) -> None:
    samples, there = Samples(tmp_path), f"sqlite:///{tmp_path / 'there.db'}"
    clew_ = f"{shlex.quote(sys.executable)} -m clew"
    pipe = f"{clew_} export trip - --store {samples.url} | {clew_} import - --store {there}"
    run = subprocess.run(pipe, shell=True, capture_output=True, text=True, timeout=PATIENCE)
    assert (run.returncode, run.stdout) == (0, "trip\n")
    assert (await _state(there, "trip")).turns == 5


def test_the_conversation_is_written_for_people_and_for_programs(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    shown = samples.clew("export", "trip", "--markdown", "-")
    assert shown.stdout.startswith("# Plan a trip to Paris.\n")
    assert shown.stderr == ""
    (done,) = objects(samples.clew("export", "trip", "--as-json", "--history", "--json"))
    assert (done["file"], done["form"]) == ("trip.json", "json")
    document = json.loads((samples.folder / "trip.json").read_text())
    assert (document["thread_id"], document["turns"], "history" in document) == ("trip", 5, True)
    assert stat.S_IMODE((samples.folder / "trip.json").stat().st_mode) == 0o600


def test_a_thread_without_a_file_name_is_exported_into_this_folder_whatever_its_id(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.clew("fork", "trip", "--as", "../a b/…")
    assert samples.clew("export", "../a b/…", "--markdown").stdout == "a_b.md\n"
    assert (samples.folder / "a_b.md").exists()


def test_a_file_that_is_there_is_left_alone_unless_forced(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    for form, name in [((), "mine.clew"), (("--markdown",), "mine.md")]:
        mine = samples.folder / name
        mine.write_text("mine")
        refused = samples.clew("export", "trip", name, *form)
        assert (refused.returncode, "--force" in refused.stderr, mine.read_text()) == (2, True, "mine")
        assert samples.clew("export", "trip", name, *form, "--force").returncode == 0
        assert mine.read_bytes() != b"mine"


def test_a_clew_file_is_not_shown_on_a_terminal(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    with terminal("export", "trip", "-", store=samples.url) as shell:
        assert shell.end() == 2
    assert "not for a terminal" in shell.shown


def test_a_sealed_thread_stays_sealed_unless_plain_is_said(tmp_path: Path) -> None:
    samples, sealed, key = Samples(tmp_path), f"sqlite:///{tmp_path / 'sealed.db'}", {"CLEW_KEY": "ab" * 32}
    samples.clew("export", "trip", "t.clew")
    assert clew("import", str(samples.folder / "t.clew"), store=sealed, env=key).returncode == 0
    for option, code in [((), 6), (("--plain",), 0)]:
        clew("export", "trip", str(tmp_path / "s.clew"), "--force", *option, store=sealed, env=key)
        assert samples.clew("import", str(tmp_path / "s.clew"), "--as", "opened").returncode == code


def test_what_cannot_be_exported_or_imported_is_said_in_a_line(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    (samples.folder / "no.clew").write_text("this is no archive")
    samples.clew("export", "visa", "visa.clew")
    for arguments, code, said in [
        (("export", "trip", "--markdown", "--as-json"), 2, "Give one of them"),
        (("export", "trip", "--history"), 2, "--markdown"),
        (("export", "trip", "--markdown", "--plain"), 2, "--plain"),
        (("export", "trip", "-", "--json"), 2, "--json"),
        (("export", "trip", "nowhere/t.md", "--markdown"), 2, "nowhere"),
        (("export", "nobody"), 3, "'nobody'"),
        (("import", "nowhere.clew"), 2, "nowhere.clew"),
        (("import", "no.clew"), 6, "no.clew"),
        (("import", "visa.clew", "--as", "trip"), 4, "--as NEW"),
    ]:
        run = samples.clew(*arguments)
        assert (run.returncode, run.stdout) == (code, ""), arguments
        assert said in run.stderr, arguments
