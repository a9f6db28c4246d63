"""Rewrites tool calls of one agent for another: with the names and arguments of the other agent's own tools, where it
has a tool of the same kind.

The arguments are converted to one common form, and from that to the other agent's. The calls have already happened and
are never run again. They are rewritten so that the next model finds calls as it would make them itself. A call of a
tool that the other agent has no counterpart for keeps its name, since every agent accepts unknown names in a
conversation.
"""

from __future__ import annotations

import json
import shlex
from typing import Any, NamedTuple

import msgspec

from clew.messages import ToolCall
from clew.providers.translate.tool_forms import SIDES, Fields, Form

__all__ = ["Change", "Edit", "Mapped", "Written", "as_patch", "from_patch", "map_call"]


_CUSTOM = {"openai-responses": {"type": "custom_tool_call"}}
"""Additional fields that mark a call whose argument is a text instead of an object. Codex calls its tool `apply_patch`
in this way."""
_RELATIVE = frozenset({"clew", "codex"})
"""Agents that name files relative to their working folder. All others use absolute paths."""
_OBJECTS_ONLY = frozenset({"claude_code", "opencode"})


class Mapped(NamedTuple):
    """A tool call rewritten for another agent. Each loss is a pair: what the other agent's tool cannot express, and
    why. If there are no losses, mapping the call back gives the original call."""

    call: ToolCall
    losses: tuple[tuple[str, str], ...] = ()


def map_call(call: ToolCall, source: str, target: str, *, cwd: str = "") -> Mapped:
    """Return a tool call of the agent `source` rewritten as a call of the agent `target`, and what was lost by that.
    Both are names of providers, or `clew` for the built-in agent.

    `cwd` is the conversation's working folder, for agents that name files relative to it. The id is kept. A call of an
    unknown tool keeps its name and arguments. If there are no losses, mapping the result back gives the same name and
    arguments.
    """
    if source == target:
        return Mapped(call)
    there, left = _carry(call, source, target, cwd)
    if left:
        why = f"{there.name} has no such argument"
        return Mapped(there, tuple((f"{_named(name)} of a call of {call.name}", why) for name in left))
    back, _ = _carry(there, target, source, cwd)
    if back.name != call.name or _spelt(back.arguments) != _spelt(call.arguments):
        return Mapped(there, ((f"the form of a call of {call.name}", f"{there.name} expresses it differently"),))
    return Mapped(there)


def _carry(call: ToolCall, source: str, target: str, cwd: str) -> tuple[ToolCall, list[str]]:
    """Return `call`, which the agent `source` made, rewritten as a call of the agent `target`, and the names of the
    arguments that the target's tool cannot express. `cwd` is the conversation's working folder."""
    form = _form_called(call.name, source)
    arguments = {"input": call.arguments} if _is_text_patch(call, source) else call.arguments
    if form is not None and isinstance(arguments, dict):
        fields, left = _read(form, arguments)
        if isinstance(fields.get("path"), str):
            fields["path"] = _path(fields["path"], source, target, cwd)
        written = _write(form.kind, fields, source, target, cwd)
        if written is not None:
            return _made(call, target, *written[:2]), left + written[2]
    if target in _OBJECTS_ONLY and not isinstance(call.arguments, dict):
        return ToolCall(call.id, call.name, {"input": call.arguments}), []
    return call, []


def _is_text_patch(call: ToolCall, source: str) -> bool:
    return source == "codex" and call.name == "apply_patch" and isinstance(call.arguments, str)


def _made(call: ToolCall, target: str, name: str, arguments: Fields) -> ToolCall:
    if target == "codex" and name == "apply_patch":
        return ToolCall(call.id, name, arguments["input"], _CUSTOM)
    return ToolCall(call.id, name, arguments)


def _form_called(name: str, side: str) -> Form | None:
    return next((form for form in SIDES.get(side, ()) if form.name == name), None)


def _form_for(kind: str, side: str) -> Form | None:
    return next((form for form in SIDES.get(side, ()) if form.kind == kind), None)


def _read(form: Form, arguments: Fields) -> tuple[Fields, list[str]]:
    fields = {form.arguments[name]: value for name, value in arguments.items() if name in form.arguments}
    left = [name for name in arguments if name not in form.arguments]
    if form.read is None:
        return fields, left
    read = form.read(dict(fields))
    return read, left + [name for name, common in form.arguments.items() if common in fields and common not in read]


def _write(kind: str, fields: Fields, source: str, target: str, cwd: str) -> tuple[str, Fields, list[str]] | None:
    """Return the name of the target's tool of the kind `kind` (such as `shell` or `edit`), its arguments, and the names
    of the arguments in `fields` that it cannot express. `fields` are the arguments under their common names, in a call
    that the agent `source` made. `cwd` is the conversation's working folder. Returns None if the target has no such
    tool, or if that tool cannot do what the call does."""
    if kind == "patch" and target != "codex":
        plain = _plain_change(fields, target, cwd)
        written = _write(*plain, source, target, cwd) if plain else None
        if written is not None and not written[2]:
            return written
    if kind in ("write", "edit", "edits") and target == "codex":
        patch = _patch_of(kind, fields)
        return None if patch is None else ("apply_patch", {"input": patch}, ["replace_all"] if "all" in fields else [])
    form = _form_for(kind, target)
    if form is None or not form.fits(fields):
        return None
    if kind == "shell" and "folder" in fields and "folder" not in form.arguments.values():
        fields = _in_its_folder(fields, cwd)
    if form.write is not None:
        fields = form.write(dict(fields))
    names = {common: name for name, common in form.arguments.items()}
    arguments = {names[common]: value for common, value in fields.items() if common in names}
    return form.name, arguments, [common for common in fields if common not in names]


def _plain_change(fields: Fields, target: str, cwd: str) -> tuple[str, Fields] | None:
    """Return the kind of tool (`write`, `edit` or `edits`) and the arguments, for the agent `target`, that do the same
    as a call of Codex that applies a patch. `fields` are the arguments of that call, with the patch under `patch`.
    `cwd` is the conversation's working folder. Returns None if the patch does anything else than write or edit one
    file."""
    text = fields.get("patch")
    change = from_patch(text) if isinstance(text, str) else None
    if change is None:
        return None
    path = _path(change.path, "codex", target, cwd)
    if _path(path, target, "codex", cwd) != change.path:
        return None
    if isinstance(change, Written):
        return "write", {"path": path, "content": change.content}
    if len(change.edits) == 1:
        return "edit", {"path": path, "old": change.edits[0].old, "new": change.edits[0].new}
    return "edits", {"path": path, "edits": [{"old": edit.old, "new": edit.new} for edit in change.edits]}


def _patch_of(kind: str, fields: Fields) -> str | None:
    """Return the text of a patch for Codex that does the same as a call which writes or edits a file. `kind` is the
    kind of the called tool (`write`, `edit` or `edits`), and `fields` are the arguments under their common names.
    Returns None if the arguments do not say enough for a patch, or ask for something that a patch cannot express."""
    path = fields.get("path")
    if not isinstance(path, str) or fields.get("all", False) is not False:
        return None
    if kind == "write":
        content = fields.get("content")
        return as_patch(Written(path, content)) if isinstance(content, str) else None
    edits = fields.get("edits") if kind == "edits" else [{"old": fields.get("old"), "new": fields.get("new")}]
    if not isinstance(edits, list) or not all(
        isinstance(edit, dict) and edit.keys() == {"old", "new"} for edit in edits
    ):
        return None
    if not all(isinstance(text, str) for edit in edits for text in edit.values()):
        return None
    return as_patch(Change(path, tuple(Edit(edit["old"], edit["new"]) for edit in edits)))


def _path(path: str, source: str, target: str, cwd: str) -> str:
    """Return a file path as the agent `target` writes it, given as the agent `source` writes it. An agent writes paths
    either relative to the working folder `cwd` or absolute. The path stays as it is if the working folder is unknown.
    """
    if not cwd.startswith("/") or cwd == "/" or (source in _RELATIVE) == (target in _RELATIVE):
        return path
    folder = cwd.rstrip("/")
    if target not in _RELATIVE:
        return path if path.startswith("/") or not path else folder if path == "." else f"{folder}/{path}"
    if path == folder:
        return "."
    inside = path.removeprefix(f"{folder}/")
    return path if inside.startswith("/") or not inside else inside


def _in_its_folder(fields: Fields, cwd: str) -> Fields:
    """Return `fields`, the arguments of a shell command, rewritten for a tool that has no argument for the folder to
    run in: `cd` to that folder is put before the command, unless it is the working folder `cwd`."""
    folder, command = fields["folder"], fields.get("command")
    if not isinstance(folder, str) or not isinstance(command, str):
        return fields
    there = {name: value for name, value in fields.items() if name != "folder"}
    return there if folder == cwd else {**there, "command": f"cd {shlex.quote(folder)} && {command}"}


def _named(argument: str) -> str:
    """Return words for the argument of this name, for a message that says what was lost: `the argument 'NAME'`, or, if
    the name is not an identifier of at most 40 characters, `an argument`. A model may have written any text as the
    name."""
    known = argument.isidentifier() and len(argument) <= 40
    return f"the argument {argument!r}" if known else "an argument"


def _spelt(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


_BEGIN, _END = "*** Begin Patch", "*** End Patch"
_ADD, _UPDATE = "*** Add File: ", "*** Update File: "
_HUNK = "@@"


class Written(msgspec.Struct, frozen=True):
    """The effect of a patch that writes a whole file: the path of the file, and its new content."""

    path: str
    content: str


class Edit(msgspec.Struct, frozen=True):
    """The replacement of one piece of a file's text by another."""

    old: str
    new: str


class Change(msgspec.Struct, frozen=True):
    """The effect of a patch that edits one file: the path of the file, and the edits, to be made one after the
    other."""

    path: str
    edits: tuple[Edit, ...]


def from_patch(text: str) -> Written | Change | None:
    """Parse `text`, a patch for Codex's tool `apply_patch`. Returns a `Written` if it writes one whole file, and a
    `Change` if it edits one file. Returns None if it does anything else, or if `as_patch` would not make the same text
    from the result."""
    lines = text.split("\n")
    if lines[:1] != [_BEGIN] or lines[-2:] != [_END, ""] or len(lines) < 5:
        return None
    head, body = lines[1], lines[2:-2]
    found: Written | Change | None = None
    if head.startswith(_ADD) and all(line.startswith("+") for line in body):
        found = Written(head.removeprefix(_ADD), "".join(f"{line[1:]}\n" for line in body))
    elif head.startswith(_UPDATE) and body[0] == _HUNK:
        edits = _edits(body)
        found = Change(head.removeprefix(_UPDATE), edits) if edits else None
    return found if found is not None and as_patch(found) == text else None


def as_patch(change: Written | Change) -> str | None:
    """Return the patch for Codex's tool `apply_patch` that makes this change; None if a patch cannot express it."""
    if not change.path or change.path != change.path.strip() or "\n" in change.path:
        return None
    if isinstance(change, Written):
        lines = _lines(change.content)
        body = [f"+{line}" for line in lines] if lines else None
        head = _ADD
    else:
        hunks = [_hunk(edit) for edit in change.edits]
        whole = [hunk for hunk in hunks if hunk is not None]
        body = [line for hunk in whole for line in hunk] if len(whole) == len(hunks) else None
        head = _UPDATE
    return "\n".join([_BEGIN, head + change.path, *body, _END, ""]) if body else None


def _edits(body: list[str]) -> tuple[Edit, ...]:
    """Return one edit for each hunk (changed place) of a patch: the text that the hunk replaces, and the text that it
    puts there. `body` are the lines of all hunks. The result is empty if a line is not valid in a hunk: it neither
    starts one nor begins with a space, `-` or `+`."""
    hunks: list[tuple[list[str], list[str]]] = []
    for line in body:
        if line == _HUNK:
            hunks.append(([], []))
        elif line[:1] not in (" ", "-", "+"):
            return ()
        else:
            old, new = hunks[-1]
            if line[0] != "+":
                old.append(line[1:] + "\n")
            if line[0] != "-":
                new.append(line[1:] + "\n")
    return tuple(Edit("".join(old), "".join(new)) for old, new in hunks)


def _hunk(edit: Edit) -> list[str] | None:
    """Return the lines of the patch hunk that makes this edit: unchanged lines at the beginning, removed lines, added
    lines, and unchanged lines at the end. Returns None if a patch cannot express the edit."""
    old, new = _lines(edit.old), _lines(edit.new)
    if not old or new is None or old == new:
        return None
    shorter = min(len(old), len(new))
    before = next((n for n in range(shorter) if old[n] != new[n]), shorter)
    after = next((n for n in range(shorter - before) if old[-1 - n] != new[-1 - n]), shorter - before)
    kept = [f" {line}" for line in old[:before]]
    gone = [f"-{line}" for line in old[before : len(old) - after]]
    come = [f"+{line}" for line in new[before : len(new) - after]]
    return [_HUNK, *kept, *gone, *come, *(f" {line}" for line in old[len(old) - after :])]


def _lines(text: str) -> list[str] | None:
    """Split a text into lines. Returns None if its last line has no newline or it has carriage returns, because a patch
    cannot express those."""
    if "\r" in text or (text and not text.endswith("\n")):
        return None
    return text.split("\n")[:-1]
