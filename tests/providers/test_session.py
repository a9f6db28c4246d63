"""What a session at any provider promises: on record as it comes, resumed anywhere, errors that are no answers."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from pathlib import Path

import pytest

from clew import Agent, Budget, Thread
from clew.agent import TextDelta, ToolFinished, ToolStarted
from clew.checkpointers import MemoryCheckpointer, SQLiteCheckpointer
from clew.errors import (
    ClewError,
    InvalidInput,
    NotLoggedIn,
    ProviderError,
    ProviderLimited,
    ProviderMissing,
    SessionNotFound,
    ThreadBusy,
    ThreadNotFound,
    UsageError,
)
from clew.log import Usage
from clew.messages import Text, ToolCall, ToolResult, plain_text
from clew.providers import ProviderAgent
from tests.clock import Clock
from tests.providers.toy import toy_place
from tests.providers.toys import toy_agent, with_toys

pytestmark = pytest.mark.anyio


async def test_a_turn_has_its_result_its_blocks_its_usage_and_its_tool_uses_with_outputs(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    turn = await session.send("say I will look\ncall c1 Bash\nresult c1 two files\nsay Two.")
    assert (turn.output, turn.status) == ("Two.", "done")
    assert turn.blocks == (
        Text("I will look"),
        ToolCall("c1", "Bash", {}),
        ToolResult("c1", (Text("two files"),)),
        Text("Two."),
    )
    assert [(use.name, use.output, use.is_error) for use in turn.tool_uses] == [("Bash", "two files", False)]
    assert (turn.usage, turn.cost, turn.provider) == (Usage(10, 5), 0.25, "toy")
    assert turn.duration > 0


async def test_usage_and_cost_are_of_the_turn_and_add_up_in_the_trajectory(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    first, second = await session.send("say a"), await session.send("say b")
    found = await session.trajectory()
    assert (first.usage, second.usage) == (Usage(10, 2), Usage(10, 4))
    assert (found.usage, found.cost, found.num_exchanges) == (Usage(20, 6), 0.5, 2)
    assert [(turn.prompt, turn.output, turn.usage) for turn in found.exchanges] == [
        ("say a", "a", first.usage),
        ("say b", "b", second.usage),
    ]


async def test_events_come_while_the_program_runs(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    events = []
    async for event in session.send("stream one two\ncall c1 Bash\nsleep 600"):
        events.append(event)
        if isinstance(event, ToolStarted):
            break
    await session.cancel()
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["one ", "two "]


async def test_words_that_were_streamed_and_then_come_whole_are_told_once(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    run = session.send("stream one two\nsay one two ")
    told = "".join([event.text async for event in run if isinstance(event, TextDelta)])
    assert (told, (await run).blocks) == ("one two ", (Text("one two "),))


async def test_the_system_prompt_holds_on_every_turn(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer(), system_prompt="Be brief.").start_session()
    assert "--system Be brief." in (await session.send("echo")).output
    assert "--system Be brief." in (await session.send("echo")).output


async def test_the_handle_is_there_before_the_first_prompt_and_resumes_in_another_agent(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), SQLiteCheckpointer(tmp_path / "clew.db")
    session = toy_agent(place, store).start_session()
    handle = session.resume_handle
    assert set(json.loads(handle)) == {"version", "provider", "session_id", "resume_key"}
    await session.send("say remember me")
    resumed = toy_agent(place, store).resume_session(handle)
    assert "assistant=remember me" in (await resumed.send("echo")).output
    assert (await resumed.trajectory()).num_exchanges == 2
    await store.close()


async def test_without_the_store_the_programs_own_conversation_goes_on_and_the_trajectory_starts_empty(
    tmp_path: Path,
) -> None:
    place = toy_place(tmp_path)
    session = toy_agent(place, MemoryCheckpointer()).start_session()
    await session.send("say remember me")
    resumed = toy_agent(place, None).resume_session(session.resume_handle)
    assert (await resumed.trajectory()).num_exchanges == 0
    assert "assistant=remember me" in (await resumed.send("echo")).output
    assert (await resumed.trajectory()).num_exchanges == 1


async def test_a_bare_session_id_works_where_the_store_is_known_and_its_handle_comes_with_the_record(
    tmp_path: Path,
) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store).start_session()
    await session.send("say remember me")
    resumed = toy_agent(place, store).resume_session(session.session_id)
    with pytest.raises(UsageError, match="send a prompt, or read the trajectory"):
        _ = resumed.resume_handle
    await resumed.trajectory()
    assert resumed.resume_handle == session.resume_handle
    with pytest.raises(ThreadNotFound):
        await toy_agent(place, store).resume_session("nobody").send("echo")


async def test_a_handle_that_leads_nowhere_is_an_error_and_makes_no_thread(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    handle = toy_agent(toy_place(tmp_path / "a"), MemoryCheckpointer()).start_session().resume_handle
    with pytest.raises(SessionNotFound, match="on this machine"):
        await toy_agent(toy_place(tmp_path / "b"), store).resume_session(handle).send("echo")
    assert [head async for head in store.heads()] == []


async def test_on_another_machine_only_the_store_is_needed(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    first = toy_agent(toy_place(tmp_path / "a"), store).start_session()
    await first.send("say remember me")
    second = toy_agent(toy_place(tmp_path / "b"), store).resume_session(first.resume_handle)
    assert "assistant=remember me" in (await second.send("echo")).output
    assert second.resume_handle == first.resume_handle
    third = toy_agent(toy_place(tmp_path / "a"), store).resume_session(first.resume_handle)
    await third.send("say back")
    rows = (tmp_path / "a" / "home" / "toy" / json.loads(first.resume_handle)["resume_key"]).read_text().splitlines()
    assert len(rows) == 6, "the first machine was behind, and was brought up to date"


async def test_what_was_done_with_the_program_itself_meanwhile_is_kept(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store).start_session()
    await session.send("say one")
    key = json.loads(session.resume_handle)["resume_key"]
    with (place.home / "toy" / key).open("a") as rows:
        rows.write('{"role": "user", "text": "typed by hand"}\n')
    assert "user=typed by hand" in (await session.send("echo")).output


async def test_a_conversation_that_went_two_ways_goes_on_from_the_record_under_another_key(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store).start_session()
    await session.send("say one")
    before = session.resume_handle
    file = place.home / "toy" / json.loads(before)["resume_key"]
    file.write_text('{"role": "user", "text": "something else"}\n')
    assert "assistant=one" in (await session.send("echo")).output
    assert session.resume_handle != before
    assert "something else" in file.read_text(), "what was there is left alone"


async def test_files_travel_with_a_workspace(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    here, there = toy_place(tmp_path / "a"), toy_place(tmp_path / "b")
    first = toy_agent(here, store, workspace=here.cwd).start_session()
    await first.send("write notes.txt kept\nsay written")
    second = toy_agent(there, store, workspace=there.cwd).resume_session(first.resume_handle)
    await second.send("say hello")
    assert (there.cwd / "notes.txt").read_text() == "kept"


async def test_an_error_is_an_exception_and_never_an_answer(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    with pytest.raises(ProviderError, match="no such model"):
        await session.send("say well\nfail failed no such model")
    last = (await session.trajectory()).exchanges[-1]
    assert (last.status, last.output, last.reason, last.cost) == ("failed", None, "no such model", 0.5)
    assert last.blocks == (Text("well"),)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("login", NotLoggedIn), ("limit", ProviderLimited), ("session", SessionNotFound), ("stopped", ProviderError)],
)
async def test_what_went_wrong_is_told_by_the_kind_of_the_error(
    kind: str, expected: type[Exception], tmp_path: Path
) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    with pytest.raises(expected):
        await session.send(f"fail {kind} because")


@pytest.mark.parametrize("kind", ["login", "limit", "context", "session", "stopped", "failed"])
async def test_an_error_of_a_provider_is_told_once_and_not_logged_beside_it(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    with caplog.at_level(logging.INFO), pytest.raises(ClewError) as caught:
        await session.send(f"fail {kind} Not logged in because 4711")
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ()), caplog.text])
    assert told.count("4711") == (0 if kind == "session" else 1)
    assert told.lower().count("not logged in") == (0 if kind == "session" else 1)
    if kind == "session":
        assert json.loads(session.resume_handle)["resume_key"] in told


async def test_what_every_provider_said_is_told_once_where_none_could_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = toy_place(tmp_path)
    (place.home / "toy-is-at-its-limit").touch()
    (place.home / "twin-is-at-its-limit").touch()
    with caplog.at_level(logging.INFO), pytest.raises(ProviderLimited) as caught:
        await toy_agent(place, MemoryCheckpointer(), ["toy", "twin"]).start_session().send("say hello")
    told = "\n".join([str(caught.value), *caught.value.__notes__, caplog.text])
    assert [told.count(f"{name}: its limit is reached") for name in ("toy", "twin")] == [1, 1]


async def test_a_program_that_is_killed_is_an_error_and_what_it_did_is_kept(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    session = toy_agent(toy_place(tmp_path), store).start_session()
    with pytest.raises(ProviderError):
        await session.send("stream half an\ncall c1 Bash\ncrash")
    turn = await session.send("echo")
    assert "not known whether they took effect: Bash" in turn.output
    history = (await Thread.load(store, session.thread_id)).history
    assert any("[clew]" in plain_text(message) for message in history)


async def test_a_timeout_interrupts_and_the_session_goes_on(tmp_path: Path, clock: Clock) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    run = session.send("stream one\nsleep 600", timeout=300)
    async for event in run:
        if isinstance(event, TextDelta):
            clock.advance(300)
    turn = await run
    assert (turn.status, turn.reason, turn.output) == ("interrupted", "timeout: 300 s", None)
    assert turn.blocks == (Text("one "),)
    assert "Its words so far: 'one '" in (await session.send("echo")).output


async def test_cancel_stops_the_program_and_the_session_goes_on(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    run = session.send("call c1 Bash\nsleep 600")
    async for event in run:
        if isinstance(event, ToolStarted):
            break
    await session.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (await session.trajectory()).exchanges[-1].reason == "cancelled"
    assert (await session.send("say on")).output == "on"


async def test_a_program_that_writes_much_to_stderr_does_not_hang(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    assert (await session.send("stderr 3000000\nsay done")).output == "done"


async def test_a_tool_result_longer_than_any_buffer_is_kept(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    turn = await session.send(f"call c1 Bash\nresult c1 {'x' * 3_000_000}\nsay done")
    assert len(turn.tool_uses[0].output) == 3_000_000


async def test_a_second_process_on_one_session_is_told_that_it_is_busy(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    first = toy_agent(place, store).start_session()
    run = first.send("call c1 Bash\nsleep 600")
    async for event in run:
        if isinstance(event, ToolStarted):
            break
    with pytest.raises(ThreadBusy):
        await toy_agent(place, store).resume_session(first.resume_handle).send("echo")
    await first.end()


async def test_prompts_of_one_session_wait_for_each_other(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    first, second = await asyncio.gather(session.send("sleep 0.2\nsay one"), session.send("echo"))
    assert (first.output, "assistant=one" in second.output) == ("one", True)


async def test_a_program_that_is_missing_says_how_to_install_it(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    (place.home / "toy-is-not-installed").touch()
    with pytest.raises(ProviderMissing, match="make toy"):
        await toy_agent(place, MemoryCheckpointer()).start_session().send("say hello")


@pytest.mark.parametrize("mark", ["toy-is-not-installed", "toy-is-logged-out"])
async def test_of_several_providers_the_first_that_is_ready_is_taken(mark: str, tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    (place.home / mark).touch()
    session = toy_agent(place, MemoryCheckpointer(), ["toy", "twin"]).start_session()
    assert (session.provider, (await session.send("say hello")).provider) == ("twin", "twin")


async def test_the_next_provider_takes_over_with_the_whole_conversation_when_a_limit_is_reached(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    session = toy_agent(place, MemoryCheckpointer(), ["toy", "twin"]).start_session()
    await session.send("say remember me")
    (place.home / "toy-is-at-its-limit").touch()
    turn = await session.send("echo")
    assert (turn.provider, session.provider) == ("twin", "twin")
    assert "assistant=remember me" in turn.output
    assert turn.drift["provider"] == ("toy", "twin")
    assert turn.output.count("user=echo") == 1, "the prompt stands there once"


async def test_a_resume_with_other_permissions_says_so_in_its_drift(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store).start_session()
    await session.send("say hello")
    later = toy_agent(place, store, permissions="full").resume_session(session.resume_handle)
    assert (await later.send("say hello")).drift == {"permissions": ("edit", "full")}
    assert (await later.send("say hello")).drift == {}


async def test_when_no_provider_can_the_last_error_says_what_happened_to_the_others(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    (place.home / "toy-is-not-installed").touch()
    (place.home / "twin-is-logged-out").touch()
    with pytest.raises(NotLoggedIn) as caught:
        await toy_agent(place, MemoryCheckpointer(), ["toy", "twin"]).start_session().send("say hello")
    assert "make toy" in "".join(caught.value.__notes__)


async def test_a_signed_handle_is_taken_with_its_key_alone(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store).start_session()
    await session.send("say remember me")
    signed = session.handle(key="secret", expires_in=timedelta(hours=1))
    agent = toy_agent(place, store)
    assert "remember" in (await agent.resume_session(signed, key="secret").send("echo")).output
    for handle, reason in [(signed.replace("toy-", "toy_"), "signature"), (session.resume_handle, "not signed")]:
        with pytest.raises(InvalidInput, match=reason):
            agent.resume_session(handle, key="secret")
    with pytest.raises(InvalidInput, match="expired"):
        agent.resume_session(session.handle(key="secret", expires_in=timedelta(seconds=-1)), key="secret")


async def test_hints_of_a_handle_are_used_only_when_it_is_trusted(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    url = f"sqlite:///{tmp_path}/clew.db"
    session = ProviderAgent(provider="toy", env=place.env, cwd=tmp_path / "elsewhere", checkpointer=url).start_session()
    await session.send("say remember me")
    handle = session.handle(hints=True)
    assert json.loads(handle)["store"] == url
    plain = toy_agent(place, MemoryCheckpointer()).resume_session(handle)
    assert (await plain.send("echo")).output.startswith("work ")
    trusting = toy_agent(place, MemoryCheckpointer()).resume_session(handle, trust=True)
    assert (await trusting.send("echo")).output.startswith("elsewhere ")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"provider": "claud"}, "claude_code"),
        ({"provider": []}, "provider is the name"),
        ({"provider": 7}, "provider is the name"),
        ({"provider": "toy", "env": {"PATH": 7}}, "env"),
        ({"provider": "toy", "cwd": 7}, "cwd is the path"),
        ({"provider": "toy", "options": 7}, "options is a list"),
        ({"provider": "toy", "model": {"toy": 7}}, "model"),
        ({"provider": "toy", "budget": 2}, "budget is a Budget"),
        ({"provider": "toy", "name": 7}, "name is text"),
        ({"provider": "toy", "redact": 7}, "redact is a function"),
        ({"provider": "toy", "handle_signals": 7}, "handle_signals"),
        ({"provider": "toy", "takeover": 7}, "takeover"),
        ({"provider": "toy", "permissions": "all"}, "read, edit, full"),
        ({"provider": "toy", "timeout": 0}, "above 0"),
        ({"provider": "toy", "tools": [print]}, "tools"),
        ({"provider": ["toy", "twin"], "model": "m"}, "several providers"),
        ({"provider": "toy", "model": {"codex": "m"}}, "codex"),
        ({"provider": "toy", "data_dir": "x", "checkpointer": None}, "one of them"),
        ({"cwd": "."}, "provider"),
        ({}, "needs a model"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_the_way_out(settings: dict[str, object], reason: str) -> None:
    with_toys()
    with pytest.raises(InvalidInput, match=reason):
        Agent(**settings)  # type: ignore[arg-type]


async def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    place.cwd.rmdir()
    with pytest.raises(InvalidInput, match="is not a folder"):
        await toy_agent(place, MemoryCheckpointer()).start_session().send("say hello")


async def test_a_data_dir_keeps_everything_in_a_folder(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    with_toys()
    session = ProviderAgent(provider="toy", env=place.env, cwd=place.cwd, data_dir=tmp_path / "data").start_session()
    await session.send("say remember me")
    again = ProviderAgent(provider="toy", env=place.env, cwd=place.cwd, data_dir=tmp_path / "data")
    assert (await again.resume_session(session.session_id).trajectory()).num_exchanges == 1


async def test_a_sub_agents_work_is_on_a_thread_of_its_own_and_in_the_trajectory(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    await session.send("call c1 Task\nchild looked around\nresult c1 found\nsay done")
    (child,) = (await session.trajectory()).sub_agents
    assert child.exchanges[0].blocks == (Text("looked around"),)


async def test_a_budget_that_is_spent_ends_the_asking(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer(), budget=Budget(usd=0.3)).start_session()
    assert [(await session.send("say x")).status for _ in range(3)] == ["done", "done", "interrupted"]
    last = await session.send("say x")
    assert (last.output, last.reason) == (None, "budget: 0.5000 of 0.3000 dollars")


async def test_a_rewound_thread_goes_on_from_there_and_not_from_what_the_program_keeps(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store).start_session()
    await session.send("say one")
    await session.send("say two")
    async with Thread.open(store, session.thread_id) as thread:
        await thread.rewind(1)
    turn = await session.send("echo")
    assert ("assistant=one" in turn.output, "assistant=two" in turn.output) == (True, False)


async def test_a_fork_goes_on_beside_its_parent(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store).start_session()
    await session.send("say one")
    async with Thread.open(store, session.thread_id) as thread:
        await thread.fork("branch")
    await session.send("say two")
    forked = await toy_agent(place, store).resume_session("branch").send("echo")
    assert ("assistant=one" in forked.output, "assistant=two" in forked.output) == (True, False)
    assert "assistant=two" in (await session.send("echo")).output


async def test_a_session_that_was_moved_has_all_of_the_conversation_and_says_what_was_lost(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    await session.send("think hm\nsay one\ncall c1 Bash\nresult c1 out\nsay two")
    moved = await session.move_to("twin")
    turn = await moved.send("echo")
    assert turn.provider == "twin"
    assert all(word in turn.output for word in ("assistant=one", "call=c1 Bash", "result=out", "assistant=two"))
    back = await moved.move_to("toy")
    assert "call=c1 Bash" in (await back.send("echo")).output
    assert [turn.provider for turn in (await back.trajectory()).exchanges] == ["toy", "twin", "toy"]


async def test_a_session_of_another_provider_that_the_store_does_not_know_is_taken_over(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    session = toy_agent(place, MemoryCheckpointer()).start_session()
    await session.send("say remember me")
    elsewhere = toy_agent(place, MemoryCheckpointer(), "twin").resume_session(session.resume_handle)
    assert "assistant=remember me" in (await elsewhere.send("echo")).output
    assert (await elsewhere.trajectory()).num_exchanges == 2


async def test_tool_finished_is_told_with_its_result(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer()).start_session()
    events = [event async for event in session.send("call c1 Bash\nresult c1 out\nsay x")]
    assert [event.result.content for event in events if isinstance(event, ToolFinished)] == [(Text("out"),)]


async def test_a_timeout_that_allows_nothing_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    agent = toy_agent(toy_place(tmp_path), MemoryCheckpointer())
    session = agent.start_session()
    await session.send("say one")
    for timeout in (0, -1, float("nan")):
        for ask in (session.send, session.run, session.resume, agent.run, agent.resume):
            with pytest.raises(InvalidInput, match="timeout is a number of seconds above 0"):
                ask("say two", timeout=timeout)
    assert [turn.output for turn in (await session.trajectory()).exchanges] == ["one"]
