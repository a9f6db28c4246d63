"""`Store` keeps run checkpoints (saved states of agent runs) in a folder, each as a thread of Clew or as one readable
JSON file."""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from clew._runtime import files
from clew.compat.session.checkpoint import Checkpoint, checked, read_file, read_summary, write_file
from clew.compat.session.record import Known, changes, check_messages, checkpoint_of, summary_of
from clew.errors import ClewError, Corrupt, InvalidInput, ThreadNotFound
from clew.sync import SQLiteCheckpointer, Thread

__all__ = ["Store"]

_DATABASE = "clew.db"
_ELSEWHERE = {
    "checkpointer": "a Store is a folder: for other stores, save the thread itself with clew.Thread",
    "format": "write json_files=True for one JSON file a run",
}


class Store:
    """Keeps one checkpoint, the state of a run, for each run in a folder. Saving a run again replaces its checkpoint.

    By default a run is a thread in the SQLite store `clew.db` in the folder, and a save records only what is new. With
    `json_files=True` a run is the file `RUN_ID.json` in the folder, written as a whole by every save. In both cases a
    save survives a power cut once it has returned.

    A run that has no thread is also looked for in the files that the Go package `session` has written in the folder.
    These files are read where they are.
    """

    def __init__(self, dir: str | os.PathLike[str], *, json_files: bool = False, **others: Any) -> None:  # noqa: A002
        """Create the folder `dir` if it does not exist. With `json_files=True`, checkpoints are kept as JSON files,
        otherwise as threads in a database. Any argument in `others` raises `InvalidInput`."""
        for name in others:
            raise InvalidInput(f"Store({name}=…): {_ELSEWHERE.get(name, 'a Store takes dir and json_files')}.")
        if not isinstance(dir, str | os.PathLike) or not os.fspath(dir):
            raise InvalidInput(f"dir is the path of a folder, not {dir!r}.")
        self.dir = Path(os.path.abspath(dir))
        try:
            files.make_private_folder(self.dir)
        except OSError as error:
            raise files.explain(error, self.dir) from error
        self._threads = None if json_files else SQLiteCheckpointer(self.dir / _DATABASE)
        self._known: dict[str, Known] = {}
        """What is known of the run that was saved last."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Save `checkpoint` as that of its run, in place of the one that was saved before. Raises `ThreadBusy` while an
        agent of Clew, or another save, works on the run."""
        given = checked(checkpoint)
        known = self._known.get(given.run_id)
        check_messages(given, known)
        if self._threads is None:
            write_file(self._file(given.run_id), given)
            return
        with Thread.open(self._threads, given.run_id, label="session.Store") as thread:
            entries, known = changes(thread.checkpoint, given, known)
            thread.append(*entries)
        self._known = {given.run_id: known}

    def load(self, run_id: str) -> Checkpoint:
        """Return the last saved checkpoint of a run. Raises `ThreadNotFound` if there is none.

        If an agent of Clew has gone on with the run since then, what that agent has done is part of the checkpoint. The
        system prompt is the saved one, unless that agent has a system prompt of its own.
        """
        head = None if self._threads is None else self._threads.head(run_id)
        if self._threads is not None and head is not None:
            return checkpoint_of(Thread.load(self._threads, run_id), run_id, head.created_at)
        path = self._path(run_id)
        if path is None:
            raise ThreadNotFound(run_id, str(self.dir), "Ask has_checkpoint first, and begin the run anew without one.")
        found = read_file(path)
        if found.run_id != run_id:
            raise Corrupt(f"{path} holds the run {found.run_id!r}. A file has the name of its run: rename it.")
        return found

    def delete(self, run_id: str) -> None:
        """Delete the checkpoint, the saved state of a run: its thread in the store, if this object uses one, and its
        JSON file. Does nothing if neither exists."""
        if self._threads is not None:
            self._threads.delete(run_id)
        if (path := self._path(run_id)) is not None:
            try:
                path.unlink(missing_ok=True)
                files.sync_folder(self.dir)
            except OSError as error:
                raise files.explain(error, path) from error

    def has_checkpoint(self, run_id: str) -> bool:
        """Return whether there is a checkpoint of this run."""
        return (self._threads is not None and self._threads.head(run_id) is not None) or self._path(run_id) is not None

    def list(self) -> builtins.list[Checkpoint]:
        """Return all checkpoints, the newest first. They have no messages and no system prompt: `load` returns those.

        Raises `Corrupt`, which names every file that cannot be read, because the list would lack the runs in these
        files.
        """
        found = {run.run_id: run for run in (*self._in_files(), *self._in_threads())}
        return sorted(found.values(), key=lambda run: (run.created_at, run.run_id), reverse=True)

    def close(self) -> None:
        """Close the database of the threads. Without this call, it is closed at the end of the process."""
        if self._threads is not None:
            self._threads.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _in_threads(self) -> Iterator[Checkpoint]:
        if self._threads is None:
            return
        for head in self._threads.heads():
            if head.parent is None:
                yield summary_of(head).checkpoint()

    def _in_files(self) -> Iterator[Checkpoint]:
        damaged: builtins.list[str] = []
        for path in sorted(self.dir.glob("*.json")):
            try:
                summary = read_summary(path)
            except FileNotFoundError:  # deleted meanwhile
                continue
            except ClewError as error:
                damaged.append(str(error))
                continue
            if summary is not None and path.stem == summary.run_id:
                yield summary.checkpoint()
        if damaged:
            raise Corrupt(" ".join(damaged))

    def _path(self, run_id: str) -> Path | None:
        """Return the path of the JSON file with the checkpoint of this run, or None if there is no such file."""
        if not _is_file_name(run_id):
            return None
        path = self.dir / f"{run_id}.json"
        return path if path.is_file() else None

    def _file(self, run_id: str) -> Path:
        if not _is_file_name(run_id):
            raise InvalidInput(
                f"the run_id {run_id!r} cannot be the name of a file. Leave out json_files=True: threads take any id."
            )
        return self.dir / f"{run_id}.json"


def _is_file_name(run_id: str) -> bool:
    """Return whether a run with this id can have a file that is named by the id. Raises `InvalidInput` if the id is not
    text."""
    if not isinstance(run_id, str):
        raise InvalidInput(f"a run_id is text, and not {run_id!r}.")
    is_plain = not set(run_id) & set('/\\\0:*?"<>|') and not run_id.startswith(".") and run_id.isprintable()
    return bool(run_id) and is_plain and len(os.fsencode(run_id)) <= 200
