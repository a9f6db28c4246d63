"""The same names as in `clew`, but with functions and methods that block until they are done. They are for scripts,
notebooks and code that runs in OS threads. Their types are in the stub file `__init__.pyi`."""

from __future__ import annotations

from typing import Any

import clew

_CHECKPOINTERS = [
    "Checkpointer",
    "FileCheckpointer",
    "HTTPCheckpointer",
    "MemoryCheckpointer",
    "MySQLCheckpointer",
    "OCICheckpointer",
    "ObjectCheckpointer",
    "OpenSearchCheckpointer",
    "OracleCheckpointer",
    "PostgresCheckpointer",
    "RedisCheckpointer",
    "SQLiteCheckpointer",
    "SealedCheckpointer",
]

__all__ = sorted({*clew.__all__, *_CHECKPOINTERS})


def __getattr__(name: str) -> Any:
    """Make and return the blocking form of a public name when it is first used, so that `import clew.sync` takes almost
    no time."""
    if name not in __all__:
        raise AttributeError(f"module 'clew.sync' has no attribute {name!r}")
    from clew import checkpointers
    from clew.sync._blocking import blocking

    value = blocking(getattr(checkpointers if name in _CHECKPOINTERS else clew, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
