"""Makes the data_dir in `fixtures/caw` with the real caw and the real coding agents:

    python -m tests.compat.importers.caw_fixtures PYTHON

PYTHON is the Python of an environment that has `coding-agent-wrapper` and `mcp<2`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from clew.log import Usage
from tests.e2e.desk import desk
from tests.providers.worker import wait_until
from tests.servers.clis import Machine

FOLDER = Path(__file__).with_name("fixtures") / "caw"
USAGE = Usage(100, 20, 60, 10, 5)
PROGRAM = """
import json, sys
from caw import Agent
job = json.loads(sys.argv[1])
session = Agent(**job["agent"]).start_session()
for prompt in job["prompts"]:
    session.send(prompt)
session.end()
"""


def started(python: str, machine: Machine, provider: str, *prompts: str, **more: Any) -> subprocess.Popen[bytes]:
    job = {
        "agent": {"provider": provider, "model": machine.models[provider], "data_dir": "caw_data", **more},
        "prompts": prompts,
    }
    return subprocess.Popen(
        [python, "-c", PROGRAM, json.dumps(job)],
        cwd=machine.cwd,
        env={**machine.env, "CAW_LOG": "off"},
        start_new_session=True,
    )


def main(python: str, root: Path) -> None:
    with desk(root, USAGE) as here:
        machine = here.machine()
        for provider in ("claude_code", "codex", "opencode"):
            prompts = "RUN echo forty-two", "My number is 42."
            assert started(python, machine, provider, *prompts, system_prompt="Be kind.").wait() == 0
        in_tool = started(python, machine, "codex", "One", "RUN sleep 600")
        wait_until(lambda: "sleep 600" in said(machine), "caw wrote no tool call")
        in_words = started(python, machine, "claude_code", "STREAM I begin")
        wait_until(lambda: machine.is_hanging, "nothing was streamed")
        for process in (in_tool, in_words):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(FOLDER, ignore_errors=True)
        for file in (machine.cwd / "caw_data").glob("sessions/*/traj*.json*"):
            if file.name == "trajectory.json" or not file.with_name("trajectory.json").exists():
                target = FOLDER / "sessions" / file.parent.name / file.name
                target.parent.mkdir(parents=True)
                shutil.copy(file, target)


def said(machine: Machine) -> str:
    return "".join(file.read_text() for file in (machine.cwd / "caw_data").glob("sessions/*/trajectory.json"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1], Path(folder))
