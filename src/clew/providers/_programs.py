"""Finds a provider's program on the PATH, and says what is wrong with one that cannot be run."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["is_binary", "on_path", "problem_of"]

_ELF = b"\x7fELF"
_MACH_O = (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_BINARIES = (_ELF, *_MACH_O, b"MZ")
_MACHINES = {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
"""What the number in an ELF file says that it is for."""
_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}
_HEAD = 4096


def on_path(name: str, env: Mapping[str, str]) -> Path | None:
    """Return the program of this name on the PATH. If nothing of that name can be run, return the first entry that has it,
    for `problem_of` to say what is wrong with it; None if there is none at all."""
    path = env.get("PATH", "")
    found = shutil.which(name, path=path)
    if found is not None:
        return Path(found)
    entries = (Path(folder, name) for folder in path.split(os.pathsep) if folder)
    return next((entry for entry in entries if os.path.lexists(entry)), None)


def is_binary(path: Path) -> bool:
    """Whether this is a native program, and no script. What cannot be read is taken for one: a script could not be run."""
    try:
        with path.open("rb") as file:
            return file.read(4).startswith(_BINARIES)
    except PermissionError:
        return True
    except OSError:
        return False


def problem_of(path: Path, env: Mapping[str, str]) -> str:
    """Say why this file cannot be run here; empty if it can. A file that looks wrong is started once, as a system can be set
    up to run what it does not run by itself."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"{path}: {error.strerror}"
    if stat.S_ISDIR(mode):
        return f"{path} is a folder, and no program"
    if not stat.S_ISREG(mode):
        return f"{path} is no program"
    if not os.access(path, os.X_OK):
        return f"this user may not run {path}: it is not marked as a program (chmod +x marks it)"
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return ""  # what may be run and not read: the system says the rest
    looks = _looks_wrong(path, head, env)
    return looks if looks and not _starts(path, env) else ""


def _looks_wrong(path: Path, head: bytes, env: Mapping[str, str]) -> str:
    if head.startswith(b"#!"):
        return _script(path, head, env)
    if head.startswith(_ELF):
        return _elf(path, head)
    if head.startswith(_MACH_O):
        return "" if sys.platform == "darwin" else f"{path} is a program for macOS"
    if head.startswith(b"MZ"):
        return "" if sys.platform == "win32" else f"{path} is a program for Windows"
    if not head:
        return f"{path} is empty"
    return (
        f"{path} is no program but a stand-in for one: it was installed without its install script (npm's --ignore-scripts) "
        "and without the package for this system (npm's --omit=optional)"
    )


def _script(path: Path, head: bytes, env: Mapping[str, str]) -> str:
    words = os.fsdecode(head[2:].split(b"\n")[0]).split()
    if words and os.path.basename(words[0]) == "env" and os.path.exists(words[0]):
        needed = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
        if needed and shutil.which(needed, path=env.get("PATH", "")) is None:
            return f"{path} is a script for {needed}, which is not on the PATH"
    elif not words or not os.path.exists(words[0]):
        return f"{path} is a script for {words[0] if words else 'nothing'}, which is not there"
    return ""


def _elf(path: Path, head: bytes) -> str:
    if sys.platform != "linux":
        return f"{path} is a program for Linux"
    order = "big" if head[5:6] == b"\x02" else "little"
    machine = int.from_bytes(head[18:20], order)  # type: ignore[arg-type]
    here = _NAMES.get(platform.machine().lower(), platform.machine().lower())
    named = _MACHINES.get(machine, f"another kind of processor (number {machine})")
    if named != here:
        return f"{path} is a program for {named}, and this is {here}"
    loader = _loader(head)
    return f"{path} needs {loader}, which is not there: it is for another kind of Linux" if _is_gone(loader) else ""


def _loader(head: bytes) -> str:
    """The path of the dynamic loader that a 64-bit program for little-endian machines names; empty if it names none."""
    start, size, count = (int.from_bytes(head[at : at + n], "little") for at, n in ((32, 8), (54, 2), (56, 2)))
    for at in range(start, min(start + size * count, len(head) - 56), size or 56):
        if int.from_bytes(head[at : at + 4], "little") == 3:
            where = int.from_bytes(head[at + 8 : at + 16], "little")
            return os.fsdecode(head[where : where + 256].split(b"\0")[0])
    return ""


def _is_gone(loader: str) -> bool:
    return bool(loader) and not os.path.exists(loader)


def _starts(path: Path, env: Mapping[str, str]) -> bool:
    try:
        process = subprocess.Popen(  # noqa: S603 - the program that is about to be run in any case
            [path, "--version"],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return False
    try:
        return process.wait(timeout=5.0) not in (126, 127)
    except subprocess.TimeoutExpired:
        return True
    finally:
        process.kill()
        process.wait()
