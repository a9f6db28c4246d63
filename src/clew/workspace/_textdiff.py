"""Unified diffs of text, as `patch` and `git apply` read them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

__all__ = ["as_lines", "unified"]

_CONTEXT = 3
_MOST_LINES = 10_000
"""Between the first and the last line that differs: beyond, a matching line by line could take minutes."""
_NO_END = "\\ No newline at end of file\n"

Opcode = tuple[str, int, int, int, int]


def as_lines(data: bytes) -> list[str] | None:
    """The lines of a text with their ends; None for what is not text in UTF-8."""
    if b"\0" in data:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def unified(old: Sequence[str], new: Sequence[str], old_name: str, new_name: str) -> str:
    """A diff from old to new lines. The names are what stands in its head: `a/path`, or `/dev/null`."""
    parts = [f"--- {old_name}\n+++ {new_name}\n"]
    for group in _grouped(_opcodes(old, new)):
        first, last = group[0], group[-1]
        parts.append(f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n")
        for kind, a, b, c, d in group:
            if kind == "equal":
                parts += [_line(" ", line) for line in old[a:b]]
                continue
            parts += [_line("-", line) for line in old[a:b]]
            parts += [_line("+", line) for line in new[c:d]]
    return "".join(parts)


def _line(sign: str, line: str) -> str:
    return sign + line if line.endswith("\n") else f"{sign}{line}\n{_NO_END}"


def _range(start: int, stop: int) -> str:
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _opcodes(old: Sequence[str], new: Sequence[str]) -> list[Opcode]:
    """What `SequenceMatcher` says, which is only asked about what lies between the first and the last difference."""
    shorter = min(len(old), len(new))
    start = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    same = next((i for i in range(shorter - start) if old[-1 - i] != new[-1 - i]), shorter - start)
    old_middle, new_middle = old[start : len(old) - same], new[start : len(new) - same]
    if max(len(old_middle), len(new_middle)) > _MOST_LINES:
        middle = [("replace", 0, len(old_middle), 0, len(new_middle))]
    else:
        middle = list(SequenceMatcher(None, old_middle, new_middle).get_opcodes())
    return [
        ("equal", 0, start, 0, start),
        *((kind, a + start, b + start, c + start, d + start) for kind, a, b, c, d in middle),
        ("equal", len(old) - same, len(old), len(new) - same, len(new)),
    ]


def _grouped(opcodes: list[Opcode]) -> Iterator[list[Opcode]]:
    """Differences with a few equal lines around them; those that are close to each other together."""
    group: list[Opcode] = []
    for number, (kind, a, b, c, d) in enumerate(opcodes):
        if kind != "equal":
            group.append((kind, a, b, c, d))
            continue
        if number > 0 and group:
            if number < len(opcodes) - 1 and b - a <= 2 * _CONTEXT:
                group.append((kind, a, b, c, d))
                continue
            group.append((kind, a, min(b, a + _CONTEXT), c, min(d, c + _CONTEXT)))
            yield group
            group = []
        if number < len(opcodes) - 1:
            group.append((kind, max(a, b - _CONTEXT), b, max(c, d - _CONTEXT), d))
    if any(opcode[0] != "equal" for opcode in group):
        yield group
