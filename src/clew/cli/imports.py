"""Import the objects of a user's program that options and arguments name as `module:name`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from clew.errors import InvalidInput

__all__ = ["find_object", "importing_from"]


def importing_from(folder: str) -> None:
    """Put this folder in front of `sys.path`, so that modules named on the command line are found in it. Does nothing if
    it is there already, or if `folder` is empty. The current folder is not added by itself, so that the same code runs
    wherever the command is given."""
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)


def find_object(where: str, named: str, example: str, folder: str = "") -> Any:
    """Import the object that `where` names, written `module:name`. `named` is how an error names the option or argument,
    for example `--tool shop:send`, and `example` is a right value for it.

    Raises `InvalidInput` with the reason if the object cannot be imported. For a missing module the reason names
    `folder`, by default the current folder, as the place where it was not found.
    """
    module, colon, name = where.partition(":")
    if not colon or not module or not name or module.endswith(".py"):
        raise InvalidInput(f"{named}: write {example}.")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name and not module.startswith(error.name):
            why = f"{module} needs the module {error.name!r}, which is not installed. Install it first."
        else:
            why = f"there is no module {error.name!r}, neither in {folder or os.getcwd()} nor among the installed packages."
        raise InvalidInput(f"{named}: {why}") from None
    except (Exception, SystemExit) as error:  # whatever the user's module raises
        raise InvalidInput(f"{named}: {module} cannot be imported: {type(error).__name__}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise InvalidInput(f"{named}: {module} has no {name!r}.")
        found = getattr(found, part)
    return found
