"""The work a crash interrupts: every frame, head and blob of it follows from its operation, so that anyone can check it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from blake3 import blake3

from clew.checkpointers import Checkpointer, Head
from clew.errors import ClewError

__all__ = ["Ledger", "Op", "blobs_of", "check", "frames_of", "go_on", "head_of", "next_op"]

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Op(NamedTuple):
    """One append, of no frames or more, or the deletion of a thread."""

    kind: Literal["append", "delete"]
    thread: str
    log: str
    at: int
    frames: int
    serial: int
    """Which operation on this log it is, from 0."""

    def __str__(self) -> str:
        return " ".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Op:
        kind, thread, log, at, frames, serial = text.split(" ")
        assert kind in ("append", "delete")
        return cls("append" if kind == "append" else "delete", thread, log, int(at), int(frames), int(serial))


def frames_of(op: Op) -> list[bytes]:
    """Mostly small; now and then one of several sectors, or pages."""
    found = []
    for number in range(op.at, op.at + op.frames):
        seed = blake3(f"frame {op.log} {number}".encode())
        choice = seed.digest(4)
        size = 40 + choice[0] * 2
        if choice[1] < 24:
            size = 1500 + choice[2] * 20
        if choice[1] > 251:
            size = 30_000
        found.append(seed.digest(size))
    return found


def blobs_of(op: Op) -> dict[str, bytes]:
    """The blobs that this append points at: none for most."""
    if op.kind == "delete" or not op.frames or op.serial % 7 != 4:
        return {}
    data = [
        blake3(f"blob {op.log} {op.serial} {n}".encode()).digest(100 + 700 * n * n) for n in range(op.serial % 4 + 1)
    ]
    return {blake3(blob).hexdigest(): blob for blob in [*data, b"a blob that many threads share"]}


def head_of(op: Op) -> Head:
    return Head(
        thread_id=op.thread,
        frames=op.at + op.frames,
        log_id=op.log,
        status="running",
        digest=blake3(str(op).encode()).hexdigest(),
        title=f"operation {op.serial}",
        turns=op.serial,
        created_at=EPOCH,
        updated_at=EPOCH + timedelta(seconds=op.serial),
        tags={"thread": op.thread},
    )


def next_op(random: random.Random, thread: str, head: Head | None, deletes: float = 0.04) -> Op:
    """What to do next with a thread that has this head."""
    if head is None:
        return Op("append", thread, random.randbytes(6).hex(), 0, random.randint(1, 3), 0)
    kind: Literal["append", "delete"] = "delete" if random.random() < deletes else "append"
    frames = 0 if kind == "delete" else random.choice([0, 1, 1, 2, 2, 3, 3])
    return Op(kind, thread, head.log_id, head.frames, frames, head.turns + 1)


class Ledger:
    """What a writer said it did: what must be there after a crash, and what may be."""

    def __init__(self) -> None:
        self.settled: dict[str, list[Op]] = {}
        """Of each thread that exists, the acknowledged appends."""
        self.flying: dict[str, Op] = {}
        """Of each thread, the operation that was started and not acknowledged."""
        self.blobs: set[str] = set()
        """Blobs that were acknowledged, and not looked for since."""
        self.acknowledged = 0

    def feed(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "kept":
            self.blobs.add(rest)
        elif word in ("start", "ack", "unavailable"):
            op = Op.parse(rest)
            if word == "ack":
                self.flying.pop(op.thread, None)
                self.settled = self._after(op)
                self.acknowledged += 1
            else:
                self._resolve(op)
                self.flying[op.thread] = op

    def copy(self) -> Ledger:
        other = Ledger()
        other.settled = {thread: list(ops) for thread, ops in self.settled.items()}
        other.flying = dict(self.flying)
        other.blobs = set(self.blobs)
        return other

    def outcomes(self, thread: str) -> list[list[Op]]:
        """The appends that may be there: those acknowledged, or these and the one in flight."""
        found = [self.settled.get(thread, [])]
        if (op := self.flying.get(thread)) is not None:
            found.append(self._after(op).get(thread, []))
        return found

    def settle(self, thread: str, ops: list[Op]) -> None:
        """It has been seen which of the outcomes it was."""
        self.flying.pop(thread, None)
        self.settled.pop(thread, None)
        if ops:
            self.settled[thread] = ops

    def _resolve(self, op: Op) -> None:
        """A writer that begins this has seen what became of the operation before it."""
        before = self.flying.get(op.thread)
        if before is not None and before != op:
            same = op.log == before.log
            assert op.serial or not same, (
                f"{op} begins a log with the id of an old one: give its writer a seed of its own"
            )
            made = same and op.serial > before.serial if before.kind == "append" else not same
            self.settle(op.thread, self.outcomes(op.thread)[made])

    def _after(self, op: Op) -> dict[str, list[Op]]:
        rest = {thread: ops for thread, ops in self.settled.items() if thread != op.thread}
        if op.kind == "delete":
            return rest
        before = self.settled.get(op.thread, [])
        return {**rest, op.thread: [*before, op] if op not in before else before}


async def check(store: Checkpointer, ledger: Ledger) -> list[str]:
    """What the store holds against what the writer was told: every way in which it is wrong. Settles what was in flight."""
    wrong: list[str] = []
    listed: dict[str, Head] = {}
    try:
        async for head in store.heads():
            wrong += [f"thread {head.thread_id} is listed twice"] if head.thread_id in listed else []
            listed[head.thread_id] = head
    except ClewError as error:
        wrong.append(f"the listing fails: {error!r}")
    for thread in sorted({*ledger.settled, *ledger.flying, *listed}):
        try:
            wrong += await _check_thread(store, ledger, thread, listed.get(thread))
        except ClewError as error:
            wrong.append(f"thread {thread} cannot be read: {error!r}")
    wrong += await _missing(store, ledger.blobs, "acknowledged")
    ledger.blobs.clear()
    return wrong


async def _check_thread(store: Checkpointer, ledger: Ledger, thread: str, listed: Head | None) -> list[str]:
    frames, head, refs = await store.read(thread), await store.head(thread), await store.refs(thread)
    outcomes = ledger.outcomes(thread)
    ops = next((ops for ops in outcomes if head == (head_of(ops[-1]) if ops else None)), None)
    if ops is None:
        known = [head_of(op) for outcome in outcomes for op in outcome]
        what = "an acknowledged append is missing" if head is None or head in known else "its head was never written"
        return [f"thread {thread}: {what}: it ends at {head and (head.frames, head.turns)}, not {outcomes[0][-1:]}"]
    ledger.settle(thread, ops)
    wrong = []
    if frames != [frame for op in ops for frame in frames_of(op)]:
        wrong.append(
            f"thread {thread}: its frames are not those that were appended: {len(frames)} of {len(ops)} appends"
        )
    if head is not None and head.frames != len(frames):
        wrong.append(f"thread {thread}: its head says {head.frames} frames and there are {len(frames)}")
    if refs != {digest for op in ops for digest in blobs_of(op)}:
        wrong.append(f"thread {thread}: its refs are not those of its appends")
    if listed != head:
        wrong.append(f"thread {thread}: the listing shows another head")
    return wrong + await _missing(store, refs, f"thread {thread}: referenced")


async def _missing(store: Checkpointer, digests: Iterable[str], what: str) -> list[str]:
    wanted = set(digests)
    try:
        missing = wanted - (await store.get_blobs(wanted)).keys()
    except ClewError as error:
        return [f"{what} blobs cannot be read: {error!r}"]
    return [f"{what} blob {digest} is missing" for digest in missing]


async def go_on(store: Checkpointer, ledger: Ledger, random: random.Random, threads: Iterable[str]) -> list[str]:
    """Append to these threads where their logs end now; what goes wrong with it."""
    wrong = []
    for thread in threads:
        try:
            op = next_op(random, thread, await store.head(thread), deletes=0)
            blobs = blobs_of(op)
            await store.put_blobs(blobs)
            await store.append(thread, frames_of(op), at=op.at, head=head_of(op), refs=blobs)
        except ClewError as error:
            wrong.append(f"thread {thread} does not go on: {error!r}")
        else:
            ledger.feed(f"ack {op}")
    return wrong
