"""Scripts in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

__all__ = ["LIMIT", "START", "run"]

LIMIT = 30
"""Seconds after which a script counts as hanging."""

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
        timeout=LIMIT,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()
