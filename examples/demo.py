"""Work that is killed with SIGKILL in the middle and goes on in a new process, with nothing lost and nothing repeated.

    python examples/demo.py

A worker process does 30 turns of scripted work on a thread in a SQLite store. It says so on a pipe once a turn is
acknowledged. At turn 17 it is killed, with an append in flight. A second worker opens the same thread, finds it where
it was, and finishes. Offline; takes a second or two.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clew import Thread
from clew.checkpointers import SQLiteCheckpointer
from clew.log import MessageAdded, StatusChanged, ThreadStarted, Usage
from clew.messages import Text, ToolCall, ToolResult, assistant, plain_text, tool, user

TURNS = 30
KILL_AT = 17
THREAD = "quarterly-report"


def turn(number: int) -> list[MessageAdded]:
    """What a model and a tool would say in one turn."""
    call = ToolCall(f"call-{number}", "read_ledger", {"page": number})
    row = ToolResult(call.id, (Text(f"page {number}: {number * 1117} euros"),))
    return [
        MessageAdded(user(f"And page {number}?")),
        MessageAdded(assistant(f"Reading page {number}.", call), Usage(1200 + 90 * number, 60), 0.004),
        MessageAdded(tool(row)),
    ]


async def work(store: Path) -> None:
    """Go on with the thread from wherever it is; a fresh start is just a thread with no turns yet."""
    async with SQLiteCheckpointer(store) as checkpointer, Thread.open(checkpointer, THREAD, label="demo") as thread:
        done = thread.checkpoint.turns
        say(f"open {done}")
        if done == 0:
            await thread.append(ThreadStarted("bookkeeper", "scripted"))
        for number in range(done + 1, TURNS + 1):
            say(f"start {number}")
            began = time.perf_counter()
            await thread.append(*turn(number))
            say(f"ack {number} {(time.perf_counter() - began) * 1e6:.0f}")
        await thread.append(StatusChanged("done"))


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


class Run:
    """One worker process, read line by line."""

    def __init__(self, store: Path, kill_at: int | None = None) -> None:
        self.resumed_at = 0
        self.acknowledged: list[int] = []
        self.micros: list[int] = []
        command = [sys.executable, __file__, "work", str(store)]
        self.began = time.perf_counter()
        self.opened_after = 0.0
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:  # noqa: S603 - this very file
            self.pid = worker.pid
            for line in worker.stdout or ():
                what, number, *rest = line.split()
                if what == "open":
                    self.resumed_at = int(number)
                    self.opened_after = time.perf_counter() - self.began
                elif what == "ack":
                    self.acknowledged.append(int(number))
                    self.micros.append(int(rest[0]))
                elif int(number) == kill_at:
                    worker.send_signal(signal.SIGKILL)
        self.ended = worker.returncode


def show(title: str, rows: list[tuple[str, str]]) -> None:
    """A table: ruled and bold in a terminal, plain in a pipe."""
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    width = max(len(label) for label, _ in rows) + 2
    print(f"\n{bold}{title}{plain}")
    for label, value in rows:
        print(f"  {label:<{width}}{bold}{value}{plain}")
    print()


async def inspect(store: Path) -> tuple[int, list[str], float]:
    async with SQLiteCheckpointer(store) as checkpointer:
        checkpoint = await Thread.load(checkpointer, THREAD)
    questions = [plain_text(message) for message in checkpoint.messages if type(message).__name__ == "User"]
    return checkpoint.turns, questions, checkpoint.cost_usd or 0.0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "clew.db"
        print(f"A worker does {TURNS} turns of work on thread {THREAD!r}, each durable before the next.", flush=True)
        first = Run(store, kill_at=KILL_AT)
        print(f"Process {first.pid} was killed with SIGKILL while it appended turn {KILL_AT}.", flush=True)
        second = Run(store)
        print(f"Process {second.pid} opened the thread and went on after turn {second.resumed_at}.", flush=True)
        turns, questions, cost = asyncio.run(inspect(store))
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
    acknowledged = len(first.acknowledged)
    expected = [f"And page {number}?" for number in range(1, TURNS + 1)]
    micros = sorted(first.micros + second.micros)
    show(
        "What happened",
        [
            ("first process", f"ended by signal {-first.ended}, {acknowledged} turns acknowledged"),
            ("second process", f"ended with {second.ended}, started at turn {second.resumed_at + 1}"),
            ("turns lost", str(max(0, acknowledged - second.resumed_at))),
            ("turns repeated", str(len(questions) - len(set(questions)))),
            ("conversation", "whole" if questions == expected and turns == TURNS else "NOT WHOLE"),
            ("spend on record", f"${cost:.3f} for {turns} turns"),
            ("start to resumed", f"{second.opened_after * 1000:.0f} ms, most of it starting Python"),
            ("a durable turn", f"{micros[len(micros) // 2]} µs (median)"),
            ("the store", f"{size / 1024:.0f} KiB in one SQLite file"),
        ],
    )
    if questions != expected or second.ended != 0 or acknowledged > second.resumed_at:
        sys.exit("The thread is not what it should be.")


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        asyncio.run(work(Path(sys.argv[2])))
    else:
        main()
