"""Lets objects notice that this process is a forked child. The number `generation` is different in each child, and
functions registered with `in_child` are called there. This avoids `getpid`, which takes microseconds on some machines.
"""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["generation", "in_child"]

generation = 0
"""A number that grows by one in each forked child: the number of forks between the first process and this one. An
object that belongs to one process stores the number when it is made; if the number is different later, this process is
a forked child. Read it as `forks.generation`: a name made with `from ... import` would not change."""
_to_do: list[Callable[[], object]] = []


def in_child(work: Callable[[], object]) -> None:
    """Register a function without arguments. Every child process that is forked later calls it before anything else."""
    _to_do.append(work)


def _forked() -> None:
    global generation
    generation += 1
    for work in _to_do:
        work()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
