"""Sessions at providers when things go wrong in the middle: lost leases, stores away, full pipes, other machines."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import subprocess
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clew import Agent, Thread, open_checkpointer
from clew.agent import Run, RunResult, TextDelta, ToolStarted
from clew.checkpointers import MemoryCheckpointer
from clew.errors import LeaseLost, ProviderError, ProviderLimited, ProviderMissing, Unavailable
from clew.messages import Text, plain_text
from clew.providers import adopt, process
from clew.providers.base import Command, Place
from clew.providers.placement import Placed, staging_folder
from clew.providers.process import reap, run
from clew.testing import ScriptedModel, call
from clew.threads.leases import RENEW_AFTER, this_process
from clew.tools import DEFAULT_TOOLS
from clew.workspace import Workspace
from tests.clock import Clock
from tests.limits import PATIENCE
from tests.providers.toy import Toy, toy_place
from tests.providers.toys import toy_agent
from tests.providers.worker import is_running, wait_until, worker

pytestmark = pytest.mark.anyio


async def test_what_another_machine_did_before_it_was_killed_is_seen_here(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    here, there = toy_place(tmp_path / "a"), toy_place(tmp_path / "b")
    async with open_checkpointer(url) as store:
        first = toy_agent(here, store).start_session()
        await first.send("say begun")
    prompt = "call c1 Bash\nresult c1 pushed\nsay it is pushed\ncall c2 Bash\nsleep 600"
    with worker(there, url, provider="toy", prompt=prompt, handle=first.resume_handle) as other:
        other.wait_for("tool-finished")
        other.wait_for("tool-started")
        async with open_checkpointer(url) as store:
            async with asyncio.timeout(PATIENCE):
                while '"c2"' not in repr(msgspec.json.encode(await Thread.load(store, first.thread_id))):
                    await asyncio.sleep(0.02)  # all that came before that call is on record with it
        other.kill()
    async with open_checkpointer(url) as store:
        turn = await toy_agent(here, store, takeover=True).resume_session(first.resume_handle).send("echo")
        assert all(word in turn.output for word in ("assistant=begun", "result=pushed", "assistant=it is pushed"))


async def test_what_was_typed_into_the_program_itself_is_moved_too(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store).start_session()
    await session.send("say one")
    _typed(place, session.resume_handle)
    moved = await session.move_to("twin")
    assert "user=typed by hand" in (await moved.send("echo")).output


async def test_what_was_typed_into_the_program_itself_is_seen_by_the_one_that_takes_over(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    session = toy_agent(place, MemoryCheckpointer(), ["toy", "twin"]).start_session()
    await session.send("say one")
    _typed(place, session.resume_handle)
    (place.home / "toy-is-at-its-limit").touch()
    assert "user=typed by hand" in (await session.send("echo")).output


def _typed(place: Place, handle: str) -> None:
    with (place.home / "toy" / json.loads(handle)["resume_key"]).open("a") as rows:
        rows.write('{"role": "user", "text": "typed by hand"}\n')


async def test_a_session_resumed_without_its_store_is_taken_over_with_all_it_holds(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    session = toy_agent(place, MemoryCheckpointer()).start_session()
    await session.send("say remember me")
    (place.home / "toy-is-at-its-limit").touch()
    turn = await toy_agent(place, None, ["toy", "twin"]).resume_session(session.resume_handle).send("echo")
    assert (turn.provider, "assistant=remember me" in turn.output) == ("twin", True)


async def test_a_limit_leaves_the_handle_and_the_turn_as_they_are(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    session = toy_agent(place, MemoryCheckpointer()).start_session()
    await session.send("say one")
    handle = session.resume_handle
    (place.home / "toy-is-at-its-limit").touch()
    for _ in range(2):
        with pytest.raises(ProviderLimited):
            await session.send("say two")
    assert session.resume_handle == handle
    assert [turn.status for turn in (await session.trajectory()).exchanges] == ["done", "failed", "failed"]


async def timed_out(run: Run[RunResult], clock: Clock, timeout: float) -> None:
    """Let a run take longer than its timeout, once the program has said something."""
    async for event in run:
        if isinstance(event, TextDelta):
            clock.advance(timeout)


async def test_a_prompt_that_was_cut_off_is_not_taken_back_because_the_program_is_gone(
    tmp_path: Path, clock: Clock
) -> None:
    place = toy_place(tmp_path)
    session = toy_agent(place, MemoryCheckpointer(), ["toy", "twin"]).start_session()
    await timed_out(session.send("stream half\nsleep 600", timeout=300), clock, 300)
    (place.home / "toy-is-not-installed").touch()
    turn = await session.send("echo")
    assert turn.provider == "twin"
    assert [turn.prompt for turn in (await session.trajectory()).exchanges] == ["stream half\nsleep 600", "echo"]


@pytest.mark.parametrize("size", [1_000, 400_000])
async def test_a_program_that_goes_on_writing_after_an_error_ends_all_the_same(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(line: bytes) -> None:
        raise ValueError("enough")

    monkeypatch.setattr(process, "GRACE", 0.2)
    script = f"trap '' INT; echo first; head -c {size} /dev/zero | tr '\\0' 'x'; echo; sleep 600"
    running = run(Command(("sh", "-c", script)), toy_place(tmp_path), refuse)
    with pytest.raises(ValueError, match="enough"):
        await asyncio.wait_for(running, PATIENCE)


async def test_a_turn_that_is_cancelled_while_it_is_captured_is_done_and_paid(tmp_path: Path) -> None:
    class Slow(Toy):
        def export(self, key: str, folder: Path) -> bool:
            reached.set()
            cancelled.wait(PATIENCE)
            return super().export(key, folder)

    reached, cancelled = threading.Event(), threading.Event()
    store = MemoryCheckpointer()
    agent = toy_agent(toy_place(tmp_path), store)
    session = agent.start_session()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.providers.toy.Toy", Slow)
        running = asyncio.ensure_future(session.send("say done"))
        await asyncio.to_thread(reached.wait)
        running.cancel()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await running
    (turn,) = (await session.trajectory()).exchanges
    assert (turn.status, turn.output, turn.cost) == ("done", "done", 0.25)


async def test_what_a_stopped_turn_cost_is_known_or_counted_as_not_known(tmp_path: Path, clock: Clock) -> None:
    store = MemoryCheckpointer()
    session = toy_agent(toy_place(tmp_path), store).start_session()
    for _ in range(2):
        await timed_out(session.send("say one\nsleep 600", timeout=300), clock, 300)
    await session.send("say done")
    assert (await Thread.load(store, session.thread_id)).unaccounted == 2


async def test_an_answer_is_not_lost_because_our_own_copy_cannot_be_made(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    session = toy_agent(place, MemoryCheckpointer()).start_session()
    await session.send("say one")
    folder = staging_folder(Toy(place), json.loads(session.resume_handle)["resume_key"])
    shutil.rmtree(folder)
    folder.write_text("in the way")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clew.providers.placement.Placement.place", _placed(session.resume_handle))
        turn = await session.send("say two")
    assert (turn.output, turn.cost) == ("two", 0.25)


def _placed(handle: str) -> Callable[..., Awaitable[Any]]:
    async def place(*args: object) -> Placed:
        return Placed(json.loads(handle)["resume_key"])

    return place


async def test_a_store_that_is_away_is_told_as_such(tmp_path: Path) -> None:
    class Away(MemoryCheckpointer):
        away = False

        async def append(self, *args: Any, **kwargs: Any) -> None:
            if self.away:
                raise Unavailable("the store is away. Try again.")
            await super().append(*args, **kwargs)

    store = Away()
    session = toy_agent(toy_place(tmp_path), store).start_session()
    store.away = True
    with pytest.raises(Unavailable, match="away"):
        await session.send("say one")


async def test_files_of_a_first_prompt_without_an_answer_travel(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    here, there = toy_place(tmp_path / "a"), toy_place(tmp_path / "b")
    first = toy_agent(here, store, workspace=here.cwd).start_session()
    running = asyncio.ensure_future(first.send("write notes.txt kept\nsleep 600"))
    while not (here.cwd / "notes.txt").exists():
        await asyncio.sleep(0.02)
    await first.cancel()
    assert isinstance((await asyncio.gather(running, return_exceptions=True))[0], asyncio.CancelledError)
    await toy_agent(there, store, workspace=there.cwd).resume_session(first.resume_handle).send("say x")
    assert (there.cwd / "notes.txt").read_text() == "kept"


async def test_a_silent_program_is_ended_once_the_thread_has_another_holder(tmp_path: Path, clock: Clock) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    pids = place.cwd / "pids"
    session = toy_agent(place, store).start_session()
    running = asyncio.ensure_future(session.send(f"spawn {pids}\ncall c1 Bash\nsleep 600"))
    while not pids.exists() or not pids.read_text():
        await asyncio.sleep(0.02)
    async with Thread.open(store, session.thread_id, takeover=True) as other:
        clock.advance(RENEW_AFTER.total_seconds())
        with pytest.raises(LeaseLost):
            async with asyncio.timeout(PATIENCE):
                await running
        assert other.lost is None
    wait_until(lambda: not any(is_running(int(pid)) for pid in pids.read_text().split()), "all of it ends")


async def test_closing_an_agent_stops_what_it_resumed(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    agent = toy_agent(toy_place(tmp_path), store, name="ada")
    await agent.run("say one", thread_id="t")
    running = agent.resume("call c1 Bash\nsleep 600")
    async for event in running:
        if isinstance(event, ToolStarted):
            break
    await agent.aclose()
    head = await store.head("t")
    assert head is not None
    assert head.lease is None


def test_a_process_with_many_open_files_can_start_a_program(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip(f"this system allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (3000, hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        ended = asyncio.run(run(Command(("true",)), toy_place(tmp_path), lambda line: None))
        assert (ended.status, ended.stderr) == (0, "")
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_nothing_that_is_to_be_taken_out_is_on_record(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    here, there = toy_place(tmp_path / "a"), toy_place(tmp_path / "b")
    session = toy_agent(here, store, redact=["sk-[a-z]+"]).start_session()
    await session.send("stream sk -abc\nsay the key is sk-abc\ncall c1 Task\nchild found sk-abc\nresult c1 sk-abc")
    blobs = b"".join([frame async for frame in _frames(store)])
    digests = {digest async for head in store.heads() for digest in await store.refs(head.thread_id)}
    assert b"sk-abc" not in blobs + b"".join((await store.get_blobs(digests)).values())
    state = await Thread.load(store, session.thread_id)
    assert "sk-" not in str(state)
    assert "sk-abc" in (await session.send("echo")).output, "on its own machine the program goes on with what it keeps"
    turn = await toy_agent(there, store, redact=["sk-[a-z]+"]).resume_session(session.resume_handle).send("echo")
    assert "assistant=the key is [redacted]" in turn.output


async def test_a_prompt_that_something_is_taken_out_of_is_answered_like_any_other(tmp_path: Path) -> None:
    session = toy_agent(toy_place(tmp_path), MemoryCheckpointer(), redact=["sk-[a-z]+"]).start_session()
    turn = await session.send("say the key is sk-abc")
    assert (turn.output, turn.blocks) == ("the key is sk-abc", (Text("the key is [redacted]"),))
    (told,) = (await session.trajectory()).exchanges
    assert (told.status, told.prompt, told.cost) == ("done", "say the key is [redacted]", 0.25)


async def _frames(store: MemoryCheckpointer) -> Any:
    async for head in store.heads():
        for frame in await store.read(head.thread_id):
            yield frame


def test_a_process_is_reaped_neither_by_itself_nor_by_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    gone = msgspec.structs.replace(this_process(), pid=ended.pid)
    monkeypatch.setattr(process, "_marked", lambda: [(os.getpid(), gone), (os.getppid(), gone)])
    assert reap() == []


async def test_a_copy_in_another_store_goes_on_beside_the_original(tmp_path: Path) -> None:
    place, store, other = toy_place(tmp_path), MemoryCheckpointer(), MemoryCheckpointer()
    session = toy_agent(place, store).start_session(thread_id="s")
    await session.send("say one")
    await Thread.copy(store, other, "s")
    await session.send("say two")
    copied = await toy_agent(place, other).resume_session("s").send("echo")
    assert ("assistant=one" in copied.output, "assistant=two" in copied.output) == (True, False)


async def test_two_processes_without_a_store_in_common_are_kept_apart(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    session = toy_agent(place, None).start_session()
    await session.send("say one")
    running = session.send("call c1 Bash\nsleep 600")
    async for event in running:
        if isinstance(event, ToolStarted):
            break
    with pytest.raises(ProviderError, match="another process"):
        await toy_agent(place, None).resume_session(session.resume_handle).send("echo")
    await session.end()


async def test_a_session_that_is_cancelled_before_it_began_does_not_begin(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    session = toy_agent(toy_place(tmp_path), store).start_session()
    first = asyncio.ensure_future(session.send("sleep 600"))
    second = asyncio.ensure_future(session.send("say second"))
    while len(session._tasks) < 2:
        await asyncio.sleep(0)
    await session.cancel()
    ended = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(error) for error in ended] == [asyncio.CancelledError] * 2


async def test_a_provider_that_is_missing_leaves_no_thread_behind(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    (place.home / "toy-is-not-installed").touch()
    with pytest.raises(ProviderMissing):
        await toy_agent(place, store).start_session().send("say x")
    assert [head async for head in store.heads()] == []


async def test_a_bare_id_goes_on_at_the_provider_that_has_the_conversation(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store, "twin").start_session()
    await session.send("say one")
    resumed = toy_agent(place, store, ["toy", "twin"]).resume_session(session.thread_id)
    assert (await resumed.send("echo")).provider == "twin"


async def test_a_moved_session_is_still_its_agents_last_one(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store, name="ada").start_session()
    await session.send("say one")
    await session.move_to("twin")
    assert (await toy_agent(place, store, name="ada").resume("echo")).thread_id == session.thread_id


async def test_a_session_without_a_store_moves_home_with_all_it_holds(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    session = toy_agent(place, MemoryCheckpointer()).start_session()
    await session.send("say remember me")
    model = ScriptedModel(lambda request: " ".join(map(plain_text, request.messages)))
    resumed = toy_agent(place, MemoryCheckpointer()).resume_session(session.resume_handle)
    home = await resumed.move_to("clew", model=model)
    assert "remember me" in (await home.send("And?")).output


async def test_the_built_in_agent_moves_with_its_workspace(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    toy_agent(place, store)
    home = Agent(ScriptedModel(["Hi."]), checkpointer=store, workspace=place.cwd).start_session()
    await home.send("Hello")
    away = await home.move_to("toy", env=place.env)
    assert (await away.send("echo")).output.startswith("work ")


async def test_a_session_moves_to_the_built_in_agent_with_its_workspace(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    session = toy_agent(place, MemoryCheckpointer(), workspace=place.cwd).start_session()
    await session.send("say one")
    model = ScriptedModel(lambda asked: "Done." if "Wrote" in str(asked.messages[-1]) else write)
    write = call("write_file", path="a.txt", content="one")
    home = await session.move_to("clew", model=model, tools=DEFAULT_TOOLS)
    assert (await home.send("Write it.")).output == "Done."
    assert (place.cwd / "a.txt").read_text() == "one"


async def test_an_adopted_session_says_who_answered(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, None).start_session()
    await session.send("say one")
    thread_id = await adopt(json.loads(session.resume_handle)["resume_key"], store, provider="toy", place=place)
    (turn,) = (await toy_agent(place, store).resume_session(thread_id).trajectory()).exchanges
    assert (turn.provider, turn.blocks, turn.usage) == ("toy", (Text("one"),), None)


async def test_what_is_left_when_the_rewound_is_purged_is_told_as_it_was(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store).start_session()
    for word in ("one", "two"):
        await session.send(f"say {word}")
    async with Thread.open(store, session.thread_id) as thread:
        await thread.rewind(1)
    await session.send("say three")
    before = await session.trajectory()
    await Thread.purge_rewound(store, session.thread_id)
    assert (await session.trajectory()).exchanges == before.exchanges
    turn = await session.send("echo")
    assert ("assistant=three" in turn.output, "assistant=two" in turn.output, "[clew]" in turn.output) == (
        True,
        False,
        False,
    )


async def test_files_are_kept_though_what_the_program_keeps_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Toy, key: str, folder: Path) -> bool:
        raise RuntimeError("the provider's own code is broken")

    monkeypatch.setattr(Toy, "export", broken)
    store = MemoryCheckpointer()
    session = toy_agent(toy_place(tmp_path), store, workspace=tmp_path / "files").start_session()
    with pytest.raises(ProviderError, match="no more"):
        await session.send("write one 1\nfail failed no more")
    state = await Thread.load(store, session.thread_id)
    assert (state.changing, state.workspace and state.workspace.files) == (None, 1)


async def test_a_second_cancel_does_not_abandon_the_files_of_a_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping, go_on = asyncio.Event(), asyncio.Event()
    snapshot = Workspace.snapshot

    async def slow(self: Workspace, *given: Any) -> Any:
        keeping.set()
        await go_on.wait()
        return await snapshot(self, *given)

    monkeypatch.setattr(Workspace, "snapshot", slow)
    store = MemoryCheckpointer()
    session = toy_agent(toy_place(tmp_path), store, workspace=tmp_path / "files").start_session()
    run = session.send("write one 1\ncall c1 Bash\nsleep 600")
    async for event in run:
        if isinstance(event, ToolStarted):
            break
    ending = asyncio.ensure_future(run)
    await asyncio.sleep(0)
    ending.cancel()
    await keeping.wait()
    for _ in range(3):
        ending.cancel()
        await asyncio.sleep(0)
        assert not ending.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    state = await Thread.load(store, session.thread_id)
    assert (state.status, state.reason, state.changing) == ("interrupted", "cancelled", None)
    assert (state.workspace and state.workspace.files) == 1
