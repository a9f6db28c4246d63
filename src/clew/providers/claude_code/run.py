"""Finds the program of Claude Code, repairs the files that a killed run of it left behind, and builds the command line
for a prompt."""

from __future__ import annotations

import json
import os
from pathlib import Path

from clew.errors import InvalidInput
from clew.providers.base import Command, Job, Permissions, Place, Program
from clew.providers.claude_code import storage
from clew.providers.claude_code.rows import end_line, has_conversation
from clew.providers.claude_code.storage import checked, config_dir, locate, session_files
from clew.providers.files import put, remembered
from clew.providers.process import is_binary, on_path, printed_version, problem_of

__all__ = ["command", "find_program", "prepare"]

_PRINTING = ("-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages")
_LOOKING = "Read,Glob,Grep,WebFetch,WebSearch,Task"
"""The tools that permission `read` allows: those that change nothing. Without a shell tool, Claude Code adds file
search tools by itself."""
_PERMISSIONS: dict[Permissions, tuple[str, ...]] = {
    "read": ("--permission-mode", "dontAsk", "--tools", _LOOKING, "--strict-mcp-config"),
    "edit": ("--permission-mode", "acceptEdits"),
    "full": ("--permission-mode", "bypassPermissions"),
}
_LONGEST_ARGUMENT = 100_000
"""The longest system prompt, in bytes, that is passed as a command line argument. A longer one is passed in a file,
because Linux allows an argument at most 128 KiB."""


def find_program(place: Place) -> Program | None:
    """Find the program `claude` on the PATH of the environment in `place`. Returns None if it is not there. If it is
    there but cannot be run, `problem` of the result says why.

    If npm was not allowed to run install scripts, the entry on the PATH is only a stub. Then the real program is taken
    from npm's package for this system beside it.
    """
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
    """Return the version of the program at `path`: as the npm package beside it says, or as its file name says if it
    was installed by Claude Code's own installer. Otherwise run it, in the environment of `place`, to ask it; empty if
    it does not answer."""
    for folder in path.parents[:2]:
        try:
            package = json.loads((folder / "package.json").read_text())
        except (OSError, ValueError):
            continue
        if isinstance(package, dict) and str(package.get("name", "")).startswith("@anthropic-ai/claude-code"):
            return str(package.get("version", ""))
    if path.name[:1].isdigit():
        return path.name
    return printed_version(path, place.env).split(" ")[0]


def prepare(place: Place, job: Job) -> None:
    """Prepare this machine for running the command line that `command` builds. A job is one prompt, with the key (the
    session id) of its conversation.

    Claude Code refuses to begin a session if a file of that key exists, so a file without any message, which a killed
    program leaves, is renamed. If the last line of a session file was cut off, a newline is appended to it; otherwise
    the next line would be joined to it and lost. A system prompt that is too long for the command line is written to a
    file. Raises `InvalidInput` if the prompt is only white space, or if a text of the job holds characters that cannot
    be passed to a program.
    """
    _check(job)
    for path in list(session_files(place, checked(job.key))):
        if has_conversation(path):
            end_line(path)
        else:
            storage.set_aside(path)
    if _is_long(job.system_prompt):
        put(_system_prompt_file(place, job.key), job.system_prompt.encode())


def command(place: Place, program: Program, job: Job) -> Command:
    """Build the command line for a job, which is one prompt with the key (the session id) of its conversation. Raises
    `InvalidInput` if the prompt is only white space, or if a text of the job holds characters that cannot be passed to
    a program.

    The prompt goes to the standard input, which takes any length and any first character. A session is named by the
    path of its file, because Claude Code finds a session by its id only from the folder in which it began.
    """
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
        raise InvalidInput("the prompt is only white space, which Claude Code does not answer")
    for what, text in [("model", job.model), ("system prompt", job.system_prompt), *_named(job.options)]:
        if "\0" in text:
            raise InvalidInput(f"the {what} contains a NUL character, which no command line can hold")
    for what, text in [("prompt", job.prompt), ("system prompt", job.system_prompt)]:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"the {what} contains half a surrogate pair, which UTF-8 cannot encode") from None


def _named(options: tuple[str, ...]) -> list[tuple[str, str]]:
    return [("option", option) for option in options]


def _is_long(text: str) -> bool:
    return len(os.fsencode(text)) > _LONGEST_ARGUMENT


def _system_prompt_file(place: Place, key: str) -> Path:
    return config_dir(place) / "clew" / f"system-prompt-{key}.md"
