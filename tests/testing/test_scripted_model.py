"""`ScriptedModel`: what a script may hold, which response comes next, and what is recorded."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from clew.errors import ContextTooLong, InvalidInput, ModelError, UsageError
from clew.log import Usage
from clew.messages import Assistant, Message, Text, Thinking, ToolCall, ToolResult, assistant, plain_text, tool, user
from clew.models.base import Model, ModelEvent, ModelRequest, ModelResponse, TextDelta, ThinkingDelta, ToolSpec
from clew.testing import Reply, Response, ScriptedModel, call, reply, say, think, turns_in

pytestmark = pytest.mark.anyio


def asking(*messages: Message, **fields: Any) -> ModelRequest:
    return ModelRequest(messages=messages or (user("Hi"),), **fields)


async def events(model: Model, request: ModelRequest) -> list[ModelEvent]:
    return [event async for event in model.stream(request)]


async def answer(model: Model, request: ModelRequest | None = None) -> ModelResponse:
    last = (await events(model, request or asking()))[-1]
    assert isinstance(last, ModelResponse)
    return last


@pytest.mark.parametrize(
    ("response", "content"),
    [
        ("Hello.", (Text("Hello."),)),
        (say("Hello."), (Text("Hello."),)),
        (think("A greeting.") + say("Hello."), (Thinking("A greeting."), Text("Hello."))),
        (call("add", a=1, b=2), (ToolCall("call_1_1", "add", {"a": 1, "b": 2}),)),
        (call("now"), (ToolCall("call_1_1", "now", {}),)),
        (call("raw", "no JSON {"), (ToolCall("call_1_1", "raw", "no JSON {"),)),
        ([call("a"), call("b")], (ToolCall("call_1_1", "a", {}), ToolCall("call_1_2", "b", {}))),
        (["Let me see.", call("a")], (Text("Let me see."), ToolCall("call_1_1", "a", {}))),
        (ToolCall("mine", "a", {}), (ToolCall("mine", "a", {}),)),
        (assistant("Hello.", model="other", stop="length"), (Text("Hello."),)),
        (ModelResponse(assistant("Hello."), Usage(5, 6)), (Text("Hello."),)),
    ],
)
async def test_a_response_may_be_said_in_many_ways(response: Any, content: tuple[Any, ...]) -> None:
    assert (await answer(ScriptedModel([response]))).message.content == content


async def test_text_and_thinking_come_in_pieces_and_then_whole() -> None:
    *deltas, last = await events(ScriptedModel([think("So it is.") + say("Hello,  my\nfriend. ")]), asking())
    assert "".join(delta.text for delta in deltas if isinstance(delta, ThinkingDelta)) == "So it is."
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "Hello,  my\nfriend. "
    assert len(deltas) == 7
    assert isinstance(last, ModelResponse)
    assert plain_text(last.message) == "Hello,  my\nfriend. "


async def test_a_long_text_comes_in_few_pieces() -> None:
    *deltas, _ = await events(ScriptedModel(["word " * 100_000]), asking())
    assert len(deltas) <= 64
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "word " * 100_000


async def test_the_next_response_is_told_by_the_conversation_and_not_by_a_counter() -> None:
    script: list[Response] = [call("add", a=1, b=2), "It is 3.", "You are welcome."]
    first = (await answer(ScriptedModel(script))).message
    conversation = (user("Hi"), first, tool(ToolResult("call_1_1", (Text("3"),))))
    for _ in range(2):  # in another process, and when the call is made again
        assert plain_text((await answer(ScriptedModel(script), asking(*conversation))).message) == "It is 3."
    model = ScriptedModel(script)
    longer = (*conversation, assistant("It is 3."), user("Thanks."))
    assert plain_text((await answer(model, asking(*longer))).message) == "You are welcome."
    assert (await answer(model)).message == first


async def test_in_order_each_call_takes_the_next_response() -> None:
    model = ScriptedModel(["One.", ValueError("two"), "Three."], by="order")
    assert plain_text((await answer(model)).message) == "One."
    with pytest.raises(ValueError, match="two"):
        await answer(model)
    assert plain_text((await answer(model)).message) == "Three."
    with pytest.raises(UsageError, match="has 3 responses, and response 4 was asked for"):
        await answer(model)


@pytest.mark.parametrize(("length", "words"), [(0, "no response"), (1, "1 response"), (2, "2 responses")])
async def test_past_the_end_the_error_says_how_many_responses_there_were(length: int, words: str) -> None:
    said = [assistant("x")] * length
    with pytest.raises(UsageError, match=f"the script has {words}, and response {length + 1} was asked for"):
        await answer(ScriptedModel(["x"] * length), asking(user("Hi"), *said, user("And?")))


async def test_a_function_is_asked_with_the_request() -> None:
    def respond(request: ModelRequest) -> str:
        return f"{turns_in(request)} of {plain_text(request.messages[-1])}"

    async def later(request: ModelRequest) -> Reply:
        await asyncio.sleep(0)
        return call("add", a=turns_in(request))

    assert plain_text((await answer(ScriptedModel(respond))).message) == "0 of Hi"
    request = asking(user("Hi"), assistant("x"), user("And?"))
    assert (await answer(ScriptedModel(later), request)).message.content == (ToolCall("call_2_1", "add", {"a": 1}),)


@pytest.mark.parametrize("error", [ModelError("scripted", "broken"), TimeoutError, asyncio.CancelledError])
async def test_an_error_in_the_script_is_raised(error: Any) -> None:
    with pytest.raises(error if isinstance(error, type) else type(error)):
        await answer(ScriptedModel([error]))


async def test_usage_is_a_token_for_every_four_characters() -> None:
    spec = ToolSpec("add", "Adds.", {"type": "object"})
    request = asking(user("x" * 40), system="y" * 8, tools=(spec,))
    response = await answer(ScriptedModel([think("z" * 8) + say("w" * 20)]), request)
    assert response.usage == Usage(
        input_tokens=(40 + 8 + len("addAdds.") + len('{"type":"object"}')) // 4, output_tokens=7, reasoning_tokens=2
    )


async def test_usage_may_be_given_for_all_and_for_one() -> None:
    model = ScriptedModel(["One.", reply("Two.", usage=Usage(1, 2, 3))], usage=Usage(10, 20))
    assert (await answer(model)).usage == Usage(10, 20)
    assert (await answer(model, asking(user("Hi"), assistant("One."), user("More")))).usage == Usage(1, 2, 3)


async def test_the_model_and_the_reason_to_stop_are_said() -> None:
    response = await answer(ScriptedModel(["One."], name="scripted:small"))
    assert (response.model, response.message.model, response.message.stop) == (*["scripted:small"] * 2, "end_turn")
    assert (await answer(ScriptedModel([call("a")]))).message.stop == "tool_use"
    cut = (await answer(ScriptedModel([reply("One.", stop="max_tokens", model="large")]))).message
    assert cut == Assistant((Text("One."),), "large", "max_tokens")


async def test_requests_are_recorded_even_if_they_fail() -> None:
    model = ScriptedModel([ValueError("broken")])
    with pytest.raises(ValueError, match="broken"):
        await answer(model)
    assert (model.calls, model.requests) == (1, [asking()])


async def test_a_delay_passes_before_the_first_word() -> None:
    start = time.monotonic()
    await answer(ScriptedModel([reply("Hi", delay=0.03)], delay=0.03))
    assert time.monotonic() - start >= 0.06


async def test_a_request_that_is_larger_than_the_window_is_too_long() -> None:
    model = ScriptedModel(["Hi"], context_window=10)
    assert (await answer(model, asking(user("x" * 40)))).usage.input_tokens == 10
    with pytest.raises(ContextTooLong, match="about 11 tokens, and 10 fit"):
        await answer(model, asking(user("x" * 44)))


async def test_closing_the_iterator_ends_the_call() -> None:
    stream: Any = ScriptedModel(["One two three."]).stream(asking())
    assert await anext(stream) == TextDelta("One")
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_what_is_no_response_is_said_so() -> None:
    with pytest.raises(InvalidInput, match="not int"):
        await answer(ScriptedModel([1]))  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="not both"):
        call("add", {"a": 1}, b=2)
    with pytest.raises(InvalidInput, match="a list of responses or a function"):
        ScriptedModel(5)  # type: ignore[arg-type]


async def test_a_text_alone_is_a_script_of_one_response() -> None:
    assert plain_text((await answer(ScriptedModel("Hello."))).message) == "Hello."
