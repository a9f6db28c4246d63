"""Finds opencode's program: the native one, behind the script that older packages put before it, or behind the stand-in
that is left where npm was told to run no scripts."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import msgspec

from clew.providers._files import remembered
from clew.providers._programs import is_binary, on_path, problem_of
from clew.providers.base import Place, Program, values

__all__ = ["find_program"]

_PATIENCE = 5.0
"""Seconds in which a program must say its version; else it has none."""


def find_program(place: Place) -> Program | None:
    found = on_path("opencode", place.env)
    if found is None:
        return None
    path = Path(os.path.realpath(found))
    native = path if is_binary(path) else _behind(path, place)
    if problem := problem_of(native, place.env):
        return Program(native, "", problem)
    return Program(native, remembered(native, lambda: _version(native, place)))


def _behind(script: Path, place: Place) -> Path:
    """The program that this script stands for; the script itself if that is unknown."""
    named = place.env.get("OPENCODE_BIN_PATH")
    if named and Path(named).is_file():
        return Path(named)
    for folder in script.parents:
        for package in _packages():
            native = folder / "node_modules" / package / "bin" / "opencode"
            if native.is_file():
                return native.resolve()
    return script


def _packages() -> list[str]:
    """The names of the packages that hold the program for this machine, best first."""
    machine = platform.machine().lower()
    chip = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}.get(machine, machine)
    system = "darwin" if sys.platform == "darwin" else "linux"
    plain, slow = f"opencode-{system}-{chip}", f"opencode-{system}-{chip}-baseline"
    first = [slow, plain] if chip == "x64" and not _has_avx2() else [plain, slow]
    return [*first, *(f"{name}-musl" for name in first)]


def _has_avx2() -> bool:
    try:
        return " avx2" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return True


def _version(native: Path, place: Place) -> str:
    """As its package says, which takes no time; else as it says itself."""
    package = native.parent.parent / "package.json"
    try:
        said = values(msgspec.json.decode(package.read_bytes()))
        if str(said.get("name", "")).startswith("opencode") and isinstance(said.get("version"), str):
            return str(said["version"])
    except (OSError, msgspec.DecodeError):
        pass
    return _ask(native, place)


def _ask(native: Path, place: Place) -> str:
    try:
        asked = subprocess.run(  # noqa: S603
            [native, "--version"],
            env=dict(place.env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.decode(errors="replace").strip() if asked.returncode == 0 else ""
