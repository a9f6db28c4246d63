"""Read and record exchanges. An exchange is one prompt with everything that is done for it, up to its answer.

A thread's log holds the messages of an exchange, and a record of the exchange with its provider, its model, the
prompt's id, how it ended and what it cost.
"""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from clew.agent.prompts import is_prompt, line_of_work
from clew.errors import ClewError
from clew.log import (
    Checkpoint,
    Compacted,
    Logged,
    MessageAdded,
    Present,
    Spend,
    StateSet,
    StatusChanged,
    Usage,
)
from clew.log.checkpoint import TURN_MARK, Fact
from clew.messages import Assistant, Message, plain_text, tool_calls

__all__ = [
    "JOINED",
    "NO_END",
    "OWN",
    "SUPERSEDED",
    "ExchangeSpan",
    "OpenExchange",
    "Spent",
    "begun",
    "closed",
    "ended",
    "exchange_of",
    "exchanges_in",
    "joined",
    "last_exchange",
    "open_together",
    "reason_of",
    "spent_on",
    "standing_of",
]

_LONGEST_REASON = 500
OWN = "clew"
"""The provider name of exchanges that the built-in agent worked on."""
JOINED = "joined"
"""The recorded status of an exchange whose prompt is answered together with the next prompt. When such an exchange is
read, it gets the status of the next exchange instead."""
NO_END = "its process stopped before it could record an end"
SUPERSEDED = "another prompt was asked before it was answered"


class Spent(msgspec.Struct, frozen=True):
    """An amount that was spent: tokens, dollars and seconds. An unknown amount is None, never 0."""

    usage: Usage | None = Usage()
    cost: float | None = 0.0
    seconds: float = 0.0

    def plus(self, other: Spent) -> Spent:
        usage = None if self.usage is None or other.usage is None else _added(self.usage, other.usage)
        cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        return Spent(usage, cost, self.seconds + other.seconds)

    def minus(self, other: Spent) -> Spent:
        """Return this amount minus the other. If a token count would be negative, the two amounts are not from the same
        thread: then `usage` and `cost` of the result are None, for unknown. Dollars and seconds are never below 0."""
        usage = None if self.usage is None or other.usage is None else _added(self.usage, other.usage, -1)
        if usage is None or min(msgspec.structs.astuple(usage)) < 0:
            return Spent(None, None, max(0.0, self.seconds - other.seconds))
        cost = None if self.cost is None or other.cost is None else max(0.0, self.cost - other.cost)
        return Spent(usage, cost, max(0.0, self.seconds - other.seconds))

    def unless_lost(self, lost: bool) -> Spent:
        """Return this amount. But if `lost` is True and this amount has no tokens, return it with unknown usage and
        unknown cost, which are None.

        `lost` says that a model call got no response. The vendor may have charged for such a call nevertheless.
        """
        return Spent(None, None, self.seconds) if lost and self.usage == Usage() else self


UNKNOWN = Spent(None, None)


def _added(one: Usage, other: Usage, sign: int = 1) -> Usage:
    pairs = zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
    return Usage(*(mine + sign * theirs for mine, theirs in pairs))


def spent_on(entry: Logged) -> Spent | None:
    """Return the tokens, dollars and seconds that a log entry records as spent, or None if it records nothing of the
    kind."""
    if isinstance(entry, MessageAdded | Compacted) and entry.usage is not None:
        return Spent(entry.usage, entry.cost_usd)
    return Spent(entry.usage, entry.cost_usd, entry.seconds) if isinstance(entry, Spend) else None


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """What the log holds of an exchange besides its messages, such as the model, the status and the cost. A record is
    stored as an array without field names. So new fields are added at the end, and old logs stay readable."""

    provider: str = ""
    model: str = ""
    end: int = -1
    """The number of messages in the thread's history when the exchange ended; -1 while it has not ended."""
    status: str = "interrupted"
    reason: str = ""
    usage: Usage | None = None
    cost_usd: float | None = None
    seconds: float = 0.0
    prompt_id: str = ""
    thread: tuple[Usage, float | None, float] | None = None
    """The totals of the whole thread when this record was written: tokens, dollars and seconds. What the exchange has
    spent since then is the thread's present totals minus these.

    None once the exchange has ended. Always None for a provider, because a provider reports the costs itself.
    """

    @property
    def spent(self) -> Spent:
        """What had been spent on the exchange when this record was written. Unknown amounts are None."""
        unknown = self.usage is None or (self.usage == Usage() and self.cost_usd is None)
        return Spent(None, None, self.seconds) if unknown else Spent(self.usage, self.cost_usd, self.seconds)


_ID = _Record.__struct_fields__.index("prompt_id")


class ExchangeSpan(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange as read from the log: one prompt, and everything up to its answer or to the next prompt."""

    place: int
    """The index of the exchange's prompt in the list of all messages of the thread (its history), from 0."""
    prompt: str
    messages: tuple[Message, ...]
    """The messages after the prompt: responses, tool results, and notes from Clew."""
    is_last: bool
    is_open: bool
    """True if the end of the exchange is not on record."""
    is_recorded: bool
    """True if the log holds a record of how the exchange ended and what it cost, and not only its messages."""
    answered_with: tuple[Message, ...] | None = None
    """The messages from the next prompt up to the common answer, if this prompt and the next one are answered together;
    otherwise None.

    If it is not None, `status` and `reason` are those of the next exchange.
    """
    prompt_id: str
    provider: str
    model: str
    status: str
    reason: str
    spent: Spent

    @property
    def up_to_answer(self) -> tuple[Message, ...]:
        """All messages after the prompt of this exchange, up to the answer. If one answer was given to this prompt and
        the next one together, the messages from the next prompt up to that answer are included."""
        return self.messages + (self.answered_with or ())


def exchanges_in(state: Checkpoint) -> list[ExchangeSpan]:
    """Return all exchanges of a thread, oldest first. `state` is the thread's state. Exchanges that were taken back by
    a rewind are not included.

    If a summary replaced an exchange in what the model sees, it is included nevertheless.
    """
    places, records = line_of_work(state), _records(state)
    prompts = [number for number, place in enumerate(places) if is_prompt(state.history[place])]
    found: list[ExchangeSpan] = []
    for number, following in reversed(list(zip(prompts, [*prompts, len(places)][1:], strict=True))):
        one = _exchange(state, records.get(places[number]), places[number:following], following == len(places))
        found.append(_join(one, found[-1]) if one.status == JOINED and found else one)
    return found[::-1]


def last_exchange(state: Checkpoint) -> ExchangeSpan | None:
    """Return the last exchange of a thread, or None if the thread has no prompt. Exchanges that were taken back by a
    rewind do not count."""
    places = line_of_work(state)
    prompts = (number for number in range(len(places) - 1, -1, -1) if is_prompt(state.history[places[number]]))
    number = next(prompts, None)
    return None if number is None else _exchange_at(state, places, number)


def open_together(state: Checkpoint) -> list[ExchangeSpan]:
    """Return the exchanges without an answer at the end of a thread, the last one first: the last exchange, and those
    before it whose prompts are to be answered together with it. `state` is the thread's state."""
    last = last_exchange(state)
    if last is None or last.status == "done":
        return []
    return [*itertools.takewhile(lambda each: each.is_last, reversed(exchanges_in(state)))]


def exchange_of(state: Checkpoint, prompt_id: str) -> ExchangeSpan | None:
    """Return the exchange whose prompt has this id, or None. If several have it, return the last one. `state` is the
    thread's state. Exchanges that were taken back by a rewind do not count."""
    asked = {_place(fact) for fact in state.facts if _is_record(fact) and _id_in(fact) == prompt_id}
    places = line_of_work(state) if asked else []
    number = next((number for number in range(len(places) - 1, -1, -1) if places[number] in asked), None)
    return None if number is None else _exchange_at(state, places, number)


def _exchange_at(state: Checkpoint, places: list[int], number: int) -> ExchangeSpan:
    """Return one exchange: the one whose prompt is the message `state.history[places[number]]`.

    `places` are the indices in `state.history` of all messages that were not taken back by a rewind. `line_of_work`
    returns them.
    """
    following = number + 1
    while following < len(places) and not is_prompt(state.history[places[following]]):
        following += 1
    record = next((_record(fact) for fact in reversed(state.facts) if _is_about(fact, places[number])), None)
    is_last = following == len(places)
    found = _exchange(state, record, places[number:following], is_last)
    joined = found.status == JOINED and not is_last
    return _join(found, _exchange_at(state, places, following)) if joined else found


def _join(first: ExchangeSpan, following: ExchangeSpan) -> ExchangeSpan:
    """Return a copy of the exchange `first` for the case that its prompt and the next one are answered together.
    `following` is the exchange of the next prompt.

    The copy keeps the messages and the cost of `first`. It gets the status and the reason of `following`, and in
    `answered_with` the messages of `following` up to the answer.
    """
    return msgspec.structs.replace(
        first,
        answered_with=following.up_to_answer,
        is_last=following.is_last,
        status=following.status,
        reason=following.reason,
    )


def reason_of(error: BaseException) -> str:
    """Describe in text, for the log, why a run failed: the error's message, and the name of its type unless it is one
    of Clew's own errors. Cut off if it is long."""
    said = str(error)
    if isinstance(error, ClewError) and said:
        return said[:_LONGEST_REASON]
    name = type(error).__name__
    return (f"{name}: {said}" if said else name)[:_LONGEST_REASON]


def standing_of(state: Checkpoint) -> StatusChanged:
    """Return the log entry that gives a thread back the status that it had before it was opened. It is for a thread on
    which nothing was done since.

    The status is that of the last exchange, or `interrupted` if that exchange has not ended.
    """
    last = last_exchange(state)
    if last is None or last.is_open or last.status == "running":
        return StatusChanged("interrupted")
    status: Any = last.status
    return StatusChanged(status, last.reason)


def _exchange(state: Checkpoint, record: _Record | None, places: list[int], is_last: bool) -> ExchangeSpan:
    place, *others = places
    messages = tuple(state.history[other] for other in others)
    is_recorded = record is not None
    if record is None:
        status, reason = _unrecorded(state, messages, is_last)
        record = _Record(str(state.limits.get("provider", OWN)), end=len(state.history), status=status, reason=reason)
        spent = UNKNOWN
    else:
        status, reason = _standing(state, record, is_last)
        spent = _spent(state, record, place) if is_last else record.spent
    return ExchangeSpan(
        place=place,
        prompt=plain_text(state.history[place]),
        messages=messages,
        is_last=is_last,
        is_open=record.end < 0,
        is_recorded=is_recorded,
        prompt_id=record.prompt_id,
        provider=record.provider,
        model=record.model,
        status=status,
        reason=reason,
        spent=spent,
    )


def _standing(state: Checkpoint, record: _Record, is_last: bool) -> tuple[str, str]:
    """Return the status and the reason of an exchange, given its `record` from the log.

    Usually they are those in the record. For the last exchange of a thread (`is_last`), the status and the reason of
    the thread are used instead in three cases. First, the exchange was to be answered together with a later prompt, and
    that prompt was rewound. Second, it waited for a person's answer, and the thread no longer waits. Third, its end is
    not recorded, and the thread runs, or was stopped for a recorded reason. Any other exchange without a recorded end
    is `interrupted`.
    """
    if is_last and (record.status == JOINED or (record.status == "waiting" and state.status != "waiting")):
        return state.status, state.reason
    if record.end >= 0:
        return record.status, record.reason
    if is_last and state.status == "running":
        return "running", ""
    if is_last and state.status != "done" and state.reason:
        return state.status, state.reason
    return "interrupted", NO_END


def _unrecorded(state: Checkpoint, messages: tuple[Message, ...], is_last: bool) -> tuple[str, str]:
    """Return the status of an exchange and the reason for it, if the log has only the messages of the exchange and no
    record of the exchange itself, as when a program appended the messages.

    The status is `done` if the messages end with an answer. Otherwise it is `interrupted` or, for the thread's last
    exchange (`is_last`), the status of the thread.
    """
    if not is_last:
        return ("done", "") if messages and _is_answer(messages[-1]) else ("interrupted", "")
    return ("done", "") if state.done_at == len(state.history) else (state.status, state.reason)


def _is_answer(message: Message) -> bool:
    return type(message) is Assistant and not tool_calls(message) and message.stop != "interrupted"


def _spent(state: Checkpoint, record: _Record, place: int) -> Spent:
    """Return what has been spent so far on the last exchange of a thread. `place` is the index of its prompt in the
    history, and `record` holds the amount that had been spent when `record` was written.

    For an exchange that has ended, and for every exchange of a provider, that amount is returned. For an open exchange
    of the built-in agent, what the thread has spent since then is added. If other prompts were asked since then and
    taken back by a rewind, usage and cost are None, because nothing says how much of them these prompts cost.
    """
    if record.end >= 0 or record.thread is None:
        return record.spent
    if any(is_prompt(message) for message in state.history[place + 1 :]):
        return Spent(None, None, record.seconds)
    since = _totals(state).minus(Spent(*record.thread))
    return record.spent.plus(since).unless_lost(state.in_flight)


def _totals(state: Checkpoint) -> Spent:
    return Spent(state.usage, state.cost_usd, state.seconds)


def _records(state: Checkpoint) -> dict[int, _Record]:
    return {_place(fact): _record(fact) for fact in state.facts if _is_record(fact)}


def _is_record(fact: Fact) -> bool:
    return fact.kind == "turn" and fact.key.startswith(TURN_MARK)


def _is_about(fact: Fact, place: int) -> bool:
    return fact.kind == "turn" and fact.key == f"{TURN_MARK}{place}"


def _place(fact: Fact) -> int:
    return int(fact.key.removeprefix(TURN_MARK))


def _record(fact: Fact) -> _Record:
    return msgspec.convert(fact.value, _Record)


def _id_in(fact: Fact) -> str:
    """Return the id of the prompt from the record of an exchange. The record is the value of `fact`, a named value in
    the thread's state; the rest of it is not decoded. Returns "" for a record in an old log, which has no ids."""
    return str(fact.value[_ID]) if len(fact.value) > _ID else ""


def begun(place: int, provider: str, model: str, prompt_id: str) -> StateSet:
    """Return the entry that records that a provider begins to work on a prompt. It holds the provider, the model and
    the prompt's id, and no costs: those come from the provider, and are recorded by `ended`.

    `place` is the index of the prompt in the thread's history. The entry must be recorded together with the prompt.
    """
    return _kept(place, _Record(provider, model, prompt_id=prompt_id))


def joined(place: int, model: str, prompt_id: str) -> StateSet:
    """Return the entry that ends the exchange of a prompt which is answered together with the next prompt. `place` is
    the index of the prompt in the thread's history. The entry holds no cost: what both prompts cost is recorded at the
    end of the next prompt's exchange."""
    return ended(place, place + 1, OWN, model, prompt_id, JOINED, "", Spent())


def ended(
    place: int, end: int, provider: str, model: str, prompt_id: str, status: str, reason: str, spent: Spent
) -> StateSet:
    """Return the log entry that records how an exchange ended, from these values. `place` is the index of its prompt in
    the thread's history, and `end` the number of messages that the whole history has when the exchange ends. `spent` is
    what the exchange cost, in tokens, dollars and seconds."""
    record = _Record(provider, model, end, status, reason, spent.usage, spent.cost, round(spent.seconds, 6), prompt_id)
    return _kept(place, record)


def closed(found: ExchangeSpan, end: int, reason: str = NO_END, status: str = "interrupted") -> StateSet:
    """Return the entry that ends the exchange `found`, with this status and reason. It is for an exchange that another
    process has left without a recorded end. `end` is the number of messages that the thread's whole history has now."""
    return ended(found.place, end, found.provider, found.model, found.prompt_id, status, reason, found.spent)


def _kept(place: int, record: _Record) -> StateSet:
    value: Any = msgspec.to_builtins(record)
    return StateSet(f"{TURN_MARK}{place}", value, "turn")


class OpenExchange(msgspec.Struct, frozen=True):
    """The exchange that a run of the built-in agent works on now: its prompt, what earlier runs spent on it, and
    whether the log says yet that this run works on it."""

    place: int
    provider: str
    model: str
    prompt_id: str
    before: Spent
    """What earlier runs spent on the exchange."""
    start: Spent
    """What this run had already spent, on other exchanges, when it began to work on this one."""
    is_open: bool = True
    """True if the log says that work on the exchange is under way, by this run or by one that was killed."""
    is_noted: bool = True
    """True if this run has written to the log that it works on the exchange."""
    is_done: bool = False
    """True if an earlier run has answered the prompt."""
    was_lost: bool = False
    """True if an earlier run asked the model for this exchange and got no response. The vendor may have charged for
    that call."""

    @staticmethod
    def on(found: ExchangeSpan, start: Spent) -> OpenExchange:
        """Return an `OpenExchange` for a run that goes on with the exchange `found`, which was read from the log.
        `start` is what this run has spent so far on other exchanges.

        The field `before` of the result is what earlier runs spent on this exchange, as the log says. If the built-in
        agent worked on it and the model has not responded yet, `before` has only the seconds of these runs, and 0 for
        tokens and dollars. If one of these runs had asked the model and got no response, `was_lost` is True: the vendor
        may have charged for that call.
        """
        unanswered = found.provider == OWN and not any(type(message) is Assistant for message in found.messages)
        before = Spent(seconds=found.spent.seconds) if unanswered else found.spent
        return OpenExchange(
            found.place,
            found.provider,
            found.model,
            found.prompt_id,
            before,
            start,
            is_open=found.is_open,
            is_noted=False,
            is_done=found.status == "done",
            was_lost=unanswered and found.is_recorded and found.spent.usage is None,
        )

    def begun(self, now: Spent, thread: Present) -> StateSet:
        """Return the entry that says that work on this exchange is under way. It is recorded with the prompt, and again
        when a later run goes on with the exchange.

        The entry holds what was spent on this exchange so far, by this run and by earlier ones. `now` is what this run
        has spent so far on all exchanges. The entry also holds the present totals of the whole thread, taken from
        `thread`. If the run is killed, the thread's later totals minus these are what the exchange has spent after this
        entry.
        """
        spent = self._spent(now)
        record = _Record(
            self.provider,
            self.model,
            usage=spent.usage,
            cost_usd=spent.cost,
            seconds=round(spent.seconds, 6),
            prompt_id=self.prompt_id,
            thread=(thread.usage, thread.cost_usd, thread.seconds),
        )
        return _kept(self.place, record)

    def ended(self, end: int, status: str, reason: str, now: Spent, lost: bool) -> StateSet:
        """Return the entry that ends the exchange, either because the run ends or because another prompt is asked.

        `end` is the number of messages that the thread's whole history has now. `now` is what the run has spent so far
        on all exchanges. `lost` says that the run's last model call got no response.
        """
        spent = self._spent(now).unless_lost(lost or self.was_lost)
        return ended(self.place, end, self.provider, self.model, self.prompt_id, status, reason, spent)

    def _spent(self, now: Spent) -> Spent:
        return self.before.plus(now.minus(self.start))
