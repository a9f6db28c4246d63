"""The checker passes what a right store may answer, and finds what a wrong one answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.testing.history import Call, Journal, check_history, read_history
from tests.testing.history.made import append, call, delete, head, listing, read

TWO = (append(0, 1, 0, "a"), append(2, 3, 1, "b"))
"""Two acknowledged appends, one after the other."""

RIGHT: dict[str, list[Call]] = {
    "nothing": [],
    "one after the other": [*TWO, read(4, 5, "a", "b"), head(4, 5, "b"), listing(4, 5, t="b")],
    "a read under way sees the state before": [append(0, 1, 0, "a"), append(2, 9, 1, "b"), read(3, 4, "a")],
    "a read under way sees the state after": [append(0, 1, 0, "a"), append(2, 9, 1, "b"), read(3, 4, "a", "b")],
    "a read begun before an append that has ended": [append(0, 1, 0, "a"), append(3, 4, 1, "b"), read(2, 9, "a")],
    "two reads of overlapping appends": [
        append(0, 9, 0, "a"),
        append(1, 9, 1, "b"),
        read(2, 3, "a"),
        read(4, 5, "a", "b"),
    ],
    "a part of a log": [append(0, 1, 0, "a", "b", "c"), read(2, 3, "b", at=1, stop=2), read(2, 3, at=7)],
    "an unknown append that is there": [append(0, 1, 0, "a"), append(2, None, 1, "b"), read(4, 5, "a", "b")],
    "an unknown append that is not there": [append(0, 1, 0, "a"), append(2, None, 1, "b"), read(4, 5, "a")],
    "an unknown append that comes late": [
        append(0, 1, 0, "a"),
        append(2, None, 1, "b"),
        read(4, 5, "a"),
        read(6, 7, "a", "b"),
    ],
    "an unknown append that another one overtakes": [
        append(0, 1, 0, "a"),
        append(2, None, 1, "b"),
        append(4, 5, 1, "c"),
        read(6, 7, "a", "c"),
    ],
    "an append made again after the log went on": [
        append(0, None, 0, "a"),
        append(2, 3, 1, "b"),
        append(4, 5, 0, "a"),
        read(6, 7, "a", "b"),
        head(6, 7, "b"),
    ],
    "a conflict": [*TWO, append(4, 5, 1, "c", outcome="conflict"), append(4, 5, 2, "c", log="M", outcome="conflict")],
    "a conflict on a thread that is not there": [append(0, 1, 3, "a", outcome="conflict")],
    "a conflict with an append that is under way": [
        append(0, 1, 0, "a"),
        append(2, 9, 1, "b"),
        append(3, 4, 1, "c", outcome="conflict"),
    ],
    "the head alone": [*TWO, append(4, 5, 2, head="head of renewal"), head(6, 7, "renewal"), read(6, 7, "a", "b")],
    "deleted and made again": [*TWO, delete(4, 5), read(6, 7), append(8, 9, 0, "z", log="M"), read(10, 11, "z")],
    "deleted twice": [*TWO, delete(4, 5), delete(6, 7), head(8, 9)],
    "an unknown deletion that comes late": [*TWO, delete(4, None), read(6, 7, "a", "b"), read(8, 9), listing(10, 11)],
    "an unknown deletion that never comes": [*TWO, delete(4, None), delete(5, None), read(8, 9, "a", "b")],
    "a listing of what was changed meanwhile": [*TWO, delete(4, 9), listing(5, 6, t="b"), listing(7, 8)],
    "a page leaves others out": [*TWO, call("heads", 4, 5, heads={}, is_whole=False)],
    "a listing with another prefix": [*TWO, call("heads", 4, 5, heads={}, is_whole=True, prefix="other")],
    "a refused append changes nothing": [*TWO, append(4, 5, 2, "c", outcome="refused"), read(6, 7, "a", "b")],
    "one writer after the other": [
        append(0, 1, 0, "a", writer="A"),
        append(2, 3, 1, "b", writer="B"),
        append(2, 3, 1, head="head of late renewal", writer="A", outcome="conflict"),
        append(4, 5, 2, "c", writer="B"),
    ],
    "a repeated append of a writer that was followed": [
        append(0, None, 0, "a", writer="A"),
        append(2, 3, 1, "b", writer="B"),
        append(4, 5, 0, "a", writer="A"),
        append(6, 7, 2, "c", writer="B"),
    ],
    "blobs": [
        call("put_blobs", 0, 1, blobs=("x",)),
        append(2, 3, 0, "a", refs=("x",)),
        call("refs", 4, 5, thread_id="t", refs=("x",)),
        call("get_blobs", 4, 5, blobs=("x", "y"), found=("x",)),
    ],
    "a blob that is put meanwhile": [call("put_blobs", 0, 9, blobs=("x",)), call("get_blobs", 3, 4, blobs=("x",))],
    "a blob that was collected": [
        call("put_blobs", 0, 1, blobs=("x",)),
        call("delete_blobs", 2, 3, blobs=("x",)),
        call("get_blobs", 4, 5, blobs=("x",)),
    ],
}

RESENT: dict[str, list[Call]] = {
    "a conflict that was there until its thread was deleted": [
        *TWO,
        append(4, 20, 2, "c", outcome="conflict"),
        read(5, 6, "a", "b", "c"),
        delete(7, 8),
        read(21, 22),
    ],
    "a conflict that made a thread which was deleted": [
        append(0, 20, 0, "a", outcome="conflict"),
        read(1, 2, "a"),
        delete(3, 4),
        append(5, 6, 0, "z", log="M"),
        read(21, 22, "z"),
    ],
    "a thread that is created again": [
        append(0, 20, 0, "a"),
        read(1, 2, "a"),
        delete(3, 4),
        read(5, 6),
        read(21, 22, "a"),
    ],
    "a head alone that conflicts once it was replaced": [
        *TWO,
        append(4, 20, 2, head="head of A", outcome="conflict"),
        head(5, 6, "A"),
        append(7, 8, 2, "c"),
        read(21, 22, "a", "b", "c"),
    ],
    "a head alone that is there again": [
        *TWO,
        append(4, 20, 2, head="head of A"),
        head(5, 6, "A"),
        append(7, 8, 2, head="head of B"),
        head(9, 10, "B"),
        head(11, 12, "A"),
    ],
}
"""What a store may answer only if its connection broke and it repeated an append."""

WRONG: dict[str, tuple[str, list[Call]]] = {
    "lost append": ("lost or stale", [*TWO, read(4, 5, "a")]),
    "lost append, seen by the next writer": ("two winners", [*TWO, append(4, 5, 1, "b2")]),
    "lost thread": ("lost or stale", [*TWO, head(4, 5)]),
    "stale read": ("lost or stale", [*TWO[:1], append(2, 20, 1, "b"), read(4, 5, "a", "b"), read(6, 7, "a")]),
    "stale head": ("lost or stale", [*TWO, head(4, 5, "a")]),
    "stale read after an unknown append was seen": (
        "lost or stale",
        [*TWO[:1], append(2, None, 1, "b"), read(4, 5, "a", "b"), read(6, 7, "a")],
    ),
    "two winners": ("two winners", [*TWO, append(2, 3, 1, "c")]),
    "two makers": ("two winners", [append(0, 1, 0, "a"), append(0, 1, 0, "b")]),
    "two makers of other logs": (
        "acknowledged where the log did not end",
        [append(0, 1, 0, "a"), append(0, 1, 0, "b", log="M")],
    ),
    "an unknown append is there twice": (
        "twice",
        [*TWO[:1], append(2, None, 1, "b"), read(4, 5, "a", "b"), read(6, 7, "a", "b", "b")],
    ),
    "an unknown append beside its successor": (
        "out of order",
        [*TWO[:1], append(2, None, 1, "b"), append(4, 5, 1, "c"), read(6, 7, "a", "c", "b")],
    ),
    "resurrected thread": ("a deleted thread is back", [*TWO, delete(4, 5), read(6, 7, "a", "b")]),
    "resurrected head": ("a deleted thread is back", [*TWO, delete(4, 5), head(6, 7), head(8, 9, "b")]),
    "resurrected in a listing": ("a deleted thread is back", [*TWO, delete(4, 5), listing(6, 7, t="b")]),
    "a deletion that did nothing": ("a deleted thread is back", [*TWO, delete(4, 5), append(6, 7, 2, "c")]),
    "half visible": ("half an append", [append(0, 9, 0, "a", "b"), read(2, 3, "a")]),
    "half visible of an unknown append": ("half an append", [append(0, None, 0, "a", "b"), read(2, 3, "a")]),
    "frames without their refs": (
        "lost or stale",
        [append(0, 1, 0, "a", refs=("x",)), call("refs", 2, 3, thread_id="t", refs=())],
    ),
    "out of order": ("out of order", [*TWO, read(4, 5, "b", "a")]),
    "a frame from nowhere": ("nobody wrote", [*TWO, read(4, 5, "a", "b", "x")]),
    "a head from nowhere": ("nobody wrote", [*TWO, head(4, 5, "x")]),
    "an append that was refused is there": (
        "out of order",
        [*TWO, append(4, 5, 1, "c", outcome="conflict"), read(6, 7, "a", "b", "c")],
    ),
    "a conflict for no reason": ("refused for no reason", [*TWO, append(4, 5, 2, "c", outcome="conflict")]),
    "a conflict of a repeated append": ("refused for no reason", [*TWO, append(4, 5, 0, "a", outcome="conflict")]),
    "left out of a listing": ("lost or stale", [*TWO, listing(4, 5)]),
    "an old head in a listing": ("lost or stale", [*TWO, listing(4, 5, t="a")]),
    "a fenced writer lands": (
        "two writers",
        [
            append(0, 1, 0, "a", writer="A"),
            append(2, 3, 1, "b", writer="B"),
            append(4, 5, 2, "c", writer="A"),
            read(6, 7, "a", "b", "c"),
        ],
    ),
    "a fenced writer lands and does not know": (
        "two writers",
        [
            append(0, 1, 0, "a", writer="A"),
            append(2, 3, 1, "b", writer="B"),
            append(4, None, 2, "c", writer="A"),
            read(6, 7, "a", "b", "c"),
        ],
    ),
    "a fenced writer renews": (
        "two writers",
        [
            append(0, 1, 0, "a", writer="A"),
            append(2, 3, 1, "b", writer="B"),
            append(4, 5, 2, head="head of renewal", writer="A"),
        ],
    ),
    "a lost blob": (
        "did not find the blob",
        [call("put_blobs", 0, 1, blobs=("x",)), call("get_blobs", 2, 3, blobs=("x",))],
    ),
    "a lost blob of an append": (
        "did not find the blob",
        [append(0, 1, 0, "a", refs=("x",)), call("missing_blobs", 2, 3, blobs=("x",))],
    ),
    "damage": ("failed with Corrupt", [*TWO, call("head", 4, 5, thread_id="t", outcome="failed", error="Corrupt: x")]),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_history_passes(name: str) -> None:
    assert check_history(RIGHT[name]) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_history_is_caught_and_says_why(name: str) -> None:
    reason, calls = WRONG[name]
    found = check_history(reversed(calls))
    assert len(found) == 1
    assert reason in found[0]


@pytest.mark.parametrize("name", RESENT)
def test_an_append_that_a_store_may_have_sent_twice_passes_only_if_connections_broke(name: str) -> None:
    assert check_history(RESENT[name], resends=True) == []
    assert len(check_history(RESENT[name])) == 1


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_history_passes_if_connections_broke(name: str) -> None:
    assert check_history(RIGHT[name], resends=True) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_history_is_caught_although_connections_broke(name: str) -> None:
    reason, calls = WRONG[name]
    assert reason in check_history(calls, resends=True)[0]


def test_threads_are_checked_apart() -> None:
    calls = [*TWO, append(0, 1, 0, "x", thread_id="u"), listing(4, 5, t="b", u="x"), listing(6, 7, t="b")]
    assert [text.split(":")[0] for text in check_history(calls)] == ["thread 'u'"]


def test_many_calls_without_an_answer_do_not_take_long() -> None:
    """Each might take effect at any moment after: an exponential search would not end."""
    lost = [one for n in range(60) for one in (append(n, None, 0, f"x{n}", log=f"X{n}"), delete(n, None))]
    found = [
        call
        for n in range(100, 400, 4)
        for call in (append(n, n + 1, (n - 100) // 4, f"f{n}"), head(n + 2, n + 3, f"f{n}"))
    ]
    assert check_history([*lost, *found]) == []
    assert len(check_history([*lost, *found, head(500, 501, "f100")])) == 1


def test_a_journal_cut_short_by_a_kill_keeps_every_call_that_began(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    first, second = append(0, 1, 0, "a"), append(2, 3, 1, "b")
    for written in (first, append(2, None, 1, "b", number=second.number), second, read(4, 5, "a", "b")):
        journal(written)
    journal.close()
    path.write_bytes(path.read_bytes()[:-1])
    assert read_history([path]) == [first, second]
