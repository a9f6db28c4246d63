"""Snapshots of files that a log names: each is the root of a tree of blobs, which the thread's refs must name too. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from clew.log.checkpoint import Checkpoint, Fact, FoldedState, provider_key
from clew.log.codec import Logged
from clew.log.entries import ProviderKey, WorkspaceSnapshot

__all__ = ["NAMING", "named_trees", "rename_trees"]

NAMING = frozenset({WorkspaceSnapshot, ProviderKey, FoldedState})
"""The kinds that may name trees: every append asks whether it is worth looking."""


def named_trees(entries: Iterable[Logged]) -> set[str]:
    """The digests of all snapshots that these entries name: those a rewind can go back to included."""
    found: set[str] = set()
    for entry in entries:
        if type(entry) is WorkspaceSnapshot:
            found.add(entry.digest)
        elif type(entry) is ProviderKey and entry.native:
            found.add(entry.native)
        elif type(entry) is FoldedState:
            found.update(filter(None, map(_tree, entry.state.facts)))
    return found


def _tree(fact: Fact) -> str:
    """The digest that a fact names; empty if it names none."""
    if fact.kind == "workspace":
        return str(fact.value[0])
    return provider_key(fact).native if fact.kind == "provider" else ""


def rename_trees(entries: Iterable[Logged], names: Mapping[str, str]) -> list[Logged]:
    """The same entries where each snapshot has another digest: sealed with another key, the same files have another."""
    return [_renamed(entry, names) for entry in entries]


def _renamed(entry: Logged, names: Mapping[str, str]) -> Logged:
    if type(entry) is WorkspaceSnapshot:
        return msgspec.structs.replace(entry, digest=names[entry.digest])
    if type(entry) is ProviderKey and entry.native:
        return msgspec.structs.replace(entry, native=names[entry.native])
    if type(entry) is FoldedState:
        return FoldedState(_renamed_state(entry.state, names))
    return entry


def _renamed_state(state: Checkpoint, names: Mapping[str, str]) -> Checkpoint:
    return msgspec.structs.replace(state, facts=tuple(_renamed_fact(fact, names) for fact in state.facts))


def _renamed_fact(fact: Fact, names: Mapping[str, str]) -> Fact:
    old = _tree(fact)
    if not old:
        return fact
    return msgspec.structs.replace(fact, value=[names[old] if item == old else item for item in fact.value])
