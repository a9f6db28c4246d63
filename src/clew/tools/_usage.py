"""Whether a function makes recorded steps: read from its code, so that nobody has to say it twice."""

from __future__ import annotations

import dis
from itertools import pairwise
from types import CodeType
from typing import Any

__all__ = ["uses_steps"]

_STEPS = {"step", "interrupt", "blocking"}


def uses_steps(fn: Any, context: str | None) -> bool:
    """Whether the code takes `step`, `interrupt` or `blocking` from its own context.

    Only from that: to take `simulation.step()` for a recorded step would run a tool again that must run once. What is
    overlooked, in turn, is only kept from running again, which is safe.
    """
    code = getattr(fn, "__code__", None)
    return context is not None and isinstance(code, CodeType) and _uses(code, context)


def _uses(code: CodeType, context: str) -> bool:
    for before, after in pairwise(dis.get_instructions(code)):
        if after.opname in ("LOAD_ATTR", "LOAD_METHOD") and after.argval in _STEPS and _loads(before, context):
            return True
    return any(
        _uses(inner, context)
        for inner in code.co_consts
        if isinstance(inner, CodeType) and context in inner.co_freevars  # a function inside that uses the same context
    )


def _loads(instruction: dis.Instruction, name: str) -> bool:
    if not instruction.opname.startswith("LOAD_"):
        return False
    value = instruction.argval  # newer Pythons load two names with one instruction
    return value == name or (isinstance(value, tuple) and value[-1:] == (name,))
