"""Running Claude Code: the program, and the command line for a prompt."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from clew.errors import InvalidInput
from clew.providers.base import Command, Job, Permissions, Place, Program
from clew.providers.claude_code import storage
from clew.providers.claude_code.rows import end_line, has_conversation
from clew.providers.claude_code.storage import checked, config_dir, locate, session_files
from clew.providers.files import put, remembered
from clew.providers.process import is_binary, on_path, problem_of

__all__ = ["command", "find_program", "prepare"]

_PRINTING = ("-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages")
_LOOKING = "Read,Glob,Grep,WebFetch,WebSearch,Task"
"""Tools that change nothing. Without the shell, the program brings its own for searching files."""
_PERMISSIONS: dict[Permissions, tuple[str, ...]] = {
    "read": ("--permission-mode", "dontAsk", "--tools", _LOOKING, "--strict-mcp-config"),
    "edit": ("--permission-mode", "acceptEdits"),
    "full": ("--permission-mode", "bypassPermissions"),
}
_LONGEST_ARGUMENT = 100_000
"""Bytes. Linux takes 128 KiB; what is longer goes by a file."""
_PATIENCE = 5.0
"""Seconds in which a program must say its version; else it has none."""


def find_program(place: Place) -> Program | None:
    """The program that the place's PATH has as `claude`. Where npm was told to run no scripts, what is there is a stub,
    and the program itself lies in a package beside it."""
    found = on_path("claude", place.env)
    if found is None:
        return None
    path = found.resolve()
    if not is_binary(path):
        path = next((beside for beside in _beside(path) if is_binary(beside)), path)
    if problem := problem_of(path, place.env):
        return Program(path, "", problem)
    return Program(path, remembered(path, lambda: _version(path, place)))


def _beside(stub: Path) -> list[Path]:
    package = stub.parent.parent
    homes = (package.parent, package / "node_modules" / "@anthropic-ai")
    return sorted(path for home in homes for path in home.glob("claude-code-*/claude*") if path.suffix in ("", ".exe"))


def _version(path: Path, place: Place) -> str:
    """As the package says it, or the name of the file in the program's own installation; else the program is asked."""
    for folder in path.parents[:2]:
        try:
            package = json.loads((folder / "package.json").read_text())
        except (OSError, ValueError):
            continue
        if isinstance(package, dict) and str(package.get("name", "")).startswith("@anthropic-ai/claude-code"):
            return str(package.get("version", ""))
    if path.name[:1].isdigit():
        return path.name
    return _asked(path, place)


def _asked(path: Path, place: Place) -> str:
    try:
        answer = subprocess.run(  # noqa: S603 - the program that is about to be run in any case
            [path, "--version"],
            env=dict(place.env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.decode(errors="replace").strip().split(" ")[0]


def prepare(place: Place, job: Job) -> None:
    """Make room for the key and mend what a crash left behind. The program fixes the key itself, by an option, but only
    if there is no file of that name; and it writes on where a torn row ends, with which the next one would be lost."""
    _check(job)
    for path in list(session_files(place, checked(job.key))):
        if has_conversation(path):
            end_line(path)
        else:
            storage.set_aside(path)
    if _is_long(job.system_prompt):
        put(_system_prompt_file(place, job.key), job.system_prompt.encode())


def command(place: Place, program: Program, job: Job) -> Command:
    """The prompt goes by the standard input, which takes any length and any first letter. A session is resumed by its
    path: by its id, the program would find it only in the folder it was begun in."""
    _check(job)
    path = locate(place, job.key)
    argv = [str(program.path), *_PRINTING]
    argv += ["--resume", str(path)] if path else ["--session-id", job.key]
    argv += _PERMISSIONS[job.permissions]
    if job.model:
        argv += ["--model", job.model]
    if _is_long(job.system_prompt):
        argv += ["--append-system-prompt-file", str(_system_prompt_file(place, job.key))]
    elif job.system_prompt:
        argv += ["--append-system-prompt", job.system_prompt]
    return Command((*argv, *job.options), job.prompt.encode())


def _check(job: Job) -> None:
    if not job.prompt.strip():
        raise InvalidInput("a prompt of nothing but white space: Claude Code answers none")
    for what, text in [("model", job.model), ("system prompt", job.system_prompt), *_named(job.options)]:
        if "\0" in text:
            raise InvalidInput(f"the {what} has a NUL character in it, which no command line can hold")
    for what, text in [("prompt", job.prompt), ("system prompt", job.system_prompt)]:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"the {what} has half a surrogate pair in it, which is no text") from None


def _named(options: tuple[str, ...]) -> list[tuple[str, str]]:
    return [("option", option) for option in options]


def _is_long(text: str) -> bool:
    return len(os.fsencode(text)) > _LONGEST_ARGUMENT


def _system_prompt_file(place: Place, key: str) -> Path:
    return config_dir(place) / "clew" / f"system-prompt-{key}.md"
