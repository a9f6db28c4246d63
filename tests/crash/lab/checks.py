"""What has to be true of every thread of a lab in the end, whatever was killed. The ledger says what really happened."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from clew import Thread
from clew.agent.prompts import is_note, is_prompt
from clew.checkpointers import Checkpointer
from clew.log import LeaseTaken, MessageAdded, Queued, StatusChanged, StepOutcome, ToolOutcome
from clew.messages import Assistant, Message, ToolCall, plain_text, tool_calls
from clew.threads.reader import decoded_frames
from clew.workspace import Workspace
from tests.crash.lab.agent import NOTES, counted, results_of
from tests.crash.lab.ledger import Deed
from tests.crash.lab.machines import Machines

__all__ = ["Found", "check_threads"]

_LABEL = re.compile(r"\(([^,)]*)[,)]")
_DEEDS = {"charge": "charged", "pay": "paid", "look": "looked", "put": "put", "walk": "stepped"}
_LOST = ("The files of the workspace were restored", "The workspace is empty")


class Found(msgspec.Struct):
    """What was found in all threads together."""

    wrong: list[str] = []
    """Broken promises."""
    turns: int = 0
    in_doubt: int = 0
    """Calls of which the model was told that nobody knows whether they took effect."""
    asked_again: int = 0
    """Requests to the model beyond one for each response on record: those that a kill cut off."""
    notes_made_again: int = 0
    recoveries: list[float] = []
    """For each thread that a killed worker held: after how many seconds the log went on."""


async def check_threads(
    store: Checkpointer, texts: dict[str, Counter[str]], deeds: Iterable[Deed], machines: Machines, folder: Path
) -> Found:
    """Check all threads. `texts` says how often each text had to be asked of each thread, and `folder` is one in which
    files can be restored.

    What a process did that was frozen may be later than the record of another one that took its thread over: nobody can
    know where in its code a process wakes up."""
    found = Found()
    by_thread: defaultdict[str, list[Deed]] = defaultdict(list)
    killed = {kill.life: kill.at for kill in machines.kills}
    for deed in deeds:
        by_thread[deed.thread_id].append(deed)
        if deed.kind == "died":  # by itself, and its machine saw that later
            killed[deed.life] = deed.at
    for thread_id, expected in texts.items():
        await _Checked(store, thread_id, by_thread[thread_id], killed, machines, found).check(expected, folder)
    return found


class _Checked:
    """One thread under examination."""

    def __init__(
        self,
        store: Checkpointer,
        thread_id: str,
        deeds: list[Deed],
        killed: dict[str, int],
        machines: Machines,
        found: Found,
    ) -> None:
        self._store = store
        self._thread_id = thread_id
        self._deeds = deeds
        self._killed = killed
        self._machines = machines
        self._found = found
        self._messages: Sequence[Message] = ()
        self._recorded: list[int] = []
        """When each response was recorded."""
        self._outcomes: dict[tuple[int, int], int] = {}
        """When the outcome of each call was recorded, by message and index."""
        self._steps: dict[tuple[int, int, str], int] = {}

    def _may_lose(self, holder: str) -> bool:
        """Return whether a worker that was not killed yet may lose a thread: it was frozen, or the store was away."""
        return holder in self._machines.frozen or self._machines.is_store_away

    def _after(self, recorded: int, deeds: Iterable[Deed]) -> list[str]:
        """Return the processes that did something again that was on record."""
        return [deed.life for deed in deeds if deed.at > recorded and deed.life not in self._machines.frozen]

    def _wrong(self, text: str) -> None:
        self._found.wrong.append(f"{self._thread_id}: {text}")

    async def check(self, expected: Counter[str], folder: Path) -> None:
        await self._read()
        state = await Thread.load(self._store, self._thread_id)
        self._messages = state.history
        if state.status != "done":
            self._wrong(f"is {state.status}, and not done")
        asked = Counter(plain_text(message) for message in self._messages if is_prompt(message))
        if asked != expected:
            self._wrong(f"prompts asked too often: {asked - expected}; lost: {expected - asked}")
        self._found.turns += len(self._recorded)
        self._check_requests()
        self._check_calls()
        notes, is_told = self._check_notes()
        there: list[str] = []
        if state.workspace is not None:
            place = folder / self._thread_id
            await Workspace(place, self._store).restore(state.workspace)
            there = (place / NOTES).read_text().split() if (place / NOTES).exists() else []
        if there != [str(number) for number in range(len(there))] or not (is_told or len(there) == notes):
            self._wrong(f"the notes on record are {there}, and the model was told of {notes}")
        for deed in self._deeds:
            if deed.kind == "wrong":
                self._wrong(f"{deed.life} found: {deed.key}")

    async def _read(self) -> None:
        head = await self._store.head(self._thread_id)
        assert head is not None
        holder = ""
        async for _, frame in decoded_frames(self._store, head):
            if holder in self._killed and frame.time > self._killed[holder]:
                self._found.recoveries.append((frame.time - self._killed[holder]) / 1e6)
                holder = ""
            for entry in frame.entries:
                match entry:
                    case LeaseTaken():
                        label = _LABEL.search(entry.owner)
                        taker = label[1] if label else ""
                        if holder not in ("", taker) and not self._may_lose(holder):
                            self._wrong(f"{taker} took it from {holder}, which was alive")
                        holder = taker
                    case Queued():
                        if "ended without a word" in entry.reason and holder and not self._may_lose(holder):
                            self._wrong(f"it was taken from {holder}, which was alive")
                        holder = ""
                    case StatusChanged() if entry.status != "running":
                        holder = ""
                    case MessageAdded() if type(entry.message) is Assistant:
                        self._recorded.append(frame.time)
                    case ToolOutcome():
                        place = entry.message, entry.index
                        if place in self._outcomes:
                            self._wrong(f"the call {place} has two outcomes")
                        self._outcomes[place] = frame.time
                    case StepOutcome():
                        self._steps[entry.message, entry.index, entry.key] = frame.time

    def _check_requests(self) -> None:
        requests: defaultdict[int, list[Deed]] = defaultdict(list)
        for deed in self._deeds:
            if deed.kind == "asked":
                requests[int(deed.number)].append(deed)
        for number, recorded in enumerate(self._recorded):
            asked = requests.pop(number, [])
            self._found.asked_again += len(asked) - 1
            if not asked:
                self._wrong(f"response {number} was never asked for")
            if late := self._after(recorded, asked):
                self._wrong(f"response {number} was on record, and {late} asked for it again")
        for number, asked in requests.items():
            self._wrong(f"response {number} was asked for {len(asked)} times, and none is on record")

    def _check_calls(self) -> None:
        results = results_of(tuple(self._messages))
        for place, message in enumerate(self._messages):
            for index, made in enumerate(tool_calls(message) if type(message) is Assistant else ()):
                if made.id not in results or (place, index) not in self._outcomes:
                    self._wrong(f"{made.name} {made.arguments} has no outcome")
                elif made.name in _DEEDS:
                    self._check_call(made, results[made.id], place, index)

    def _check_call(self, made: ToolCall, result: str, place: int, index: int) -> None:
        kind, number = _DEEDS[made.name], _number(made)
        legs = ("a", "b") if made.name == "walk" else ("",)
        is_in_doubt = made.name == "charge" and "not known" in result
        self._found.in_doubt += is_in_doubt
        if not is_in_doubt and str(number) not in result.split():
            self._wrong(f"the result of {made.name} {number} is {result!r}")
        for leg in legs:
            done = [deed for deed in self._deeds if deed.kind == kind and deed.number == f"{number}{leg}"]
            least, most = 0 if is_in_doubt else 1, 1 if made.name in ("charge", "pay") else 10**6
            if not least <= len(done) <= most:
                self._wrong(f"{made.name} {number}{leg} took effect {len(done)} times: {done}; told {result!r}")
            if made.name != "look" and len({deed.key for deed in done}) > 1:  # what has no effect needs no record
                self._wrong(f"{made.name} {number}{leg} had several keys")
            recorded = self._steps.get((place, index, leg)) if leg else self._outcomes[place, index]
            if recorded is None:
                self._wrong(f"the step {number}{leg} has no outcome")
            elif late := self._after(recorded, done):
                self._wrong(f"{made.name} {number}{leg} had an outcome, and took effect again in {late}")

    def _check_notes(self) -> tuple[int, bool]:
        """Return how many notes the last result said that there are, and whether the model was told after that that some
        may be missing. Each result that says so has to come after a message that tells it."""
        results = results_of(tuple(self._messages))
        notes, is_told = 0, False
        for message in self._messages:
            if is_note(message):
                is_told = is_told or any(lost in plain_text(message) for lost in _LOST)
            for made in tool_calls(message) if type(message) is Assistant else ():
                if made.name != "note" or made.id not in results:
                    continue
                there = counted(results[made.id])
                if there <= _number(made) and not is_told:
                    self._wrong(
                        f"{_number(made) - there} notes were lost before note {_number(made)}, and nobody said so"
                    )
                self._found.notes_made_again += max(0, _number(made) - there)
                notes, is_told = there, False
        return notes, is_told


def _number(made: ToolCall) -> int:
    assert isinstance(made.arguments, dict)
    return int(made.arguments["number"])
