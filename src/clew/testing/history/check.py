"""`check_history`: find wrong answers of a store in a history, which is a record of the calls that several processes
made, and of the store's answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from clew.testing.history.calls import Call
from clew.testing.history.explain import explain
from clew.testing.history.order import order_calls

__all__ = ["check_history"]


def check_history(calls: Iterable[Call], *, resends: bool = False) -> list[str]:
    """Return what is wrong in this history of calls of a store, a sentence for each finding; an empty list if nothing
    is. The store must have been empty when the history began, and the history must have all calls that changed the
    store.

    These promises are checked:

    - The answers to the calls on each thread are those of a store that does the calls one after the other, in an order
      that agrees with real time. Of the appends at one position one wins. An acknowledged append is there from then on.
      No answer shows an older state than an earlier answer, half an append, or a thread that was deleted. An append or
      a deletion with an unknown outcome took effect once, or not at all.
    - Listings show each thread as it was at some moment while they went on, and leave out no thread that was there all
      the time.
    - One writer at a time: once a holder of a lease (named by `Recorder.as_writer`) has written to a log, no earlier
      holder writes to that log again.
    - A blob that was put, or that an acknowledged append refers to, is there from then on, unless it was deleted.
    - No call fails with an error other than those that a store may raise.

    Pass `resends=True` if connections of the store broke during the history. A store may then have sent an append a
    second time within one call. So three more things are accepted. An append of the head alone may replace the head
    more than once before it ends. An append that ends with `Conflict` may have been written for a while, if another
    call then deleted the thread or replaced the head. And an append that creates a thread may create it again, if
    another call deleted the thread before the append ended.
    """
    history = sorted(calls, key=lambda call: call.began)
    wrong = [f"{_name(call)} failed with {call.error}" for call in history if call.outcome == "failed"]
    threads = _by_thread(history)
    for thread_id in threads:
        if found := order_calls(threads[thread_id], resends=resends):
            wrong.append(f"thread {thread_id!r}: {explain(found, threads[thread_id])}")
    return [*wrong, *_second_writers(history), *_lost_blobs(history)]


def _by_thread(history: Sequence[Call]) -> dict[str, list[Call]]:
    """Return the calls of a history by thread id, each list in the order in which the calls began. A listing is
    replaced by a call of `head` for each thread that it listed, with the head that it showed. For each thread that it
    should have listed and did not, it is replaced by a call of `head` that found no head."""
    threads: dict[str, list[Call]] = defaultdict(list)
    for call in history:
        if call.thread_id:
            threads[call.thread_id].append(call)
    for call in history:
        if call.method != "heads" or call.outcome != "ok":
            continue
        wanted = [thread_id for thread_id in threads if call.is_whole and thread_id.startswith(call.prefix)]
        for thread_id in {*wanted, *call.heads}:
            head = call.heads.get(thread_id, "")
            threads[thread_id].append(msgspec.structs.replace(call, method="head", thread_id=thread_id, head=head))
    return {thread_id: sorted(found, key=lambda call: call.began) for thread_id, found in threads.items()}


def _second_writers(history: Sequence[Call]) -> Iterator[str]:
    """Yield a sentence for each log to which a writer appended again after another writer had taken over. A writer is a
    holder of the thread's lease; only one may write at a time."""
    read = {frame for call in history if call.method == "read" for frame in call.frames}
    logs: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in history:
        has_landed = call.outcome == "ok" or (bool(call.frames) and read.issuperset(call.frames))
        if call.method == "append" and call.writer and has_landed:
            logs[call.thread_id, call.log_id].append(call)
    for (thread_id, _), appends in logs.items():
        followed: dict[str, str] = {}
        writer = ""
        # An append of the head alone at a position comes before the frames at that position.
        for call in sorted(appends, key=lambda call: (call.at, bool(call.frames), call.began)):
            if call.writer == writer:
                continue
            if call.writer in followed:
                yield (
                    f"thread {thread_id!r}: two writers: {_name(call)} landed at frame {call.at} "
                    f"after {followed[call.writer]} had taken over"
                )
                break
            followed[writer] = call.writer
            writer = call.writer


def _lost_blobs(history: Sequence[Call]) -> Iterator[str]:
    """Yield a sentence for each call that asked for a blob and did not find it, although the blob was stored before
    that call began and was never deleted."""
    deleted = {digest for call in history if call.method == "delete_blobs" for digest in call.blobs}
    there: dict[str, int] = {}
    for call in history:
        if call.outcome == "ok" and call.ended is not None and call.method in ("append", "put_blobs"):
            for digest in {*call.refs, *call.blobs} - deleted:
                there[digest] = min(there.get(digest, call.ended), call.ended)
    for call in history:
        if call.outcome != "ok" or call.method not in ("get_blobs", "missing_blobs"):
            continue
        lost = [digest for digest in call.blobs if there.get(digest, call.began) < call.began]
        lost = [digest for digest in lost if digest not in call.found]
        if lost:
            yield f"{_name(call)} did not find the blob {lost[0]}, which had been stored before"


def _name(call: Call) -> str:
    by = f"{call.process} ({call.writer})" if call.writer else call.process
    return f"{call.method} {call.number} of {by}"
