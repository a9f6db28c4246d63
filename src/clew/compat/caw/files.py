"""The readable files of a data_dir: one `trajectory.json` for each session, in the form that caw reads and writes."""

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
    """The file that shows a session of a data_dir to people and to other programs. The store in the data_dir has all that
    is in the file, and more. So a file that is missing or damaged is made anew.

    Turns that are in the file already stay as they are, so that a session which caw began keeps what caw wrote.
    """

    def __init__(self, data_dir: str | os.PathLike[str], session_id: str) -> None:
        """Raises `InvalidInput` if the id cannot be the name of a folder."""
        if not _NAME.fullmatch(session_id):
            raise InvalidInput(
                f"the session id {session_id!r} cannot be the name of a folder in data_dir. Ids have letters, digits, '-', "
                "'_' and '.', and do not begin with '.'."
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
        """Return what the file says of the session, `turns` included; empty if there is no such file, or if it is
        damaged."""
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
        """Return what the file says of the session under a name, such as `created_at`; empty if it says nothing."""
        found = self.facts().get(name)
        return found if isinstance(found, str) else ""

    def write(self, trajectory: Trajectory, key: str) -> None:
        """Add the turns that the file does not have yet, and bring its totals up to date. `key` is the id by which the
        provider knows the session. The file is replaced as a whole, so that no reader ever finds half of it."""
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
    """Return the turns for the file: those that it has, unchanged, and between and after them those that it lacks. Turns
    are told apart by their prompts: caw may have written the file too, while Clew did not look."""
    found: list[Any] = []
    left = list(written)
    for place, turn in enumerate(turns):
        while left and not any(_is_same(left[0], other) for other in turns[place:]):
            found.append(left.pop(0))
        found.append(left.pop(0) if left and _is_same(left[0], turn) else turn_to_json(turn))
    return found + left


def _is_same(written: Any, turn: Turn) -> bool:
    """Return whether a turn in a file of caw has the prompt of this turn. To some programs, caw gives a prompt in
    quotation marks, or with the system prompt before it."""
    prompt = written.get("input") if isinstance(written, dict) else None
    return isinstance(prompt, str) and _plain(turn.input).endswith(_plain(prompt))


def _plain(prompt: str) -> str:
    return " ".join(prompt.split()).strip('"')


def _metadata(agent: str, key: str) -> dict[str, Any]:
    """Return what caw notes about a session in order to resume it: under which id its provider knows it."""
    return {KEYS[agent]: key} if agent in KEYS and key else {}
