"""The machines of the tests: each real program reaches the scripted model, and nobody else."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from clew.messages import Text, Thinking, ToolCall, ToolResult, plain_text, user
from clew.testing import ModelServer, Reply, call, say, think
from tests.limits import PATIENCE
from tests.sampling import FULL
from tests.servers.clis import OPENCODE_THINKING, Machine, answering
from tests.servers.running import lacking

pytestmark = [
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.skipif(not FULL, reason="only with CLEW_CRASH=full"),
]

COMMANDS = {
    "claude": "claude -p --output-format stream-json --verbose --dangerously-skip-permissions",
    "codex": "codex exec --json --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -",
    "opencode": f"opencode run --format json --auto --model {OPENCODE_THINKING}",
}
CALLS: dict[str, Reply] = {
    "claude": call("Bash", command="echo $((40 + 2))", description="Count"),
    "codex": call("exec_command", cmd="echo $((40 + 2))"),
    "opencode": call("bash", command="echo $((40 + 2))", description="Count"),
}
REMOTE = re.compile(r"sin_port=htons\((\d+)\), sin_addr=inet_addr\(\"(.+?)\"\)|AF_INET6.*")


@pytest.mark.parametrize("program", COMMANDS)
def test_a_program_makes_its_calls_and_connects_to_the_scripted_model_alone(program: str, tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        lacking("no strace", install="strace")
    both = think("A sum.") + say("Let me count.") + CALLS[program] + CALLS[program]
    with ModelServer(answering([both, "It is 42."])) as server:
        machine = Machine(tmp_path, server)
        trace = tmp_path / "connects"
        watched = [strace, "-f", "-qq", "-e", "trace=connect", "-e", "signal=none", "-o", str(trace)]
        done = subprocess.run(
            [*watched, *COMMANDS[program].split()],
            input="What is 40 + 2?",
            cwd=machine.cwd,
            env=machine.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        assert "It is 42." in done.stdout
        asked = machine.asked
        assert "What is 40 + 2?" in plain_text(asked[0][-1])
        made, settled = asked[1][-2:]
        assert [type(block) for block in made.content] == [Thinking, Text, ToolCall, ToolCall]
        results = [block for block in settled.content if isinstance(block, ToolResult)]
        assert ["42" in plain_text(user(*result.content)) for result in results] == [True, True]
        assert {record.outcome for record in server.requests} == {"answered"}
        port = server.url.rpartition(":")[2]
    assert {found.groups() for found in REMOTE.finditer(trace.read_text())} == {(port, "127.0.0.1")}
