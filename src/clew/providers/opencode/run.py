"""Finds the program of opencode, prepares its session, and builds the command line and settings for a prompt."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from clew import advice
from clew.errors import InvalidInput, ProviderMissing, Unavailable
from clew.providers.base import Command, Job, Permissions, Place, Program
from clew.providers.fields import values
from clew.providers.files import put_if_changed, remembered
from clew.providers.opencode.convert import session_row
from clew.providers.opencode.database import checked, database_path, now, open_to_read, open_to_write, real, settle
from clew.providers.opencode.installation import insert_session
from clew.providers.process import is_binary, on_path, printed_version, problem_of

__all__ = ["command", "decode_jsonc", "find_program", "make_database", "prepare"]


_SETTINGS = "OPENCODE_CONFIG_CONTENT"
_SLOWEST = 120.0
_ALONE: dict[str, Any] = {"question**": "deny", "plan_**": "deny"}
_CONFINED: dict[str, Any] = {**_ALONE, "bash**": "deny", "*_*": "deny"}
_SECRETS = {"*.env": "deny", "*.env.*": "deny", "*.env.example": "allow"}
_RULES: dict[Permissions, dict[str, Any]] = {
    "read": {**_CONFINED, "edit**": "deny", "read**": _SECRETS},
    "edit": _CONFINED,
    "full": _ALONE,
}
"""The permission rules for opencode that each of Clew's permissions adds. Questions to the user are denied because
nobody is there to answer. `*_*` matches the permission to leave the working folder, and the tools of MCP servers, which
can do anything.

opencode applies the last rule that matches. A rule of a new name comes after all rules in the user's settings, but a
rule of a known name replaces the user's. So these names are spelt as no user spells them, such as `edit**`: the rules
come last, and what the user denies stays denied.
"""
_AGENTS = ("build", "plan", "general", "explore")
"""Agents of opencode for which the user's settings may hold permission rules of their own. Such rules would come after
the general ones, so Clew's rules are added to those of each agent too."""


def find_program(place: Place) -> Program | None:
    """Find the native executable behind `opencode` on the PATH of the environment in `place`. Returns None if
    `opencode` is not there. If it is there but cannot be run, `problem` of the result says why."""
    found = on_path("opencode", place.env)
    if found is None:
        return None
    path = Path(os.path.realpath(found))
    native = path if is_binary(path) else _behind(path, place)
    if problem := problem_of(native, place.env):
        return Program(native, "", problem)
    return Program(native, remembered(native, lambda: _version(native, place)))


def _behind(script: Path, place: Place) -> Path:
    """Return the native executable that the script `opencode` starts. It is looked for where OPENCODE_BIN_PATH in the
    environment of `place` says, then in npm's packages near the script. Returns the script itself if there is none."""
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
    """Return the names of the npm packages that may hold the native executable for this machine's system and processor.
    The one that suits the machine best comes first."""
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
    """Return the version of the program at `native`. The npm package names it, which is fast to read; otherwise the
    program is run, in the environment of `place`, to ask it. Empty if both fail."""
    package = native.parent.parent / "package.json"
    try:
        said = values(msgspec.json.decode(package.read_bytes()))
        if str(said.get("name", "")).startswith("opencode") and isinstance(said.get("version"), str):
            return str(said["version"])
    except (OSError, msgspec.DecodeError):
        pass
    return printed_version(native, place.env)


def prepare(program: Program, job: Job, place: Place) -> None:
    """Prepare this machine for running the command line that `command` builds. A job is one prompt, with the key of its
    session.

    Creates opencode's database and a session of that key if they are missing, assigns the session to the working folder
    of `place`, and writes the system prompt to a file for opencode. Raises `InvalidInput` if the prompt is empty.
    """
    if not job.prompt.strip():
        raise InvalidInput("the prompt is empty, and opencode needs one. Say what is to be done.")
    checked(job.key)
    path = make_database(program, place)
    cwd = real(place.cwd)
    query = "SELECT directory FROM session WHERE id = ?"
    with open_to_read(path) as connection:
        found = connection.execute(query, (job.key,)).fetchone()
    if found is None or found[0] != cwd:
        with open_to_write(path) as connection:
            if connection.execute(query, (job.key,)).fetchone() is None:
                began = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
                row = session_row(job.key, f"New session - {began}", now(), now())
                insert_session(connection, row, place.cwd)
            else:
                settle(connection, job.key, place.cwd)
    if job.system_prompt:
        put_if_changed(_instructions(place, job.key), job.system_prompt.encode())


def make_database(program: Program | None, place: Place) -> Path:
    """Return the path of opencode's database. If there is none, run opencode once so that it makes one, because only
    opencode knows its schema. Raises `Unavailable` or `ProviderMissing` if that fails."""
    path = database_path(place)
    if path.exists() and path.stat().st_size:
        return path
    if program is None:
        raise Unavailable(
            f"opencode is not installed, and has no database here. Install it: {advice.install_program('opencode')}"
        )
    if program.problem:
        raise ProviderMissing("opencode", advice.install_program("opencode"), program.problem)
    place.cwd.mkdir(parents=True, exist_ok=True)
    try:
        made = subprocess.run(  # noqa: S603 - the program that the user installed, found by its path
            [program.path, "db", "path"],
            cwd=place.cwd,
            env=dict(place.env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SLOWEST,
        )
    except OSError as error:
        problem = f"{program.path}: {error.strerror}"
        raise ProviderMissing("opencode", advice.install_program("opencode"), problem) from error
    except subprocess.TimeoutExpired:
        raise Unavailable(f"opencode did not make its database {path} within {_SLOWEST:.0f} s. Try again.") from None
    if not path.exists():
        said = made.stderr.decode(errors="replace").strip()[-300:]
        raise Unavailable(f"opencode made no database {path} (status {made.returncode}): {said}")
    return path


def command(program: Program, job: Job, place: Place) -> Command:
    """Build the command line for a job, which is one prompt with the key of its session. The permissions and the system
    prompt are passed as settings in an environment variable of the command."""
    cwd = real(place.cwd)
    argv = [str(program.path), "run", "--format", "json", "--thinking", "--session", checked(job.key), "--dir", cwd]
    if job.permissions != "read":
        argv.append("--auto")  # otherwise a tool that the settings ask about ends the exchange
    if job.model:
        argv += ["--model", job.model]
    settings = msgspec.json.encode(_settings(job, place)).decode()
    return Command((*argv, *job.options), job.prompt.encode(), {_SETTINGS: settings, "PWD": cwd})


def _settings(job: Job, place: Place) -> dict[str, Any]:
    """Return opencode's settings for one job, which is one prompt. They are the settings that the user gives in an
    environment variable, with the job's permission rules and system prompt added. Raises `InvalidInput` if that
    variable does not hold a JSON object."""
    rules = _RULES[job.permissions]
    settings = _given(place)
    settings["permission"] = _over(settings.get("permission"), rules)
    agents = dict(values(settings.get("agent")))
    for agent in _AGENTS:
        own = dict(values(agents.get(agent)))
        own["permission"] = _over(own.get("permission"), rules)
        agents[agent] = own
    settings["agent"] = agents
    if job.system_prompt:
        given = settings.get("instructions")
        settings["instructions"] = [*(given if isinstance(given, list) else ()), str(_instructions(place, job.key))]
    return settings


def _over(given: Any, rules: dict[str, Any]) -> dict[str, Any]:
    """Return the permission rules in the user's settings, `given`, with `rules` added. If both have a rule for the same
    tool, that of `rules` is used. If the settings have a single word in place of rules, it is taken as the rule for all
    tools."""
    return {**({"*": given} if isinstance(given, str) else values(given)), **rules}


def _given(place: Place) -> dict[str, Any]:
    said = place.env.get(_SETTINGS, "")
    if not said.strip():
        return {}
    try:
        settings = decode_jsonc(said)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"the variable {_SETTINGS} is not valid JSON: {error}. Correct it, or unset it.") from None
    if not isinstance(settings, dict):
        raise InvalidInput(f"the variable {_SETTINGS} is not a JSON object. Correct it, or unset it.")
    return dict(settings)


def _instructions(place: Place, key: str) -> Path:
    """Return the path of the file to which a conversation's system prompt is written, because opencode reads additional
    instructions only from files. It lies in Clew's cache and may be deleted between prompts."""
    return place.cache / "opencode" / f"{checked(key)}.md"


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL)


def decode_jsonc(text: str) -> Any:
    """Decode JSON that may have comments and trailing commas. What looks like a comment inside a string is kept. Raises
    `msgspec.DecodeError` if the text is not valid."""
    bare = _TOKEN.sub(lambda match: match[0] if match[0].startswith('"') else " ", text)
    try:
        return msgspec.json.decode(_COMMA.sub(lambda match: match[1] or "", bare))
    except (UnicodeError, RecursionError):
        raise msgspec.DecodeError("it is not UTF-8 text, or is nested too deeply") from None
