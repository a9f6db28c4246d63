"""The fold: what a log adds up to."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from clew.log import (
    EMPTY,
    Checkpoint,
    Compacted,
    Described,
    Fold,
    FoldedState,
    InboxRead,
    LeaseTaken,
    Logged,
    MessageAdded,
    ModelCallRefused,
    ModelCallStarted,
    Present,
    ProviderKey,
    Queued,
    Rewound,
    Spend,
    StateSet,
    StatusChanged,
    StepIntent,
    StepOutcome,
    Streamed,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    UnknownEntry,
    Usage,
    WorkspaceChanging,
    WorkspaceSnapshot,
    decode_frame,
    encode_entries,
    encode_frame,
    fold,
)
from clew.log.codec import FIRST
from clew.log.trees import named_trees, rename_trees
from clew.messages import Message, Text, ToolCall, ToolResult, assistant, tool, user
from tests.sampling import examples
from tests.strategies import logs


def said(*messages: Message) -> list[Logged]:
    return [MessageAdded(message) for message in messages]


def turn(number: int) -> list[Logged]:
    """A question, a response with one call, and its result."""
    call = ToolCall(f"c{number}", "look", {"n": number})
    return said(user(f"question {number}"), assistant(f"answer {number}", call), tool(result(f"c{number}")))


def turns(count: int) -> list[Logged]:
    return [entry for number in range(1, count + 1) for entry in turn(number)]


def result(call_id: str, text: str = "ok") -> ToolResult:
    return ToolResult(call_id, (Text(text),))


def statuses(checkpoint: Checkpoint) -> list[str]:
    return [call.status for call in checkpoint.calls]


@settings(max_examples=examples(300))
@given(logs, st.integers(0, 25))
def test_folding_in_two_parts_is_folding_at_once(log: list[Logged], cut: int) -> None:
    assert fold(log[cut:], fold(log[:cut])) == fold(log)


@settings(max_examples=examples(300))
@given(logs, st.integers(0, 25))
def test_a_folded_state_stands_for_all_before_it(log: list[Logged], cut: int) -> None:
    state = FoldedState(fold(log[:cut]))
    stored = encode_frame([encode_entries([state])], previous=FIRST)
    read_back = decode_frame(stored.data, "t", 0, stored.blobs).entries
    assert fold([*read_back, *log[cut:]]) == fold(log)


@given(logs)
def test_folding_changes_nothing_it_is_given(log: list[Logged]) -> None:
    start = fold(log)
    before = repr(start)
    fold(log, start)
    assert repr(start) == before


@settings(max_examples=examples(300))
@given(logs, st.integers(0, 25))
def test_the_present_is_that_part_of_the_checkpoint_and_stays_as_it_was(log: list[Logged], cut: int) -> None:
    running = Fold()
    running.push(log[:cut])
    present, then = running.present(), running.checkpoint()
    running.push(log[cut:])
    for name in (*Present.__struct_fields__, "files_turn"):
        assert getattr(present, name) == getattr(then, name), name


def test_the_empty_log_is_the_empty_checkpoint() -> None:
    assert fold([]) == EMPTY
    assert (EMPTY.messages, EMPTY.turns, EMPTY.calls, EMPTY.cost_usd) == ((), 0, (), 0.0)


def test_a_conversation_is_its_messages_in_order() -> None:
    checkpoint = fold(turns(3))
    assert checkpoint.turns == 3
    assert checkpoint.messages == checkpoint.history
    assert len(checkpoint.messages) == 9


def test_usage_and_cost_add_up() -> None:
    log: list[Logged] = [
        MessageAdded(assistant("a"), Usage(10, 5, 3, 2, 1), 0.25),
        MessageAdded(assistant("b"), Usage(1, 1), 0.5),
        Spend(Usage(100), 1.0),
        MessageAdded(user("costs nothing")),
    ]
    checkpoint = fold(log)
    assert checkpoint.usage == Usage(111, 6, 3, 2, 1)
    assert checkpoint.cost_usd == 1.75


def test_one_response_of_unknown_price_makes_the_total_unknown() -> None:
    log = [MessageAdded(assistant("a"), Usage(10), None), MessageAdded(assistant("b"), Usage(1), 0.5)]
    assert fold(log).cost_usd is None


def test_a_model_call_that_was_refused_is_not_unaccounted() -> None:
    call, refused = ModelCallStarted("m"), ModelCallRefused("HTTP 400: no")
    assert fold([call, refused, call, refused, call]).unaccounted == 0
    assert not fold([call, refused]).in_flight
    assert fold([call, call, refused]).unaccounted == 1, "the one before it is lost all the same"


def test_a_model_call_that_no_response_followed_is_unaccounted() -> None:
    call = ModelCallStarted("m")
    assert fold([call]).in_flight
    assert fold([call, call, MessageAdded(assistant("a"))]).unaccounted == 1
    assert not fold([call, MessageAdded(assistant("a"))]).in_flight


def test_calls_are_done_not_started_or_in_doubt() -> None:
    three = assistant(ToolCall("a", "t", {}), ToolCall("b", "t", {}), ToolCall("c", "t", {}))
    log: list[Logged] = [*said(user("q"), three), ToolIntent(1, 0, "k0"), ToolIntent(1, 1, "k1", 2)]
    log.append(ToolOutcome(1, 0, result("a")))
    checkpoint = fold(log)
    assert statuses(checkpoint) == ["done", "in_doubt", "not_started"]
    assert [(call.key, call.attempt) for call in checkpoint.calls] == [("k0", 1), ("k1", 2), ("", 0)]
    assert len(checkpoint.messages) == 2


def test_the_last_outcome_makes_the_results_a_message_in_the_order_of_the_calls() -> None:
    two = assistant(ToolCall("same", "t", {}), ToolCall("same", "t", {}))
    log: list[Logged] = [*said(user("q"), two), ToolOutcome(1, 1, result("same", "second"))]
    log.append(ToolOutcome(1, 0, result("same", "first")))
    checkpoint = fold(log)
    assert checkpoint.calls == ()
    assert checkpoint.messages[-1] == tool(result("same", "first"), result("same", "second"))


def test_results_that_come_as_a_message_settle_the_calls() -> None:
    two = assistant(ToolCall("a", "t", {}), ToolCall("b", "t", {}))
    assert fold(said(two, tool(result("a"), result("b")))).calls == ()
    half = fold(said(two, tool(result("b"))))
    assert statuses(half) == ["not_started", "done"]
    whole = fold(said(tool(result("a"))), half)
    assert whole.messages[-1] == tool(result("a"), result("b"))


def test_a_message_after_unsettled_calls_keeps_the_results_that_are_there() -> None:
    two = assistant(ToolCall("a", "t", {}), ToolCall("b", "t", {}))
    checkpoint = fold([*said(two), ToolOutcome(0, 1, result("b")), *said(user("never mind"))])
    assert checkpoint.calls == ()
    assert checkpoint.messages[1:] == (tool(result("b")), user("never mind"))


def test_steps_of_a_call_are_kept_until_it_is_done() -> None:
    log: list[Logged] = [*said(assistant(ToolCall("a", "t", {}))), ToolIntent(0, 0, "k"), StepIntent(0, 0, "pay")]
    (call,) = fold(log).calls
    assert (call.open_steps, call.steps) == (("pay",), {})
    (call,) = fold([*log, StepOutcome(0, 0, "pay", {"id": 7})]).calls
    assert (call.open_steps, call.steps) == ((), {"pay": {"id": 7}})
    assert fold([*log, ToolOutcome(0, 0, result("a"))]).steps == {}


def test_a_late_outcome_for_a_settled_turn_changes_nothing() -> None:
    log = turns(1)
    assert fold([*log, ToolOutcome(1, 0, result("c1", "late"))]) == fold(log)


def test_an_outcome_for_a_call_that_was_never_asked_for_changes_nothing() -> None:
    log: list[Logged] = [*said(assistant(ToolCall("a", "t", {})))]
    for entry in (ToolOutcome(0, 1, result("a")), ToolIntent(0, 7), StepIntent(0, 1, "s"), StepOutcome(0, -1, "s", 1)):
        assert fold([*log, entry]) == fold(log)


def test_a_rewind_goes_back_to_the_end_of_a_turn() -> None:
    log = turns(5)
    back = fold([*log, Rewound(turn=2)])
    assert back.messages == fold(turns(2)).messages
    assert back.turns == 2
    assert len(back.history) == 15
    again = fold(turn(9), back)
    assert [message for message in again.messages if message == user("question 9")]
    assert again.turns == 3


def test_a_rewind_to_turn_zero_empties_the_conversation() -> None:
    assert fold([*turns(2), Rewound(turn=0)]).messages == ()


def test_spend_is_never_unwound() -> None:
    log = [*turns(1), MessageAdded(assistant("x"), Usage(7), 1.0), Rewound(turn=0)]
    assert fold(log).usage == Usage(7)
    assert fold(log).cost_usd == 1.0


def test_a_rewind_takes_state_metadata_files_and_keys_of_later_turns_with_it() -> None:
    def settings_of(number: int) -> list[Logged]:
        return [
            StateSet("note", number),
            StateSet("took", number, "turn"),
            WorkspaceSnapshot(f"w{number}", number),
            ProviderKey("codex", f"k{number}"),
        ]

    log = [*turn(1), *settings_of(1), *turn(2), *settings_of(2), *turn(3), *settings_of(3)]
    now, back = fold(log), fold([*log, Rewound(turn=1)])
    assert (now.state, now.metadata[3], now.provider_keys) == ({"note": 3}, {"took": 3}, {"codex": "k3"})
    assert now.workspace == WorkspaceSnapshot("w3", 3)
    assert (back.state, back.metadata, back.provider_keys) == ({"note": 1}, {1: {"took": 1}}, {"codex": "k1"})
    assert back.workspace == WorkspaceSnapshot("w1", 1)


def test_a_rewind_by_messages_keeps_turns_whose_response_stays() -> None:
    log = turns(3)
    inside = fold([*log, Rewound(messages=5)])
    assert (len(inside.messages), inside.turns, inside.calls) == (5, 2, ())
    before = fold([*log, Rewound(messages=4)])
    assert (len(before.messages), before.turns) == (4, 1)


def test_calls_that_a_rewind_reopens_are_not_run_again() -> None:
    log = [*said(assistant(ToolCall("a", "t", {}))), ToolIntent(0, 0, "k"), *said(user("stop"), assistant("ok"))]
    assert fold([*log, Rewound(turn=1)]).calls == ()


def test_a_rewind_to_the_open_turn_leaves_its_calls_open() -> None:
    log = [*said(user("q"), assistant(ToolCall("a", "t", {}))), ToolIntent(1, 0, "k"), Rewound(turn=1)]
    assert statuses(fold(log)) == ["in_doubt"]


def test_a_compaction_changes_what_the_model_sees_and_not_the_history() -> None:
    log = [*turns(4), Compacted(user("summary"), keep=3)]
    checkpoint = fold(log)
    assert checkpoint.messages == (user("summary"), *fold(turns(4)).messages[-3:])
    assert len(checkpoint.history) == 13
    assert checkpoint.turns == 4


def test_a_compaction_is_undone_by_a_rewind() -> None:
    log = [*turns(4), Compacted(user("summary"), keep=3), *turn(5)]
    assert fold([*log, Rewound(turn=4)]).messages == fold(turns(4)).messages
    kept = fold([*log, Rewound(turn=5)])
    assert kept.messages == fold(log).messages


def test_status_lease_and_description() -> None:
    log: Sequence[Logged] = [
        ThreadStarted("ada", "m-1", "be kind", {"t": "d"}, {"max_turns": 5}, ("parent", 3)),
        *said(user("  a question\nof two lines ")),
        LeaseTaken("me", "token"),
    ]
    running = fold(log)
    assert (running.status, running.title, running.agent, running.parent) == (
        "running",
        "a question of two lines",
        "ada",
        ("parent", 3),
    )
    ended = fold([StatusChanged("failed", "ValueError: no"), Described("better", {"team": "x"})], running)
    assert (ended.status, ended.reason, ended.title, ended.tags) == (
        "failed",
        "ValueError: no",
        "better",
        {"team": "x"},
    )


def test_a_queued_thread_stays_in_the_queue_while_it_runs_and_leaves_it_when_the_run_has_ended() -> None:
    place = Queued("log-1", 5, 4, priority=1, tries=2, reason="no answer")
    queued = fold([place])
    assert (queued.status, queued.reason, queued.queued) == ("queued", "no answer", place)
    running = fold([LeaseTaken("me", "token")], queued)
    assert (running.status, running.queued) == ("running", place)
    assert fold([StatusChanged("queued")], running).queued == place
    assert fold([StatusChanged("done")], running).queued is None


def test_a_rewind_changes_neither_the_queue_nor_how_far_the_inbox_was_read() -> None:
    read, place = InboxRead("inbox-1", 3), Queued("log-1", 5)
    rewound = fold([*turns(3), read, place, Rewound(turn=1)])
    assert (rewound.inbox_read, rewound.queued, rewound.turns) == (read, place, 1)


def test_an_unknown_kind_is_skipped() -> None:
    assert fold([*turns(1), UnknownEntry(b"\x91\xa1x")]) == fold(turns(1))


def test_what_is_streamed_is_kept_until_the_response_is_whole() -> None:
    begun: list[Logged] = [MessageAdded(user("x")), Streamed((Text("half "),)), Streamed((Text("an"),))]
    assert fold(begun).partial == (Text("half "), Text("an"))
    whole = fold([*begun, MessageAdded(assistant("half an answer"))])
    assert (whole.partial, len(whole.messages)) == ((), 2)
    assert fold([*begun, Rewound(messages=0)]).partial == ()


def test_what_a_sub_agent_says_is_part_of_no_response() -> None:
    assert fold([Streamed((Text("aside"),), "call-1")]).partial == ()


def test_what_a_provider_keeps_is_known_by_its_digest_and_is_a_tree_of_the_thread() -> None:
    known = ProviderKey("codex", "k", "d" * 64, "t", 3)
    state = fold([ProviderKey("opencode", "plain"), known])
    assert state.providers == {"opencode": ProviderKey("opencode", "plain"), "codex": known}
    assert named_trees([FoldedState(state)]) == named_trees([known]) == {"d" * 64}
    (renamed,) = rename_trees([FoldedState(state)], {"d" * 64: "e" * 64})
    assert isinstance(renamed, FoldedState)
    assert renamed.state.providers["codex"] == ProviderKey("codex", "k", "e" * 64, "t", 3)


def test_files_may_have_changed_until_the_next_snapshot_says_what_they_are() -> None:
    turn: list[Logged] = [MessageAdded(user("Go.")), MessageAdded(assistant("Done."))]
    first = fold([*turn, WorkspaceSnapshot("a" * 64), *turn, WorkspaceChanging(2)])
    assert (first.changing, first.files_turn, first.turns) == (WorkspaceChanging(2), 1, 2)
    assert fold([WorkspaceSnapshot("b" * 64)], first).changing is None
    assert fold([WorkspaceChanging()], first).changing is None
    later = fold([WorkspaceSnapshot("b" * 64), *turn, WorkspaceChanging(3)], first)
    assert (later.files_turn, fold([Rewound(turn=2)], later).files_turn) == (2, 2)
    assert fold([Rewound(turn=2)], later).changing is None


def test_a_state_with_files_that_may_have_changed_stands_for_its_log() -> None:
    state = fold([MessageAdded(user("Go.")), MessageAdded(assistant("Done.")), WorkspaceChanging(1, "1:2:3")])
    assert fold([FoldedState(state)]).changing == WorkspaceChanging(1, "1:2:3")
