"""The three coding agents' programs, at the versions that the tests know, installed by npm in the virtual environment."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["VERSIONS", "NotInstalled", "install"]

VERSIONS = {"@anthropic-ai/claude-code": "2.1.197", "@openai/codex": "0.166.0", "opencode-ai": "1.18.33"}

_SCRIPTS = ("@anthropic-ai/claude-code/install.cjs", "opencode-ai/postinstall.mjs")
"""They put the native program in the place of a stub. Not every npm runs them unasked, so they are run here."""


class NotInstalled(Exception):
    """Why the programs cannot be had."""


def install() -> Path:
    """The folder that has the programs by their names; filled once, however many processes ask at the same time."""
    home = _home()
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_name(f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _installed(home) != VERSIONS:
            _fill(home)
    return home / "node_modules" / ".bin"


def _home() -> Path:
    is_virtual = sys.prefix != sys.base_prefix
    return (Path(sys.prefix) if is_virtual else Path(__file__).parents[2] / ".venv") / ".clis"


def _installed(home: Path) -> object:
    try:
        return json.loads((home / "installed.json").read_text())
    except (FileNotFoundError, ValueError):
        return None


def _fill(home: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise NotInstalled("no npm and node to install the coding agents with")
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".clis-") as folder:
        made = Path(folder) / home.name
        made.mkdir()
        wanted = [f"{name}@{version}" for name, version in VERSIONS.items()]
        _run([npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(made), *wanted])
        for script in _SCRIPTS:
            _run([node, str(made / "node_modules" / script)])
        (made / "installed.json").write_text(json.dumps(VERSIONS))
        shutil.rmtree(home, ignore_errors=True)
        made.rename(home)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{Path(command[0]).name} {command[1]} took more than ten minutes") from None
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-500:]
        raise NotInstalled(f"{Path(command[0]).name} {command[1]} failed: {said}")


if __name__ == "__main__":
    try:
        install()
    except NotInstalled as missing:
        print(f"Tests that start a coding agent are skipped: {missing}", file=sys.stderr)
        sys.exit(os.environ.get("CI") == "true")
