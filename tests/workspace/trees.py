"""Folders of all kinds for the tests of workspaces, what is to be known about one, and snapshots made by hand."""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from clew.checkpointers import Checkpointer
from clew.workspace.manifest import FileNode, FolderNode, Node, Tree, pack_folder

__all__ = ["change", "facts", "grow", "put", "put_top", "remove", "small_file"]

NAMES = [
    b"a",
    b"b.txt",
    b"-rf",
    b"with space",
    b"line\nbreak",
    b"\xff\xfe",
    "ünïcode".encode(),
    b"x" * 255,
    b"...",
    b"c",
]
MODES = [0o644, 0o600, 0o755, 0o400, 0o4755]
HOLE = 256 * 1024


def facts(folder: Path) -> dict[bytes, tuple[object, ...]]:
    """All that a restore is to bring back, by path: kind, mode, time, bytes, target, holes, and which names are one file."""
    root = os.fsencode(folder)
    groups: dict[int, list[bytes]] = {}
    found: dict[bytes, tuple[object, ...]] = {}
    for path in sorted(_walk(root)):
        seen = os.lstat(path)
        name = path[len(root) + 1 :]
        told: tuple[object, ...] = (stat.S_IFMT(seen.st_mode), seen.st_mtime_ns)
        if stat.S_ISLNK(seen.st_mode):
            told += (os.readlink(path),)
        else:
            told += (stat.S_IMODE(seen.st_mode),)
        if stat.S_ISREG(seen.st_mode):
            groups.setdefault(seen.st_ino, []).append(name)
            told += (Path(os.fsdecode(path)).read_bytes(), seen.st_blocks * 512 < seen.st_size)
        found[name] = told
    for names in groups.values():
        for name in names:
            found[name] += (tuple(names),)
    return found


def _walk(path: bytes) -> Iterator[bytes]:
    yield path
    if stat.S_ISDIR(os.lstat(path).st_mode):
        for name in os.listdir(path):
            yield from _walk(path + b"/" + name)


def grow(folder: Path, seed: int, names: int = 40) -> None:
    """Fill a folder with files, folders and links of many kinds, the same for the same seed."""
    chance = random.Random(seed)
    folder.mkdir(exist_ok=True)
    for _ in range(names):
        _add(os.fsencode(folder), chance)
    _settle(os.fsencode(folder), chance)


def change(folder: Path, seed: int, steps: int = 15) -> None:
    """Add, change, remove, replace and rename some of what is there."""
    chance = random.Random(seed)
    root = os.fsencode(folder)
    for path in _walk(root):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            os.chmod(path, 0o755)
    for _ in range(steps):
        paths = sorted(path for path in _walk(root) if path != root)
        if not paths or chance.random() < 0.3:
            _add(root, chance)
            continue
        path = chance.choice(paths)
        step = chance.randrange(5)
        if step == 0:
            remove(path)
        elif step == 1:
            remove(path)
            _make(path, root, chance)
        elif step == 2 and not os.path.exists(path + b".moved") and len(os.path.basename(path)) < 200:
            os.rename(path, path + b".moved")
        elif step == 3 and stat.S_ISREG(os.lstat(path).st_mode):
            os.chmod(path, 0o600)
            with open(path, "ab") as file:
                file.write(chance.randbytes(chance.randrange(1, 2000)))
        elif not stat.S_ISLNK(os.lstat(path).st_mode):
            os.chmod(path, chance.choice([0o700, 0o755]))
    _settle(root, chance)


def remove(path: bytes) -> None:
    if stat.S_ISDIR(os.lstat(path).st_mode):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _add(root: bytes, chance: random.Random) -> None:
    folders = sorted(path for path in _walk(root) if stat.S_ISDIR(os.lstat(path).st_mode) and len(path) < 1500)
    path = chance.choice(folders) + b"/" + chance.choice(NAMES)
    if not os.path.lexists(path):
        _make(path, root, chance)


def _make(path: bytes, root: bytes, chance: random.Random) -> None:
    kind = chance.randrange(10)
    files = sorted(other for other in _walk(root) if stat.S_ISREG(os.lstat(other).st_mode))
    if kind < 3:
        os.mkdir(path)
    elif kind == 3:
        os.symlink(chance.choice([b"/etc/passwd", b"..", b"a", b"gone", b"\xff"]), path)
    elif kind == 4 and files:
        os.link(chance.choice(files), path)
    elif kind == 5:
        _make_sparse(path, chance)
    else:
        size = chance.choice([0, 1, 512, 513, 5000, 70_000, 1_500_000 if chance.random() < 0.1 else 10])
        with open(path, "wb") as file:
            file.write(chance.randbytes(size))


def _make_sparse(path: bytes, chance: random.Random) -> None:
    with open(path, "wb") as file:
        for _ in range(chance.randrange(4)):
            file.seek(chance.randrange(8) * HOLE)
            file.write(chance.randbytes(5000))
        file.truncate(8 * HOLE + chance.randrange(3) * HOLE)


def _settle(root: bytes, chance: random.Random) -> None:
    """Give everything a mode and a time of its own, folders last."""
    for path in sorted(_walk(root), reverse=True):
        kind = os.lstat(path).st_mode
        if not stat.S_ISLNK(kind) and chance.random() < 0.5:
            os.chmod(path, chance.choice([0o755, 0o555, 0o700] if stat.S_ISDIR(kind) else MODES))
        if chance.random() < 0.5:
            moment = chance.randrange(10**18, 17 * 10**17)
            os.utime(path, ns=(moment, moment), follow_symlinks=False)


async def put(store: Checkpointer, *nodes: Node, trees: tuple[str, ...] = (), leaves: tuple[str, ...] = ()) -> str:
    """Store a folder made by hand, however hostile."""
    digest, packed = pack_folder(Tree(nodes, trees, leaves), store.keys)
    await store.put_blobs({digest: packed})
    return digest


async def put_top(store: Checkpointer, root: str) -> str:
    """Store a snapshot of which this is the root folder."""
    return await put(store, FolderNode(b"workspace", 0o755, 10**18), trees=(root,))


def small_file(name: bytes, data: bytes = b"x", same_as: bytes = b"") -> FileNode:
    return FileNode(name, 0o644, 10**18, len(data), 0, data, same_as=same_as)
