"""Reads run checkpoints, which are saved states of agent runs: a folder with one JSON file for each run, as the Go
package `session` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
from blake3 import blake3

from clew._runtime import files
from clew.compat.importers.base import Conversation, Source
from clew.compat.session.checkpoint import FIELDS, read_file, read_summary
from clew.compat.session.record import changes
from clew.errors import ClewError, Corrupt, InvalidInput
from clew.log import EMPTY, Described, Entry, FoldedState

__all__ = ["SessionSource"]

_BEGINNING = 4096
"""How many bytes of a file are looked at for the field `run_id`, which is the first one."""


class SessionSource(Source):
    """Reads run checkpoints, the states of agent runs that the Go package `session` has saved: all files of a folder,
    or one file. The thread made from a run has the id of the run.

    Any agent of Clew can go on with an imported run. `clew.compat.session.Store` finds the run too, if the import went
    into the SQLite store `clew.db` in the folder with which that `Store` is opened.
    """

    kind = "session"

    def __init__(self, paths: dict[str, Path]) -> None:
        """`paths` maps the key of each checkpoint, which is the name of its file, to the path of the file."""
        self._paths = paths

    @classmethod
    def open(cls, path: Path) -> Self:
        looked_for = "Looked for JSON files with a run_id: one file for each run, as in RUN_ID.json."
        try:
            if path.is_dir():
                dated = [(found.stat().st_mtime_ns, found.name, found) for found in path.glob("*.json")]
                paths = {name: found for _, name, found in sorted(dated) if _is_checkpoint(found)}
            elif path.exists():
                paths = {path.name: path} if _is_checkpoint(path) else {}
            else:
                raise InvalidInput(f"there is no {path}. {looked_for}")
        except OSError as error:
            raise files.explain(error, path) from error
        if not paths:
            raise InvalidInput(f"{path} has no run checkpoints. {looked_for}")
        return cls(paths)

    def keys(self) -> Sequence[str]:
        return list(self._paths)

    def version(self, key: str) -> str:
        return blake3(self._bytes(key)).hexdigest()

    def read(self, key: str) -> Conversation:
        path = self._path(key)
        data = self._bytes(key)
        checkpoint = read_file(path)
        if not checkpoint.run_id:
            raise Corrupt(f"{path} has an empty run_id, so nothing says which run it is. Write the run's id into it.")
        try:
            logged, _ = changes(EMPTY, checkpoint)
        except InvalidInput as error:
            raise InvalidInput(f"{path}: {error}") from None
        entries = [_with_time(entry, checkpoint.created_at.isoformat()) for entry in logged]
        return Conversation(thread_id=checkpoint.run_id, entries=entries, losses=_losses(path, data))

    def _path(self, key: str) -> Path:
        if key not in self._paths:
            raise InvalidInput(f"there is no run checkpoint {key!r} here.")
        return self._paths[key]

    def _bytes(self, key: str) -> bytes:
        path = self._path(key)
        try:
            return path.read_bytes()
        except OSError as error:
            raise files.explain(error, path) from error


def _is_checkpoint(path: Path) -> bool:
    """Return whether a file is a run checkpoint (the saved state of a run), or may be a damaged one. Damage is reported
    later, when the file is read as a whole."""
    with path.open("rb") as file:
        if b'"run_id"' in file.read(_BEGINNING):
            return True
    try:
        return read_summary(path) is not None
    except ClewError:
        return True


def _with_time(entry: Entry | FoldedState, created_at: str) -> Entry:
    assert not isinstance(entry, FoldedState)  # noqa: S101 - for the type checker: a translation has none
    if isinstance(entry, Described):
        return msgspec.structs.replace(entry, tags={**(entry.tags or {}), "created_at": created_at})
    return entry


def _losses(path: Path, data: bytes) -> list[str]:
    found: Any = msgspec.json.decode(data)
    unknown = [name for name in found if name not in FIELDS]
    return [f"{path.name}: the field {name!r}, which run checkpoints do not have" for name in unknown]
