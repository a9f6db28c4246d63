"""Which rows of a session's file are the conversation: they form a tree, and the model sees the branch that ends last."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from clew.errors import Corrupt
from clew.providers.base import values
from clew.providers.claude_code.rows import Row, Rows, is_said

__all__ = ["Branch", "branch"]


class Branch(NamedTuple):
    rows: list[Row]
    """Messages, in their order."""
    is_compacted: bool
    """Whether there was more before: the branch begins with a summary of it."""


def branch(found: Rows, path: Path) -> Branch:
    """The messages from the last leaf back to the root, in their order, and the parts of the same responses that hang
    beside that line: each result of calls made at once is a child of its own call's row."""
    said = [row for row in found.rows if is_said(row)]
    if not said and found.damaged:
        raise _corrupt(found, path)
    if not said:
        return Branch([], False)
    line = _line(said[-1], found, path)
    rows = [row for row in _with_siblings(line, said) if is_said(row)]
    return Branch(rows, any(row.get("subtype") == "compact_boundary" for row in line))


def _line(leaf: Row, found: Rows, path: Path) -> list[Row]:
    by_id = {row["uuid"]: row for row in found.rows if isinstance(row.get("uuid"), str)}
    parents = _parents(found.rows)
    line: list[Row] = []
    seen: set[str] = set()
    row: Row | None = leaf
    while row is not None and row["uuid"] not in seen:
        line.append(row)
        seen.add(row["uuid"])
        parent = parents.get(row["uuid"])
        row = by_id.get(parent) if parent else None
        if parent and row is None and found.damaged:
            raise _corrupt(found, path)
    return line[::-1]


def _corrupt(found: Rows, path: Path) -> Corrupt:
    return Corrupt(
        f"{path}, line {found.damaged[0]} is damaged, and the conversation hangs on it. Take the file from a copy, or fork "
        "the thread at an earlier turn"
    )


def _parents(rows: list[Row]) -> dict[str, str | None]:
    """By a row's id, the row before it. What a compaction kept word for word stands where it always stood in the file,
    but is to be read behind the summary."""
    parents: dict[str, str | None] = {}
    for row in rows:
        if isinstance(row.get("uuid"), str):
            parents[row["uuid"]] = row["parentUuid"] if isinstance(row.get("parentUuid"), str) else None
    for boundary in (row for row in rows if row.get("subtype") == "compact_boundary"):
        kept = values(values(boundary.get("compactMetadata")).get("preservedSegment"))
        head, anchor, tail = (kept.get(name) for name in ("headUuid", "anchorUuid", "tailUuid"))
        if head in parents and tail in parents and isinstance(anchor, str):
            parents.update({child: tail for child, parent in parents.items() if parent == anchor})
            parents[head] = anchor
    return parents


def _with_siblings(line: list[Row], said: list[Row]) -> Iterable[Row]:
    """The line, with each response whole, and all results of its calls behind it."""
    taken = {row["uuid"] for row in line}
    responses: dict[str, list[Row]] = {}
    results: dict[str, list[Row]] = {}
    for row in said:
        if row["type"] == "assistant":
            responses.setdefault(_response_of(row), []).append(row)
        elif isinstance(row.get("parentUuid"), str) and _is_result(row):
            results.setdefault(row["parentUuid"], []).append(row)
    written: set[str] = set()
    for row in line:
        if row.get("type") != "assistant":
            yield row
            continue
        response = _response_of(row)
        if response in written:
            continue
        written.add(response)
        parts = responses.get(response, [row])
        yield from parts
        for part in parts:
            yield from (result for result in results.get(part["uuid"], ()) if result["uuid"] not in taken)


def _response_of(row: Row) -> str:
    """The id of the response that a row is a part of. A row without one is a response of its own."""
    found = values(row.get("message")).get("id")
    return found if isinstance(found, str) and found else row["uuid"]


def _is_result(row: Row) -> bool:
    content: Any = values(row.get("message")).get("content")
    return isinstance(content, list) and any(values(part).get("type") == "tool_result" for part in content)
