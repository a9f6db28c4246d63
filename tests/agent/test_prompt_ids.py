"""A prompt is known by its id or its number, never by its words."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.agent import Agent, RunResult, ToolStarted
from clew.agent.loop import Ending, Loop
from clew.agent.questions import record_answer
from clew.checkpointers import MemoryCheckpointer
from clew.errors import ContextTooLong, InvalidInput, ModelUnavailable, ThreadBusy
from clew.log import StatusChanged, ToolOutcome
from clew.messages import Text, ToolResult, plain_text
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call
from clew.tools import tool
from tests.clock import Clock
from tests.limits import PATIENCE

pytestmark = pytest.mark.anyio


def chapters(request: ModelRequest) -> Response:
    """Each answer is the next chapter, so that one told twice shows."""
    return f"Chapter {sum(message.__struct_config__.tag == 'assistant' for message in request.messages) + 1}."


def writer(store: MemoryCheckpointer, **settings: object) -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel(chapters)
    return Agent(model, name="writer", checkpointer=store, **settings), model  # type: ignore[arg-type]


async def prompts_of(store: MemoryCheckpointer, thread_id: str = "t") -> list[str]:
    state = await Thread.load(store, thread_id)
    return [plain_text(message) for message in state.messages if message.__struct_config__.tag == "user"]


async def test_continue_said_twice_in_a_session_is_asked_twice_and_replayed_when_the_script_runs_again(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    async def script(prompts: int) -> list[str]:
        agent, model = writer(store)
        async with agent.session(workspace=tmp_path, resume=True, delete_when_done=False) as session:
            told = [str((await session.run("Continue.")).output) for _ in range(prompts)]
        asked.append(model.calls)
        return told

    asked: list[int] = []
    assert await script(2) == ["Chapter 1.", "Chapter 2."]
    assert await script(3) == ["Chapter 1.", "Chapter 2.", "Chapter 3."]
    assert asked == [2, 1], "what the record has answered is not asked again"


async def test_the_prompts_of_a_session_with_resume_are_numbered_on_a_named_thread_too(
    store: MemoryCheckpointer,
) -> None:
    for expected in (2, 0):
        agent, model = writer(store)
        async with agent.session(thread_id="t", resume=True) as session:
            told = [(await session.send("Continue.")).output for _ in range(2)]
        assert (told, model.calls) == (["Chapter 1.", "Chapter 2."], expected)
    agent, model = writer(store)
    async with agent.session(thread_id="t") as session:
        assert (await session.send("Continue.")).output == "Chapter 3."


async def test_a_prompt_from_elsewhere_does_not_shift_the_numbers_of_a_script(store: MemoryCheckpointer) -> None:
    async def script() -> list[str]:
        async with writer(store)[0].session(thread_id="t", resume=True) as session:
            return [str((await session.send(prompt)).output) for prompt in ("First.", "Second.")]

    async with writer(store)[0].session(thread_id="t", resume=True) as session:
        await session.send("First.")
    await writer(store)[0].resume("By hand.", thread_id="t")
    assert await script() == await script() == ["Chapter 1.", "Chapter 3."]


async def test_the_same_id_again_returns_its_answer_also_if_other_prompts_came_after(
    store: MemoryCheckpointer,
) -> None:
    agent, model = writer(store)
    first = await agent.run("Continue.", thread_id="t", prompt_id="m1")
    second = await agent.run("Continue.", thread_id="t", prompt_id="m2")
    assert (first.output, second.output, second.prompt_id) == ("Chapter 1.", "Chapter 2.", "m2")
    frames = (await Thread.load(store, "t")).history
    async with Thread.open(store, "t"):  # an answer on record needs no lease
        again = await agent.run("Continue.", thread_id="t", prompt_id="m1")
    assert (again.output, again.status, again.prompt_id) == ("Chapter 1.", "done", "m1")
    assert (again.cost, model.calls, (await Thread.load(store, "t")).history) == (0.0, 2, frames)
    third = await agent.start_session(thread_id="t").send("Continue.", prompt_id="m3")
    assert third.output == "Chapter 3."


async def test_the_same_id_goes_on_with_what_was_stopped_and_another_id_asks_anew(store: MemoryCheckpointer) -> None:
    def agent(*script: Response) -> Agent:
        return Agent(ScriptedModel(list(script)), checkpointer=store)

    with pytest.raises(RuntimeError):
        await agent(RuntimeError("down")).run("Continue.", thread_id="t", prompt_id="m1")
    result = await agent("One.").run("Continue.", thread_id="t", prompt_id="m1")
    assert (result.output, await prompts_of(store)) == ("One.", ["Continue."])
    with pytest.raises(RuntimeError):
        await agent("One.", RuntimeError("down")).run("Continue.", thread_id="t", prompt_id="m2")
    await agent("One.", "Both.").run("Continue.", thread_id="t", prompt_id="m3")
    assert await prompts_of(store) == ["Continue.", "Continue.", "Continue."], "m2 is unfinished, and m3 is another"


async def test_a_prompt_without_an_answer_that_others_came_after_is_asked_again_under_its_id(
    store: MemoryCheckpointer,
) -> None:
    with pytest.raises(RuntimeError):
        await Agent(ScriptedModel([RuntimeError("down")]), checkpointer=store).run("A.", thread_id="t", prompt_id="m1")
    agent, model = writer(store)
    await agent.run("B.", thread_id="t", prompt_id="m2")
    assert (await agent.run("A.", thread_id="t", prompt_id="m1")).output == "Chapter 2."
    assert (await agent.run("A.", thread_id="t", prompt_id="m1")).output == "Chapter 2."
    assert (model.calls, await prompts_of(store)) == (2, ["A.", "B.", "A."])


async def test_without_an_id_an_unfinished_prompt_goes_on_and_an_answered_one_is_asked_anew(
    store: MemoryCheckpointer,
) -> None:
    with pytest.raises(RuntimeError):
        await Agent(ScriptedModel([RuntimeError("down")]), checkpointer=store).run("Continue.", thread_id="t")
    agent, _ = writer(store)
    outputs = [(await agent.run("Continue.", thread_id="t")).output for _ in range(3)]
    assert (outputs, await prompts_of(store)) == (["Chapter 1.", "Chapter 2.", "Chapter 3."], ["Continue."] * 3)


async def test_an_id_that_stands_for_other_words_is_refused_and_nothing_is_changed(store: MemoryCheckpointer) -> None:
    agent, _ = writer(store)
    await agent.run("The first prompt.", thread_id="t", prompt_id="m1")
    head = await store.head("t")
    with pytest.raises(
        InvalidInput, match=r"'m1' is on record with other words: 'The first prompt\.', and not 'Another"
    ):
        await agent.run("Another prompt.", thread_id="t", prompt_id="m1")
    assert await store.head("t") == head


@pytest.mark.parametrize("prompt_id", ["", " ", 7, "x" * 2000, "clew:mine"])
async def test_an_id_that_cannot_be_one_is_refused_before_anything_is_touched(
    prompt_id: str, store: MemoryCheckpointer
) -> None:
    agent, _ = writer(store)
    with pytest.raises(InvalidInput, match="prompt_id"):
        agent.run("Go.", thread_id="t", prompt_id=prompt_id)
    with pytest.raises(InvalidInput, match="prompt_id"):
        agent.start_session().send("Go.", prompt_id=prompt_id)


async def test_a_prompt_that_waits_keeps_its_id_and_those_asked_together_share_their_answer(
    store: MemoryCheckpointer,
) -> None:
    @tool(effect="idempotent")
    async def slow() -> str:
        if held:
            await asyncio.Event().wait()
        return "ok"

    async def stopped(prompt: str, prompt_id: str) -> None:
        run = agent.run(prompt, thread_id="t", prompt_id=prompt_id)
        async for event in run:
            if isinstance(event, ToolStarted):
                break
        await run.aclose()

    held = True
    model = ScriptedModel([call("slow"), "Stopped."])
    agent = Agent(model, tools=[slow], checkpointer=store)
    await stopped("Order it.", "m1")
    await stopped("Wait.", "m2")
    await stopped("Wait.", "m2")
    await stopped("Stop.", "m3")
    head = await store.head("t")
    with pytest.raises(InvalidInput, match="'m3' is on record with other words"):
        await agent.run("Go.", thread_id="t", prompt_id="m3")
    assert await store.head("t") == head, "a mistake is told before the thread is touched"
    held = False
    result = await agent.run("Stop.", thread_id="t", prompt_id="m3")
    assert (result.output, await prompts_of(store)) == ("Stopped.", ["Order it.", "Wait.", "Stop."])
    for prompt, prompt_id in (("Order it.", "m1"), ("Wait.", "m2"), ("Stop.", "m3")):
        assert (await agent.run(prompt, thread_id="t", prompt_id=prompt_id)).output == "Stopped."
    told = (await agent.start_session(thread_id="t").trajectory()).exchanges
    assert [(turn.prompt_id, turn.status, turn.output) for turn in told] == [
        ("m1", "done", "Stopped."),
        ("m2", "done", "Stopped."),
        ("m3", "done", "Stopped."),
    ]
    assert [len(turn.tool_uses) for turn in told] == [1, 0, 0], (
        "each has what was done on it, and none the others' calls"
    )
    assert ([turn.turns for turn in told], model.calls) == ([1, 1, 2], 2)
    with pytest.raises(InvalidInput, match="other words"):
        await agent.run("Go.", thread_id="t", prompt_id="m2")


class Payments:
    """An agent whose only tool waits for approval, and what was paid by it."""

    def __init__(self, store: MemoryCheckpointer, *script: Response, **settings: object) -> None:
        @tool(approve=True)
        async def pay(to: str) -> str:
            self.paid.append(to)
            return f"paid {to}"

        self.paid: list[str] = []
        self.model = ScriptedModel([call("pay", to="Ada"), *(script or ["Ada is paid, and it rains."])])
        self.agent = Agent(self.model, tools=[pay], checkpointer=store, **settings)  # type: ignore[arg-type]

    async def told(self) -> list[tuple[str, str, str | None]]:
        turns = (await self.agent.start_session(thread_id="t").trajectory()).exchanges
        return [(turn.prompt_id, turn.status, turn.output) for turn in turns]


async def test_a_prompt_that_waited_and_was_overtaken_is_not_asked_again_when_it_is_delivered_again(
    store: MemoryCheckpointer,
) -> None:
    desk = Payments(store)
    assert (await desk.agent.run("Pay Ada.", thread_id="t", prompt_id="p1")).status == "waiting"
    await desk.agent.run("What is the weather?", thread_id="t", prompt_id="p2")
    result = await desk.agent.resume(thread_id="t", answer=True)
    assert (result.output, desk.paid) == ("Ada is paid, and it rains.", ["Ada"])
    for prompt, prompt_id in (("Pay Ada.", "p1"), ("What is the weather?", "p2")):
        again = await desk.agent.run(prompt, thread_id="t", prompt_id=prompt_id)
        assert (again.status, again.output, again.prompt_id) == ("done", "Ada is paid, and it rains.", prompt_id)
    assert (desk.paid, desk.model.calls) == (["Ada"], 2)
    assert await prompts_of(store) == ["Pay Ada.", "What is the weather?"]
    answer = "Ada is paid, and it rains."
    assert await desk.told() == [("p1", "done", answer), ("p2", "done", answer)]
    first, second = (await desk.agent.start_session(thread_id="t").trajectory()).exchanges
    assert ([use.output for use in first.tool_uses], second.tool_uses) == (["paid Ada"], ())


async def test_a_prompt_that_waits_and_is_delivered_again_while_another_waits_behind_it_is_not_asked_twice(
    store: MemoryCheckpointer,
) -> None:
    desk = Payments(store)
    for prompt, prompt_id in (("Pay Ada.", "p1"), ("And?", "p2"), ("Pay Ada.", "p1"), ("And?", "p2")):
        assert (await desk.agent.run(prompt, thread_id="t", prompt_id=prompt_id)).status == "waiting"
    await desk.agent.resume(thread_id="t", answer=True)
    assert (await prompts_of(store), desk.paid) == (["Pay Ada.", "And?"], ["Ada"])


async def test_the_result_of_a_prompt_that_was_not_asked_yet_has_its_own_id_and_says_so(
    store: MemoryCheckpointer,
) -> None:
    desk = Payments(store)
    first = await desk.agent.run("Pay Ada.", thread_id="t", prompt_id="p1")
    assert (first.prompt_id, first.status, first.reason) == ("p1", "waiting", "")
    for _ in range(2):
        second = await desk.agent.run("And?", thread_id="t", prompt_id="p2")
        assert (second.prompt, second.prompt_id, second.status, second.output) == ("And?", "p2", "waiting", None)
        assert second.questions == first.questions
        assert second.reason.startswith("not asked yet: the thread waits for answers to questions of an earlier prompt")
    third = await desk.agent.run("Without an id.", thread_id="t")
    again = await desk.agent.run("Without an id.", thread_id="t")
    assert (third.prompt, again.prompt_id, again.reason) == ("Without an id.", third.prompt_id, second.reason)
    assert (await desk.agent.run("Pay Ada.", thread_id="t", prompt_id="p1")).reason == ""
    assert (await desk.agent.resume(thread_id="t")).prompt_id == "p1"


async def test_a_prompt_that_a_run_was_stopped_before_has_a_result_of_its_own(
    store: MemoryCheckpointer, clock: Clock
) -> None:
    @tool(effect="idempotent")
    async def slow() -> str:
        clock.advance(600)
        await asyncio.Event().wait()
        return ""

    agent = Agent(ScriptedModel([call("slow")]), tools=[slow], checkpointer=store)
    first = agent.run("Go.", thread_id="t", prompt_id="p1")
    async for event in first:
        if isinstance(event, ToolStarted):
            break
    await first.aclose()
    second = await agent.run("Stop.", thread_id="t", prompt_id="p2", timeout=600)
    assert (second.prompt, second.prompt_id, second.status) == ("Stop.", "p2", "interrupted")
    assert second.reason == "timeout: 600 s; the prompt was not asked yet. It is on record, and a resume asks it"


async def test_a_prompt_that_is_asked_together_with_later_ones_gets_the_result_under_its_own_id(
    store: MemoryCheckpointer,
) -> None:
    desk = Payments(store, "All three.")
    for prompt, prompt_id in (("Pay Ada.", "p1"), ("And?", "p2"), ("So?", "p3")):
        await desk.agent.run(prompt, thread_id="t", prompt_id=prompt_id)
    await record_answer(store, "t", True)
    result = await desk.agent.run("And?", thread_id="t", prompt_id="p2")
    assert (result.prompt, result.prompt_id, result.output) == ("And?", "p2", "All three.")


async def test_an_answer_on_record_that_does_not_fit_another_output_type_is_an_error_that_says_so(
    store: MemoryCheckpointer,
) -> None:
    agent, _ = writer(store)
    await agent.run("First.", thread_id="t", prompt_id="m1")
    await Agent(ScriptedModel(["Chapter 1.", "7"]), checkpointer=store).run("Two.", thread_id="t", prompt_id="m2")
    await agent.run("Third.", thread_id="t", prompt_id="m3")
    head = await store.head("t")
    counter, model = writer(store, output=int)
    with pytest.raises(InvalidInput, match=r"'t': the prompt 'm1' was answered when the agent had another output="):
        await counter.run("First.", thread_id="t", prompt_id="m1")
    assert (await counter.run("Two.", thread_id="t", prompt_id="m2")).output == 7, "what fits is read as the new type"
    assert (await store.head("t"), model.calls) == (head, 0)


async def test_prompts_that_are_answered_together_stay_so_if_the_model_fails_first(
    store: MemoryCheckpointer,
) -> None:
    first = Payments(store, RuntimeError("down"))
    await first.agent.run("Pay Ada.", thread_id="t", prompt_id="p1")
    await first.agent.run("And?", thread_id="t", prompt_id="p2")
    with pytest.raises(RuntimeError):
        await first.agent.resume(thread_id="t", answer=True)
    assert [status for _, status, _ in await first.told()] == ["failed", "failed"]
    second = Payments(store, "Both.")
    result = await second.agent.run("Pay Ada.", thread_id="t", prompt_id="p1")
    assert (result.output, first.paid, second.paid) == ("Both.", ["Ada"], [])
    assert await second.told() == [("p1", "done", "Both."), ("p2", "done", "Both.")]


async def test_prompts_that_are_answered_together_stay_so_if_the_run_is_cancelled_before_it_asks_them(
    store: MemoryCheckpointer,
) -> None:
    desk = Payments(store, "Both.")
    await desk.agent.run("Pay Ada.", thread_id="t", prompt_id="p1")
    await desk.agent.run("And?", thread_id="t", prompt_id="p2")
    async with Thread.open(store, "t") as thread:
        (waits,) = thread.checkpoint.calls
        paid = ToolResult(waits.call.id, (Text("paid Ada"),))
        await thread.append(ToolOutcome(waits.message, waits.index, paid), StatusChanged("interrupted", "cancelled"))
    for prompt, prompt_id in (("And?", "p2"), ("Pay Ada.", "p1")):
        assert (await desk.agent.run(prompt, thread_id="t", prompt_id=prompt_id)).output == "Both."
    assert (desk.paid, desk.model.calls, await prompts_of(store)) == ([], 2, ["Pay Ada.", "And?"])
    assert await desk.told() == [("p1", "done", "Both."), ("p2", "done", "Both.")]


async def test_prompts_that_are_answered_together_stay_so_if_their_process_is_replaced_before_it_answers(
    store: MemoryCheckpointer,
) -> None:
    async def fall_silent(request: ModelRequest) -> Response:
        is_asked.set()
        await asyncio.Event().wait()
        return ""

    is_asked = asyncio.Event()
    first = Payments(store)
    await first.agent.run("Pay Ada.", thread_id="t", prompt_id="p1")
    await first.agent.run("And?", thread_id="t", prompt_id="p2")
    silent = Agent(ScriptedModel(fall_silent), tools=first.agent._settings.tools.values(), checkpointer=store)
    left = asyncio.ensure_future(silent.resume(thread_id="t", answer=True)._finish())
    await asyncio.wait_for(is_asked.wait(), PATIENCE)
    second = Payments(store, "All three.", takeover=True)
    for prompt, prompt_id in (("So?", "p3"), ("Pay Ada.", "p1"), ("And?", "p2")):
        assert (await second.agent.run(prompt, thread_id="t", prompt_id=prompt_id)).output == "All three."
    assert (first.paid, second.paid) == (["Ada"], [])
    assert await prompts_of(store) == ["Pay Ada.", "And?", "So?"]
    left.cancel()
    await asyncio.wait([left])


async def test_a_prompt_that_was_stopped_right_after_its_answer_was_recorded_is_answered_from_the_record(
    store: MemoryCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stop(loop: Loop, ending: Ending) -> Ending:
        raise asyncio.CancelledError

    agent, model = writer(store)
    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_end", stop)
        with pytest.raises(asyncio.CancelledError):
            await agent.run("First.", thread_id="t", prompt_id="m1")
    await agent.run("Second.", thread_id="t", prompt_id="m2")
    again = await agent.run("First.", thread_id="t", prompt_id="m1")
    assert (again.output, again.status, model.calls) == ("Chapter 1.", "done", 2)


async def test_a_rewind_to_before_the_overtaking_prompt_frees_its_id_and_leaves_the_first_one_unanswered(
    store: MemoryCheckpointer,
) -> None:
    desk = Payments(store)
    await desk.agent.run("Pay Ada.", thread_id="t", prompt_id="p1")
    await desk.agent.run("And?", thread_id="t", prompt_id="p2")
    await desk.agent.resume(thread_id="t", answer=True)
    async with Thread.open(store, "t") as thread:
        await thread.rewind(1)
    (turn,) = (await desk.agent.start_session(thread_id="t").trajectory()).exchanges
    assert (turn.prompt_id, turn.status, turn.output) == ("p1", "interrupted", None)
    again = await desk.agent.run("Pay Ada.", thread_id="t", prompt_id="p1")
    assert (again.output, desk.paid, await prompts_of(store)) == ("Ada is paid, and it rains.", ["Ada"], ["Pay Ada."])


async def test_the_id_of_a_rewound_prompt_is_free_again(store: MemoryCheckpointer) -> None:
    agent, _ = writer(store)
    await agent.run("First.", thread_id="t", prompt_id="m1")
    await agent.run("Second.", thread_id="t", prompt_id="m2")
    async with Thread.open(store, "t") as thread:
        await thread.rewind(1)
    assert (await agent.run("Another.", thread_id="t", prompt_id="m2")).output == "Chapter 2."
    assert (await agent.run("First.", thread_id="t", prompt_id="m1")).output == "Chapter 1."
    assert await prompts_of(store) == ["First.", "Another."]


async def test_a_fork_carries_the_ids_up_to_its_turn(store: MemoryCheckpointer) -> None:
    agent, model = writer(store)
    await agent.run("First.", thread_id="t", prompt_id="m1")
    await agent.run("Second.", thread_id="t", prompt_id="m2")
    async with Thread.open(store, "t") as thread:
        await thread.fork("f", at_turn=1)
    assert ((await agent.run("First.", thread_id="f", prompt_id="m1")).output, model.calls) == ("Chapter 1.", 2)
    assert (await agent.run("Another.", thread_id="f", prompt_id="m2")).output == "Chapter 2."


async def test_an_answered_prompt_that_a_summary_stands_for_is_known_by_its_id(store: MemoryCheckpointer) -> None:
    def script(request: ModelRequest) -> Response:
        if plain_text(request.messages[0]).startswith("Below is a conversation"):
            return "A summary."
        return ContextTooLong("scripted", "full") if len(request.messages) > 3 else "An answer."

    agent = Agent(ScriptedModel(script), checkpointer=store)
    for number in (1, 2, 3):
        await agent.run(f"Prompt {number}.", thread_id="t", prompt_id=f"m{number}")
    assert await prompts_of(store) == ["[clew] Summary of the conversation so far:\n\nA summary.", "Prompt 3."]
    agent = Agent(ScriptedModel([RuntimeError("never asked")]), checkpointer=store)
    assert (await agent.run("Prompt 1.", thread_id="t", prompt_id="m1")).output == "An answer."
    told = (await agent.start_session(thread_id="t").trajectory()).exchanges
    assert [(turn.prompt_id, turn.output) for turn in told] == [(f"m{number}", "An answer.") for number in (1, 2, 3)]


async def test_words_are_redacted_and_ids_are_not(store: MemoryCheckpointer) -> None:
    def agent(*script: Response) -> Agent:
        return Agent(ScriptedModel(list(script)), checkpointer=store, redact=lambda text: text.replace("e", "*"))

    with pytest.raises(RuntimeError):
        await agent(RuntimeError("the secret")).run("The secret.", thread_id="t", prompt_id="message-1")
    (turn,) = (await agent("One.").start_session(thread_id="t").trajectory()).exchanges
    assert (turn.prompt_id, turn.status, turn.prompt) == ("message-1", "failed", "Th* s*cr*t.")
    assert "secret" not in turn.reason
    for _ in range(2):
        result = await agent("One.").run("The secret.", thread_id="t", prompt_id="message-1")
        assert (result.output, result.prompt_id) == ("On*.", "message-1")


async def test_a_script_that_went_on_after_a_prompt_without_an_answer_is_told_the_same_again(
    store: MemoryCheckpointer,
) -> None:
    @tool(effect="none")
    async def look() -> str:
        return "a row"

    async def script() -> list[tuple[str, str, str | None]]:
        model = ScriptedModel([call("look"), call("look"), "Two rows."])
        agent = Agent(model, tools=[look], checkpointer=store, max_turns=2, warn_turns=0)
        async with agent.session(thread_id="t", resume=True) as session:
            told = [await session.send("Count."), await session.send("What do you have?")]
        return [(result.status, result.reason, result.output) for result in told]

    assert await script() == await script() == [("interrupted", "max_turns: 2", None), ("done", "", "Two rows.")]
    assert await prompts_of(store) == ["Count.", "What do you have?"]


async def test_a_script_that_tries_a_failed_prompt_again_and_is_run_again_gets_its_answer(
    store: MemoryCheckpointer,
) -> None:
    async def script(*responses: Response) -> object:
        agent = Agent(ScriptedModel(list(responses)), checkpointer=store)
        async with agent.session(thread_id="t", resume=True) as session:
            try:
                result = await session.send("Count.")
            except ModelUnavailable:
                result = await session.send("Count.")
        return result.output

    overloaded = ModelUnavailable("example", "overloaded", attempts=1)
    with pytest.raises(ModelUnavailable):
        await script(overloaded)
    assert await script("Two rows.") == "Two rows."
    assert await script() == "Two rows.", "from the record"


async def test_a_numbered_prompt_that_was_killed_is_asked_although_somebody_asked_another_one_since(
    store: MemoryCheckpointer,
) -> None:
    async def script(*responses: Response) -> tuple[str, str | None]:
        agent = Agent(ScriptedModel(list(responses)), checkpointer=store)
        async with agent.session(thread_id="t", resume=True) as session:
            result = await session.send("Count.")
        return result.status, result.output

    with pytest.raises(asyncio.CancelledError):
        await script(asyncio.CancelledError())
    await Agent(ScriptedModel(["Hello."]), checkpointer=store).run("Hello?", thread_id="t")
    assert await script("Hello.", "Two rows.") == ("done", "Two rows.")


async def test_half_a_surrogate_pair_is_refused_before_a_thread_is_made(store: MemoryCheckpointer) -> None:
    agent, model = writer(store)
    session = agent.session(thread_id="t", resume=True)
    for ask in (
        lambda: agent.run("a\ud800"),
        lambda: agent.run("a", prompt_id="\ud800"),
        lambda: agent.session(resume=True).run("a\ud800"),
        lambda: session.run("a\ud800"),
        lambda: agent.task_id("a\ud800"),
    ):
        with pytest.raises(InvalidInput, match="half a surrogate pair"):
            ask()
    assert model.calls == 0
    assert [head async for head in Thread.list(store)] == []
    assert (await session.run("Continue.")).prompt_id.startswith("clew:1:"), "it does not count as the first prompt"


async def test_a_prompt_that_is_tried_again_after_an_error_keeps_its_number(store: MemoryCheckpointer) -> None:
    async def script(agent: Agent, holder: AsyncExitStack | None = None) -> list[object]:
        async with agent.session(thread_id="t", resume=True) as session:
            try:
                first = await session.run("Continue.")
            except ThreadBusy:
                assert holder is not None
                await holder.aclose()
                first = await session.run("Continue.")
            return [first.output, (await session.run("Continue.")).output]

    agent, model = writer(store)
    async with AsyncExitStack() as holder:
        await holder.enter_async_context(Thread.open(store, "t"))
        assert await script(agent, holder) == ["Chapter 1.", "Chapter 2."]
    assert await script(agent) == ["Chapter 1.", "Chapter 2."]
    assert model.calls == 2
    assert await prompts_of(store) == ["Continue.", "Continue."]


_KILLED = """
import asyncio, os, signal, sys
from clew import Agent, tool
from clew.testing import ScriptedModel, call

@tool(effect="idempotent")
async def work() -> str:
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return "ok"

async def main() -> None:
    model = ScriptedModel(["One.", call("work"), "Two."])
    async with Agent(model, tools=[work], checkpointer=sys.argv[1]) as agent:
        for message in ("m1", "m2"):
            result = await agent.run("Continue.", thread_id="t", prompt_id=message)
            print(result.output, flush=True)
    print(model.calls)

asyncio.run(main())
"""


async def test_a_killed_program_run_again_asks_no_prompt_twice(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"

    def run(how: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", _KILLED, url, how], capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    assert run("kill").returncode == -signal.SIGKILL
    async with open_checkpointer(url) as store:
        killed = (
            await Agent(ScriptedModel([]), checkpointer=store).start_session(thread_id="t").trajectory()
        ).exchanges
    assert [(turn.prompt_id, turn.status) for turn in killed] == [("m1", "done"), ("m2", "interrupted")]
    assert run("go on").stdout.split() == ["One.", "Two.", "1"]
    assert run("again").stdout.split() == ["One.", "Two.", "0"]


async def test_a_prompt_that_a_resume_asks_with_an_id_is_asked_once(store: MemoryCheckpointer) -> None:
    agent, model = writer(store)
    await agent.run("Begin.", thread_id="t")
    for session in (None, agent.start_session(thread_id="t")):
        resume = agent.resume if session is None else session.resume
        assert (await resume("Continue.", prompt_id="m1")).output == "Chapter 2."
    assert (model.calls, await prompts_of(store)) == (2, ["Begin.", "Continue."])
    for resume in (agent.resume, agent.start_session(thread_id="t").resume):
        with pytest.raises(InvalidInput, match=r"Give both: resume\(prompt, prompt_id=…\)"):
            resume(prompt_id="m1")
        with pytest.raises(InvalidInput, match="a prompt_id is a text"):
            resume("Continue.", prompt_id=" ")


async def test_a_result_tells_the_id_that_was_made_for_its_prompt(store: MemoryCheckpointer) -> None:
    agent, _ = writer(store)
    results: list[RunResult] = [await agent.run("Continue.", thread_id="t") for _ in range(2)]
    assert len({result.prompt_id for result in results}) == 2
    told = (await agent.start_session(thread_id="t").trajectory()).exchanges
    assert [turn.prompt_id for turn in told] == [result.prompt_id for result in results]
