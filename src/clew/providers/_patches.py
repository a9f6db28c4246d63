"""Patches as Codex writes them, and the plain edits that some of them are.

    *** Begin Patch
    *** Update File: notes.txt
    @@
     a line that stays
    -a line that goes
    +a line that comes
    *** End Patch

Only what means exactly the same is turned into the other: a patch of one file, with nothing but whole lines. All else is
left as it is by whoever asks.
"""

from __future__ import annotations

import msgspec

__all__ = ["Change", "Edit", "Written", "as_patch", "from_patch"]

_BEGIN, _END = "*** Begin Patch", "*** End Patch"
_ADD, _UPDATE = "*** Add File: ", "*** Update File: "
_HUNK = "@@"


class Written(msgspec.Struct, frozen=True):
    """A file with a whole new content."""

    path: str
    content: str


class Edit(msgspec.Struct, frozen=True):
    """One text in place of another."""

    old: str
    new: str


class Change(msgspec.Struct, frozen=True):
    """Edits of one file, one after the other."""

    path: str
    edits: tuple[Edit, ...]


def from_patch(text: str) -> Written | Change | None:
    """What a patch does, if that can be said otherwise and said back to the letter."""
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
    """The patch that does the same; None if none does, for all that can be told from the texts."""
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
    """The texts before and after each hunk; none if a line is of another kind."""
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
    """The lines of a hunk: those that both texts begin with, what goes, what comes, and those that both end with."""
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
    """The lines of a text that is nothing but whole lines, with ends that a patch keeps."""
    if "\r" in text or (text and not text.endswith("\n")):
        return None
    return text.split("\n")[:-1]
