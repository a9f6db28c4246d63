"""What a snapshot takes over from the last one, what is left to be read, and the trees that come of both. Pure."""

from __future__ import annotations

import stat
from collections import deque
from collections.abc import Iterator

import msgspec

from clew.log.keys import Keyring
from clew.workspace._packing import Content
from clew.workspace.manifest import FileNode, FolderNode, LinkNode, Node, Tree, pack_folder
from clew.workspace.scanning import Fact, Folder, Scan
from clew.workspace.snapshots import Skipped, shown
from clew.workspace.statcache import Record, StatCache, split_digests

__all__ = ["Draft", "Plan", "compare"]

_MANY = 1000

_encode = msgspec.msgpack.Encoder().encode
_decode_facts = msgspec.msgpack.Decoder(list[Fact]).decode
_decode_nodes = msgspec.msgpack.Decoder(list[Node]).decode


class Draft:
    """A folder that is not what it was: its tree is made anew, from what is known and from what will be read."""

    def __init__(self, folder: Folder, last: Record | None) -> None:
        self.folder = folder
        self.contents: dict[bytes, Content] = {}
        """By name. Those to be read are added once they are."""
        self.to_read: list[Fact] = []
        self._taken_over: list[str] = []
        self._last = last
        known = {} if last is None else _known(last)
        for fact in folder.facts:
            if stat.S_ISDIR(fact[1]):
                continue
            content = known.get(fact)
            if content is None:
                self.to_read.append(fact)
            else:
                self.contents[fact[0]] = content
                self._taken_over.append(content.leaves)

    def tie(self, records: dict[Folder, Record], keys: Keyring | None) -> tuple[Record, bytes]:
        """The record of the folder, and its blob."""
        facts: list[Fact] = []
        nodes: list[Node] = []
        hexed: list[str] = []
        files = size = 0
        for fact in self.folder.facts:
            if stat.S_ISDIR(fact[1]):
                facts.append(fact)
                nodes.append(FolderNode(fact[0], stat.S_IMODE(fact[1]), fact[3]))
                continue
            content = self.contents[fact[0]]
            if content.node is None or content.fact is None:
                continue
            facts.append(content.fact)
            nodes.append(content.node)
            hexed.append(content.leaves)
            if isinstance(content.node, FileNode):
                files += 1
                size += content.node.size
        trees = tuple(records[below].digest for below in self.folder.folders)
        leaves = "".join(hexed)
        digest, packed = pack_folder(Tree(tuple(nodes), trees, tuple(split_digests(leaves))), keys)
        remembered = nodes if keys is None else [_without_content(node) for node in nodes]
        return Record(_encode(facts), digest, trees, _encode(remembered), bytes.fromhex(leaves), files, size), packed

    def taken_over(self) -> list[str]:
        """The chunks that are not read again."""
        return split_digests("".join(self._taken_over))

    def stands_for_taken_over(self) -> list[str]:
        """What to ask the store for, to learn whether it still has what is taken over. Of many chunks, the tree they were
        in: what is deleted is deleted together, and each one asked for takes its time."""
        chunks = self.taken_over()
        return chunks if self._last is None or len(chunks) <= _MANY else [self._last.digest]

    def problems(self) -> Iterator[Skipped]:
        for name, content in self.contents.items():
            if content.problem is not None:
                yield Skipped(shown(self.folder.at(name)), content.problem)


class Plan:
    """A walk, compared with what is known."""

    def __init__(self, found: Scan) -> None:
        self.found = found
        self.records: dict[Folder, Record] = {}
        """Of the folders that are as they were, and of the others once they are tied."""
        self.drafts: list[Draft] = []
        """The others, each after those in it."""
        self.kept: list[Record] = []
        """The records of folders that are as they were, each after those in it."""

    @property
    def root(self) -> Record:
        return self.records[self.found.folders[0]]

    def waiting(self) -> deque[list[tuple[Draft, Fact]]]:
        """What is to be read: the names of each file, which are mostly one."""
        groups: deque[list[tuple[Draft, Fact]]] = deque()
        linked: dict[bytes, list[tuple[Draft, Fact]]] = {}
        for draft in reversed(self.drafts):
            for fact in draft.to_read:
                group = linked.setdefault(fact[6], []) if fact[6] else []
                if not group:
                    groups.append(group)
                group.append((draft, fact))
        return groups

    def taken_over(self) -> set[str]:
        """The blobs that stand for all that is taken over: the uppermost trees, and chunks in folders made anew."""
        if not self.drafts:
            return {self.root.digest}
        uppermost = {below for draft in self.drafts for below in draft.folder.folders}
        uppermost -= {draft.folder for draft in self.drafts}
        return {self.records[folder].digest for folder in uppermost}.union(
            *(draft.stands_for_taken_over() for draft in self.drafts)
        )

    def all_taken_over(self) -> set[str]:
        """Every blob that is taken over."""
        below = {digest for record in self.kept for digest in record.digests()}
        return below.union(*(draft.taken_over() for draft in self.drafts))


def compare(found: Scan, known: StatCache) -> Plan:
    """Folders in which nothing has changed are found by comparing bytes; nothing of them is decoded."""
    plan = Plan(found)
    for folder in reversed(found.folders):
        last = known.folders.get(folder.path)
        if last is not None and last.facts == _encode(folder.facts) and _same_below(folder, last, plan.records):
            plan.records[folder] = last
            plan.kept.append(last)
        else:
            plan.drafts.append(Draft(folder, last))
    return plan


def _same_below(folder: Folder, last: Record, records: dict[Folder, Record]) -> bool:
    return all(
        below in records and records[below].digest == digest
        for below, digest in zip(folder.folders, last.trees, strict=True)
    )


def _known(last: Record) -> dict[Fact, Content]:
    """What the last snapshot made of each name. A fact that is not to be trusted is none that a walk could find."""
    known: dict[Fact, Content] = {}
    text = last.leaves.hex()
    start = 0
    for fact, node in zip(_decode_facts(last.facts), _decode_nodes(last.nodes), strict=True):
        if isinstance(node, FolderNode) or _lacks_content(node):
            continue
        end = start + (64 * node.chunks if isinstance(node, FileNode) else 0)
        known[fact] = Content(node, text[start:end], fact)
        start = end
    return known


def _without_content(node: Node) -> Node:
    """What may be remembered where the store is sealed: what is small is read again, and its bytes lie nowhere else."""
    if isinstance(node, LinkNode):
        return msgspec.structs.replace(node, target=b"")
    return msgspec.structs.replace(node, inline=b"") if isinstance(node, FileNode) and node.inline else node


def _lacks_content(node: Node) -> bool:
    if isinstance(node, LinkNode):
        return not node.target
    return isinstance(node, FileNode) and node.size > 0 and node.extents is None and not (node.chunks or node.inline)
