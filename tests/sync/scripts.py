"""Scripts in processes of their own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.limits import PATIENCE

__all__ = ["PATIENCE", "START", "hears_ctrl_c", "run"]


START = """
import os, signal, sys, threading, time
from clew.checkpointers import MemoryCheckpointer as AsyncStore
from clew.errors import UsageError
from clew.log import MessageAdded
from clew.messages import assistant, user
from clew.sync import MemoryCheckpointer, Thread, open_checkpointer
from clew.sync._blocking import blocking
TURN = MessageAdded(user("question")), MessageAdded(assistant("answer"))
"""

_SLOW = re.compile(r"^Executing <.* took \d+\.\d+ seconds\n", re.MULTILINE)
"""What asyncio says in its development mode of a step that took a tenth of a second: on a busy machine any may."""


def hears_ctrl_c() -> None:
    """Tests that run in the background of a shell inherit that Ctrl+C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(script: str, folder: Path, *options: str) -> list[str]:
    """What a script prints. It must end by itself, well, and say nothing on stderr."""
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error::ResourceWarning",
            "-W",
            "default",
            *options,
            "-c",
            START + textwrap.dedent(script),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        preexec_fn=hears_ctrl_c,
    )
    said = _SLOW.sub("", done.stderr)
    assert (done.returncode, said) == (0, ""), said
    return done.stdout.splitlines()
