"""What a crash left of a prompt to a provider: kept as it was, told to the model with the next prompt, never dropped."""

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
    """What is to be recorded before the thread goes on, and what the model is to be told."""

    entries: tuple[Logged, ...] = ()
    in_doubt: tuple[ToolCall, ...] = ()
    words: str = ""
    """What was streamed of an answer that was never whole."""
    prompt: str = ""
    """What was asked last, if whoever worked on it was stopped."""

    @property
    def was_stopped(self) -> bool:
        return bool(self.prompt or self.in_doubt or self.words)

    def with_calls(self, calls: Sequence[ToolCall]) -> Left:
        """With calls that are known from elsewhere to have begun, those among them that are not known here."""
        known = [(call.name, call.arguments) for call in self.in_doubt]
        more = [call for call in calls if (call.name, call.arguments) not in known]
        return msgspec.structs.replace(self, in_doubt=(*self.in_doubt, *more))

    def note(self, prompt: str) -> User | None:
        """For the model, in front of the next prompt; None if there is nothing to tell."""
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
    """Read from the state a thread was left in. Nothing, if its last prompt was answered."""
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
    if waits:  # its calls are not run any more
        entries.append(StateSet(QUESTIONS, None))
    if stopped is None:
        if waits and (last := last_exchange(state)) is not None and last.is_recorded:
            entries.append(closed(last, len(state.history) + 1, SUPERSEDED))
        return Left(tuple(entries), tuple(doubtful), words)
    if stopped.is_open:
        if not state.in_flight and stopped.provider != OWN:  # what it cost is not known: the next request counts it
            entries.append(ModelCallStarted(state.model))
        end = len(state.history) + len([entry for entry in entries if isinstance(entry, MessageAdded)])
        entries.append(closed(stopped, end))
    return Left(tuple(entries), tuple(doubtful), words, stopped.prompt)


def _stopped(state: Checkpoint) -> ExchangeSpan | None:
    """The last prompt, if it is on record that the work on it was begun, and the work was stopped since."""
    last = last_exchange(state)
    if last is None or not last.is_recorded or not (last.is_open or last.status == "interrupted"):
        return None
    return last


def merged(pieces: tuple[Block, ...]) -> tuple[Block, ...]:
    """Pieces of text, and of thinking, put together."""
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
    """A call as the model is told of it: its name, and its arguments up to a length."""
    arguments: Any = call.arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f"{call.name}({text if len(text) <= _LONGEST_CALL else text[:_LONGEST_CALL] + '…'})"
