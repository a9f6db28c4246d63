"""The examples of docs/temporal.md run, against a real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import PATIENCE
from tests.test_docs import EXAMPLE, ROOT

pytestmark = pytest.mark.slow

EXAMPLES = EXAMPLE.findall((ROOT / "docs" / "temporal.md").read_text())
PRINTED = ["It is sent. 2\n", "done: It is too long.\n"]


@pytest.mark.parametrize(("code", "printed"), list(zip(EXAMPLES, PRINTED, strict=True)), ids=["thread", "workflow"])
def test_an_example_of_the_guide_runs(code: str, printed: str, temporal: str, tmp_path: Path) -> None:
    ending = "\nimport os, sys\nif __name__ == '__main__':\n    sys.stdout.flush()\n    os._exit(0)\n"
    (tmp_path / "example.py").write_text(code.replace("localhost:7233", temporal) + ending)
    command = [sys.executable, "example.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert (run.returncode, run.stdout) == (0, printed), run.stderr
