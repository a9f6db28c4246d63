"""Reads the sessions that Claude Code, Codex and opencode keep in files: on this machine, or in a copy from another."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from blake3 import blake3

from clew.compat.importers.base import Conversation, Source
from clew.errors import ClewError, Corrupt, InvalidInput
from clew.log import Described, Entry, MessageAdded, StatusChanged, ThreadStarted
from clew.providers import NativeSession, Place, Provider, discover, find_provider
from clew.providers.claude_code.rows import has_conversation, name_in
from clew.providers.claude_code.storage import is_key
from clew.providers.codex.rollout import is_key as is_codex_key
from clew.providers.codex.rollout import key_of, meta_of, path_for, rollouts
from clew.providers.fields import parse_time
from clew.providers.placement import staging_folder

__all__ = ["NativeSessions"]

_LOOKED_FOR = (
    "Looked for a home folder with .claude, .codex or .local/share/opencode in it, for one of these folders itself, for "
    "an opencode.db, and for the .jsonl file of a session."
)
_CODEX_FOLDERS = ("sessions", "archived_sessions")


class _Kept(NamedTuple):
    """A place where a provider keeps sessions. `env` are the environment variables that make the provider look there.
    `only` is the key of the one session that was asked for; empty if all were."""

    provider: str
    env: Mapping[str, str]
    only: str = ""


class NativeSessions(Source):
    """Reads the sessions that coding agents keep in a folder or a file. A session becomes a thread with its messages
    and with the coding program's own files, so that the program can go on with the session on any machine."""

    kind: ClassVar[str] = "native"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._scratch = tempfile.TemporaryDirectory(prefix="clew-")
        self._sessions: dict[str, tuple[Provider, NativeSession]] = {}
        self._problems: dict[str, str] = {}

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open `path`: a home folder, the folder or database in which a coding program keeps its sessions, or the file
        of one session, wherever that is. Raises `InvalidInput` if no session is found."""
        made = cls(Path(os.path.abspath(path)))
        try:
            made._list()
        except BaseException:
            made.close()
            raise
        return made

    def keys(self) -> Sequence[str]:
        return [*self._sessions, *self._problems]

    def version(self, key: str) -> str:
        """Return a text that changes when the session with this key changes: a digest of its file or, for opencode,
        which keeps all sessions in one database, the time of its last change. Returns an empty text if neither is
        known."""
        if key in self._problems:
            return ""
        provider, session = self._sessions[key]
        if provider.name == "opencode":
            return "" if session.updated_at is None else session.updated_at.isoformat()
        return blake3(session.path.read_bytes()).hexdigest()[:32]

    def read(self, key: str) -> Conversation:
        if key in self._problems:
            raise Corrupt(f"not all sessions of {key} could be listed: {self._problems[key]}")
        provider, session = self._sessions[key]
        folder = staging_folder(provider, session.key)
        if not provider.export(session.key, folder):
            raise InvalidInput(f"the session {session.key!r} of {provider.title} is gone.")
        found = provider.read(folder)
        if not found.messages:
            raise InvalidInput(f"the session {session.key!r} of {provider.title} has no messages.")
        born = found.created_at or session.created_at
        entries: list[Entry] = [
            ThreadStarted(
                provider.name, found.model, limits={"provider": provider.name, "cwd": found.cwd or session.cwd}
            ),
            Described(found.title or session.title or None, {"created_at": born.isoformat()} if born else {}),
            *map(MessageAdded, found.messages),
            StatusChanged("done"),
        ]
        losses = [f"message {loss.message + 1}: {loss.what} ({loss.why})" for loss in found.losses]
        return Conversation(thread_id=key, entries=entries, losses=losses, native=(provider, session.key))

    def close(self) -> None:
        self._scratch.cleanup()

    def _list(self) -> None:
        """Find the sessions at the path of this source, and keep them in a dict, that of the oldest session first.
        Raises `InvalidInput` if no coding program keeps sessions there."""
        if not self._path.exists():
            raise InvalidInput(f"{self._path}: there is no such file or folder.")
        places = self._in_folder() if self._path.is_dir() else self._in_file()
        if not places:
            raise InvalidInput(f"{self._path} has no sessions of coding agents. {_LOOKED_FOR}")
        found: list[tuple[datetime, str, Provider, NativeSession]] = []
        for kept in places:
            place = Place(self._path if self._path.is_dir() else self._path.parent, {**self._base(), **kept.env})
            listed = discover(kept.provider, place=place)
            self._problems |= {problem.provider: problem.reason for problem in listed.problems}
            provider = find_provider(kept.provider)(place)
            for session in listed:
                if kept.only in ("", session.key):
                    moment = session.updated_at or session.created_at or datetime.min.replace(tzinfo=UTC)
                    found.append((moment, f"{kept.provider}:{session.key}", provider, session))
        found.sort(key=lambda each: each[:2])
        self._sessions = {name: (provider, session) for _, name, provider, session in found}

    def _base(self) -> dict[str, str]:
        """Return the environment variables `HOME` and `XDG_CACHE_HOME`, set to a temporary folder. With them, providers
        find no sessions of the user, and put copies that they make into that folder."""
        return {"HOME": self._scratch.name, "XDG_CACHE_HOME": os.path.join(self._scratch.name, "cache")}

    def _in_folder(self) -> list[_Kept]:
        path = self._path
        found = []
        for claude in (path / ".claude", path, path.parent if path.name == "projects" else path):
            if any(claude.glob("projects/*/*.jsonl")):
                found.append(_Kept("claude_code", {"CLAUDE_CONFIG_DIR": str(claude)}))
                break
        for codex in (path / ".codex", path, path.parent if path.name in _CODEX_FOLDERS else path):
            if any(rollouts(codex)):
                found.append(_Kept("codex", {"CODEX_HOME": str(codex)}))
                break
        for data in (path, path / "opencode", path / ".local" / "share" / "opencode"):
            if (data / "opencode.db").is_file():
                found.append(_database(data / "opencode.db"))
                break
        return found

    def _in_file(self) -> list[_Kept]:
        path = self._path
        if path.suffix == ".db":
            return [_database(path)]
        if path.suffix == ".jsonl" and path.parent.parent.name == "projects" and is_key(path.stem):
            return [_Kept("claude_code", {"CLAUDE_CONFIG_DIR": str(path.parents[2])}, path.stem)]
        home = next((folder.parent for folder in path.parents if folder.name in _CODEX_FOLDERS), None)
        key = key_of(path)
        if home is not None and key is not None:
            return [_Kept("codex", {"CODEX_HOME": str(home)}, key)]
        return self._alone() if path.suffix in (".jsonl", ".zst") else []

    def _alone(self) -> list[_Kept]:
        """Copy the session file at the path of this source into a temporary folder, to the place where its program
        would keep it, so that the program's provider can read it from there. Returns a list with that one place; an
        empty list if the file is not a session of Claude Code or Codex."""
        path, top = self._path, Path(self._scratch.name)
        try:
            meta = meta_of(path)
        except (ClewError, OSError, ValueError):
            meta = {}
        if is_codex_key(str(meta.get("id"))):
            born = parse_time(meta.get("timestamp")) or datetime.now(UTC)
            target = path_for(top / "codex", str(meta["id"]), born)
            target = target.with_name(target.name + ".zst") if path.suffix == ".zst" else target
            kept = _Kept("codex", {"CODEX_HOME": str(top / "codex")})
        elif path.suffix == ".jsonl" and has_conversation(path):
            name = next((name for name in (name_in(path), path.stem) if is_key(name)), "")
            if not name:
                return []
            target = top / "claude" / "projects" / "alone" / f"{name}.jsonl"
            kept = _Kept("claude_code", {"CLAUDE_CONFIG_DIR": str(top / "claude")})
        else:
            return []
        target.parent.mkdir(parents=True)
        shutil.copyfile(path, target)
        return [kept]


def _database(path: Path) -> _Kept:
    """Return the place from which to import the sessions in `path`, a database of opencode: the environment variables
    that make opencode use it. If the database is in a folder named `opencode`, the files beside it are used too:
    opencode keeps long outputs of tools in them."""
    data = str(path.parents[1]) if path.parent.name == "opencode" else str(path.parent)
    return _Kept("opencode", {"OPENCODE_DB": str(path), "XDG_DATA_HOME": data})
