"""The program itself, behind the script that npm puts on the PATH."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from clew.providers._files import remembered
from clew.providers._programs import on_path, problem_of
from clew.providers.base import Program, values
from clew.providers.codex.rollout import record_of

__all__ = ["find_program"]

_SYSTEMS = {"linux": "linux", "darwin": "darwin", "win32": "win32"}
_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_PATIENCE = 5.0
"""Seconds in which a program must say its version; else it has none."""
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:-(?:alpha|beta|rc)[\w.]*)?")


def find_program(env: Mapping[str, str]) -> Program | None:
    found = on_path("codex", env)
    if found is None:
        return None
    path = found.resolve()
    native = _behind(path) if path.suffix == ".js" else path
    if native is None:
        return Program(path, "", f"{path} is there, and the package with the program for this system is not beside it")
    if problem := problem_of(native, env):
        return Program(native, "", problem)
    return Program(native, remembered(native, lambda: _version(native, env)))


def _behind(script: Path) -> Path | None:
    """The binary that npm's script would run: in the package for this system, beside or below the script's own."""
    package = script.parent.parent
    name = f"codex-{_SYSTEMS.get(sys.platform, '')}-{_MACHINES.get(platform.machine().lower(), '')}"
    roots = (package.parent / name, package / "node_modules" / "@openai" / name, package)
    for root in roots:
        for binary in sorted(root.glob("vendor/*/bin/codex")) + sorted(root.glob("vendor/*/codex/codex")):
            if binary.is_file():
                return binary.resolve()
    return None


def _version(native: Path, env: Mapping[str, str]) -> str:
    """From the description that lies beside it, else as it says itself."""
    try:
        described = record_of((native.parent.parent / "codex-package.json").read_bytes())
    except OSError:
        described = None
    said = values(described).get("version")
    if not isinstance(said, str):
        said = _asked(native, env)
    found = _VERSION.search(said)
    return found.group() if found else ""


def _asked(native: Path, env: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the program the user has installed
            [native, "--version"],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
