"""The search for an order finds one exactly if trying all orders finds one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from random import Random
from typing import Any

import msgspec

from clew.testing.history import Call
from clew.testing.history.order import order_calls
from tests.sampling import FULL, dice, examples
from tests.testing.history.made import append, call, delete, head, read

Thread = tuple[str, tuple[str, ...], str, frozenset[str]]
ABSENT: Thread = ("", (), "", frozenset())


def test_the_search_agrees_with_trying_all_orders() -> None:
    chance = dice("small histories")
    verdicts = {True: 0, False: 0}
    for _ in range(examples(20_000)):
        calls = small_history(chance)
        expected = has_order(calls)
        verdicts[expected] += 1
        assert (order_calls(calls) is None) == expected, calls
    assert min(verdicts.values()) > sum(verdicts.values()) / 20


def test_the_search_agrees_with_trying_all_orders_in_which_stores_send_appends_again() -> None:
    chance = dice("small histories with appends that were sent again")
    allowed = 0
    for _ in range(examples(20_000)):
        calls = small_history(chance, most=5, resends=True)
        again = sent_again(calls)
        if len(calls) + len(again) > 7:  # too many orders to try
            continue
        expected = has_order([*calls, *again])
        allowed += expected and not has_order(calls)
        assert (order_calls(calls, resends=True) is None) == expected, calls
    assert allowed > 0 or not FULL  # they are rare


def sent_again(calls: Sequence[Call]) -> list[Call]:
    """What a store may have sent once more than its answers say, each as a call that takes effect or not."""
    return [
        msgspec.structs.replace(made, outcome="unknown")
        for made in calls
        if made.method == "append"
        and (made.outcome == "conflict" or (made.outcome == "ok" and (not made.frames or made.at == 0)))
    ]


def small_history(chance: Random, most: int = 6, *, resends: bool = False) -> list[Call]:
    """A few overlapping calls, most with the answers that some order gives, some with any answer. With `resends`, an order
    in which half of the appends are sent twice."""
    calls: list[Call] = []
    now = 0
    for number in range(chance.randint(2, most)):
        began, ended = now, now + chance.randint(1, 9 if resends else 6)
        now += chance.randint(0, 3)
        log, at = chance.choice("L" if resends else "LLM"), chance.choice((0, 0, 1, 2))
        frames = [f"{frame}{chance.choice((0, number))}" for frame in chance.choice(("a", "b", "ab", ""))]
        refs = ("x",) if chance.random() < 0.2 else ()
        match chance.choice((0, 0, 0, 3, 4, 4)) if resends else chance.randrange(8):
            case 0 | 1 | 2:
                made = append(began, ended, at, *frames, log=log, head=f"head of {number}", refs=refs)
            case 3:
                made = delete(began, ended)
            case 4:
                made = head(began, ended)
            case 5:
                made = call("refs", began, ended, thread_id="t")
            case _:
                made = read(began, ended, at=chance.choice((0, 0, 1)), stop=chance.choice((None, None, 1)))
        calls.append(made)
    answered = answers(chance, calls, resends)
    return answered if chance.random() < 0.6 else shuffled(chance, answered)


def answers(chance: Random, calls: Sequence[Call], resends: bool) -> list[Call]:
    """These calls with the answers that an order gives; some of them never came."""
    state = ABSENT
    answered: dict[int, Call] = {}
    moments = [(chance.uniform(made.began, made.ended or 0), True, made) for made in calls]
    if resends:
        sent = [(chance.uniform(made.began, moment), False, made) for moment, _, made in moments]
        moments += [one for one in sent if one[2].method == "append" and chance.random() < 0.5]
    for _, is_answered, made in sorted(moments, key=lambda moment: moment[0]):
        if not is_answered:
            state = apply(state, made) or state
            continue
        if made.method == "append":
            after = apply(state, made)
            outcome = "ok" if after else "conflict"
            state = after or state
        else:
            outcome, state = "ok", ABSENT if made.method == "delete" else state
        given = msgspec.structs.replace(made, outcome=outcome, **shown(state, made))
        if made.method in ("append", "delete") and outcome == "ok" and chance.random() < 0.25:
            given = msgspec.structs.replace(given, outcome="unknown", ended=None)
        answered[made.number] = given
    return [answered[made.number] for made in calls]


def shuffled(chance: Random, calls: list[Call]) -> list[Call]:
    """These calls, one of them with an answer that another one might have had."""
    place = chance.randrange(len(calls))
    other = chance.choice(calls)
    changes: dict[str, dict[str, Any]] = {
        "append": {"outcome": chance.choice(("ok", "conflict")), "ended": calls[place].ended or calls[place].began + 3},
        "read": {"frames": other.frames},
        "head": {"head": other.head},
        "refs": {"refs": ("x",)},
        "delete": {},
    }
    calls[place] = msgspec.structs.replace(calls[place], **changes[calls[place].method])
    return calls


def has_order(calls: Sequence[Call]) -> bool:
    """Whether any order of these calls explains their answers: all orders are tried, with and without unknown calls."""
    known = [made for made in calls if made.outcome != "unknown"]
    lost = [made for made in calls if made.outcome == "unknown"]
    for chosen in range(2 ** len(lost)):
        taken = known + [made for place, made in enumerate(lost) if chosen >> place & 1]
        if any(map(explains, in_time(taken))):
            return True
    return False


def in_time(calls: Sequence[Call]) -> Iterator[tuple[Call, ...]]:
    """All orders in which no call comes after one that began only when it had ended."""
    for order in permutations(calls):
        if all(
            not (later.ended is not None and later.ended < earlier.began)
            for place, earlier in enumerate(order)
            for later in order[place + 1 :]
        ):
            yield order


def explains(order: Sequence[Call]) -> bool:
    """Whether each call of this order has the right answer. What was sent again comes after what was sent first."""
    state = ABSENT
    answered: set[int] = set()
    for made in order:
        if made.number in answered:
            return False
        if made.outcome != "unknown":
            answered.add(made.number)
        if made.method == "append":
            after = apply(state, made)
            if (after is None) != (made.outcome == "conflict"):
                return False
            state = after or state
        elif made.method == "delete":
            state = ABSENT
        elif any(getattr(made, name) != value for name, value in shown(state, made).items()):
            return False
    return True


def apply(state: Thread, made: Call) -> Thread | None:
    """The thread after this append; None if it is a conflict."""
    log_id, frames, _, refs = state
    if state == ABSENT:
        fits = made.at == 0 and bool(made.frames)
    elif log_id != made.log_id:
        return None
    elif len(frames) != made.at:
        is_there = made.frames and frames[made.at : made.at + len(made.frames)] == made.frames
        return state if is_there else None
    else:
        fits = True
    return (made.log_id, frames + made.frames, made.head, refs | set(made.refs)) if fits else None


def shown(state: Thread, made: Call) -> dict[str, object]:
    """What a call that looks at the thread in this state answers."""
    _, frames, last, refs = state
    found: dict[str, dict[str, object]] = {
        "read": {"frames": frames[made.at : made.stop]},
        "head": {"head": last},
        "refs": {"refs": tuple(sorted(refs))},
    }
    return found.get(made.method, {})
