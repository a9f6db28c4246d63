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

__all__ = ["NEWEST_CLAUDE", "VERSIONS", "NotInstalled", "install", "install_also"]

VERSIONS = {"@anthropic-ai/claude-code": "2.1.197", "@openai/codex": "0.166.0", "opencode-ai": "1.18.33"}

NEWEST_CLAUDE = "2.1.325"
"""The newest of Claude Code when these versions were chosen. From 2.1.277 on it counts the costs of the whole session."""

_SCRIPTS = ("@anthropic-ai/claude-code/install.cjs", "opencode-ai/postinstall.mjs")
"""They put the native program in the place of a stub. Not every npm runs them unasked, so they are run here."""

is_allowed = True
"""Whether the test that runs may have the programs: only one that is marked slow, as `make test` does without npm."""


class NotInstalled(Exception):
    """Why the programs cannot be had."""


def install() -> Path:
    """The folder that has the programs by their names; filled once, however many processes ask at the same time."""
    return _install(_home(), VERSIONS)


def install_also(package: str, version: str) -> Path:
    """A folder that has one program in another version, installed when it is first asked for."""
    home = _home()
    name = package.rpartition("/")[2]
    return _install(home.with_name(f"{home.name}-{name}-{version}"), {package: version})


def _install(home: Path, versions: dict[str, str]) -> Path:
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_name(f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _installed(home) != versions:
            _fill(home, versions)
    return home / "node_modules" / ".bin"


def _home() -> Path:
    is_virtual = sys.prefix != sys.base_prefix
    return (Path(sys.prefix) if is_virtual else Path(__file__).parents[2] / ".venv") / ".clis"


def _installed(home: Path) -> object:
    try:
        return json.loads((home / "installed.json").read_text())
    except (FileNotFoundError, ValueError):
        return None


def _fill(home: Path, versions: dict[str, str]) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise NotInstalled("no npm and node to install the coding agents with")
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".clis-") as folder:
        made = Path(folder) / home.name
        made.mkdir()
        wanted = [f"{name}@{version}" for name, version in versions.items()]
        _run([npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(made), *wanted])
        for script in (made / "node_modules" / name for name in _SCRIPTS):
            if script.exists():
                _run([node, str(script)])
        (made / "installed.json").write_text(json.dumps(versions))
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
