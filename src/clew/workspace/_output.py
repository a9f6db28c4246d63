"""A file being restored: written under a temporary name beside the one it is to have, then renamed in one step."""

from __future__ import annotations

import os
from contextlib import suppress

from clew._runtime.files import write_all
from clew.workspace._folders import check_unchanged, split, temporary_name
from clew.workspace.manifest import FileNode, Node
from clew.workspace.reading import Places, check_length, data_size

__all__ = ["Output"]

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Output:
    """`open`, `write` piece by piece, `finish`; if anything fails, `abandon`, which leaves the name as it was."""

    def __init__(self, path: bytes, node: FileNode, was: Node | None) -> None:
        """`was` is what has the name now. If it is anything else by the end, it is not replaced."""
        self._path = path
        self._node = node
        self._was = was
        self._temporary = temporary_name()
        self._places = Places(node.extents) if node.extents is not None else None
        self._written = 0
        self._folder = self._fd = -1

    def open(self, folder: int) -> None:
        """`folder` is a descriptor that stays open until the end."""
        self._folder = folder
        self._fd = os.open(self._temporary, _NEW, 0o600, dir_fd=folder)

    def write(self, piece: bytes) -> None:
        self._written += len(piece)
        if self._written > data_size(self._node):
            check_length(self._path, self._node, self._written)
        if self._places is None:
            write_all(self._fd, piece)
            return
        for offset, part in self._places.take(piece):
            done = 0
            while done < len(part):
                done += os.pwrite(self._fd, part[done:], offset + done)

    def finish(self) -> None:
        node = self._node
        check_length(self._path, node, self._written)
        if self._places is not None:
            os.ftruncate(self._fd, node.size)
        os.fchmod(self._fd, node.mode)
        os.utime(self._fd, ns=(node.mtime, node.mtime))
        self._close()
        name = split(self._path)[1]
        check_unchanged(self._folder, name, self._was, self._path)
        os.rename(self._temporary, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def abandon(self) -> None:
        self._close()
        if self._folder >= 0:
            with suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._folder)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
