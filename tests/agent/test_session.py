"""Sessions, handles, files on resume, and conversations that no longer fit."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from clew import Thread
from clew.agent import Agent, Compacted
from clew.agent.session import task_id
from clew.checkpointers import HeadQuery, MemoryCheckpointer
from clew.errors import ContextTooLong, InvalidInput, ThreadBusy, ThreadNotFound, Unavailable, UsageError
from clew.log import WorkspaceSnapshot
from clew.log.codec import decode_frame
from clew.messages import Text, plain_text
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call, turns_in
from clew.tools import DEFAULT_TOOLS, ToolContext, tool
from clew.workspace import Workspace

pytestmark = pytest.mark.anyio


async def _threads(store: MemoryCheckpointer) -> list[str]:
    return [head.thread_id async for head in store.heads(HeadQuery())]


async def test_a_session_is_one_thread_over_several_prompts(store: MemoryCheckpointer) -> None:
    agent = Agent(ScriptedModel(["One.", "Two."]), checkpointer=store)
    async with agent.session(thread_id="t") as session:
        assert (await session.run("First.")).output == "One."
        assert (await session.send("Second.")).output == "Two."
    assert await _threads(store) == ["t"]


async def test_a_prompt_that_is_refused_does_not_name_the_thread_of_a_session(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    agent = Agent(ScriptedModel(["Done."]), checkpointer=store)
    for resume in (True, False):
        async with agent.session(workspace=tmp_path, resume=resume, delete_when_done=False) as session:
            with pytest.raises(InvalidInput, match="timeout is a number of seconds above 0, not 0"):
                session.send("Another task.", timeout=0)
            with pytest.raises(UsageError, match="made from its first prompt"):
                _ = session.thread_id
            result = await session.send("The task.")
            assert result.prompt_id.startswith("clew:1:") or not resume, "it was not counted either"
            assert result.thread_id == agent.task_id("The task.", workspace=tmp_path) or not resume


async def test_a_handle_goes_on_in_another_agent(store: MemoryCheckpointer) -> None:
    script: list[Response] = ["Noted.", "staging-eu."]
    session = Agent(ScriptedModel(script), name="ada", checkpointer=store).start_session()
    handle = session.resume_handle
    await session.send("My deploy target is staging-eu.")
    resumed = Agent(ScriptedModel(script), name="ada", checkpointer=store).resume_session(handle)
    result = await resumed.send("What is it?")
    assert (result.output, result.thread_id) == ("staging-eu.", session.thread_id)
    assert Agent(ScriptedModel(script), checkpointer=store).resume_session(session.thread_id).resume_handle == handle


@pytest.mark.parametrize(
    "handle",
    [
        '{"version": 1}',
        '{"version": 9, "provider": "clew", "session_id": "", "resume_key": ""}',
    ],
)
async def test_a_handle_that_cannot_be_is_refused(handle: str, store: MemoryCheckpointer) -> None:
    with pytest.raises(InvalidInput, match="handle"):
        Agent(ScriptedModel(["Hi."]), checkpointer=store).resume_session(handle)


async def test_a_providers_handle_leads_to_its_thread_and_nowhere_if_the_store_does_not_have_it(
    store: MemoryCheckpointer,
) -> None:
    handle = '{"version": 1, "provider": "codex", "session_id": "s", "resume_key": "k"}'
    agent = Agent(ScriptedModel(["Hi.", "There."]), checkpointer=store)
    with pytest.raises(ThreadNotFound):
        await agent.resume_session(handle).send("Hello")
    await agent.run("Hello", thread_id="s")
    assert (await agent.resume_session(handle).send("Where?")).output == "There."


async def test_a_session_tells_what_it_did_prompt_by_prompt(store: MemoryCheckpointer) -> None:
    session = Agent(ScriptedModel(["One.", "Two."]), checkpointer=store).start_session()
    first = await session.send("1")
    assert (first.output, first.blocks, first.provider) == ("One.", (Text("One."),), "clew")
    await session.send("2")
    found = await session.trajectory()
    told = [(turn.prompt, turn.output, turn.status) for turn in found.exchanges]
    assert told == [("1", "One.", "done"), ("2", "Two.", "done")]
    assert found.usage.output_tokens > 0


async def test_a_task_goes_on_where_it_was_and_is_cleared_once_it_is_done(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    ran: list[str] = []

    @tool
    async def work(part: str) -> str:
        ran.append(part)
        return "ok"

    def agent(*script: Response) -> Agent:
        return Agent(ScriptedModel(list(script)), name="ada", tools=[work], checkpointer=store)

    failing = agent(call("work", part="a"), RuntimeError("down"))
    async with failing.session(workspace=tmp_path / "out", resume=True) as session:
        with pytest.raises(RuntimeError):
            await session.run("Do all of it.")
    (kept,) = await _threads(store)
    assert kept == session.thread_id
    again = agent(call("work", part="a"), "Done.")
    async with again.session(workspace=tmp_path / "out", resume=True) as session:
        result = await session.run("Do all of it.")
    assert (result.output, result.resumed_from, ran) == ("Done.", 1, ["a"])
    assert await _threads(store) == []
    async with again.session(workspace=tmp_path / "out", resume=True, delete_when_done=False) as session:
        await session.run("Do all of it.")
    assert await _threads(store) == [kept]


async def test_a_task_of_several_prompts_is_one_conversation_and_goes_on_where_it_was(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    asked: list[int] = []

    def script(request: ModelRequest) -> Response:
        asked.append(len(request.messages))
        if len(asked) == 2:
            return RuntimeError("down")
        return f"Seen {len(request.messages)}."

    async def work() -> list[str]:
        agent = Agent(ScriptedModel(script), name="ada", checkpointer=store)
        async with agent.session(workspace=tmp_path / "out", resume=True) as session:
            return [(await session.run(prompt)).output for prompt in ("First.", "Second.", "Third.")]

    with pytest.raises(RuntimeError):
        await work()
    assert await work() == ["Seen 1.", "Seen 3.", "Seen 5."]
    assert asked == [1, 3, 3, 5], "what the record has answered is not asked again"
    assert await _threads(store) == []


async def test_a_task_that_is_done_and_could_not_be_cleared_is_answered_from_the_record(
    store: MemoryCheckpointer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> str:
        agent = Agent(model, name="ada", checkpointer=store)
        async with agent.session(workspace=tmp_path / "out", resume=True) as session:
            return str((await session.run("Do it.")).output)

    async def away(thread_id: str) -> None:
        raise Unavailable("the store is away")

    model = ScriptedModel(["Done.", "Done again."])
    with monkeypatch.context() as broken:
        broken.setattr(store, "delete", away)
        assert await work() == "Done."
    assert await work() == "Done."
    assert (model.calls, await _threads(store)) == (1, [])


async def test_a_task_that_another_process_works_on_is_not_deleted(store: MemoryCheckpointer, tmp_path: Path) -> None:
    agent = Agent(ScriptedModel(["Hi."]), name="ada", checkpointer=store)
    thread_id = task_id("ada", "Do it.", tmp_path)
    async with Thread.open(store, thread_id):
        async with agent.session(workspace=tmp_path, resume=True, keep_when_stopped=False) as session:
            with pytest.raises(ThreadBusy):
                await session.run("Do it.")
        assert await _threads(store) == [thread_id]


async def test_the_thread_of_a_task_is_known_before_it_runs(
    store: MemoryCheckpointer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    agent = Agent(ScriptedModel(["Done."]), name="ada", checkpointer=store)
    here = Agent(ScriptedModel(["Done."]), name="ada", checkpointer=store, workspace="mine")
    for made, folder in ((agent, None), (agent, "out"), (agent, tmp_path / "out"), (here, None)):
        expected = made.task_id("Do it.", workspace=folder)
        assert await store.head(expected) is None
        async with made.session(workspace=folder, resume=True) as session:
            assert (await session.run("Do it.")).thread_id == expected
    assert agent.task_id("Do it.", workspace="out") == agent.task_id("Do it.", workspace=tmp_path / "out")
    assert len({agent.task_id("Do it."), agent.task_id("Do more."), here.task_id("Do it.")}) == 3
    with pytest.raises(InvalidInput, match="prompt"):
        agent.task_id("")


async def test_a_question_of_a_session_is_answered_in_its_folder(store: MemoryCheckpointer, tmp_path: Path) -> None:
    @tool(approve=True)
    async def where(ctx: ToolContext) -> str:
        return str(ctx.workspace)

    model = ScriptedModel([call("where"), "Done."])
    agent = Agent(model, name="ada", tools=[where], checkpointer=store)
    async with agent.session(workspace=tmp_path / "out", resume=True) as session:
        assert (await session.run("Where?")).status == "waiting"
        assert (await session.resume(answer=True)).output == "Done."
    assert str(tmp_path / "out") in str(model.requests[-1].messages[-1])
    assert await _threads(store) == []


async def test_the_threads_of_children_go_with_a_task_that_is_cleared(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    child = Agent(ScriptedModel(["Found."]), name="finder")
    agent = Agent(ScriptedModel([call("finder", task="It."), "Done."]), name="ada", tools=[child], checkpointer=store)
    async with agent.session(workspace=tmp_path / "out", resume=True) as session:
        await session.run("Find it.")
        assert len(await _threads(store)) == 2
    assert await _threads(store) == []


@pytest.mark.parametrize("stop", [{"max_turns": 1}, {}])
async def test_a_task_that_was_interrupted_is_forgotten_where_nothing_is_to_be_kept(
    stop: dict[str, Any], store: MemoryCheckpointer, tmp_path: Path
) -> None:
    script: list[Response] = [call("nothing"), RuntimeError("down")]
    agent = Agent(ScriptedModel(script), name="ada", checkpointer=store, **stop)
    async with agent.session(output_dir=tmp_path / "out", resume=True, keep_when_stopped=False) as session:
        with suppress(RuntimeError):
            await session.run("Do all of it.")
    assert await _threads(store) == []
    async with agent.session(thread_id="mine", keep_when_stopped=False) as session:
        with suppress(RuntimeError):
            await session.run("Do all of it.")
    assert await _threads(store) == ["mine"], "a thread that the user named is never deleted"


async def test_the_folder_of_a_session_has_one_name_at_a_time(store: MemoryCheckpointer, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="output_dir"):
        Agent(ScriptedModel(["Hi."]), checkpointer=store).session(workspace=tmp_path, output_dir=tmp_path)


async def test_a_session_in_another_folder_is_on_the_same_store(tmp_path: Path) -> None:
    agent = Agent(ScriptedModel(["One.", "Two."]), checkpointer=None)
    async with agent, agent.session(thread_id="t", workspace=tmp_path / "out") as session:
        await session.run("First.")
        assert (await agent.resume("Second.", thread_id="t")).output == "Two."


async def test_a_store_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not a store"):
        Agent(ScriptedModel(["Hi."]), checkpointer=tmp_path / "clew.db")  # type: ignore[arg-type]


async def test_files_are_restored_where_that_is_asked_for_and_what_was_there_is_kept(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    script: list[Response] = [call("write_file", path="a.txt", content="one"), "Written.", "Again."]
    folder = tmp_path / "files"

    def agent(**options: Any) -> Agent:
        return Agent(ScriptedModel(script), tools=DEFAULT_TOOLS, checkpointer=store, workspace=folder, **options)

    await agent().run("Write.", thread_id="t")
    (folder / "a.txt").write_text("the user's own")
    result = await agent(restore_files=True).run("And now?", thread_id="t")
    assert ((folder / "a.txt").read_text(), dict(result.drift)) == ("one", {})
    kept = [entry for entry in await _entries(store, "t") if isinstance(entry, WorkspaceSnapshot)]
    await Workspace(folder, store).restore(kept[-2])
    assert (folder / "a.txt").read_text() == "the user's own"


async def _entries(store: MemoryCheckpointer, thread_id: str) -> list[Any]:
    frames = await store.read(thread_id)
    return [entry for n, data in enumerate(frames) for entry in decode_frame(data, thread_id, n).entries]


async def test_a_task_named_session_has_no_handle_before_its_task(store: MemoryCheckpointer) -> None:
    with pytest.raises(UsageError, match="made from its first prompt"):
        _ = Agent(ScriptedModel(["Hi."]), checkpointer=store).session(resume=True).resume_handle


async def test_files_are_restored_where_there_are_none_and_left_alone_where_there_are(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    script: list[Response] = [call("write_file", path="a.txt", content="one"), "Written.", "Still there.", "Changed."]
    folder = tmp_path / "files"

    def agent() -> Agent:
        return Agent(ScriptedModel(script), tools=DEFAULT_TOOLS, checkpointer=store, workspace=folder)

    await agent().run("Write.", thread_id="t")
    shutil.rmtree(folder)
    result = await agent().run("And now?", thread_id="t")
    assert ((folder / "a.txt").read_text(), dict(result.drift)) == ("one", {})
    (folder / "a.txt").write_text("the user's own")
    result = await agent().run("And then?", thread_id="t")
    assert ((folder / "a.txt").read_text(), list(result.drift)) == ("the user's own", ["files"])


async def test_default_tools_without_a_folder_are_refused_at_construction(store: MemoryCheckpointer) -> None:
    with pytest.raises(
        InvalidInput, match=r"'ada' has no folder.*read_file, write_file.*workspace='\.'.*workspace=None"
    ):
        Agent(ScriptedModel(["Hi."]), name="ada", tools=DEFAULT_TOOLS, checkpointer=store)

    @tool(needs_workspace=True)
    async def count(ctx: ToolContext) -> str:
        return "3"

    with pytest.raises(InvalidInput, match="need one: count"):
        Agent(ScriptedModel(["Hi."]), tools=[count], checkpointer=store)
    child = Agent(ScriptedModel(["Hi."]), name="finder", tools=[count], workspace=None)
    with pytest.raises(InvalidInput, match=r"'finder' has no folder.*As a tool of another agent"):
        Agent(ScriptedModel(["Hi."]), tools=[child], checkpointer=store)


async def test_default_tools_work_in_the_folder_of_a_session_and_no_run_without_one_is_begun(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    model = ScriptedModel([call("write_file", path="a.txt", content="one"), "Written."])
    agent = Agent(model, tools=DEFAULT_TOOLS, checkpointer=store, workspace=None)
    for run in (agent.run("Write."), agent.start_session().send("Write."), agent.session(thread_id="t").run("Write.")):
        with pytest.raises(InvalidInput, match=r"read_file.*agent\.session"):
            await run
    assert (await _threads(store), model.calls) == ([], 0)
    async with agent.session(workspace=tmp_path / "out") as session:
        await session.run("Write.")
    assert (tmp_path / "out" / "a.txt").read_text() == "one"


async def test_a_workspace_that_can_be_no_folder_is_refused_before_the_thread_is_touched(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    (tmp_path / "a file").write_text("mine")
    for path in (tmp_path / "a file", tmp_path / "a file" / "within"):
        with pytest.raises(InvalidInput, match="a file"):
            await Agent(ScriptedModel(["Hi."]), checkpointer=store, workspace=path).run("Go.", thread_id="t")
    assert await _threads(store) == []


async def test_files_of_a_turn_are_on_record_although_the_run_was_stopped_right_after_it(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    write = call("write_file", path="a.txt", content="one")
    scripts: list[list[Response]] = [[write, RuntimeError("down")], [write, "Written."]]
    for script in scripts:
        agent = Agent(ScriptedModel(script), tools=DEFAULT_TOOLS, checkpointer=store, workspace=tmp_path / "files")
        with suppress(RuntimeError):
            await agent.run("Write.", thread_id="t")
    state = await Thread.load(store, "t")
    assert state.status == "done"
    assert state.workspace is not None
    assert state.workspace.files == 1


async def test_a_conversation_that_no_longer_fits_is_summed_up_and_goes_on(store: MemoryCheckpointer) -> None:
    refused: list[int] = []

    @tool(effect="none")
    async def look() -> str:
        return "row " * 50

    def script(request: ModelRequest) -> Response:
        text = plain_text(request.messages[0])
        if text.startswith("Below is a conversation"):
            return "You looked five times; look once more."
        if len(request.messages) > 10:
            refused.append(len(request.messages))
            return ContextTooLong("scripted", "too many messages")
        return "Done." if "Summary" in text and turns_in(request) >= 2 else call("look")

    agent = Agent(ScriptedModel(script), tools=[look], checkpointer=store, max_turns=9, warn_turns=0)
    events = [event async for event in agent.run("Look around.", thread_id="t")]
    assert sum(isinstance(event, Compacted) for event in events) == 1
    assert refused == [11]
    state = await Thread.load(store, "t")
    assert (state.status, state.turns) == ("done", 7)
    assert plain_text(state.messages[0]).startswith("[clew] Summary")
    assert plain_text(state.history[0]) == "Look around.", "history is whole"
    assert state.unaccounted == 0


async def test_the_turns_of_a_task_are_counted_across_a_summary(store: MemoryCheckpointer) -> None:
    @tool(effect="none")
    async def look() -> str:
        return "row"

    def script(request: ModelRequest) -> Response:
        if plain_text(request.messages[0]).startswith("Below is"):
            return "Go on."
        return ContextTooLong("scripted", "full") if len(request.messages) > 6 else call("look")

    agent = Agent(ScriptedModel(script), tools=[look], checkpointer=store, max_turns=5)
    result = await agent.run("Look.", thread_id="t")
    assert (result.status, result.reason, result.turns) == ("interrupted", "max_turns: 5", 5)


async def test_what_cannot_be_made_shorter_is_an_error(store: MemoryCheckpointer) -> None:
    agent = Agent(ScriptedModel([ContextTooLong("scripted", "full")]), checkpointer=store)
    with pytest.raises(ContextTooLong, match="cannot be made shorter"):
        await agent.run("A very long prompt.", thread_id="t")


class Trip(msgspec.Struct):
    city: str
    days: int


class PydanticTrip(pydantic.BaseModel):
    city: str
    days: int


@pytest.mark.parametrize("wanted", [Trip, PydanticTrip])
async def test_an_answer_of_a_type_is_asked_for_until_it_fits(store: MemoryCheckpointer, wanted: Any) -> None:
    script: list[Response] = ["Rome, I think.", '```json\n{"city": "Rome", "days": 3}\n```']
    model = ScriptedModel(script)
    result = await Agent(model, output=wanted, checkpointer=store).run("Where to?", thread_id="t")
    assert (type(result.output), result.output.city, result.output.days) == (wanted, "Rome", 3)
    assert "could not be read" in str(model.requests[1].messages[-1])
    assert model.requests[0].output_schema is not None


async def test_an_answer_that_never_fits_ends_with_the_turns(store: MemoryCheckpointer) -> None:
    agent = Agent(ScriptedModel(lambda request: "No."), output=Trip, checkpointer=store, max_turns=3)
    result = await agent.run("Where to?", thread_id="t")
    assert (result.status, result.reason, result.output) == ("interrupted", "max_turns: 3", None)


async def test_an_agent_as_a_tool_works_on_a_child_thread_and_is_resumed_with_its_parent(
    store: MemoryCheckpointer,
) -> None:
    ran: list[str] = []

    @tool
    async def search(words: str) -> str:
        ran.append(words)
        return "found"

    def family(*child_script: Response) -> Agent:
        child = Agent(ScriptedModel(list(child_script)), name="finder", tools=[search])
        parent: list[Response] = [call("finder", task="Find it."), "It is found.", "No more."]
        return Agent(ScriptedModel(parent), name="boss", tools=[child], checkpointer=store)

    class Killed(BaseException):
        pass

    crash = family(call("search", words="a"), Killed())
    with pytest.raises(Killed):
        await crash.run("Go.", thread_id="t")
    result = await family(call("search", words="a"), "Here.").run("Go.", thread_id="t")
    assert (result.output, ran) == ("It is found.", ["a"])
    child = next(name for name in await _threads(store) if name != "t")
    head = await store.head(child)
    assert head is not None
    assert (head.parent, head.status, head.agent) == (("t", 1), "done", "finder")
    assert (await family("Hi.").resume("More?")).thread_id == "t", "children do not count"
