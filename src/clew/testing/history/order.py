"""Search for an order of the calls on one thread in which the store could have done them, one after the other, so that
each call got the answer that it got (linearizability).

In such an order, each call is done at one moment between its beginning and its end. A call whose outcome is unknown is
done at one moment after its beginning, or never. The search goes through the beginnings and ends of the calls in time.
At each moment it keeps all courses that are possible so far. A course says which calls the store has done by then, and
which state the thread is in. If a call ends and its answer fits no course, there is no such order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from clew.testing.history.calls import Call

__all__ = ["ABSENT", "Logs", "State", "Unexplained", "order_calls"]


class State(NamedTuple):
    """The state of a thread at one moment. `log_id` is the id of its log, and `head` is the digest of its head. `log`
    is a number that stands for the frames and refs (references to blobs) in the log; a `Logs` object keeps them under
    it."""

    log_id: str
    log: int
    head: str


ABSENT = State("", 0, "")


class Logs:
    """Keeps the frames and refs (references to blobs) of every log that the thread may have had at some time, and gives
    each log a number. A `State` holds only the number, so that states are small and quick to compare."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, ...]] = [()]
        self.refs: list[frozenset[str]] = [frozenset()]
        self._numbers: dict[tuple[tuple[str, ...], frozenset[str]], int] = {}
        self._longer: dict[tuple[int, int], int] = {}

    def extended(self, log: int, call: Call, index: int) -> int:
        """Return the number of the log that results when the append `call` adds its frames and refs (references to
        blobs) to the log with the number `log`. Equal logs have the same number; a new log gets the next one, and is
        stored. `index` is the index of the call in the history. The result for a pair of `log` and `index` is
        remembered, so that frames are compared only once."""
        made = self._longer.get((log, index))
        if made is None:
            key = (self.frames[log] + call.frames, self.refs[log] | set(call.refs))
            made = self._numbers.setdefault(key, len(self.frames))
            if made == len(self.frames):
                self.frames.append(key[0])
                self.refs.append(key[1])
            self._longer[log, index] = made
        return made


class Unexplained(NamedTuple):
    """The result of a search that found no order of the calls that leads to all their answers. `call` is the first
    call, by the time of its end, whose answer fits no order. `states` are the states in which the thread may have been
    before that call ended, and `logs` has the frames and refs (references to blobs) of these states."""

    call: Call
    states: list[State]
    logs: Logs


class _Course(NamedTuple):
    """One possible order in which a store may have carried out the calls so far, some of which ran at the same time. It
    holds the state of the thread after them, and says which of the calls that have not returned yet the store has
    already carried out. Calls are given by their index in the history."""

    state: State
    changed: frozenset[int]
    """Appends and deletions that have taken effect but have not ended, and whose caller learns that they succeeded.
    `~index` stands for an effect of an append that the store sends once more, so that its answer is not decided yet."""
    lost: frozenset[int]
    """Appends and deletions with an unknown outcome that have taken effect."""
    seen: frozenset[int]
    """Calls that have not ended and change nothing, and whose recorded answer was right at some moment since they
    began."""


def order_calls(calls: Sequence[Call], *, resends: bool = False) -> Unexplained | None:
    """Search for an order of these calls that leads to all their recorded answers, if the store does one call after the
    other. Returns None if there is such an order. Otherwise returns the first call, by the time of its end, whose
    answer fits no order.

    All calls must be on the same thread, which must not exist before the first of them. `heads` is not among the
    methods that can be checked: the caller replaces a listing by a call of `head` for each thread that it listed.
    `resends` says that the store may have sent an append a second time within one call, because connections broke.
    """
    return _Search(calls, resends).run()


class _Search:
    def __init__(self, calls: Sequence[Call], resends: bool) -> None:
        self._calls = calls
        self._resends = resends
        self._logs = Logs()
        self._looks: set[int] = set()
        """Calls that have begun and not ended, and that change nothing."""
        self._appends: dict[tuple[str, int], list[int]] = {}
        """Appends that may take effect, by log id and position."""
        self._first: list[int] = []
        """Those of the calls in `_appends` that may create the thread."""
        self._repeats: set[int] = set()
        """Appends that have begun and not ended, and that succeed. Each may be a repetition of an earlier append, which
        changes nothing."""
        self._deletes: list[int] = []
        self._lost_deletes: list[int] = []
        self._resent: set[int] = set()
        """Appends that have begun and not ended, and that may have been sent again. So they may take effect more often
        than their answers say."""

    def run(self) -> Unexplained | None:
        courses = [_Course(ABSENT, frozenset(), frozenset(), frozenset())]
        for ends, index in _moments(self._calls):
            call = self._calls[index]
            if not ends:
                self._begin(index, call)
                if index in self._looks:
                    courses = [self._look(course) for course in courses]
                continue
            left = self._end(index, courses)
            if not left:
                return Unexplained(call, list({course.state for course in courses}), self._logs)
            self._forget(index, call)
            courses = left
        return None

    def _begin(self, index: int, call: Call) -> None:
        is_lost = _is_lost(call)
        if call.method == "delete":
            (self._lost_deletes if is_lost else self._deletes).append(index)
        elif call.method == "append" and call.outcome != "conflict":
            self._appends.setdefault((call.log_id, call.at), []).append(index)
            if call.at == 0 and call.frames:
                self._first.append(index)
            if not is_lost and call.frames:
                self._repeats.add(index)
        else:
            self._looks.add(index)
        if (
            self._resends
            and call.method == "append"
            and not is_lost
            and (call.outcome == "conflict" or not call.frames or call.at == 0)
        ):
            self._resent.add(index)

    def _forget(self, index: int, call: Call) -> None:
        self._looks.discard(index)
        self._repeats.discard(index)
        self._resent.discard(index)
        if call.method == "delete":
            self._deletes.remove(index)
        elif call.method == "append" and call.outcome != "conflict":
            self._appends[call.log_id, call.at].remove(index)
            if index in self._first:
                self._first.remove(index)

    def _look(self, course: _Course) -> _Course:
        """Return a copy of the course, one possible order of the calls so far, in which more calls are marked as
        answered (in `seen`). These are calls under way that change nothing, such as reads, and whose recorded answer is
        right in the course's present state. Because they change nothing, marking them at once rules out no possible
        order."""
        right = {index for index in self._looks - course.seen if self._is_right(self._calls[index], course.state)}
        return course._replace(seen=course.seen | right) if right else course

    def _is_right(self, call: Call, state: State) -> bool:
        """Return whether the recorded answer of `call` is right if the thread is in this state. `call` must be a call
        that changes nothing: a read of frames, head or refs, or an append that ended with `Conflict`."""
        frames = self._logs.frames[state.log]
        if call.method == "read":
            return frames[call.at : call.stop] == call.frames
        if call.method == "head":
            return state.head == call.head
        if call.method == "refs":
            return self._logs.refs[state.log] == set(call.refs)
        if state == ABSENT:
            return call.at > 0 or not call.frames
        return state.log_id != call.log_id or (
            len(frames) != call.at and (not call.frames or not self._has(frames, call))
        )

    @staticmethod
    def _has(frames: tuple[str, ...], call: Call) -> bool:
        return frames[call.at : call.at + len(call.frames)] == call.frames

    def _end(self, index: int, courses: Iterable[_Course]) -> list[_Course]:
        """Go on to the moment at which the call with this index ends. Return the courses in which the store has done
        that call by then. A course is one possible order in which the store did the calls so far.

        Each of `courses`, the courses before that moment, is continued in all possible ways: the store may first do
        other appends and deletions that have not ended.
        """
        kept, reached = _Best(), _Best()
        waiting: list[_Course] = []
        is_resent = (
            index in self._resent
        )  # an append that was sent again may have an additional effect up to this moment
        for course in courses:
            if has_ended := index in course.changed or index in course.seen:
                kept.add(_without(course, index))
            if (is_resent or not has_ended) and reached.add(course):
                waiting.append(course)
        for course in waiting:  # the list grows meanwhile, so courses with the fewest steps come first
            for step in self._steps(course):
                following = self._look(step)
                has_ended = index in following.changed or index in following.seen
                if has_ended:
                    kept.add(_without(following, index))
                if (is_resent or not has_ended) and reached.add(following):
                    waiting.append(following)
        return kept.courses()

    def _steps(self, course: _Course) -> Iterator[_Course]:
        """Yield the courses that can follow `course` in one step, in which the store does one of the appends or
        deletions that have not ended. A course is one possible order of the calls so far. There is one following course
        for each such call that is possible in the present state. Of the deletions with an unknown outcome only one is
        tried, since all have the same effect."""
        state, taken = course.state, course.changed | course.lost
        frames = self._logs.frames[state.log]
        fitting = self._first if state == ABSENT else self._appends.get((state.log_id, len(frames)), [])
        for index in fitting:
            if index not in taken:
                call = self._calls[index]
                after = State(call.log_id, self._logs.extended(state.log, call, index), call.head)
                yield self._taken(course, index, after)
        for index in self._resent - course.changed:
            call = self._calls[index]
            is_first = state == ABSENT and call.at == 0 and bool(call.frames)
            if is_first or (state.log_id, len(frames)) == (call.log_id, call.at):
                after = State(call.log_id, self._logs.extended(state.log, call, index), call.head)
                # Its answer is decided later, when the store sends it once more.
                yield course._replace(state=after, changed=course.changed | {~index}, seen=course.seen - {index})
        for index in self._repeats - taken:
            call = self._calls[index]
            if state.log_id == call.log_id and self._has(frames, call):
                yield self._taken(course, index, state)
        for index in self._deletes:
            if index not in taken:
                yield self._taken(course, index, ABSENT)
        if state != ABSENT:
            for index in self._lost_deletes:
                if index not in taken:
                    yield self._taken(course, index, ABSENT)
                    break  # all of them have the same effect

    def _taken(self, course: _Course, index: int, state: State) -> _Course:
        if _is_lost(self._calls[index]):
            return course._replace(state=state, lost=course.lost | {index})
        return course._replace(state=state, changed=course.changed | {index})


class _Best:
    """A set of courses (possible orders of the calls so far) without superfluous ones, to keep the search short.

    A course is superfluous if another one can be continued in all the same ways. This is so if both have the same
    thread state, and the same calls that took effect but have not ended; if the other one has all the calls in `seen`
    (answered already) that the superfluous one has; and if it has no call in `lost` (took effect, with unknown outcome)
    that the superfluous one does not have.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[State, frozenset[int]], list[_Course]] = {}

    def add(self, course: _Course) -> bool:
        """Add a course (a possible order of the calls so far) to the set, and remove the courses that it makes
        superfluous. Returns whether the course was added: not if it is itself superfluous, because another one in the
        set can be continued in all the same ways."""
        others = self._found.setdefault((course.state, course.changed), [])
        if any(other.lost <= course.lost and other.seen >= course.seen for other in others):
            return False
        others[:] = [other for other in others if not (course.lost <= other.lost and course.seen >= other.seen)]
        others.append(course)
        return True

    def courses(self) -> list[_Course]:
        return [course for others in self._found.values() for course in others]


def _without(course: _Course, index: int) -> _Course:
    return course._replace(changed=course.changed - {index, ~index}, seen=course.seen - {index})


def _is_lost(call: Call) -> bool:
    """Return whether the caller was not told if this call took effect: its outcome is `unknown` or `failed`."""
    return call.outcome in ("unknown", "failed")


def _moments(calls: Sequence[Call]) -> list[tuple[bool, int]]:
    """Return the beginnings and ends of these calls in the order of time, each as a pair: False for a beginning or True
    for an end, and the call's index. If a beginning and an end have the same time, the beginning comes first, so that
    the two calls overlap.

    A call with the outcome `unknown` or `failed` has no end. It is left out if it changes nothing. Also left out are
    calls with the outcome `refused` (`MissingBlob` or `InvalidInput`), because they changed nothing either.
    """
    moments: list[tuple[int, bool, int]] = []
    for index, call in enumerate(calls):
        is_change = call.method in ("append", "delete")
        if call.outcome == "refused" or (_is_lost(call) and not is_change):
            continue
        moments.append((call.began, False, index))
        if not _is_lost(call) and call.ended is not None:
            moments.append((call.ended, True, index))
    return [(ends, index) for _, ends, index in sorted(moments)]
