"""`clew import`: what `clew export` wrote, brought back."""

from __future__ import annotations

import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.log import Checkpoint
from tests.cli.command_line import Samples, clew, objects
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


def test_a_sealed_thread_stays_sealed_unless_plain_is_said(tmp_path: Path) -> None:
    samples, sealed, key = Samples(tmp_path), f"sqlite:///{tmp_path / 'sealed.db'}", {"CLEW_KEY": "ab" * 32}
    samples.clew("export", "trip", "t.clew")
    assert clew("import", str(samples.folder / "t.clew"), store=sealed, env=key).returncode == 0
    for option, code in [((), 6), (("--plain",), 0)]:
        clew("export", "trip", str(tmp_path / "s.clew"), "--force", *option, store=sealed, env=key)
        assert samples.clew("import", str(tmp_path / "s.clew"), "--as", "opened").returncode == code


def test_what_cannot_be_imported_is_said_in_a_line(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    (samples.folder / "no.clew").write_text("this is no archive")
    samples.clew("export", "visa", "visa.clew")
    for arguments, code, said in [
        (("nowhere.clew",), 2, "nowhere.clew"),
        (("no.clew",), 6, "no.clew"),
        (("visa.clew", "--as", "trip"), 4, "--as NEW"),
    ]:
        run = samples.clew("import", *arguments)
        assert (run.returncode, run.stdout) == (code, ""), arguments
        assert said in run.stderr, arguments
