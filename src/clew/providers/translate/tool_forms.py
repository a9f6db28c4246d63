"""Describes the tools of each agent: of which kind each is, and what its arguments are called. To translate a call, its
arguments are converted from one agent's names and values to common ones, and from those to the other agent's.

Names and arguments are those that the programs offer their models: Claude Code 2.1, Codex 0.166, opencode 1.18, and
some that older versions or other models have.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["SIDES", "Fields", "Form"]

Fields = dict[str, Any]
_SHELLS = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/bin/zsh"})


class Form(NamedTuple):
    """One tool of one agent. Its `kind`, such as `shell` or `edit`, says which tools of other agents do the same. If an
    agent has several tools of a kind, calls that are translated for this agent become calls of the first. The others
    serve only to recognise calls that this agent made."""

    name: str
    kind: str
    arguments: Mapping[str, str]
    """Maps the agent's own name of each argument to the common name."""
    read: Callable[[Fields], Fields] | None = None
    """Converts the agent's values to the common ones, after the arguments were renamed. Values that cannot be converted
    are left out. None: the values need no conversion."""
    write: Callable[[Fields], Fields] | None = None
    fits: Callable[[Fields], bool] = lambda fields: True
    """Returns whether the tool can express these arguments, which have the common names. If not, the call is not
    translated."""


def _read_seconds(fields: Fields) -> Fields:
    return _timed(fields, lambda value: value * 1000)


def _write_seconds(fields: Fields) -> Fields:
    return _timed(fields, lambda value: value / 1000)


def _timed(fields: Fields, change: Callable[[float], float]) -> Fields:
    value = fields.pop("timeout", None)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**40:
        changed = change(value)
        fields["timeout"] = int(changed) if float(changed).is_integer() else changed
    return fields


def _read_words(fields: Fields) -> Fields:
    """Convert the argument `command` in `fields`, the arguments of a call, from a list of words to one command line. If
    the words call a shell with one command line, as in `bash -lc …`, that command line is used."""
    words = fields.get("command")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return fields
    if len(words) == 3 and words[0] in _SHELLS and words[1] in ("-c", "-lc"):
        return {**fields, "command": words[2]}
    return {**fields, "command": shlex.join(words)}


def _is_line(value: Any) -> bool:
    return type(value) is int and value >= 1


def _read_range(fields: Fields) -> Fields:
    """Convert the range of lines in `fields`, the arguments of a call. When this is called, `start` is the first line
    and `count` the last one; in the result, `count` is the number of lines. Without a valid range, `count` is left
    out."""
    start, end = fields.get("start", 1), fields.pop("count", None)
    if _is_line(start) and _is_line(end) and end >= start:
        fields["count"] = end - start + 1
    return fields


def _write_range(fields: Fields) -> Fields:
    start, count = fields.get("start", 1), fields.pop("count", None)
    if _is_line(start) and _is_line(count):
        fields["count"] = start + count - 1
    return fields


def _is_single(fields: Fields) -> bool:
    return fields.get("all", False) is False


def _is_patch(fields: Fields) -> bool:
    return isinstance(fields.get("patch"), str)


def _read_ignore_pattern(fields: Fields) -> Fields:
    """Convert the file name pattern in `fields`, the arguments of a call, from the rules of .gitignore to common ones.
    A bare name gets `**/` before it, since it matches at any depth. A missing pattern becomes one that matches all
    files."""
    pattern = fields.get("pattern", "*")
    if isinstance(pattern, str) and pattern:
        at_root = pattern.startswith("/") and "/" not in pattern[1:]
        fields["pattern"] = pattern[1:] if at_root else pattern if "/" in pattern else f"**/{pattern}"
    return fields


def _write_ignore_pattern(fields: Fields) -> Fields:
    pattern = fields.pop("pattern")
    if pattern == "**/*":
        return fields
    anywhere = pattern.startswith("**/") and "/" not in pattern[3:] and pattern != "**/"
    return {"pattern": pattern[3:] if anywhere else pattern if "/" in pattern else f"/{pattern}", **fields}


def _is_ignore_pattern(fields: Fields) -> bool:
    pattern = fields.get("pattern")
    if not isinstance(pattern, str) or not pattern or pattern.endswith(("/", " ")):
        return False
    return not any(character in pattern for character in "{}!#\\")


_AGENTS = {"general-purpose": "general", "Explore": "explore"}


def _renamed(fields: Fields, names: Mapping[str, str]) -> Fields:
    kind = fields.get("agent")
    return {**fields, "agent": names.get(kind, kind)} if isinstance(kind, str) else fields


def _with_list(form: Form, keys: Mapping[str, str]) -> Form:
    """Return a copy of `form`, which describes a tool of an agent, for a tool with a list of objects, such as edits, as
    an argument. A call is translated from the agent's names to common names, and from these to the names of another
    agent. With the copy, this is also done to the keys of the objects: `keys` maps the agent's own names to the common
    ones. When a call is translated for this agent, keys without a name in `keys` are dropped."""
    common = {here: there for there, here in keys.items()}
    name = next(iter(set(form.arguments.values()) - {"path"}))

    def read(fields: Fields) -> Fields:
        return _each(fields, name, lambda item: {keys.get(key, key): value for key, value in item.items()})

    def write(fields: Fields) -> Fields:
        return _each(fields, name, lambda item: {common[key]: value for key, value in item.items() if key in common})

    return form._replace(read=read, write=write)


def _each(fields: Fields, name: str, change: Callable[[Fields], Fields]) -> Fields:
    items = fields.get(name)
    if not isinstance(items, list):
        return fields
    return {**fields, name: [change(item) if isinstance(item, dict) else item for item in items]}


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_COMMAND = _same("command", "timeout", "description")
_FETCH = _same("url")
_EDITS = {"old_string": "old", "new_string": "new", "replace_all": "all"}
_TASK = {"description": "description", "prompt": "prompt", "subagent_type": "agent"}

_CLAUDE_CODE = (
    Form("Bash", "shell", _COMMAND),
    Form("Read", "read", {"file_path": "path", "offset": "start", "limit": "count"}),
    Form("Write", "write", {"file_path": "path", "content": "content"}),
    Form("Edit", "edit", {"file_path": "path", **_EDITS}),
    _with_list(Form("MultiEdit", "edits", {"file_path": "path", "edits": "edits"}), _EDITS),
    Form("Glob", "glob", _same("pattern", "path")),
    Form("Grep", "grep", {"pattern": "pattern", "path": "path", "glob": "include"}),
    Form("WebFetch", "fetch", _FETCH),
    Form("WebSearch", "search", _same("query")),
    _with_list(Form("TodoWrite", "todos", _same("todos")), _same("content", "status", "activeForm")),
    Form("Agent", "task", _TASK),
    Form("Task", "task", _TASK),
    Form("Skill", "skill", {"skill": "name"}),
    Form("apply_patch", "patch", {"input": "patch"}, fits=_is_patch),
)
_CODEX = (
    Form("exec_command", "shell", {"cmd": "command", "workdir": "folder"}),
    Form("shell_command", "shell", {"command": "command", "workdir": "folder", "timeout_ms": "timeout"}),
    Form("shell", "shell", {"command": "command", "workdir": "folder", "timeout_ms": "timeout"}, _read_words),
    _with_list(Form("update_plan", "todos", {"plan": "todos"}), {"step": "content", "status": "status"}),
    Form("apply_patch", "patch", {"input": "patch"}, fits=_is_patch),
)
_OPENCODE = (
    Form("bash", "shell", {**_COMMAND, "workdir": "folder"}),
    Form("read", "read", {"filePath": "path", "offset": "start", "limit": "count"}),
    Form("write", "write", {"filePath": "path", "content": "content"}),
    Form("edit", "edit", {"filePath": "path", "oldString": "old", "newString": "new", "replaceAll": "all"}),
    Form("glob", "glob", _same("pattern", "path")),
    Form("grep", "grep", _same("pattern", "path", "include")),
    Form("webfetch", "fetch", _FETCH),
    Form("websearch", "search", _same("query")),
    _with_list(Form("todowrite", "todos", _same("todos")), _same("content", "status", "priority", "id")),
    Form(
        "task",
        "task",
        _TASK,
        lambda fields: _renamed(fields, {there: here for here, there in _AGENTS.items()}),
        lambda fields: _renamed(fields, _AGENTS),
    ),
    Form("skill", "skill", _same("name")),
    Form("apply_patch", "patch", {"patchText": "patch"}, fits=_is_patch),
)
_CLEW = (
    Form("run_command", "shell", _same("command", "timeout"), _read_seconds, _write_seconds),
    Form("read_file", "read", {"path": "path", "start_line": "start", "end_line": "count"}, _read_range, _write_range),
    Form("write_file", "write", _same("path", "content")),
    Form("edit_file", "edit", {"path": "path", "old_text": "old", "new_text": "new"}, fits=_is_single),
    Form(
        "list_files", "glob", _same("pattern", "path"), _read_ignore_pattern, _write_ignore_pattern, _is_ignore_pattern
    ),
    Form("apply_patch", "patch", {"input": "patch"}, fits=_is_patch),
)
SIDES: Mapping[str, tuple[Form, ...]] = {
    "claude_code": _CLAUDE_CODE,
    "codex": _CODEX,
    "opencode": _OPENCODE,
    "clew": _CLEW,
}
