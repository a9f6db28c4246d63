"""What goes to the standard output and what does not."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from tests.cli.command_line import environment

_FINDING = """
import sys
from clew.cli.output.console import working
with working("Looking", 2) as tick:
    tick(1)
    print("found")
    print("a hint", file=sys.stderr)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal")
def test_a_progress_bar_leaves_what_is_printed_meanwhile_where_it_belongs() -> None:
    master, slave = pty.openpty()
    run = subprocess.run(
        [sys.executable, "-c", _FINDING],
        env=environment(None, {"TERM": "xterm"}),
        stdout=subprocess.PIPE,
        stderr=slave,
        text=True,
    )
    os.close(slave)
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert (run.returncode, run.stdout) == (0, "found\n")
    assert "Looking" in shown
    assert "a hint" in shown
