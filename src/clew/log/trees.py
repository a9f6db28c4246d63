"""Snapshots of files that a log names: each is the root of a tree of blobs, which the thread's refs must name too. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from clew.log.checkpoint import Checkpoint, Fact, FoldedState
from clew.log.codec import Logged
from clew.log.entries import WorkspaceSnapshot

__all__ = ["named_trees", "rename_trees"]


def named_trees(entries: Iterable[Logged]) -> set[str]:
    """The digests of all snapshots that these entries name: those a rewind can go back to included."""
    found: set[str] = set()
    for entry in entries:
        if type(entry) is WorkspaceSnapshot:
            found.add(entry.digest)
        elif type(entry) is FoldedState:
            found.update(fact.value[0] for fact in entry.state.facts if fact.kind == "workspace")
    return found


def rename_trees(entries: Iterable[Logged], names: Mapping[str, str]) -> list[Logged]:
    """The same entries where each snapshot has another digest: sealed with another key, the same files have another."""
    return [_renamed(entry, names) for entry in entries]


def _renamed(entry: Logged, names: Mapping[str, str]) -> Logged:
    if type(entry) is WorkspaceSnapshot:
        return msgspec.structs.replace(entry, digest=names[entry.digest])
    if type(entry) is FoldedState:
        return FoldedState(_renamed_state(entry.state, names))
    return entry


def _renamed_state(state: Checkpoint, names: Mapping[str, str]) -> Checkpoint:
    facts = tuple(
        Fact(fact.turn, fact.kind, fact.key, [names[fact.value[0]], *fact.value[1:]])
        if fact.kind == "workspace"
        else fact
        for fact in state.facts
    )
    return msgspec.structs.replace(state, facts=facts)
