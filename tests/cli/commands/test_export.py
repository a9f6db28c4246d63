"""`clew export`: what is written, where, and for whom."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.cli.command_line import Samples, objects, terminal

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


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


def test_what_cannot_be_exported_is_said_in_a_line(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    for arguments, code, said in [
        (("trip", "--markdown", "--as-json"), 2, "Give one of them"),
        (("trip", "--history"), 2, "--markdown"),
        (("trip", "--markdown", "--plain"), 2, "--plain"),
        (("trip", "-", "--json"), 2, "--json"),
        (("trip", "nowhere/t.md", "--markdown"), 2, "nowhere"),
        (("nobody",), 3, "'nobody'"),
    ]:
        run = samples.clew("export", *arguments)
        assert (run.returncode, run.stdout) == (code, ""), arguments
        assert said in run.stderr, arguments
