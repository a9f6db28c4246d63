"""Recovery after a run was stopped before its prompt was answered. What the prompt left unfinished is recorded, and a
note before the next prompt tells the model of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from clew.agent.events import QUESTIONS
from clew.agent.exchanges import OWN, SUPERSEDED, ExchangeSpan, closed, last_exchange
from clew.agent.prompts import note
from clew.log import Checkpoint, Logged, MessageAdded, ModelCallStarted, StateSet, ToolOutcome
from clew.messages import Assistant, Block, Text, Thinking, ToolCall, ToolResult, User, plain_text, tool_calls

__all__ = ["Left", "left_over", "merged", "shown_call"]

_LONGEST_CALL = 500
_LONGEST_TEXT = 4000


class Left(msgspec.Struct, frozen=True):
    """What a stopped prompt left unfinished: entries to record before the thread goes on, the calls in doubt (begun,
    and without a recorded outcome), and texts from which `note` makes a message for the model."""

    entries: tuple[Logged, ...] = ()
    in_doubt: tuple[ToolCall, ...] = ()
    words: str = ""
    """The text of the model's last answer, as far as it came before it was cut off."""
    prompt: str = ""
    """The text of the last prompt if the work on it was stopped; else empty."""

    @property
    def was_stopped(self) -> bool:
        return bool(self.prompt or self.in_doubt or self.words)

    def with_calls(self, calls: Sequence[ToolCall]) -> Left:
        """Return a copy of this record of unfinished work with these calls added to `in_doubt`, the calls whose outcome
        is not known. Leaves out each call for which a call with the same name and arguments is already there."""
        known = [(call.name, call.arguments) for call in self.in_doubt]
        more = [call for call in calls if (call.name, call.arguments) not in known]
        return msgspec.structs.replace(self, in_doubt=(*self.in_doubt, *more))

    def note(self, prompt: str) -> User | None:
        """Return a message for the model that says what was left unfinished. It is put before the next prompt,
        `prompt`. If that has the same words as the stopped prompt, the message says that it is asked again. Return None
        if there is nothing to tell."""
        parts = []
        if self.prompt and self.prompt != prompt:
            parts.append(f"The program was stopped while it worked on this prompt: {self.prompt[:_LONGEST_TEXT]!r}.")
        elif self.prompt:
            parts.append("The program was stopped while it worked on this prompt, which is asked again.")
        if self.words:
            parts.append(f"The last answer was cut off when the program was stopped. Its words so far: {self.words!r}")
        if self.in_doubt:
            calls = "; ".join(map(shown_call, self.in_doubt))
            parts.append(
                "These tool calls had begun when the program was stopped, and it is not known whether they took effect: "
                f"{calls}. Find out what happened before you repeat one."
            )
        return note(" ".join(parts)) if parts else None


def left_over(state: Checkpoint) -> Left:
    """Return what a stopped prompt left unfinished in a thread: tool calls without a result, the text of an answer that
    was cut off, and the entries that put this on record. `state` is the thread's state. The result is empty if the last
    prompt was answered."""
    entries: list[Logged] = []
    stopped = _stopped(state)
    doubtful = [call.call for call in state.calls if call.status != "done"]
    entries += [
        ToolOutcome(call.message, call.index, _unknown(call.call)) for call in state.calls if call.status != "done"
    ]
    words = ""
    if state.partial:
        message = Assistant(merged(state.partial), state.model, "interrupted")
        place = len(state.history) + (1 if state.calls else 0)
        calls = tool_calls(message)
        entries.append(MessageAdded(message))
        entries += [ToolOutcome(place, index, _unknown(call)) for index, call in enumerate(calls)]
        doubtful += calls
        words = plain_text(message)[-_LONGEST_TEXT:]
    waits = bool(state.calls and state.state.get(QUESTIONS))
    if waits:  # the calls that ask these questions are not run any more
        entries.append(StateSet(QUESTIONS, None))
    if stopped is None:
        if waits and (last := last_exchange(state)) is not None and last.is_recorded:
            entries.append(closed(last, len(state.history) + 1, SUPERSEDED))
        return Left(tuple(entries), tuple(doubtful), words)
    if stopped.is_open:
        if not state.in_flight and stopped.provider != OWN:  # its cost is not known: counts as `unaccounted`
            entries.append(ModelCallStarted(state.model))
        end = len(state.history) + len([entry for entry in entries if isinstance(entry, MessageAdded)])
        entries.append(closed(stopped, end))
    return Left(tuple(entries), tuple(doubtful), words, stopped.prompt)


def _stopped(state: Checkpoint) -> ExchangeSpan | None:
    """Return the last exchange if the log shows that work on it began and was stopped; else None."""
    last = last_exchange(state)
    if last is None or not last.is_recorded or not (last.is_open or last.status == "interrupted"):
        return None
    return last


def merged(pieces: tuple[Block, ...]) -> tuple[Block, ...]:
    """Join neighbouring blocks of text, as they were streamed, into one block, and do the same with blocks of thinking.
    After a thinking block that has a signature, a new block begins."""
    found: list[Block] = []
    for piece in pieces:
        last = found[-1] if found else None
        if isinstance(piece, Text) and isinstance(last, Text):
            found[-1] = Text(last.text + piece.text, last.extra)
        elif isinstance(piece, Thinking) and isinstance(last, Thinking) and not last.signature:
            found[-1] = msgspec.structs.replace(piece, text=last.text + piece.text)
        else:
            found.append(piece)
    return tuple(found)


def _unknown(call: ToolCall) -> ToolResult:
    text = f"It is not known whether {call.name} took effect: the program was stopped while it ran."
    return ToolResult(call.id, (Text(text),), is_error=True)


def shown_call(call: ToolCall) -> str:
    """Return a call as text for the model: its name and its arguments, cut off if they are long."""
    arguments: Any = call.arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f"{call.name}({text if len(text) <= _LONGEST_CALL else text[:_LONGEST_CALL] + '…'})"
