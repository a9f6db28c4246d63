"""`clew import`: what `clew export` wrote, brought back; and what another system has stored, with `--from`."""

from __future__ import annotations

import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.log import Checkpoint
from clew.testing import ModelServer
from tests.cli.command_line import Samples, clew, objects, terminal
from tests.cli.native_sessions import Machine
from tests.compat.importers.llm_logs import unpacked
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
        (("visa.clew", "trip"), 2, "--from"),
    ]:
        run = samples.clew("import", *arguments)
        assert (run.returncode, run.stdout) == (code, ""), arguments
        assert said in run.stderr, arguments


def test_conversations_of_another_system_become_threads_once(tmp_path: Path) -> None:
    unpacked("llm-0.31.1", tmp_path)
    there = f"sqlite:///{tmp_path / 'there.db'}"
    run = clew("import", "--from", "llm", "logs.db", "--to", there, cwd=tmp_path)
    assert run.returncode == 0
    assert [line.partition(": ")[2] for line in run.stdout.splitlines()] == ["imported"] * 6
    assert ": not carried over: the options of model calls (temperature=0.2)\n" in run.stderr
    assert run.stderr.endswith(
        "6 imported, 0 extended, 0 there already. In 4 of them 4 things could not be carried over; they are listed above.\n"
    )
    again = clew("import", "--from", "llm", str(tmp_path), "--store", there)
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr == "0 imported, 0 extended, 6 there already.\n"
    unpacked("llm-0.31.1-to-0.36", tmp_path)
    (done,) = objects(clew("import", "--from", "llm", "logs.db", "--json", store=there, cwd=tmp_path))
    assert list(done) == ["imported", "updated", "skipped", "failed", "losses"]
    assert (done["imported"], len(done["updated"]), done["skipped"], done["failed"]) == ([], 6, [], {})
    listed = objects(clew("ls", "--json", store=there))
    assert {head["tags"]["imported_from"] for head in listed} == {"llm"}
    assert sorted(head["thread_id"] for head in listed) == sorted(done["updated"])


def test_some_conversations_are_named_and_one_gets_an_id_of_its_own(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    key = machine.keep("codex", "Paint the door.")
    machine.keep("claude_code", "Paint the wall.")
    home = str(tmp_path / "home")
    (done,) = objects(machine.clew("import", "--from", "native", home, f"codex:{key}", "--as", "door", "--json"))
    assert (done["imported"], done["failed"]) == (["door"], {})
    rest = machine.clew("import", "--from", "native", home)
    assert (rest.returncode, len(rest.stdout.splitlines())) == (0, 1)
    assert rest.stderr == "1 imported, 0 extended, 1 there already.\n"


def test_what_could_not_be_imported_is_reported_and_the_rest_is_there(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    keys = [machine.keep("codex", title) for title in ("One.", "Two.")]
    home = str(tmp_path / "home")
    assert machine.clew("adopt", keys[0], "--as", f"codex:{keys[1]}").returncode == 0
    run = machine.clew("import", "--from", "native", home)
    assert (run.returncode, run.stdout) == (1, f"codex:{keys[0]}: imported\n")
    assert f"codex:{keys[1]}: not imported: the store has another thread" in run.stderr
    assert "1 imported, 0 extended, 0 there already, 1 not imported.\n" in run.stderr
    assert run.stderr.endswith("KEY --as NEW\n")


def test_what_is_meant_wrongly_is_said_in_a_line(tmp_path: Path) -> None:
    unpacked("llm-0.36", tmp_path)
    for arguments, said in [
        (("--from", "lllm", "logs.db"), "Did you mean 'llm'?"),
        (("--from", "llm", "nowhere.db"), "llm logs path"),
        (("--from", "native", "nowhere"), "no such file or folder"),
        (("--from", "llm", "logs.db", "nobody"), "'nobody'"),
        (("--from", "llm", "logs.db", "--as", "one"), "7 conversations"),
        (("--from", "llm", "logs.db", "--trust"), "--trust is for a .clew file"),
    ]:
        run = clew("import", *arguments, store=f"sqlite:///{tmp_path}/c.db", cwd=tmp_path)
        assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1), arguments
        assert said in run.stderr, arguments


def test_a_resume_of_an_imported_thread_asks_first_and_then_knows_what_was_said(tmp_path: Path) -> None:
    unpacked("llm-0.36", tmp_path)
    url = f"sqlite:///{tmp_path / 'c.db'}"
    with ModelServer(lambda request: f"You said {len(request.messages)} things.") as model:
        env = {**model.env(), "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
        (done,) = objects(clew("import", "--from", "llm", "logs.db", "--json", store=url, cwd=tmp_path))
        thread_id = done["imported"][-1]
        refused = clew("resume", thread_id, "And now?", store=url, env=env, cwd=tmp_path)
        assert (refused.returncode, model.calls) == (2, 0)
        assert "You have neither made nor agreed to the setup" in refused.stderr
        assert "openai:gpt-5" in refused.stderr
        agreed = clew("resume", thread_id, "And now?", "--trust", store=url, env=env, cwd=tmp_path)
        assert (agreed.returncode, model.calls) == (0, 1), agreed.stderr
        assert "You said 3 things." in agreed.stdout


def test_progress_is_shown_at_a_terminal(tmp_path: Path) -> None:
    unpacked("llm-0.36", tmp_path)
    with terminal("import", "--from", "llm", "logs.db", store=f"sqlite:///{tmp_path}/c.db", cwd=tmp_path) as shown:
        assert shown.end() == 0
    assert "Importing" in shown.shown
    assert "7 imported" in shown.shown
