"""Heads and queries, apart from any store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.checkpointers import Head, HeadQuery, Owner
from clew.checkpointers.checks import check_query
from clew.checkpointers.heads import micros, select, thread_key
from clew.errors import InvalidInput
from clew.testing.contract.builders import a_head, minute

ids = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60)
offsets = st.builds(timezone, st.timedeltas(timedelta(hours=-14), timedelta(hours=14)))
moments = st.datetimes(datetime(1800, 1, 1), datetime(9000, 1, 1), timezones=offsets)


@given(ids, ids)
def test_equal_ids_and_only_equal_ids_share_a_key(one: str, other: str) -> None:
    assert (thread_key(one) == thread_key(other)) == (one == other)
    assert len(thread_key(one)) == 64


@given(moments)
def test_microseconds_are_exact(moment: datetime) -> None:
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros(moment)) == moment


def test_microseconds_count_from_1970_in_utc() -> None:
    assert micros(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert micros(datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == 0
    assert micros(datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)) == -1


@given(st.lists(st.tuples(ids, moments, moments), max_size=12, unique_by=lambda thread: thread[0]), st.booleans())
def test_pages_through_cursors_hold_every_head_once_in_order(
    threads: list[tuple[str, datetime, datetime]], created: bool
) -> None:
    query = HeadQuery(order="created" if created else "updated")
    made = [a_head(name, created_at=one, updated_at=two) for name, one, two in threads]
    ordered = sorted(made, key=query.position, reverse=True)
    paged: list[Head] = []
    while True:
        start = query.start()
        page = [head for head in ordered if start is None or query.position(head) < start][:3]
        if not page:
            break
        paged += page
        query = query.after(page[-1])
    assert paged == ordered


def test_after_keeps_every_condition() -> None:
    query = HeadQuery(prefix="user/", tags={"a": "1"}, limit=7, order="created")
    following = query.after(a_head("user/1"))
    assert following.cursor is not None
    assert msgspec.structs.replace(following, cursor=None) == query


@pytest.mark.parametrize(
    "cursor", ["", "1", "1:", f"x:{'0' * 64}", f"1:{'0' * 63}", f"1:{'g' * 64}", f"--1:{'0' * 64}"]
)
def test_a_cursor_made_up_is_refused_with_the_way_to_get_one(cursor: str) -> None:
    with pytest.raises(InvalidInput, match=r"HeadQuery\.after"):
        HeadQuery(cursor=cursor).start()


def test_a_head_matches_when_every_condition_holds() -> None:
    head = a_head("user/1", status="done", agent="planner", title="Plan a Trip", tags={"a": "1"}, parent=("p", 3))
    assert HeadQuery().matches(head)
    assert HeadQuery(prefix="user/", status="done", agent="planner", title="TRIP", tags={"a": "1"}, parent="p").matches(
        head
    )
    for query in [
        HeadQuery(prefix="User"),
        HeadQuery(status="failed"),
        HeadQuery(status=()),
        HeadQuery(agent=""),
        HeadQuery(title="trips"),
        HeadQuery(tags={"a": "2"}),
        HeadQuery(tags={"b": "1"}),
        HeadQuery(parent="q"),
        HeadQuery(updated_after=minute(1)),
        HeadQuery(updated_before=minute(0)),
    ]:
        assert not query.matches(head), query


def test_the_order_of_the_queue_has_only_threads_that_are_due_earliest_first() -> None:
    query = HeadQuery(order="due")
    early, late = (a_head(name, due=minute(number), updated_at=minute(-number)) for number, name in enumerate("ab"))
    assert query.matches(early)
    assert not query.matches(a_head("c"))
    assert query.position(early) > query.position(late)
    start = query.after(early).start()
    assert start == (-micros(minute(0)), thread_key("a"))
    assert select([late, a_head("c"), early], query) == [early, late]
    assert select([late, early], query.after(early)) == [late]


def test_an_unknown_order_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidInput, match="'title' is not an order"):
        check_query(HeadQuery(order="title"))  # type: ignore[arg-type]


@given(moments, moments)
def test_a_head_survives_msgpack(created: datetime, updated: datetime) -> None:
    head = a_head("thread", created_at=created, updated_at=updated, cost_usd=None, parent=("p", 1))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(head), type=Head) == head


def test_an_owner_is_named_in_words() -> None:
    owner = Owner(host="box", boot="b", pid=7, started="1", label="worker")
    assert str(owner) == "process 7 on box (worker)"
    assert str(msgspec.structs.replace(owner, label="")) == "process 7 on box"
