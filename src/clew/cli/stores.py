"""Open the store that a command works on, and find the threads that its arguments name."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from clew.cli.deferred import asyncio, checkpointers, handles, store_base
from clew.cli.output.console import hint
from clew.errors import ClewError, Corrupt, InvalidInput, ThreadNotFound

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer

__all__ = ["Absent", "StoreNotFound", "find_any", "find_thread", "free_id", "on_store", "opened", "shown_store"]


T = TypeVar("T")
Absent = Literal["refused", "made", "empty"]
"""What happens if the store does not exist yet. `refused` is an error, `made` makes the store, and with `empty` the
command works on an empty store in memory."""
_SHOWN = 8


class StoreNotFound(ClewError, LookupError):
    """Raised if there is no store at the path that its URL names, and the command is not one that makes a store."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"there is no store at {path}. Check the URL; a new store is made by the first run, import or copy."
        )


@asynccontextmanager
async def opened(url: str | None, absent: Absent = "refused") -> AsyncIterator[Checkpointer]:
    """Open the store at this URL (None for the default store), and close it on exit. `absent` says what happens if the
    store does not exist yet: `refused` raises `StoreNotFound`, so that a mistyped URL leaves no database behind; `made`
    makes the store; `empty` gives an empty store in memory instead.

    The user's default store is never refused: as long as it does not exist, `refused` means the same as `empty` for it.
    """
    async with checkpointers.open_checkpointer(url) as store:
        if absent == "made" or not store_base.is_absent(store):
            yield store
            return
    if absent == "refused" and (url is not None or os.environ.get("CLEW_STORE")):
        raise StoreNotFound(store.own_files[0])
    async with checkpointers.open_checkpointer("memory://") as empty:
        yield empty


def on_store(url: str | None, work: Callable[[Checkpointer], Awaitable[T]], absent: Absent = "refused") -> T:
    """Open the store at this URL, run `work` on it in a new event loop, close the store, and return the result of
    `work`. `absent` says what happens if the store does not exist yet: `refused` raises `StoreNotFound`, `made` makes
    it, and `empty` gives an empty store in memory. See `opened`."""

    async def run() -> T:
        async with opened(url, absent) as store:
            return await work(store)

    return asyncio.run(run())


async def find_thread(store: Checkpointer, given: str) -> str:
    """Return the id of the thread that `given` names. That is its id, a beginning that no other id has, or a handle (a
    string with which any process can continue a session).

    A complete id comes first, even if it looks like a handle or other ids begin with it. Raises `ThreadNotFound` if
    nothing matches, and `InvalidInput` if several ids begin with `given`.
    """

    if given and await store.head(given) is not None:
        return given
    wanted = handles.read_handle(given).session_id
    if wanted != given and await store.head(wanted) is not None:
        return wanted
    found = [head.thread_id async for head in store.heads(checkpointers.HeadQuery(prefix=wanted, limit=_SHOWN + 1))]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(found[:_SHOWN]) + (" …" if len(found) > _SHOWN else "")
        raise InvalidInput(f"{wanted!r} is the beginning of several ids: {listed}. Give more of it.")
    raise ThreadNotFound(wanted)


def shown_store(url: str | None) -> str:
    """Return the URL to name with --store in a command that is shown to the user, so that the command works from any
    folder. `url` is the value of --store that the user gave, if any.

    Returns an empty text if the command needs no URL: for the default store, and for a store that the environment
    variable CLEW_STORE names, unless its path depends on the current folder. Also returns an empty text if `url` has
    credentials, which are never shown. It then prints a hint to put that URL into CLEW_STORE.
    """

    if not url:
        kept = os.environ.get("CLEW_STORE", "")
        named = _from_anywhere(kept)
        return "" if named == kept or handles.without_credentials(kept) != kept else named
    if handles.without_credentials(url) != url:
        _say_where_credentials_go()
        return ""
    return _from_anywhere(url)


def _from_anywhere(url: str) -> str:
    """Return the URL of a store with its path made absolute, if it is a `sqlite:` or `file:` URL. Other URLs stay as
    they are."""
    scheme, _, rest = url.partition(":")
    if scheme.lower() == "sqlite" and rest.startswith("///") and not rest.startswith("////"):
        return f"{scheme}:///{_absolute(rest[3:])}"
    if scheme.lower() == "file" and not rest.startswith("/"):
        return f"{scheme}://{_absolute(rest)}"
    return url


def _absolute(path: str) -> str:
    """Return the absolute path of the file or folder that a store opens for `path`, with `~` expanded."""
    return os.path.abspath(os.path.expanduser(path))


@functools.cache
def _say_where_credentials_go() -> None:
    """Print a hint that the URL of the store is left out of shown commands, because it has credentials, and that the
    user has to put it into CLEW_STORE to run them. Prints nothing if the hint was printed before in this process."""
    hint("The store's URL has credentials, so commands are shown without it. Put the URL into CLEW_STORE to run them.")


async def find_any(store: Checkpointer, given: Sequence[str]) -> list[str]:
    """Return the ids of the threads that the texts in `given` name, each id once. A text is a thread's id, a beginning
    that no other id has, or a handle (a string with which any process can continue a session). Raises `ThreadNotFound`
    if nothing matches a text, and `InvalidInput` if several ids begin with it.

    A thread whose head is damaged is found by its complete id only.
    """
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
    """Tell whether the head of this thread is damaged. It is called after an error about damage, because that error may
    be about another thread."""
    try:
        await store.head(thread_id)
    except Corrupt:
        return True
    return False


async def free_id(store: Checkpointer, wanted: str) -> str:
    """Return `wanted` if no thread has that id. Otherwise add `-2`, `-3` and so on to it, and return the first id that
    no thread has."""
    number, name = 1, wanted
    while await store.head(name) is not None:
        number += 1
        name = f"{wanted}-{number}"
    return name
