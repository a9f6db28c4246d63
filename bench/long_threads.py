"""Threads of any length, written in seconds: the frames of the built-in agent, without the agent and its model.

python -m bench.long_threads sqlite:///tmp/long.db long 100000 --compact 200
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence

import msgspec

from bench.corpus import MODEL, Corpus
from clew._runtime.clock import now
from clew.agent.exchanges import OWN, Spent, begun, ended
from clew.agent.prompts import note
from clew.checkpointers import Checkpointer, Head, open_checkpointer
from clew.log import (
    FIRST,
    Compacted,
    EncodedFrame,
    LeaseTaken,
    Logged,
    MessageAdded,
    ModelCallStarted,
    Spend,
    StatusChanged,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    Usage,
    encode_entries,
    encode_frame,
)
from clew.messages import Text, ToolCall, ToolResult, assistant, plain_text, user
from clew.threads.heads import new_head

__all__ = ["EXCHANGE", "agent_frames", "write_thread"]

EXCHANGE = 20
"""Turns from one prompt to its answer."""
_POOL = 256
"""How many different turns of the corpus are used over and over. Frames are compressed one by one, so that repeats make
a log no smaller; making new prose for each of a million turns would take a quarter of an hour."""
_FRAMES, _BYTES = 4096, 8 * 2**20
"""The most frames and bytes that one append gets."""


async def write_thread(
    store: Checkpointer, thread_id: str, turns: int, *, compact_every: int = 0, seed: int = 1
) -> Head:
    """Write a new thread of this many turns, as the built-in agent would have left it, and return its head.

    Every 20th turn answers a prompt, the others call one tool each; a turn has about 3 KB of JSON. With
    `compact_every=200`, a summary replaces what the model sees before each 200 turns, as if its window were full then.
    The thread is "done": an agent can be given the next prompt. Appends many frames at once: 100,000 turns take seconds.
    The memory that is needed does not depend on the number of turns.
    """
    head = _Totals(new_head(thread_id))
    previous = FIRST
    batch: list[EncodedFrame] = []
    size = 0
    for number, entries in enumerate(agent_frames(turns, compact_every=compact_every, seed=seed)):
        frame = encode_frame(
            [encode_entries(entries)], previous=previous, thread_id=thread_id, number=number, keys=store.keys
        )
        previous = frame.digest
        head.add(entries)
        batch.append(frame)
        size += len(frame.data)
        if len(batch) >= _FRAMES or size >= _BYTES:
            await head.append(store, batch)
            batch, size = [], 0
    if batch:
        await head.append(store, batch)
    return head.head


def agent_frames(turns: int, *, compact_every: int = 0, seed: int = 1) -> Iterator[list[Logged]]:
    """Yield the entries of each frame of such a thread (see `write_thread`), from the first frame to the last."""
    pool = Corpus(seed).conversation(_POOL)
    messages = prompt = 0  # the history's length, and the place of the prompt in it
    prompt_id, spent = "", Spent()
    for turn in range(turns):
        said = pool[turn % _POOL]
        is_first, is_last = turn % EXCHANGE == 0, turn % EXCHANGE == EXCHANGE - 1 or turn == turns - 1
        keep = 1 if is_first else 2
        if is_first:
            prompt, prompt_id, spent = messages, f"clew:{turn:016x}", Spent()
            yield [LeaseTaken("process 1 on bench", f"{turn:032x}")]
            started = [ThreadStarted(model=MODEL, limits={"max_turns": EXCHANGE})] if turn == 0 else []
            asked = MessageAdded(user(f"{said.user} ({turn})"))
            yield [*started, asked, begun(prompt, OWN, MODEL, prompt_id)]
            yield [ModelCallStarted(MODEL)]
            messages += 1
        if compact_every and turn and turn % compact_every == 0:
            summary = note(f"Summary of the conversation so far:\n\n{said.user}")
            yield [Compacted(summary, keep, Usage(50_000, 400), 0.156), ModelCallStarted(MODEL)]
            messages += 1
            spent = spent.plus(Spent(Usage(50_000, 400), 0.156))
        call = ToolCall(f"call_{turn:024x}", said.tool, said.arguments)
        usage = Usage(50_000, (len(said.reply) + 125) // 4)
        cost = usage.input_tokens * 3e-6 + usage.output_tokens * 15e-6
        spent = spent.plus(Spent(usage, cost, 0.25))
        if is_last:
            yield [
                Spend(cost_usd=0.0, seconds=0.25),
                MessageAdded(assistant(said.reply, model=MODEL, stop="end_turn"), usage, cost),
            ]
            messages += 1
            yield [StatusChanged("done"), ended(prompt, messages, OWN, MODEL, prompt_id, "done", "", spent)]
            continue
        yield [
            Spend(cost_usd=0.0, seconds=0.25),
            MessageAdded(assistant(said.reply, call, model=MODEL, stop="tool_calls"), usage, cost),
            ToolIntent(messages, 0, f"{turn:032x}"),
        ]
        yield [
            Spend(cost_usd=0.0),
            ToolOutcome(messages, 0, ToolResult(call.id, (Text(json.dumps(said.rows)),))),
            ModelCallStarted(MODEL),
        ]
        messages += 2


class _Totals:
    """The head of the thread that is written. Adds up what follows from the entries, since a fold would hold them all."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self._turns = self._input = self._output = 0
        self._cost = 0.0
        self._title = ""

    def add(self, entries: Sequence[Logged]) -> None:
        for entry in entries:
            if isinstance(entry, MessageAdded) and entry.usage is None:
                self._title = self._title or " ".join(plain_text(entry.message).split())[:80]
            elif isinstance(entry, MessageAdded | Compacted | Spend):
                self._turns += isinstance(entry, MessageAdded)
                self._input += entry.usage.input_tokens if entry.usage else 0
                self._output += entry.usage.output_tokens if entry.usage else 0
                self._cost += entry.cost_usd or 0.0

    async def append(self, store: Checkpointer, frames: Sequence[EncodedFrame]) -> None:
        """Append these frames to the log, with a head that says what all frames so far add up to."""
        before = self.head.frames
        self.head = msgspec.structs.replace(
            self.head,
            status="done",
            frames=before + len(frames),
            digest=frames[-1].digest.hex(),
            model=MODEL,
            title="" if store.keys else self._title,
            turns=self._turns,
            input_tokens=self._input,
            output_tokens=self._output,
            cost_usd=self._cost,
            updated_at=now(),
        )
        data = [frame.data for frame in frames]
        await store.append(self.head.thread_id, data, at=before, head=self.head)


async def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.long_threads", description="Write a long thread to a store.")
    parser.add_argument("store", help="the store's URL")
    parser.add_argument("thread", help="the new thread's id")
    parser.add_argument("turns", type=int)
    parser.add_argument("--compact", type=int, default=0, metavar="N", help="a summary before each N turns")
    given = parser.parse_args()
    async with open_checkpointer(given.store) as store:
        head = await write_thread(store, given.thread, given.turns, compact_every=given.compact)
    print(f"{head.thread_id}: {head.turns} turns, {head.frames} frames")


if __name__ == "__main__":
    asyncio.run(_main())
