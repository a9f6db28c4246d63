"""Tells a forked child from its parent without asking the kernel: on some machines `getpid` takes microseconds."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["generation", "in_child"]

generation = 0
"""A number that differs in a process and its forked children, for one who remembers it. To be read here, never imported."""
_to_do: list[Callable[[], object]] = []


def in_child(work: Callable[[], object]) -> None:
    """Have this done in every forked child before anything else."""
    _to_do.append(work)


def _forked() -> None:
    global generation
    generation += 1
    for work in _to_do:
        work()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
