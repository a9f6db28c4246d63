"""A store whose files were damaged while nobody had them open: each page or region, in many ways, and then every operation.
What comes back is right, or an error of Clew that names the damage. Never wrong data, and never "no such thread"."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from clew import Thread, open_checkpointer
from clew.checkpointers import Checkpointer, MemoryCheckpointer
from clew.checkpointers.sqlite.schema import PAGE_SIZE
from clew.errors import Corrupt, MissingBlob, NewerFormat
from clew.log import MessageAdded
from clew.messages import user
from clew.threads.ops.verify import verify_all
from tests.limits import PATIENCE
from tests.sampling import FULL, dice, sampled
from tests.tally import count
from tests.threads.keeping import turn, with_turns

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.crash]

THREADS = [f"thread {number}" for number in range(9)]
STATES = 60
"""How many damaged states are tried, unless all are."""
FIRST_RECORD = 1400
"""More bytes than the first record of a thread's file has here."""
NAMED = (Corrupt, MissingBlob, NewerFormat)
"""The errors that say what is damaged or missing."""


class Damage(NamedTuple):
    """One way in which a file differs from what it was."""

    name: str
    file: str
    data: bytes


class Made(NamedTuple):
    """A sound store: its files by their names, older versions of them, and the messages of each thread."""

    files: dict[str, bytes]
    older: dict[str, bytes]
    messages: dict[str, Any]


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the content of all files in a folder. Read by another process: closing a database here would drop locks."""
    copy = folder.with_name(f"{folder.name} copied")
    subprocess.run(["cp", "-r", folder, copy], check=True)
    found = {str(path.relative_to(copy)): path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    shutil.rmtree(copy)
    return {name: data for name, data in found.items() if "reserve" not in name}


async def make(kind: str, folder: Path, *, open_ended: bool = False) -> Made:
    """Make a store with threads of several turns and large messages. With `open_ended` its files are as a process that
    is killed leaves them."""
    folder.mkdir()
    url = f"sqlite:///{folder}/clew.db" if kind == "sqlite" else f"file://{folder}/store"
    async with open_checkpointer(url) as store:
        for number, thread_id in enumerate(THREADS):
            await with_turns(store, thread_id, 3 + number, MessageAdded(user(f"{number} " * 40_000)))
    older = files_in(folder)
    async with open_checkpointer(url) as store:
        for thread_id in THREADS:
            async with Thread.open(store, thread_id) as thread:
                for number in range(20, 24):
                    await thread.append(*turn(number, f"{thread_id} again " * 30))
        messages = {name: (await Thread.load(store, name)).messages for name in THREADS}
        newer = files_in(folder)
    return Made(newer if open_ended else files_in(folder), older, messages)


def damages(made: Made, files: list[str], size: int, chance: Random) -> Iterator[Damage]:
    """Yield every way in which each region of `size` bytes of these files is damaged."""
    for name in files:
        data = made.files[name]
        for start in range(0, len(data), size):
            part = data[start : start + size]
            swapped = chance.randrange(0, len(data), size)
            old = made.older.get(name, b"")[start : start + size]
            instead = {
                "zeros": bytes(len(part)),
                "ones": b"\xff" * len(part),
                "random": chance.randbytes(len(part)),
                "the page of an older copy": old if len(old) == len(part) else part,
                "another page": (data[swapped : swapped + size] + part)[: len(part)],
            }
            for place in (*(chance.randrange(min(100, len(part))) for _ in range(3)), chance.randrange(len(part))):
                bit = bytes([part[place] ^ 1 << chance.randrange(8)])
                instead[f"a bit of byte {place}"] = part[:place] + bit + part[place + 1 :]
            for way, new in instead.items():
                if new != part:
                    yield Damage(f"{name} at {start}: {way}", name, data[:start] + new + data[start + size :])
            yield Damage(f"{name} cut at {start}", name, data[:start])
            yield Damage(f"{name} cut at {start + len(part) // 2}", name, data[: start + len(part) // 2])


class Probe:
    """Runs every operation on a damaged store, and notes what is wrong with their outcomes."""

    def __init__(self, store: Checkpointer, made: Made, *, may_be_older: bool) -> None:
        self.store = store
        self.made = made
        self.may_be_older = may_be_older
        self.wrong: list[str] = []
        self.counts = {"right": 0, "named": 0}

    async def run(self) -> None:
        for thread_id in THREADS:
            await self.call("head", self.store.head(thread_id), lambda head: head is not None)
            await self.call("load", Thread.load(self.store, thread_id), self._is_right(thread_id))
        await self.call("list", self._list(), lambda found: found == set(THREADS))
        await self.call("verify", self._verify(), lambda _: True)
        for thread_id in THREADS[:3]:
            copies = MemoryCheckpointer()
            await self.call("copy", Thread.copy(self.store, copies, thread_id), lambda _: True)
            if await copies.head(thread_id) is not None:
                await self.call("copied", Thread.load(copies, thread_id), self._is_right(thread_id))
        await self.call("append", self._append(), lambda whole: whole)
        await self.call("gc", Thread.gc(self.store), lambda _: True)
        await self.call("delete", self.store.delete(THREADS[4]), lambda _: True)
        await self.call("head after delete", self.store.head(THREADS[5]), lambda head: head is not None)

    def _is_right(self, thread_id: str) -> Callable[[Any], bool]:
        whole = self.made.messages[thread_id]

        def is_right(state: Any) -> bool:
            found = state.messages
            return bool(found == whole or (self.may_be_older and found == whole[: len(found)]))

        return is_right

    async def _list(self) -> set[str]:
        return {head.thread_id async for head in self.store.heads()}

    async def _verify(self) -> int:
        return len([verdict async for verdict in verify_all(self.store)])

    async def _append(self) -> bool:
        async with Thread.open(self.store, THREADS[1], takeover=True) as thread:
            await thread.append(MessageAdded(user("more")))
        messages = (await Thread.load(self.store, THREADS[1])).messages
        whole = self.made.messages[THREADS[1]]
        return bool(messages[:-1] == (whole[: len(messages) - 1] if self.may_be_older else whole))

    async def call(self, what: str, call: Awaitable[Any], is_right: Callable[[Any], bool]) -> None:
        try:
            if not is_right(await asyncio.wait_for(call, PATIENCE)):
                self.wrong.append(f"{what} gives what is not there")
            self.counts["right"] += 1
        except NAMED as error:
            self.counts["named"] += 1
            if not any(name in str(error) for name in (*THREADS, "clew.db", "store", "blob")):
                self.wrong.append(f"{what} does not say what is damaged: {error}")
        except Exception as error:  # noqa: BLE001 - whatever else comes is wrong
            self.wrong.append(f"{what}: {type(error).__name__}: {error}")


async def probe(kind: str, folder: Path, made: Made, damage: Damage, *, may_be_older: bool) -> Probe:
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in {**made.files, damage.file: damage.data}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    url = f"sqlite:///{folder}/clew.db" if kind == "sqlite" else f"file://{folder}/store"
    async with open_checkpointer(url) as store:
        probe = Probe(store, made, may_be_older=may_be_older)
        await probe.run()
    return probe


async def try_all(kind: str, tmp_path: Path, made: Made, states: list[Damage], *, may_be_older: bool = False) -> None:
    """Try these damaged states, print what came of them, and fail with all that is wrong."""
    wrong: list[str] = []
    right = named = 0
    for damage in sampled(states, STATES):
        count("damaged states")
        done = await probe(kind, tmp_path / "damaged", made, damage, may_be_older=may_be_older)
        wrong += [f"{damage.name}: {what}" for what in done.wrong]
        right, named = right + done.counts["right"], named + done.counts["named"]
    tried = len(states) if FULL else min(len(states), STATES)
    print(f"{kind}: {tried} of {len(states)} damaged states: {right} calls right, {named} errors that name the damage")
    assert wrong == [], f"{len(wrong)} wrong outcomes"
    assert right


async def test_a_damaged_page_of_a_sqlite_store_is_named_or_does_not_matter(tmp_path: Path) -> None:
    made = await make("sqlite", tmp_path / "made")
    assert sorted(made.files) == ["clew.db"]
    await try_all("sqlite", tmp_path, made, list(damages(made, ["clew.db"], PAGE_SIZE, dice("pages"))))


async def test_a_damaged_field_of_the_header_is_named_or_does_not_matter(tmp_path: Path) -> None:
    made = await make("sqlite", tmp_path / "made")
    data = made.files["clew.db"]
    states = [
        Damage(f"byte {place} is {value}", "clew.db", data[:place] + bytes([value]) + data[place + 1 :])
        for place in range(100)
        for value in {0, 0xFF, data[place] ^ 1, data[place] ^ 0x80} - {data[place]}
    ]
    await try_all("sqlite", tmp_path, made, states)


@pytest.mark.parametrize("file", ["clew.db-wal", "clew.db-shm"])
async def test_a_damaged_side_file_leaves_a_state_that_was_or_is_named(file: str, tmp_path: Path) -> None:
    """A write-ahead log counts up to its first damaged frame: SQLite cannot tell damage from an append that a power cut
    broke off. So what is read may be older, and is whole."""
    made = await make("sqlite", tmp_path / "made", open_ended=True)
    states = list(damages(made, [file], PAGE_SIZE + 24, dice(file)))
    await try_all("sqlite", tmp_path, made, states, may_be_older=file == "clew.db-wal")


async def test_a_damaged_region_of_a_file_store_is_named_or_does_not_matter(tmp_path: Path) -> None:
    made = await make("files", tmp_path / "made")
    threads = [name for name in made.files if "/threads/" in name]
    assert len(threads) == len(THREADS)
    states = [state for state in damages(made, threads, 700, dice("regions")) if not is_unfinished(made, state)]
    await try_all("files", tmp_path, made, states)


async def test_an_unfinished_last_record_of_a_file_store_does_not_count(tmp_path: Path) -> None:
    made = await make("files", tmp_path / "made")
    threads = [name for name in made.files if "/threads/" in name]
    every = [state for state in damages(made, threads, 700, dice("records")) if is_unfinished(made, state)]
    states = [state for state in every if len(state.data) > FIRST_RECORD]  # else the thread was never acknowledged
    await try_all("files", tmp_path, made, states, may_be_older=True)


def is_unfinished(made: Made, damage: Damage) -> bool:
    """Whether a power cut can leave this file: it ends early, or sectors of it are zeros."""
    return len(damage.data) < len(made.files[damage.file]) or "zeros" in damage.name
