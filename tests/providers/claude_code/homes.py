"""Homes with sessions in them, made of what the real program wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

from clew.providers.base import Place
from clew.providers.claude_code import ClaudeCode

FIXTURES = Path(__file__).parent / "fixtures"
VERSION = "2.1.197"
SESSIONS = FIXTURES / VERSION / "sessions"
PRINTED = FIXTURES / VERSION / "stdout"


def machine(root: Path, **env: str) -> ClaudeCode:
    """Claude Code on a machine of its own: a home, and a folder to work in."""
    home, cwd = root / "home", root / "work"
    for folder in (home, cwd):
        folder.mkdir(parents=True, exist_ok=True)
    return ClaudeCode(Place(cwd, {"HOME": str(home), "PATH": str(root / "bin"), **env}))


def project(claude: ClaudeCode, name: str = "-home-user-work") -> Path:
    return claude.place.home / ".claude" / "projects" / name


def key_of(fixture: str) -> str:
    return next((SESSIONS / fixture).glob("*.jsonl")).stem


def keep(claude: ClaudeCode, fixture: str, name: str = "-home-user-work") -> Path:
    """Put a session where the program keeps it; its file."""
    shutil.copytree(SESSIONS / fixture, project(claude, name), dirs_exist_ok=True)
    return project(claude, name) / f"{key_of(fixture)}.jsonl"


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
