"""Lets a package import its public names only when they are first used, so that a program does not spend time on
importing parts of Clew that it does not use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["exports"]


def exports(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` for the `__init__.py` of a package.

        __getattr__, __dir__ = exports(__name__, {"Agent": "clew.agent.agent"})

    `homes` maps each public name to the module that defines it. That module is imported when the name is first used.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
