"""Detects that this process is a forked child, without a system call: `getpid` takes microseconds on some machines."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["generation", "in_child"]

generation = 0
"""Number of forks between the first process and this one. An object that belongs to one process remembers it and compares.
Read it as `forks.generation`: an imported name would not change."""
_to_do: list[Callable[[], object]] = []


def in_child(work: Callable[[], object]) -> None:
    """Register a function that every forked child calls before anything else."""
    _to_do.append(work)


def _forked() -> None:
    global generation
    generation += 1
    for work in _to_do:
        work()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
