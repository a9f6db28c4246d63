"""Which tests of the contract of all stores can run in a simulation."""

from __future__ import annotations

import inspect

from clew.testing import CheckpointerContract

__all__ = ["promises"]


def promises(fixture: str) -> list[str]:
    """Return the names of the contract's tests that need this fixture and nothing else, and that run on one OS thread."""
    return [
        name
        for name, test in inspect.getmembers(CheckpointerContract, inspect.isfunction)
        if name.startswith("test_")
        and list(inspect.signature(test).parameters) == ["self", fixture]
        and "to_thread" not in inspect.getsource(test)
    ]
