"""Find and replace the digests of file snapshots that the entries of a log name. Pure: no I/O.

A snapshot is a tree of blobs, named by the digest of its root. The thread must list that digest among the blobs that it
needs (its refs), so that the cleanup of unused blobs (gc) keeps the whole tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from clew.log.checkpoint import Checkpoint, Fact, FoldedState, provider_key
from clew.log.codec import Logged
from clew.log.entries import ProviderKey, WorkspaceSnapshot

__all__ = ["NAMING", "named_trees", "rename_trees"]

NAMING = frozenset({WorkspaceSnapshot, ProviderKey, FoldedState})
"""The kinds of entries that may name a tree of blobs, such as a file snapshot. A tree is a blob that points at others.

Entries of other kinds are not searched for trees.
"""


def named_trees(entries: Iterable[Logged]) -> set[str]:
    """Return the digests of all snapshots that these entries name, also of older ones, which are needed only if the
    thread is rewound. A snapshot is of the workspace's files, or of an outside agent's own record of the conversation.
    """
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
    """Return the digest of the file snapshot, or of another tree of blobs, that this fact names. Returns "" if it names
    none. A fact is a value of the thread's state."""
    if fact.kind == "workspace":
        return str(fact.value[0])
    return provider_key(fact).native if fact.kind == "provider" else ""


def rename_trees(entries: Iterable[Logged], names: Mapping[str, str]) -> list[Logged]:
    """Return these entries with the digest of each snapshot replaced. `names` must have the new digest for each old
    one.

    A copy of a thread needs this if it is encrypted with another key, because the same files then have another digest.
    """
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
