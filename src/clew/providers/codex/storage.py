"""Copies conversations of Codex out of its home folder and back into it, and finds and lists them there.

Codex keeps each conversation in a file of its own, called a rollout. A conversation is copied into an export folder
with `rollout.jsonl`, and in `agents` the rollouts of its sub-agents, named by their keys.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clew.errors import Corrupt, InvalidInput
from clew.providers.base import NativeSession, Place, Standing
from clew.providers.codex.rollout import (
    checked,
    codex_home,
    contents,
    head_of,
    is_key,
    is_prompt,
    key_of,
    locate,
    meta_of,
    newest_first,
    path_for,
    portable,
    record_of,
    rollouts,
    text_of,
    title_of,
)
from clew.providers.fields import parse_time, values
from clew.providers.files import bring, files_in, put, sweep

__all__ = ["ROLLOUT", "export", "find", "install_session", "names", "rollout_in", "sessions", "standing"]


ROLLOUT = "rollout.jsonl"
_AGENTS = "agents"
_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def export(home: Path, key: str, folder: Path) -> bool:
    """Copy the conversation of this key, with its sub-agents, from Codex's home folder `home` into an export folder, or
    bring an earlier copy there up to date. Returns False if the conversation is not on this machine."""
    path = locate(home, checked(key))
    if path is None:
        return False
    sweep(folder)
    agents = folder / _AGENTS
    if bring(path, folder / ROLLOUT, _fill):
        children = dict(_children(home, key, folder / ROLLOUT))
    else:
        known = [file.stem for file in agents.glob("*.jsonl")]
        children = {child: found for child in known if (found := locate(home, child)) is not None}
    for child, original in children.items():
        bring(original, agents / f"{child}.jsonl", _fill)
    return True


def _fill(path: Path, draft: Path) -> None:
    draft.write_bytes(portable(contents(path)))


def _children(home: Path, key: str, copy: Path) -> Iterator[tuple[str, Path]]:
    """Yield the key and the path of every sub-agent's rollout (Codex's file of one conversation) in Codex's home folder
    `home`. The sub-agents of sub-agents are included. `key` is the main conversation's key, and `copy` is a copy of its
    rollout. A rollout counts as a sub-agent's if it names its parent, and its key occurs in the parent's rollout."""
    here = {found: path for path in rollouts(home) if (found := key_of(path)) is not None}
    family, waiting = {key}, [copy]
    while waiting:
        named = (match[0].decode() for match in _UUID.finditer(contents(waiting.pop())))
        for child in sorted({name for name in named if name in here} - family):
            if _parent(here[child]) in family:
                family.add(child)
                waiting.append(here[child])
                yield child, here[child]


def _parent(path: Path) -> object:
    """Return the key of the conversation that started the one in the file `path` as a sub-agent. Returns None if it is
    not a sub-agent's conversation, or if the file is damaged or holds no conversation. Nothing is raised for a damaged
    file, because the caller only guesses which files are sub-agents'."""
    try:
        first = head_of(path, 262_144).split(b"\n", 1)[0]
    except Corrupt:
        return None
    return values((record_of(first) or {}).get("payload")).get("parent_thread_id")


def standing(home: Path, key: str, folder: Path) -> Standing:
    """Return how the conversation of this key on this machine compares with the copy in an export folder. `absent`: it
    is not on this machine. `behind`: it is a beginning of the copy. `same`: it equals the copy. `ahead`: it continues
    the copy. `apart`: anything else. Sub-agents are not compared. `home` is Codex's home folder."""
    path = locate(home, checked(key))
    if path is None:
        return "absent"
    here, kept = portable(contents(path)), _kept(folder, key)
    if here == kept:
        return "same"
    if kept.startswith(here):
        return "behind"
    return "ahead" if here.startswith(kept) else "apart"


def rollout_in(folder: Path) -> Path:
    """Return the path of the rollout (Codex's file of one conversation) in an export folder, which holds Clew's copy of
    one conversation. Raises `Corrupt` if there is none."""
    file = folder / ROLLOUT
    if not file.is_file() or file.is_symlink():
        raise Corrupt(f"{folder} holds no session of Codex: there is no {ROLLOUT} in it.")
    return file


def _kept(folder: Path, key: str) -> bytes:
    """Return the bytes of the rollout (Codex's file of one conversation) in an export folder, which holds Clew's copy
    of it. If the rollout has another key than `key`, that key is replaced by `key` in the returned bytes."""
    file = rollout_in(folder)
    own = str(meta_of(file)["id"])
    data = portable(contents(file))
    return data if own == key else _renamed(data, own, key)


def _renamed(data: bytes, own: str, key: str) -> bytes:
    """Return the bytes of a rollout (Codex's file of one conversation) with the key `own` replaced by `key` in the
    fields that name the conversation itself. What was said in the conversation stays as it is, even if it quotes such a
    field."""
    named = rb'("(?:id|thread_id|session_id|sender_thread_id)":")' + re.escape(own.encode()) + rb'"'
    return re.sub(named, rb"\g<1>" + key.encode() + b'"', data)


def install_session(home: Path, key: str, folder: Path) -> None:
    """Put the conversation in the export folder `folder`, which holds Clew's copy of it, where Codex looks for it,
    under this key. A different conversation that has this key is copied to a name that Codex ignores before it is
    replaced. The copies of its sub-agents' conversations are put there too, each only if Codex has none of its key or
    only a beginning of it. `home` is Codex's home folder."""
    _place(home, checked(key), _kept(folder, key), meta_of(folder / ROLLOUT).get("timestamp"))
    for name in files_in(folder / _AGENTS):
        file = folder / _AGENTS / name
        if (
            file.suffix == ".jsonl"
            and is_key(name.removesuffix(".jsonl"))
            and _standing_of(home, file) in ("absent", "behind")
        ):
            _place(home, file.stem, portable(contents(file)), meta_of(file).get("timestamp"))


def _standing_of(home: Path, file: Path) -> Standing:
    """Compare a sub-agent's conversation in Codex's home folder `home` with `file`, its copy in an export folder.
    Returns "absent" if the conversation is not in the home folder, and "behind" if it is a beginning of the copy and
    shorter. Returns "apart" for everything else, also if both are equal: the caller then leaves it as it is."""
    path = locate(home, file.stem)
    if path is None:
        return "absent"
    here, kept = portable(contents(path)), portable(contents(file))
    return "behind" if here != kept and kept.startswith(here) else "apart"


def _place(home: Path, key: str, data: bytes, born: object) -> None:
    """Write `data`, the bytes of a rollout (Codex's file of one conversation), to where Codex, with the home folder
    `home`, looks for the conversation with the id `key`. An existing file of this conversation with other content is
    kept beside it, under a name that Codex ignores. `born` is the time, as ISO text, that goes into the name of a new
    file; if it is anything else, the current time is used."""
    old = locate(home, key)
    if old is None:
        put(path_for(home, key, parse_time(born) or datetime.now(UTC)), data)
    elif portable(contents(old)) != data:
        aside = old.with_name(f"{old.name}.{datetime.now(UTC):%Y%m%dT%H%M%S%f}.kept")
        try:
            os.link(old, aside)
        except OSError:
            shutil.copy2(old, aside)
        put(old.with_suffix("") if old.suffix == ".zst" else old, data)
        if old.suffix == ".zst":
            old.unlink()


def find(place: Place, session: str) -> str | None:
    """Return the key of a conversation on this machine. `session` is its key, the beginning of a key, the name that the
    user gave it, or the path of its file. Returns None if there is none. Raises `InvalidInput` if several conversations
    fit, or if the file is not in Codex's home folder. `place` says where that folder is."""
    home = codex_home(place)
    if not session.strip():
        raise InvalidInput("no session is given. Give its key, the beginning of its key, its name, or its path.")
    if os.sep in session or session.endswith((".jsonl", ".zst")):
        return _find_file(home, place.home / session[2:] if session.startswith("~/") else place.cwd / session)
    keys = {key for file in rollouts(home) if (key := key_of(file)) is not None}
    if session in keys:
        return session
    titled = {key for key, name in names(home).items() if name == session and key in keys}
    meant = sorted(titled or {key for key in keys if key.startswith(session.lower())})
    if len(meant) > 1:
        raise InvalidInput(
            f"{session!r} may mean {len(meant)} sessions of Codex: {', '.join(meant[:3])} … Give more of the key."
        )
    return meant[0] if meant else None


def _find_file(home: Path, path: Path) -> str | None:
    if not path.is_file():
        return None
    key = str(meta_of(path)["id"])
    here = locate(home, key)
    if here is None or not here.samefile(path):
        raise InvalidInput(f"{path} is a session of Codex, but is not in {home}. Copy it to {home / 'sessions'} first.")
    return key


_HEAD = 131_072
"""Bytes read from the beginning of a conversation file to describe it: enough for Codex's own instructions, the user's,
and the first prompt."""


def sessions(home: Path) -> Iterator[NativeSession]:
    """Describe the conversations in Codex's home folder `home`, newest first. Sub-agents are left out, because they
    belong to the conversations that started them."""
    titles = names(home)
    for changed, size, path in newest_first(home):
        session = _session(path, changed, size, titles)
        if session is not None:
            yield session


def _session(path: Path, changed: float, size: int, titles: dict[str, str]) -> NativeSession | None:
    """Describe the conversation in the file `path`. `changed` is the time of the file's last change in seconds since
    1970, `size` its size in bytes, and `titles` has the names that users gave to conversations, by key.

    Returns None for the conversation of a sub-agent, and if the file was deleted meanwhile. A compressed file that is
    damaged is described without what is in it, so that the other conversations can still be listed.
    """
    try:
        head = head_of(path, _HEAD)
        complete = len(head) < _HEAD
    except FileNotFoundError:
        return None
    except Corrupt:
        head, complete = b"", False
    meta: dict[str, Any] = {}
    title, prompts = "", 0
    for row in head.split(b"\n"):
        record = record_of(row) or {}
        payload = values(record.get("payload"))
        if record.get("type") == "session_meta" and not meta:
            meta = payload
            if isinstance(meta.get("source"), dict) or meta.get("parent_thread_id"):
                return None
        elif record.get("type") == "response_item" and is_prompt(payload):
            title, prompts = title or title_of(text_of(payload)), prompts + 1
            if not complete:
                break
    key = key_of(path) or ""
    return NativeSession(
        provider="codex",
        key=key,
        path=path,
        cwd=str(meta.get("cwd") or ""),
        title=titles.get(key) or title,
        exchanges=prompts if complete else None,
        created_at=parse_time(meta.get("timestamp")),
        updated_at=datetime.fromtimestamp(changed, UTC),
        size=size,
    )


def names(home: Path) -> dict[str, str]:
    """Return the names that users gave to conversations in Codex, as a dict from the conversation's key (its id) to the
    name. `home` is Codex's home folder. If a conversation was named several times, the last name counts."""
    index = home / "session_index.jsonl"
    if not index.is_file():  # absent; or a pipe, which would be waited for without end
        return {}
    data = index.read_bytes()
    given = [record for row in data.split(b"\n") if (record := record_of(row)) is not None]
    return {str(record.get("id")): str(record["thread_name"]) for record in given if record.get("thread_name")}
