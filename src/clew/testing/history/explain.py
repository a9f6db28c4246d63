"""Explain in words what is wrong with an answer of a store, after a search has found that no order of the calls on the
thread leads to that answer."""

from __future__ import annotations

from collections.abc import Sequence

from clew.testing.history.calls import Call
from clew.testing.history.order import ABSENT, State, Unexplained

__all__ = ["explain"]

_SHOWN = 5


def explain(found: Unexplained, calls: Sequence[Call]) -> str:
    """Return a sentence that says what is wrong with the answer to one call: the likely reason, the call with its
    answer, and the states that the thread could have been in. `found` has that call and these states. `calls` are all
    calls on the same thread."""
    call = found.call
    possible = [_state(found, state) for state in found.states[:_SHOWN]]
    return f"{_reason(call, calls)}: {_answer(call)}. The thread was {' or '.join(possible)}."


def _reason(call: Call, calls: Sequence[Call]) -> str:
    if call.method == "append":
        return _reason_of_append(call, calls)
    if call.method == "read" and (reason := _reason_of_read(call, calls)):
        return reason
    writers = {append.head: append for append in calls if append.method == "append"}
    if call.method == "head" and call.head and call.head not in writers:
        return "a head that nobody wrote"
    frames = {frame: append for append in calls if append.method == "append" for frame in append.frames}
    shown = {frames[frame].log_id for frame in call.frames if frame in frames}
    if call.head in writers and call.method == "head":
        shown.add(writers[call.head].log_id)
    if any(_was_deleted(log_id, call, calls) for log_id in shown):
        return "a deleted thread is back"
    return "lost or stale: an acknowledged change does not show"


def _reason_of_append(call: Call, calls: Sequence[Call]) -> str:
    if call.outcome == "conflict":
        return "refused for no reason: the log ended where the append was to go"
    others = [
        other
        for other in calls
        if other.method == "append" and other.outcome == "ok" and (other.log_id, other.at) == (call.log_id, call.at)
    ]
    if call.frames and any(other.frames and other.frames != call.frames for other in others):
        return "two winners at one position"
    if call.at > 0 and _was_deleted(call.log_id, call, calls):
        return "a deleted thread is back"
    return "an append was acknowledged where the log did not end"


def _reason_of_read(call: Call, calls: Sequence[Call]) -> str:
    """Return what is wrong with the frames that `call`, a call of `read`, returned: one of them was never appended, one
    is there twice, they are out of order, or they end in the middle of an append. Returns "" if the log could have had
    these frames at some time. `calls` are all calls on the same thread."""
    places = {
        frame: (append.at + number, append)
        for append in calls
        if append.method == "append"
        for number, frame in enumerate(append.frames)
    }
    if any(frame not in places for frame in call.frames):
        return "a frame that nobody wrote"
    if len(set(call.frames)) < len(call.frames):
        return "a frame is there twice"
    if any(places[frame][0] != place for place, frame in enumerate(call.frames, call.at)):
        return "frames out of order"
    end = call.at + len(call.frames)
    if call.frames and end != call.stop:
        last = places[call.frames[-1]][1]
        if end != last.at + len(last.frames):
            return "half an append is visible"
    return ""


def _was_deleted(log_id: str, call: Call, calls: Sequence[Call]) -> bool:
    """Return whether the log with this id had certainly been deleted when `call` began. That is so if an append to the
    log was acknowledged, after that a deletion of the thread began, and the deletion ended before `call` began. `calls`
    are all calls on the thread."""
    made = [one.ended for one in calls if one.method == "append" and one.outcome == "ok" and one.log_id == log_id]
    return any(
        one.method == "delete"
        and one.outcome == "ok"
        and one.ended is not None
        and one.ended < call.began
        and any(moment is not None and moment < one.began for moment in made)
        for one in calls
    )


def _answer(call: Call) -> str:
    who = f"{call.method} {call.number} of {call.process}" + (f" ({call.writer})" if call.writer else "")
    if call.method == "append":
        return f"{who} of {len(call.frames)} frame(s) at {call.at} of log {call.log_id} ended with {call.outcome}"
    if call.method == "read":
        return f"{who} from frame {call.at} gave {len(call.frames)} frame(s)"
    if call.method == "head":
        return f"{who} gave {f'head {call.head}' if call.head else 'no head'}"
    return f"{who} gave {len(call.refs)} ref(s)" if call.method == "refs" else who


def _state(found: Unexplained, state: State) -> str:
    if state == ABSENT:
        return "absent"
    return f"at frame {len(found.logs.frames[state.log])} of log {state.log_id} with head {state.head}"
