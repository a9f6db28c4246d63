"""Ignore patterns of a workspace, as in .gitignore: names that its user wants to leave out of snapshots."""

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
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

__all__ = ["IGNORE_FILE", "Rules", "has_rules", "read_rules"]

IGNORE_FILE = ".clewignore"
_LARGEST = 2**20
_MOST = 5000
_LONGEST = 4096
"""The most patterns in one `.clewignore` or one `ignore` argument (`_MOST`), and the most characters of a pattern
(`_LONGEST`). They are limited because every name is matched against every pattern."""
_START, _GAP, _STAR = "^(?:.+/)?", "(?:/.+)?", "[^/]*"
"""The regular expressions into which the library pathspec turns a `**` at the start of a pattern, a `**` inside it, and
a `*`."""
_SET = re.compile(r"\\.|\[\^/\]|\[(\^?\]?(?:\\.|[^]\\])*\])", re.DOTALL)
log = logging.getLogger("clew.workspace")


class Rules:
    """The ignore patterns of one folder and of the folders above it. If no pattern of the folder itself matches a name,
    those of the folder above it are tried, and so on up to the root. The patterns that the caller gave for the whole
    workspace come last. If none matches, the name is not ignored."""

    __slots__ = ("_above", "_spec", "_start")

    def __init__(self, above: Rules | None, folder: bytes, spec: GitIgnoreSpec) -> None:
        self._above = above
        self._start = len(os.fsdecode(folder)) + 1 if folder else 0
        self._spec = spec

    @classmethod
    def given(cls, patterns: Sequence[str]) -> Rules | None:
        """Return the rules for patterns that a caller gave for the whole workspace, or None if there are no patterns.
        Raises `InvalidInput` for a line that is not a pattern, and for more than 5,000 lines."""
        if not patterns:
            return None
        if len(patterns) > _MOST:
            raise InvalidInput(f"ignore= has {len(patterns)} lines; at most {_MOST} are allowed. Name folders instead.")
        try:
            return cls(None, b"", _compiled(patterns))
        except (ValueError, re.error) as error:
            raise InvalidInput(f"ignore= has a line that is not a .gitignore pattern: {error}") from error

    def ignore(self, path: bytes, *, folder: bool) -> bool:
        """Return whether a path is to be left out of snapshots. `folder` says whether the path is a folder. Only the
        path itself is looked at. So ask first about the folder that holds the path: if that is ignored, so is
        everything in it.
        """
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
    """Read the `.clewignore` of a folder. Returns the folder's rules, which include `above`, the rules of the folders
    above it. Returns `above` alone if the file is empty or cannot be used. `place` is the full path of the folder,
    `folder` its path relative to the workspace, and `fd` its descriptor, negative if it is not open.

    A `.clewignore` that is not a regular file or has more than 1 MiB is not used. As in git, a line that is not a
    pattern is skipped. All lines after the first 5,000 patterns are skipped too. Each of these cases logs a warning.
    """
    text = _read(place, fd)
    if not text:
        return above
    lines = [line for line in text.decode("utf-8", "surrogateescape").splitlines() if line and line[0] != "#"]
    if len(lines) > _MOST:
        log.warning("%s in %s has %d patterns; only the first %d are used", IGNORE_FILE, place, len(lines), _MOST)
        del lines[_MOST:]
    try:
        spec = _compiled(lines)
    except (ValueError, re.error):
        spec = _compiled([line for line in lines if _is_pattern(line, place)])
    return Rules(above, folder, spec)


def has_rules(place: str, fd: int) -> bool:
    """Return whether a folder has anything named `.clewignore`. `fd` is a descriptor of the open folder. If `fd` is
    negative, the folder is found by its path `place` instead."""
    try:
        if fd >= 0:
            os.stat(IGNORE_FILE, dir_fd=fd, follow_symlinks=False)
        else:
            os.lstat(os.path.join(place, IGNORE_FILE))
    except OSError:
        return False
    return True


def _compiled(lines: Sequence[str]) -> GitIgnoreSpec:
    # Imported here for start-up time: few workspaces have patterns.
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines, _pattern, backend="simple")


def _pattern(line: str) -> GitIgnoreSpecPattern:
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    if len(line) > _LONGEST:
        raise ValueError(f"it has {len(line)} characters; at most {_LONGEST} are allowed")
    regex, include = GitIgnoreSpecPattern.pattern_to_regex(line)
    if regex is None:
        return GitIgnoreSpecPattern(None, include)
    return GitIgnoreSpecPattern(re.compile(_linear(regex), re.DOTALL), include)


def _linear(regex: str) -> str:
    """Return a faster form of `regex`, a regular expression that pathspec made of an ignore pattern. A match then takes
    at most as many steps as the length of the path times the length of the pattern. Without this, a pattern with many
    stars could take practically forever.

    It is enough to try the first place where the text between two stars occurs: if the rest of the pattern does not
    match after that place, it does not match after a later one either. So `(?>…)` forbids the search to go back. This
    holds only if a set of characters such as `[!a]` never matches a slash. In git it never does, so the result excludes
    slashes from all sets.
    """
    regex = _SET.sub(lambda found: "(?!/)[" + re.sub(r"([\[&|~])", r"\\\1", found[1]) if found[1] else found[0], regex)
    first, *pieces = regex.split(_STAR)
    for piece in pieces[:-1]:
        is_within = "/" not in piece.replace("[^/]", "").replace("(?!/)", "")
        first += f"(?>[^/]*?{piece})" if is_within else _STAR + piece
    regex = first + "".join(_STAR + piece for piece in pieces[-1:])
    first, *groups = regex.split(_GAP)
    if groups and first.startswith(_START):
        first = f"^(?>(?:.+?/)??{first.removeprefix(_START)}(?=/))"
    for group in groups[:-1]:
        first += f"(?>(?:/.+?)??{group}(?=/))"
    return first + "".join(_GAP + group for group in groups[-1:])


def _read(place: str, fd: int) -> bytes:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        opened = os.open(IGNORE_FILE, flags, dir_fd=fd) if fd >= 0 else os.open(os.path.join(place, IGNORE_FILE), flags)
    except OSError as error:
        log.warning("%s in %s cannot be read (%s) and is ignored", IGNORE_FILE, place, error.strerror)
        return b""
    try:
        facts = os.fstat(opened)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _LARGEST:
            log.warning("%s in %s is not a regular file or is too large, and is ignored", IGNORE_FILE, place)
            return b""
        return os.read(opened, _LARGEST)
    finally:
        os.close(opened)


def _is_pattern(line: str, place: str) -> bool:
    try:
        _compiled([line])
    except (ValueError, re.error):
        log.warning("%s in %s has a line that is not a pattern; the line is ignored", IGNORE_FILE, place)
        return False
    return True
