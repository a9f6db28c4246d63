"""The guides to the providers: their examples run as they stand, with the real programs on a machine of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.desk import desk
from tests.limits import PATIENCE

ROOT = Path(__file__).parents[2]
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("real-clis")]


@pytest.mark.parametrize("guide", ["providers", "another-machine", "out-of-quota"])
def test_the_examples_of_a_guide_run_one_after_the_other(guide: str, tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        machine = here.machine()
        for code in EXAMPLE.findall((ROOT / "docs" / f"{guide}.md").read_text()):
            (machine.cwd / "example.py").write_text(code)
            run = subprocess.run(
                [sys.executable, "example.py"],
                cwd=machine.cwd,
                env=machine.env,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            assert run.returncode == 0, run.stdout + run.stderr
