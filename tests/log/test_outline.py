"""An outline of a state: everything but the messages, in a few bytes a turn, and a digest that no change escapes."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.log import EMPTY, Fold, Logged, MessageAdded, MessageOutline, Rewound, StateSet, fold
from clew.messages import User, assistant, user
from tests.sampling import examples
from tests.strategies import logs


def outlined(log: list[Logged], keep: bool = False) -> Fold:
    found = Fold(outline=lambda messages: MessageOutline(messages, (lambda message: keep)))
    found.push(log)
    return found


@settings(max_examples=examples(400))
@given(logs, logs)
def test_an_outline_has_everything_but_the_messages(log: list[Logged], more: list[Logged]) -> None:
    whole = fold([*log, *more])
    found = outlined([*log, *more]).checkpoint()
    assert [type(message) for message in found.history] == [type(message) for message in whole.history]
    nothing = msgspec.structs.replace(whole, history=())
    assert msgspec.msgpack.encode(msgspec.structs.replace(found, history=())) == msgspec.msgpack.encode(nothing)


@settings(max_examples=examples(400))
@given(logs, logs)
def test_an_outline_is_the_same_from_the_log_and_from_the_state(log: list[Logged], more: list[Logged]) -> None:
    from_state = Fold(fold(log), MessageOutline)
    from_state.push(more)
    assert repr(from_state.outline()) == repr(outlined([*log, *more]).outline())


@settings(max_examples=examples(400))
@given(logs, logs)
def test_two_logs_have_the_same_outline_only_if_they_fold_to_the_same_state(
    one: list[Logged], other: list[Logged]
) -> None:
    same = msgspec.msgpack.encode(fold(one)) == msgspec.msgpack.encode(fold(other))
    outlines = [
        (msgspec.msgpack.encode(state), digest)
        for state, digest in (outlined(one).outline(), outlined(other).outline())
    ]
    assert (outlines[0] == outlines[1]) == same


@given(st.integers(0, 2), st.text(min_size=1, max_size=3))
def test_a_message_a_view_or_a_fact_that_differs_changes_the_digest(place: int, text: str) -> None:
    log: list[Logged] = [
        MessageAdded(user("hello")),
        MessageAdded(assistant("hello")),
        StateSet("k", "hello", "turn"),
    ]
    changed: list[Logged] = [
        MessageAdded(user(f"hello{text}")),
        MessageAdded(assistant(f"hello{text}")),
        StateSet("k", f"hello{text}", "turn"),
    ]
    assert outlined(log).outline()[1] != outlined([*log[:place], changed[place], *log[place + 1 :]]).outline()[1]
    assert outlined(log).outline()[1] != outlined([*log, Rewound(turn=0)]).outline()[1]


@given(logs)
def test_messages_that_are_wanted_are_kept(log: list[Logged]) -> None:
    assert repr(outlined(log, keep=True).checkpoint()) == repr(fold(log))
    prompts = Fold(outline=lambda messages: MessageOutline(messages, lambda message: type(message) is User))
    prompts.push(log)
    kept = [message for message in prompts.checkpoint().history if type(message) is User]
    assert kept == [message for message in fold(log).history if type(message) is User]


def test_an_outline_takes_a_few_bytes_a_turn() -> None:
    found, response = Fold(outline=MessageOutline), assistant("x" * 1000)
    for number in range(2000):
        found.push([MessageAdded(user(f"{number} " * 200)), MessageAdded(response)])
    history = found.checkpoint().history
    assert len(history) == 4000
    assert len({id(message) for message in history}) == 3  # a stand-in for each role, and the newest response
    assert found.turns == 2000
    assert Fold(EMPTY, MessageOutline).outline() != found.outline()
