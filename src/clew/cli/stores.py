"""The store that a command works on, and the threads that are meant in it."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from clew.checkpointers import HeadQuery, open_checkpointer
from clew.checkpointers.base import is_absent
from clew.cli.output.console import hint
from clew.errors import ClewError, Corrupt, InvalidInput, ThreadNotFound

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer

__all__ = ["Absent", "StoreNotFound", "find_any", "find_thread", "free_id", "on_store", "opened", "shown_store"]


T = TypeVar("T")
Absent = Literal["refused", "made", "empty"]
_SHOWN = 8


class StoreNotFound(ClewError, LookupError):
    """There is no store at this place, and the command is not one that makes it."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"there is no store at {path}. Is the URL right? A new one is made by the first run, import or copy."
        )


@asynccontextmanager
async def opened(url: str | None, absent: Absent = "refused") -> AsyncIterator[Checkpointer]:
    """The store. One that is not there yet is refused, for a URL that is mistyped must leave no database behind; or it is
    made; or it is as good as empty, which your own default store always is."""

    async with open_checkpointer(url) as store:
        if absent == "made" or not is_absent(store):
            yield store
            return
    if absent == "refused" and (url is not None or os.environ.get("CLEW_STORE")):
        raise StoreNotFound(store.own_files[0])
    async with open_checkpointer("memory://") as empty:
        yield empty


def on_store(url: str | None, work: Callable[[Checkpointer], Awaitable[T]], absent: Absent = "refused") -> T:
    """Do this with the store open, and close it."""

    async def run() -> T:
        async with opened(url, absent) as store:
            return await work(store)

    return asyncio.run(run())


async def find_thread(store: Checkpointer, given: str) -> str:
    """The id of the thread that is meant: by its id, by any beginning of it that no other has, or by a handle. A whole id is
    never taken for anything else, also if it looks like a handle."""
    from clew.agent.handles import read_handle

    if given and await store.head(given) is not None:
        return given
    wanted = read_handle(given).session_id
    if wanted != given and await store.head(wanted) is not None:
        return wanted
    found = [head.thread_id async for head in store.heads(HeadQuery(prefix=wanted, limit=_SHOWN + 1))]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(found[:_SHOWN]) + (" …" if len(found) > _SHOWN else "")
        raise InvalidInput(f"{wanted!r} is the beginning of several threads: {listed}. Give more of it.")
    raise ThreadNotFound(wanted)


def shown_store(url: str | None) -> str:
    """The URL that a command shown to the user names, so that it finds the same store from any folder. Empty for the default
    store; for that of CLEW_STORE, unless its path depends on the folder; and for a URL with credentials, which are never
    shown: the user is told to put that into CLEW_STORE."""
    from clew.agent.handles import without_credentials

    if not url:
        kept = os.environ.get("CLEW_STORE", "")
        named = _from_anywhere(kept)
        return "" if named == kept or without_credentials(kept) != kept else named
    if without_credentials(url) != url:
        _say_where_credentials_go()
        return ""
    return _from_anywhere(url)


def _from_anywhere(url: str) -> str:
    """With an absolute path, where it is that of a file or a folder."""
    scheme, _, rest = url.partition(":")
    if scheme.lower() == "sqlite" and rest.startswith("///") and not rest.startswith("////"):
        return f"{scheme}:///{_absolute(rest[3:])}"
    if scheme.lower() == "file" and not rest.startswith("/"):
        return f"{scheme}://{_absolute(rest)}"
    return url


def _absolute(path: str) -> str:
    """The path that the store opens: `~` is the user's own folder there."""
    return os.path.abspath(os.path.expanduser(path))


@functools.cache
def _say_where_credentials_go() -> None:
    """Once, however many commands are shown."""

    hint(
        "The store's URL has credentials, which are not shown: put it into CLEW_STORE, and the commands find the store."
    )


async def find_any(store: Checkpointer, given: Sequence[str]) -> list[str]:
    """The ids of the threads that are meant, each once. One whose head is damaged is found by its whole id."""

    found = []
    for text in given:
        try:
            found.append(await find_thread(store, text))
        except Corrupt:
            if not await _is_damaged(store, text):
                raise
            found.append(text)
    return list(dict.fromkeys(found))


async def _is_damaged(store: Checkpointer, thread_id: str) -> bool:
    """Whether it is this very thread that cannot be read, and not another one that a listing came across."""

    try:
        await store.head(thread_id)
    except Corrupt:
        return True
    return False


async def free_id(store: Checkpointer, wanted: str) -> str:
    """This name, or if a thread has it, the next one that is free: `trip-2`, `trip-3`."""
    number, name = 1, wanted
    while await store.head(name) is not None:
        number += 1
        name = f"{wanted}-{number}"
    return name
