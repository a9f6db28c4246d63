"""Finds the program of Codex, prepares its rollout (its file of the conversation), and builds the command line for a
prompt.

Codex is always told to resume a conversation, never to begin one, so that the key is known before the first prompt. For
a new conversation an empty rollout is written first.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from clew.errors import InvalidInput
from clew.providers.base import Command, Job, Permissions, Place, Program
from clew.providers.codex.rollout import (
    MARKS,
    SEEN_VERSION,
    append,
    checked,
    codex_home,
    contents,
    locate,
    meta_line,
    path_for,
    record_of,
    rows,
    unpacked,
)
from clew.providers.fields import values
from clew.providers.files import make_folder, put, remembered
from clew.providers.process import on_path, printed_version, problem_of

__all__ = ["command", "find_program", "prepare"]


_LONGEST_ARGUMENT = 131_000
"""The longest command line argument in bytes, a little below the 128 KiB that Linux allows."""
_INSTRUCTIONS = "generic.developer_instructions"
"""The mark that Codex gives a text in its conversation file if the text came from its setting `developer_instructions`.
"""

_PERMISSIONS: dict[Permissions, tuple[str, ...]] = {
    "read": ("-c", 'sandbox_mode="read-only"', "-c", 'approval_policy="never"'),
    "edit": (
        *("-c", 'sandbox_mode="workspace-write"', "-c", 'approval_policy="never"'),
        *("-c", "sandbox_workspace_write.exclude_slash_tmp=true"),
        *("-c", "sandbox_workspace_write.exclude_tmpdir_env_var=false"),
    ),
    "full": ("--dangerously-bypass-approvals-and-sandbox",),
}
"""Command line options for each permission. Codex's mode `workspace-write`, used for `edit`, by default also lets
commands write to /tmp and to the folder that TMPDIR names, where files of other work lie. So /tmp is excluded, and
TMPDIR is set to a folder of this conversation alone, because most programs need a temporary folder."""


_SYSTEMS = {"linux": "linux", "darwin": "darwin", "win32": "win32"}
_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:-(?:alpha|beta|rc)[\w.]*)?")


def find_program(env: Mapping[str, str]) -> Program | None:
    """Find the native executable behind `codex` on the PATH of this environment. Returns None if `codex` is not there.
    If it is there but cannot be run, `problem` of the result says why."""
    found = on_path("codex", env)
    if found is None:
        return None
    path = found.resolve()
    native = _behind(path) if path.suffix == ".js" else path
    if native is None:
        return Program(path, "", f"{path} needs npm's package with the program for this system, which is missing")
    if problem := problem_of(native, env):
        return Program(native, "", problem)
    return Program(native, remembered(native, lambda: _version(native, env)))


def _behind(script: Path) -> Path | None:
    """Return the native executable that npm's script `codex` would run. It is looked for in npm's package for this
    system, which lies beside or below the script's own package. Returns None if it is not there."""
    package = script.parent.parent
    name = f"codex-{_SYSTEMS.get(sys.platform, '')}-{_MACHINES.get(platform.machine().lower(), '')}"
    roots = (package.parent / name, package / "node_modules" / "@openai" / name, package)
    for root in roots:
        for binary in sorted(root.glob("vendor/*/bin/codex")) + sorted(root.glob("vendor/*/codex/codex")):
            if binary.is_file():
                return binary.resolve()
    return None


def _version(native: Path, env: Mapping[str, str]) -> str:
    """Return the version of Codex: from `codex-package.json`, a file of the package in which the program `native` was
    installed, or else from what the program prints. Empty if neither names a version. `env` is the environment to run
    the program in."""
    try:
        described = record_of((native.parent.parent / "codex-package.json").read_bytes())
    except OSError:
        described = None
    said = values(described).get("version")
    if not isinstance(said, str):
        said = printed_version(native, env)
    found = _VERSION.search(said)
    return found.group() if found else ""


def prepare(place: Place, program: Program, job: Job) -> None:
    """Prepare this machine for running the command line that `command` builds. A job is one prompt, with the key of its
    conversation.

    If the conversation has no rollout (Codex's file of one conversation) on this machine, an empty one is created.
    Codex tells the model the system prompt in the first exchange only, so a system prompt that has changed since is
    appended to the rollout as a developer message. With permission `edit` the folder for the commands' temporary files
    is created.
    """
    home = codex_home(place)
    path = locate(home, checked(job.key))
    if job.permissions == "edit":
        make_folder(_temporary_folder(place, job.key))
    if path is None:
        moment = datetime.now(UTC)
        put(
            path_for(home, job.key, moment), meta_line(job.key, str(place.cwd), moment, program.version or SEEN_VERSION)
        )
    elif job.system_prompt and _given_instructions(path) not in (None, job.system_prompt):
        content = [{"type": "input_text", "text": job.system_prompt}]
        marks = {"content_item_kinds": [_INSTRUCTIONS]}
        message = {"type": "message", "role": "developer", "content": content}
        append(unpacked(path), "response_item", {**message, MARKS: marks})


def _given_instructions(path: Path) -> str | None:
    """Return the system prompt that the model was given last in a conversation; "" if it was given none. `path` is the
    conversation's file. Returns None if the conversation has no exchange yet, because Codex gives the system prompt
    with the first one."""
    told: str | None = None
    for row in rows(contents(path)):
        if b'"turn_context"' in row or b'"developer"' in row:
            record = record_of(row) or {}
            payload = values(record.get("payload"))
            if record.get("type") == "turn_context":
                told = told or ""
            elif record.get("type") == "response_item":
                told = _instructions([payload], told)
            elif record.get("type") == "compacted":
                told = _instructions(payload.get("replacement_history"), told)
    return told


def _instructions(items: object, told: str | None) -> str | None:
    for item in items if isinstance(items, list) else []:
        marks = values(values(item).get(MARKS))
        kinds, content = marks.get("content_item_kinds"), values(item).get("content")
        if isinstance(kinds, list) and isinstance(content, list):
            for kind, part in zip(kinds, content, strict=False):
                if kind == _INSTRUCTIONS:
                    told = str(values(part).get("text", ""))
    return told


def command(place: Place, program: Program, job: Job) -> Command:
    """Build the command line for a job, which is one prompt with the key of its conversation. Raises `InvalidInput` if
    the prompt is empty, a text cannot be encoded as UTF-8, or the system prompt is too long for a command line.

    The prompt goes to the standard input, where it may have any size and begin with a dash. A system prompt is added to
    Codex's own instructions, and replaces `developer_instructions` in the user's configuration for this run.
    """
    argv = [str(program.path), "exec", "resume", "--json", "--skip-git-repo-check", *_PERMISSIONS[job.permissions]]
    if job.model:
        argv += ["--model", job.model]
    if job.system_prompt:
        argv += ["-c", _setting("developer_instructions", job.system_prompt)]
    argv += [*job.options, "--", checked(job.key), "-"]
    env = {"TMPDIR": str(_temporary_folder(place, job.key))} if job.permissions == "edit" else {}
    return Command(tuple(argv), _bytes(job.prompt, "the prompt"), env)


def _temporary_folder(place: Place, key: str) -> Path:
    """Return the folder for temporary files of one conversation. With permission `edit`, commands may write there and
    in the working folder only. The folder lies in Clew's cache and is deleted there after 14 days without use."""
    return place.cache / "providers" / "codex" / f"{checked(key)}.tmp"


def _setting(name: str, text: str) -> str:
    """Return a setting for the command line, as `name="text"` in TOML. Strings are escaped as in JSON, and the
    character DEL too. Raises `InvalidInput` if the setting is too long for a command line."""
    setting = f"{name}={json.dumps(text, ensure_ascii=False)}".replace("\x7f", "\\u007f")
    size = len(_encoded(setting, "the system prompt"))
    if size > _LONGEST_ARGUMENT:
        raise InvalidInput(
            f"the system prompt has {size} bytes, and Codex takes at most {_LONGEST_ARGUMENT}. "
            "Put long instructions into an AGENTS.md in its working folder."
        )
    return setting


def _bytes(prompt: str, what: str) -> bytes:
    if not prompt.strip():
        raise InvalidInput("the prompt is empty, and Codex needs one. Say what is to be done.")
    return _encoded(prompt, what)


def _encoded(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what} holds half a surrogate pair at {error.start}, which UTF-8 cannot encode") from error
