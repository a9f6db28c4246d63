"""What a workspace leaves out by its user's wish: patterns as in .gitignore."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING

from clew.errors import InvalidInput

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

__all__ = ["IGNORE_FILE", "Rules", "read_rules"]

IGNORE_FILE = ".clewignore"
_LARGEST = 2**20
log = logging.getLogger("clew.workspace")


class Rules:
    """The patterns of one folder, and those of the folders above it, which count where these say nothing."""

    __slots__ = ("_above", "_spec", "_start")

    def __init__(self, above: Rules | None, folder: bytes, spec: GitIgnoreSpec) -> None:
        self._above = above
        self._start = len(os.fsdecode(folder)) + 1 if folder else 0
        self._spec = spec

    @classmethod
    def given(cls, patterns: Sequence[str]) -> Rules | None:
        """The rules that a caller gave for the root; None if there are none. A line that is no pattern is an error."""
        if not patterns:
            return None
        from pathspec import GitIgnoreSpec

        try:
            return cls(None, b"", GitIgnoreSpec.from_lines(patterns))
        except (ValueError, re.error) as error:
            raise InvalidInput(f"ignore= has a line that is no pattern of .gitignore: {error}") from error

    def ignore(self, path: bytes, *, folder: bool) -> bool:
        """Whether this path, of a folder that is not ignored itself, is to be left out."""
        text = os.fsdecode(path)
        if folder:
            text += "/"
        rules: Rules | None = self
        while rules is not None:
            decided = rules._spec.check_file(text[rules._start :]).include
            if decided is not None:
                return decided
            rules = rules._above
        return False


def read_rules(above: Rules | None, place: str, folder: bytes, fd: int) -> Rules | None:
    """The rules in this folder with its own file of patterns, on top of those from above it. A file that is no regular
    one, or too large, is none; a line that is no pattern is passed over, as git does."""
    text = _read(place, fd)
    if not text:
        return above
    from pathspec import GitIgnoreSpec

    lines = text.decode("utf-8", "surrogateescape").splitlines()
    try:
        spec = GitIgnoreSpec.from_lines(lines)
    except (ValueError, re.error):
        spec = GitIgnoreSpec.from_lines([line for line in lines if _is_pattern(line, place)])
    return Rules(above, folder, spec)


def _read(place: str, fd: int) -> bytes:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        opened = os.open(IGNORE_FILE, flags, dir_fd=fd) if fd >= 0 else os.open(os.path.join(place, IGNORE_FILE), flags)
    except OSError as error:
        log.warning("%s in %s cannot be read (%s), and does not count", IGNORE_FILE, place, error.strerror)
        return b""
    try:
        facts = os.fstat(opened)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _LARGEST:
            log.warning("%s in %s is no file or too large, and does not count", IGNORE_FILE, place)
            return b""
        return os.read(opened, _LARGEST)
    finally:
        os.close(opened)


def _is_pattern(line: str, place: str) -> bool:
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):
        log.warning("%s in %s has a line that is no pattern, and does not count", IGNORE_FILE, place)
        return False
    return True
