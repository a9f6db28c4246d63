"""The demo keeps what it says, and would say so if it did not."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from clew.demo import DemoFailed, run_demo
from clew.demo import run as running
from clew.demo.compare import make_row
from clew.demo.job import TURNS
from clew.demo.process import Process
from clew.demo.views import PlainView
from tests.limits import PATIENCE


def numbers(output: str) -> dict[str, list[int]]:
    """The table in the output: undisturbed, before, after, lost and repeated, by what was counted."""
    rows = re.findall(r"^ *([a-z ]+?)((?: +[\d,]+){5}) *\r?$", output, re.MULTILINE)
    return {what: [int(number.replace(",", "")) for number in counts.split()] for what, counts in rows}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=PATIENCE)


def test_the_demo_loses_and_repeats_nothing_and_is_plain_in_a_pipe(tmp_path: Path) -> None:
    done = run("clew", "demo", "--keep", str(tmp_path / "kept"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    assert "SIGKILL in turn 17, in pay_invoice: INV-017 paid, not on record" in done.stdout
    assert "pay_invoice in doubt: reconciled" in done.stdout
    assert "Nothing was lost, nothing was repeated, and no model call" in done.stdout
    assert re.search(r"^waited for the disk +\d+ ms", done.stdout, re.MULTILINE)
    assert re.search(r"^extra model calls +0$", done.stdout, re.MULTILINE)
    table = numbers(done.stdout)
    assert len(table) == 7
    assert [row[3:] for row in table.values()] == [[0, 0]] * 7
    assert table["turns"] == [TURNS, 16, 14, 0, 0]
    assert table["model calls"] == [TURNS, 17, 13, 0, 0]

    for place in (tmp_path / "kept" / "undisturbed", tmp_path / "kept" / "killed"):
        invoices = [line.split()[0] for line in (place / "ledger.txt").read_text().splitlines()]
        assert invoices == [f"INV-{number:03}" for number in range(1, TURNS)]
        assert sorted(file.stem for file in (place / "files" / "receipts").iterdir()) == invoices


def test_a_payment_that_is_made_twice_is_seen_and_ends_with_1(tmp_path: Path) -> None:
    done = run("tests.demo.careless", str(tmp_path))
    assert done.returncode == 1, done.stderr
    assert "It is NOT as in an undisturbed run." in done.stdout
    assert "Nothing was lost" not in done.stdout
    table = numbers(done.stdout)
    assert table["payments in the ledger"] == [29, 17, 13, 0, 1]
    assert table["tools run"] == [58, 34, 25, 0, 1]
    assert table["model calls"][3:] == [0, 0]


def in_terminal(*command: str, env: Mapping[str, str]) -> tuple[int, str]:
    """What a command writes to a terminal of its own."""
    pty = pytest.importorskip("pty")
    ours, its = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", *command], stdin=its, stdout=its, stderr=its, env=env)
    os.close(its)
    written = b""
    with open(ours, "rb", buffering=0) as terminal:
        try:
            while data := terminal.read(65536):
                written += data
        except OSError:  # how Linux says that nobody is left to write
            pass
    return process.wait(), written.decode()


@pytest.mark.slow
@pytest.mark.parametrize("no_colour", [False, True])
def test_the_demo_moves_in_a_terminal_and_has_colours_only_if_they_are_wanted(no_colour: bool) -> None:
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "NO_COLOR": "1"}
    if not no_colour:
        del env["NO_COLOR"]
    ended, output = in_terminal("clew", "demo", env=env)
    assert ended == 0, output
    codes = {number for code in re.findall(r"\x1b\[([\d;]*)m", output) for number in code.split(";")}
    colours = {code for code in codes if re.fullmatch(r"[349]\d|10\d", code)}
    assert bool(colours) != no_colour, codes
    assert "\x1b[?25l" in output  # the cursor is hidden while it moves
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", output)
    assert "Nothing was lost, nothing was repeated" in " ".join(text.split())
    assert [row[3:] for row in numbers(text).values()] == [[0, 0]] * 7


def test_a_process_that_fails_is_no_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "run_worker", lambda *given, **named: Process(1, 3, (), 0.0))
    with pytest.raises(DemoFailed, match="undisturbed process of the demo ended with code 3"):
        run_demo(tmp_path, PlainView(io.StringIO()))


@pytest.mark.parametrize(
    ("found", "lost", "repeated"),
    [
        (["a", "b", "c"], 0, 0),
        (["a", "c"], 1, 0),
        (["a", "b", "b", "c"], 0, 1),
        (["a", "x", "c"], 1, 1),
        (["a", "c", "b"], 1, 1),
        ([], 3, 0),
    ],
)
def test_what_is_missing_is_lost_and_what_is_too_much_is_repeated(found: list[str], lost: int, repeated: int) -> None:
    row = make_row("letters", ["a", "b", "c"], found[:1], found)
    assert (row.lost, row.repeated) == (lost, repeated)


def test_the_order_of_calls_that_are_made_at_once_does_not_matter() -> None:
    row = make_row("letters", ["a", "b"], [], ["b", "a"], ordered=False)
    assert (row.lost, row.repeated) == (0, 0)
