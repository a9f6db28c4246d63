"""A process on a small disk: fills it by way of a store, deletes in some way, and checks what is left.

`python -m tests.crash.room_worker URL fill RECORD`, then `… delete|prune|gc|rm RECORD`. RECORD is a file on another disk,
in which the process that fills the disk notes what was acknowledged. `fill+delete` does both in one process. `fill-loose`
packs no frames, so that a deletion needs the most room. `die:7` is killed after the seventh transaction of a deletion, and
`look` only checks what is left.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import msgspec
from blake3 import blake3

from clew import Thread
from clew.checkpointers import Checkpointer, open_checkpointer
from clew.checkpointers.heads import thread_key
from clew.checkpointers.sqlite import engine, room
from clew.errors import Unavailable
from tests.crash.work import Op, head_of

THREADS = 12
PAGE = 4096


class Record(msgspec.Struct):
    """What the store has acknowledged: the sizes of the frames of each thread, and the blobs."""

    frames: dict[str, list[int]] = {}
    blobs: list[str] = []


def frame(thread: str, number: int, size: int) -> bytes:
    return blake3(f"{thread} {number}".encode()).digest(size)


def blob(number: int) -> bytes:
    return blake3(f"blob {number}".encode()).digest(50_000 + number)


def free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


async def append(store: Checkpointer, record: Record, thread: str, size: int) -> None:
    at = len(record.frames.get(thread, ()))
    op = Op("append", thread, f"log of {thread}", at, 1, at)
    head = msgspec.structs.replace(head_of(op), digest="", status="done")
    await store.append(thread, [frame(thread, at, size)], at=at, head=head)
    record.frames.setdefault(thread, []).append(size)


async def fill(store: Checkpointer) -> Record:
    """Append to threads in turn, with a blob now and then, until two appends in a row no longer fit."""
    record = Record()
    dice = random.Random(7)
    refused = 0
    for thread in [f"t{number}" for number in range(THREADS)]:
        await append(store, record, thread, 500)
    while refused < 2:
        try:
            if dice.random() < 0.05:
                data = blob(len(record.blobs))
                await store.put_blobs({blake3(data).hexdigest(): data})
                record.blobs.append(blake3(data).hexdigest())
            size = 60_000 if dice.random() < 0.06 else dice.randrange(200, 10_000)
            await append(store, record, f"t{dice.randrange(THREADS)}", size)
            refused = 0
        except Unavailable as error:
            if "full" not in str(error):
                raise
            refused += 1
    return record


async def fill_pages(store: Checkpointer, record: Record, folder: Path) -> None:
    """Append to each thread of a file store what makes its file end at the end of a page, so that nothing more fits."""
    for thread in record.frames:
        path = next(folder.glob(f"*/threads/*/{thread_key(thread)}"))
        size, more = path.stat().st_size, 1000
        await append(store, record, thread, more)
        around = path.stat().st_size - size - more
        await append(store, record, thread, -(path.stat().st_size + around) % PAGE)
        assert -path.stat().st_size % PAGE < 50


def use_up(folder: Path) -> None:
    """Write into another file until there is no room left."""
    others = folder / "another program's"
    with others.open("ab") as file:
        file.write(bytes(free(folder)))
    assert free(folder) == 0


async def check(store: Checkpointer, record: Record) -> None:
    """Compare what the store holds with what it has acknowledged."""
    assert {head.thread_id async for head in store.heads()} == set(record.frames)
    for thread in [f"t{number}" for number in range(THREADS)]:
        wanted = [frame(thread, number, size) for number, size in enumerate(record.frames.get(thread, ()))]
        assert await store.read(thread) == wanted, f"thread {thread} is not what was acknowledged"
        assert (await store.head(thread) is None) == (not wanted)
    found = await store.get_blobs(record.blobs)
    assert set(found) == set(record.blobs)


async def make_room(store: Checkpointer, record: Record, way: str, url: str) -> None:
    """Delete a third of the threads, or all blobs, in the given way."""
    doomed = sorted(record.frames)[:: 1 if way == "gc" else 3]
    if way == "delete":
        for thread in doomed:
            await store.delete(thread)
    elif way == "prune":
        for thread in doomed:
            assert (await Thread.prune(store, prefix=thread, keep=0)).deleted, thread
            doomed = [name for name in record.frames if any(name.startswith(prefix) for prefix in doomed)]
    elif way == "rm":
        for thread in doomed:
            command = [sys.executable, "-m", "clew", "rm", "--store", url, "--yes", thread]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    elif way == "gc":
        doomed = []
        assert (await Thread.gc(store, grace=timedelta(0))).deleted == len(record.blobs)
        record.blobs.clear()
    for thread in doomed:
        record.frames.pop(thread, None)


def die_after(parts: int) -> None:
    """Be killed after this many of the small transactions in which a deletion is made."""
    counted = 0

    def delete_part(connection: apsw.Connection, work: Callable[[apsw.Cursor], bool]) -> bool:
        nonlocal counted
        is_done: bool = in_transaction(connection, work)
        counted += 1
        if counted == parts:
            os.kill(os.getpid(), signal.SIGKILL)
        return is_done

    deleting: Any = room
    in_transaction = deleting._in_transaction
    deleting._in_transaction = delete_part


async def steal(store: Checkpointer, folder: Path, note: Path) -> None:
    """Let another program take the room that is held in reserve. A delete then says how much it needs. Leave that much,
    so that the next process can delete. Note whether the thread is gone already, whole."""
    (folder / "clew.db-reserve").unlink()
    use_up(folder)
    try:
        await store.delete("t11")
    except Unavailable as error:
        said = re.search(r"Free about (\d+(?:\.\d+)?) MiB", str(error))
        if said is None:
            raise
        needed = int(float(said[1]) * 2**20)
    record = msgspec.json.decode(note.read_bytes(), type=Record)
    if await store.head("t11") is None:
        del record.frames["t11"]
    await check(store, record)
    note.write_bytes(msgspec.json.encode(record))
    (folder / "another program's").unlink()
    (folder / "another program's").write_bytes(bytes(free(folder) - needed))


async def look(store: Checkpointer, note: Path) -> None:
    """Check the store after `die:…`. The first thread is gone, whole; then make it anew and check again."""
    record = msgspec.json.decode(note.read_bytes(), type=Record)
    del record.frames["t0"]
    await check(store, record)
    for _ in range(3):
        await append(store, record, "t0", 100)
    await check(store, record)


async def main(url: str, work: str, note: Path) -> None:
    folder = Path(url.split("://", 1)[1].removeprefix("/" if url.startswith("sqlite") else "")).parent
    store = open_checkpointer(url)
    if "-loose" in work:
        work = work.replace("-loose", "")
        packing: Any = engine
        packing.PACK_AFTER = packing.LEAST = 2**60
    way = work
    if work == "fill" or work.startswith("fill+"):
        (folder / "room").write_bytes(bytes(2**17))
    if work.startswith("fill"):
        record = await fill(store)
        if url.startswith("file:"):
            (folder / "room").unlink()
            await fill_pages(store, record, Path(url.removeprefix("file://")))
        note.write_bytes(msgspec.json.encode(record))
        assert free(folder) < 2**18, free(folder)
        use_up(folder)
        way = work.removeprefix("fill").removeprefix("+")
    if not way:
        os._exit(0)  # as if it was killed
    if way == "look":
        await look(store, note)
        return
    if way == "steal":
        await steal(store, folder, note)
        return
    if way.startswith("die:"):
        die_after(int(way.removeprefix("die:")))
        await store.delete("t0")
        raise AssertionError("it was not killed")
    record = msgspec.json.decode(note.read_bytes(), type=Record)
    await check(store, record)
    await make_room(store, record, way, url)
    await check(store, record)
    left = free(folder)
    print(f"{way}: {left} bytes of room")
    assert left > 2**20, left
    for thread in ("t0", "t1"):
        for _ in range(10):
            await append(store, record, thread, 3000)
    await check(store, record)
    await store.close()
    async with open_checkpointer(url) as store:
        await check(store, record)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
