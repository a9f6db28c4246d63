"""Read and write the readable file of a session, `trajectory.json`, in the form that caw uses (a library that wraps
coding agents). The files are in a data_dir, the folder in which an agent keeps its sessions."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from clew._runtime import files
from clew.compat.caw.trajectory import Trajectory, Turn, trajectory_to_json, turn_to_json
from clew.compat.importers.caw import KEYS, TRAJECTORY
from clew.errors import InvalidInput

__all__ = ["SessionFile"]

STORE = "clew.db"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


class SessionFile:
    """The file `trajectory.json`, which shows one session to people and to other programs. Clew's store in the same
    data_dir (the folder in which an agent keeps its sessions) has all that is in the file, and more. So `write` makes
    the file anew if it is missing or damaged.

    Turns that are in the file already are not changed, so that a session which caw began keeps what caw wrote.
    """

    def __init__(self, data_dir: str | os.PathLike[str], session_id: str) -> None:
        """`data_dir` is the folder in which an agent keeps its sessions. The file is in a folder below it that has the
        name `session_id`. Raises `InvalidInput` if the id cannot be the name of a folder. The error does not quote the
        id: it may be a handle that was damaged, and a handle is a secret."""
        if not _NAME.fullmatch(session_id):
            raise InvalidInput(
                "this is neither a whole handle, which begins with '{', nor a session id that can be the name of a folder "
                "in data_dir. Ids have letters, digits, '-', '_' and '.', and do not begin with '.'."
            )
        root = Path(os.path.abspath(data_dir))
        self.store = root / STORE
        """The SQLite file in which everything is on record."""
        self.folder = root / "sessions" / session_id
        self._path = self.folder / TRAJECTORY

    @property
    def exists(self) -> bool:
        return self._path.is_file()

    def facts(self) -> dict[str, Any]:
        """Return the content of the file: the fields of the session, `turns` among them, as a dict. Returns an empty
        dict if there is no such file, or if it is damaged."""
        try:
            found = msgspec.json.decode(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError:
            return {}
        except OSError as error:
            raise files.explain(error, self._path) from error
        return found if isinstance(found, dict) and isinstance(found.get("turns"), list) else {}

    def text(self, name: str) -> str:
        """Return the text in the field `name` of the file, such as `created_at`; empty if there is none."""
        found = self.facts().get(name)
        return found if isinstance(found, str) else ""

    def write(self, trajectory: Trajectory, key: str) -> None:
        """Add to the file the turns of `trajectory`, the record of the session, that the file does not have yet, and
        update the totals in the file. `key` is the id by which the provider knows the session. The file is replaced as
        a whole, so that no reader ever finds half of it."""
        before = self.facts()
        made = {**before, **trajectory_to_json(trajectory)}
        made["turns"] = _joined(before.get("turns", []), trajectory.turns)
        made["metadata"] = {**before.get("metadata", {}), **_metadata(trajectory.agent, key)}
        try:
            files.make_private_folder(self.folder)
            if self.exists and not before:
                os.replace(self._path, self._path.with_suffix(".damaged.json"))
            data = msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n"
            os.replace(files.write_beside(self._path, data, durable=False), self._path)
        except OSError as error:
            raise files.explain(error, self._path) from error


def _joined(written: Sequence[Any], turns: Sequence[Turn]) -> list[Any]:
    """Return the list of turns to write into a session's file: `written`, the turns that the file has already,
    unchanged, and between and after them the turns of `turns` that it lacks. Turns with the same prompt count as the
    same turn. caw, the library whose file format this is, may have written turns to the file too."""
    found: list[Any] = []
    left = list(written)
    for place, turn in enumerate(turns):
        while left and not any(_is_same(left[0], other) for other in turns[place:]):
            found.append(left.pop(0))
        found.append(left.pop(0) if left and _is_same(left[0], turn) else turn_to_json(turn))
    return found + left


def _is_same(written: Any, turn: Turn) -> bool:
    """Return whether `written`, a turn in a file of caw, has the prompt of `turn`. In `turn` the prompt may have
    quotation marks around it, or the system prompt before it, because caw sends it so to some programs."""
    prompt = written.get("input") if isinstance(written, dict) else None
    return isinstance(prompt, str) and _plain(turn.input).endswith(_plain(prompt))


def _plain(prompt: str) -> str:
    return " ".join(prompt.split()).strip('"')


def _metadata(agent: str, key: str) -> dict[str, Any]:
    """Return the metadata that caw needs to resume a session: a dict with `key`, the id by which the provider `agent`
    knows the session, under the name that caw uses for it. Returns an empty dict if there is no such name or id."""
    return {KEYS[agent]: key} if agent in KEYS and key else {}
