"""What a model promises, through the real SDK of each vendor."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import aclosing

import anyio
import msgspec
import pytest

from clew.errors import ContextTooLong, InvalidInput, MissingExtra, ModelRefused, ModelUnavailable
from clew.log import Usage
from clew.messages import Image, Text, Thinking, ToolCall, ToolResult, assistant, plain_text, tool, tool_calls, user
from clew.models import (
    ModelEvent,
    ModelRequest,
    ModelResponse,
    Retrying,
    TextDelta,
    ThinkingDelta,
    ToolSpec,
    resolve_model,
    retry,
)
from clew.testing import Fault, ModelServer, call, reply, say, think
from tests.clock import Clock
from tests.limits import PATIENCE
from tests.models.asking import (
    KEY,
    OF_CHAT,
    PNG,
    VENDORS,
    VendorModel,
    ask,
    events_of,
    last_body,
    model_at,
    resolved,
    response_of,
    texts,
)

pytestmark = pytest.mark.anyio
each_vendor = pytest.mark.parametrize("vendor", VENDORS)

ADD = ToolSpec(
    "add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@each_vendor
async def test_words_come_as_they_are_said_and_the_whole_response_last(vendor: str) -> None:
    async with ModelServer(["One two three."]) as server:
        model = model_at(server, vendor)
        events = await events_of(model, ask("Count.", system="Be brief."))
        await model.aclose()
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["One", " two", " three."]
    last = events[-1]
    assert isinstance(last, ModelResponse)
    assert plain_text(last.message) == texts(events) == "One two three."
    assert last.message.model == last.model == "scripted"
    assert last.message.stop in ("end_turn", "stop", "completed", "STOP")
    assert sum(isinstance(event, ModelResponse) for event in events) == 1
    asked = server.requests[0].request
    assert asked is not None
    assert "instructions" in last_body(server) or asked.system == "Be brief."


@each_vendor
async def test_a_response_can_be_sent_back_as_it_came(vendor: str) -> None:
    """Thinking with its signature or encrypted form, calls with their ids: the vendor checks them."""
    script = [think("Hmm.") + say("I add.") + call("add", a=1, b=2), say("3")]
    async with ModelServer(script) as server:
        model = model_at(server, vendor)
        first = await response_of(model, ask("1 + 2?", tools=(ADD,)))
        (made,) = tool_calls(first.message)
        request = ask(user("1 + 2?"), first.message, tool(ToolResult(made.id, (Text("3"),))), tools=(ADD,))
        events = await events_of(model, request)
        await model.aclose()
    assert made.arguments == {"a": 1, "b": 2}
    assert not any(isinstance(event, Retrying) for event in events)
    assert texts(events) == "3"
    if vendor not in OF_CHAT:
        sent = server.requests[1].conversation[1]
        assert sent.content == first.message.content
        assert isinstance(sent.content[0], Thinking)


@pytest.mark.parametrize("vendor", ["anthropic", "openai-responses", "gemini"])
async def test_thinking_comes_before_the_words_and_is_kept(vendor: str) -> None:
    async with ModelServer([think("I must think.") + say("Done.")]) as server:
        model = model_at(server, vendor)
        events = await events_of(model, ask("Think."))
        await model.aclose()
    kinds = [type(event) for event in events]
    assert kinds.index(ThinkingDelta) < kinds.index(TextDelta)
    last = events[-1]
    assert isinstance(last, ModelResponse)
    thought = last.message.content[0]
    assert isinstance(thought, Thinking)
    assert thought.text == "I must think."
    signed = last.message.content[-1]
    assert thought.signature or thought.encrypted or (isinstance(signed, Thinking) and signed.extra)


@each_vendor
async def test_parallel_calls_keep_their_order_and_their_ids(vendor: str) -> None:
    async with ModelServer([call("add", a=1, b=2) + call("add", a=3, b=4) + call("now")]) as server:
        model = model_at(server, vendor)
        response = await response_of(model, ask("Add.", tools=(ADD, ToolSpec("now"))))
        await model.aclose()
    calls = tool_calls(response.message)
    assert [made.arguments for made in calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}, {}]
    assert [made.name for made in calls] == ["add", "add", "now"]
    assert len({made.id for made in calls}) == 3


@each_vendor
async def test_tools_are_told_with_their_schemas_and_the_choice(vendor: str) -> None:
    async with ModelServer(lambda request: "ok") as server:
        model = model_at(server, vendor)
        for choice in ("auto", "required", "none"):
            await response_of(model, ask("Go.", tools=(ADD, ToolSpec("now")), tool_choice=choice))
        await model.aclose()
    asked = [record.request for record in server.requests]
    assert [one.tool_choice for one in asked if one] == ["auto", "required", "none"]
    assert asked[0] is not None
    assert asked[0].tools[0] == ADD
    assert asked[0].tools[1].parameters["type"] == "object"


@each_vendor
async def test_images_are_sent(vendor: str) -> None:
    async with ModelServer(["A picture."]) as server:
        model = model_at(server, vendor)
        await response_of(model, ask(user("What is this?", Image("image/png", PNG))))
        await model.aclose()
    (said,) = server.requests[0].conversation
    picture = said.content[1]
    assert isinstance(picture, Image)
    assert (picture.media_type, picture.data) == ("image/png", PNG)


@each_vendor
async def test_a_schema_for_the_output_is_sent_in_the_vendors_words(vendor: str) -> None:
    async with ModelServer(['{"city": "Paris"}']) as server:
        model = model_at(server, vendor)
        response = await response_of(model, ask("Where?", output_schema=SCHEMA))
        await model.aclose()
    assert plain_text(response.message) == '{"city": "Paris"}'
    body = last_body(server)
    if vendor == "anthropic":
        assert body["output_config"] == {"format": {"type": "json_schema", "schema": SCHEMA}}
    elif vendor in OF_CHAT:
        named = {"name": "output", "schema": SCHEMA, "strict": True}
        assert body["response_format"] == {"type": "json_schema", "json_schema": named}
    elif vendor == "gemini":
        wanted = {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}
        assert body["generationConfig"] == wanted
    else:
        assert body["text"]["format"] == {"type": "json_schema", "name": "output", "schema": SCHEMA, "strict": True}


@each_vendor
async def test_cached_tokens_are_part_of_the_input_and_reasoning_is_part_of_the_output(vendor: str) -> None:
    usage = Usage(1000, 200, cache_read_tokens=600, cache_write_tokens=100, reasoning_tokens=150)
    async with ModelServer([reply("Hi.", usage=usage)]) as server:
        model = model_at(server, vendor)
        response = await response_of(model, ask())
        await model.aclose()
    if vendor == "gemini":  # does not say what it writes to its cache
        usage = msgspec.structs.replace(usage, cache_write_tokens=0)
    assert response.usage == usage


@each_vendor
async def test_options_go_to_the_vendor_under_its_own_names_even_if_the_sdk_does_not_know_them(vendor: str) -> None:
    async with ModelServer(["ok"]) as server:
        model = model_at(server, vendor)
        options = {"temperature": 0.5, "something_new": {"a": 1}, "extra_headers": {"x-mine": "yes"}}
        await response_of(model, ask(options=options, max_tokens=77))
        await model.aclose()
    body = last_body(server)
    said = body["generationConfig"] if vendor == "gemini" else body
    assert said["temperature"] == 0.5
    assert body["something_new"] == {"a": 1}
    assert server.requests[0].headers["x-mine"] == "yes"
    limits = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")
    assert 77 in [said.get(name) for name in limits]


@each_vendor
async def test_an_option_that_would_replace_the_conversation_is_refused(vendor: str) -> None:
    async with ModelServer(["ok"]) as server:
        model = model_at(server, vendor)
        with pytest.raises(InvalidInput, match="'model'"):
            await response_of(model, ask(options={"model": "other"}))
        await model.aclose()
    assert server.calls == 0


@each_vendor
async def test_a_limit_is_waited_for_as_long_as_the_vendor_asks(vendor: str) -> None:
    async with ModelServer(["Hi."], faults={1: Fault(status=429, retry_after=0.2)}) as server:
        model = model_at(server, vendor)
        before = asyncio.get_running_loop().time()
        events = await events_of(model, ask())
        took = asyncio.get_running_loop().time() - before
        await model.aclose()
    first = events[0]
    assert isinstance(first, Retrying)
    assert (first.attempt, first.after) == (2, 0.2)
    assert "429" in first.reason
    assert took >= 0.2
    assert texts(events) == "Hi."


@each_vendor
@pytest.mark.parametrize("status", [408, 409, 500, 503, 529])
async def test_what_may_pass_is_tried_again(vendor: str, status: int) -> None:
    async with ModelServer(["Hi."], faults={1: Fault(status=status), 2: Fault(reset=True)}) as server:
        model = model_at(server, vendor)
        events = await events_of(model, ask())
        await model.aclose()
    assert [event.attempt for event in events if isinstance(event, Retrying)] == [2, 3]
    assert texts(events) == "Hi."


@each_vendor
async def test_a_stream_that_breaks_off_is_void_and_the_call_is_made_again(vendor: str) -> None:
    async with ModelServer(["One two three four five six."], faults={1: Fault(drop_after=6)}) as server:
        model = model_at(server, vendor)
        events = await events_of(model, ask())
        await model.aclose()
    broken = next(place for place, event in enumerate(events) if isinstance(event, Retrying))
    assert texts(events[:broken])
    assert texts(events[broken:]) == "One two three four five six."
    assert server.calls == 2


@each_vendor
@pytest.mark.parametrize(
    "fault", [Fault(malformed=True), Fault(error_after=3, status=529), Fault(error_after=3, status=500)]
)
async def test_an_error_inside_a_stream_is_tried_again(vendor: str, fault: Fault) -> None:
    async with ModelServer(["One two three four."], faults={1: fault}) as server:
        model = model_at(server, vendor)
        events = await events_of(model, ask())
        await model.aclose()
    assert [event.attempt for event in events if isinstance(event, Retrying)] == [2]
    assert isinstance(events[-1], ModelResponse)


@each_vendor
async def test_after_all_retries_the_model_is_unavailable(vendor: str) -> None:
    async with ModelServer(["Hi."], faults=Fault(status=500)) as server:
        model = model_at(server, vendor, max_retries=2)
        with pytest.raises(ModelUnavailable) as caught:
            await events_of(model, ask())
        await model.aclose()
    assert caught.value.attempts == server.calls == 3
    assert caught.value.status == 500
    assert caught.value.model == f"{vendor}:scripted"


@each_vendor
async def test_a_vendor_that_asks_for_an_hour_is_not_waited_for(vendor: str) -> None:
    async with ModelServer(["Hi."], faults=Fault(status=429, retry_after=3600)) as server:
        model = model_at(server, vendor)
        with pytest.raises(ModelUnavailable, match="asks to wait 3600 s"):
            await events_of(model, ask())
        await model.aclose()
    assert server.calls == 1


async def let_time_out(server: ModelServer, clock: Clock, seconds: float) -> None:
    """Let this much time pass once the first request is there and its sender waits for the answer."""
    await server.wait_for(1, PATIENCE)
    for _ in range(100):  # rounds of the loop, in which the sender goes from writing to reading
        await asyncio.sleep(0)
    clock.advance(seconds)


@each_vendor
async def test_a_server_that_does_not_answer_in_time_is_tried_again(vendor: str, clock: Clock) -> None:
    async with ModelServer(["Hi."], faults={1: Fault(first_byte=3600)}) as server:
        model = model_at(server, vendor, timeout=600)
        events, _ = await asyncio.gather(events_of(model, ask()), let_time_out(server, clock, 600))
        await model.aclose()
    first = events[0]
    assert isinstance(first, Retrying)
    assert first.reason == "a timeout"
    assert texts(events) == "Hi."


@each_vendor
async def test_a_stream_that_falls_silent_is_tried_again(vendor: str, clock: Clock) -> None:
    async with ModelServer(["One two three."], faults={1: Fault(between=3600)}) as server:
        model = model_at(server, vendor, timeout=600)
        events, _ = await asyncio.gather(events_of(model, ask()), let_time_out(server, clock, 600))
        await model.aclose()
    assert [event.reason for event in events if isinstance(event, Retrying)] == ["a timeout"]
    assert isinstance(events[-1], ModelResponse)


@each_vendor
async def test_a_server_that_is_not_there_is_unavailable(vendor: str) -> None:
    server = ModelServer(["Hi."])
    server.start()
    model = model_at(server, vendor, max_retries=1)
    server.close()
    with pytest.raises(ModelUnavailable, match="connection"):
        await events_of(model, ask())
    await model.aclose()


@each_vendor
@pytest.mark.parametrize(("status", "advice"), [(400, ""), (401, "Check the key"), (404, "Check the model's name")])
async def test_what_is_refused_is_not_tried_again(vendor: str, status: int, advice: str) -> None:
    async with ModelServer(["Hi."], faults=Fault(status=status, message="This cannot be done.")) as server:
        model = model_at(server, vendor)
        with pytest.raises(ModelRefused, match="This cannot be done") as caught:
            await events_of(model, ask())
        await model.aclose()
    assert server.calls == 1
    assert caught.value.status == status
    assert advice in str(caught.value)


@each_vendor
@pytest.mark.parametrize("fault", [Fault(overflow=True), Fault(overflow=True, error_after=2)])
async def test_a_conversation_that_does_not_fit_is_told_apart(vendor: str, fault: Fault) -> None:
    async with ModelServer(["One two three."], faults=fault) as server:
        model = model_at(server, vendor)
        with pytest.raises(ContextTooLong, match="Compact"):
            await events_of(model, ask())
        await model.aclose()
    assert server.calls == 1


@each_vendor
async def test_errors_hold_nothing_of_the_conversation_and_no_key(vendor: str) -> None:
    secret = "the launch code is wombat 4711"
    words = f"Invalid value: \"wombat\" in '{secret}' (key {KEY}, Bearer abcdef123456)"
    async with ModelServer(["Hi."], faults=Fault(status=400, message=words)) as server:
        model = model_at(server, vendor)
        with pytest.raises(ModelRefused) as caught:
            await events_of(model, ask(f"Remember: {secret}."))
        await model.aclose()
    error: BaseException | None = caught.value
    assert error is not None
    assert error.__cause__ is None
    assert error.__context__ is None
    assert "Invalid value" in str(error)
    for hidden in ("wombat", "launch code", "4711", KEY, "abcdef123456"):
        assert hidden not in str(error)


@each_vendor
async def test_thinking_that_the_vendor_does_not_take_is_left_out_and_that_is_told(vendor: str) -> None:
    """It is bound to a model, an account, a conversation: and those change when a thread is resumed or forked."""
    refused = Fault(status=400, message="messages.1.content.0: Invalid `signature` in `thinking` block")
    async with ModelServer([think("Hmm.") + say("Yes."), "Again."], faults={2: refused}) as server:
        model = model_at(server, vendor)
        first = await response_of(model, ask("Well?"))
        events = await events_of(model, ask(user("Well?"), first.message, user("And now?")))
        await model.aclose()
    told = events[0]
    assert isinstance(told, Retrying)
    assert told.after == 0
    assert "thinking" in told.reason
    assert texts(events) == "Again."
    sent = server.requests[-1].conversation
    assert not any(isinstance(block, Thinking) for message in sent for block in message.content)
    assert plain_text(sent[1]) == "Yes."


@each_vendor
async def test_closing_the_stream_ends_the_request(vendor: str) -> None:
    async with ModelServer(["One two three."], faults=Fault(between=3600)) as server:
        model = model_at(server, vendor)
        async with aclosing(model.stream(ask())) as events:
            waiting = asyncio.ensure_future(drained(events))
            await server.wait_for(1)
            await asyncio.sleep(0.1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await until_abandoned(server)
        await model.aclose()


@each_vendor
async def test_a_deadline_around_the_call_ends_the_request(vendor: str) -> None:
    async with ModelServer(["One two three."], faults=Fault(between=3600)) as server:
        model = model_at(server, vendor)

        async def expire() -> None:
            await server.wait_for(1, PATIENCE)
            scope.deadline = anyio.current_time()

        expiring = asyncio.ensure_future(expire())
        with anyio.CancelScope() as scope:
            await events_of(model, ask())
        await expiring
        assert scope.cancelled_caught
        await until_abandoned(server)
        await model.aclose()


@each_vendor
async def test_a_reader_that_has_heard_enough_ends_the_request(vendor: str) -> None:
    async with ModelServer(["One two three four five six seven."], faults=Fault(between=0.05)) as server:
        model = model_at(server, vendor)
        async with aclosing(model.stream(ask())) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    break
        await until_abandoned(server)
        await model.aclose()


async def drained(events: AsyncIterator[ModelEvent]) -> None:
    async for _ in events:
        pass


async def until_abandoned(server: ModelServer) -> None:
    for _ in range(3000):
        if server.requests[0].outcome == "abandoned":
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"the server still answers: {server.requests[0].outcome!r}")


@each_vendor
async def test_cancelling_during_a_pause_stops_at_once(vendor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(retry, "LONGEST_PAUSE", 3600.0)
    async with ModelServer(["Hi."], faults=Fault(status=500)) as server:
        model = model_at(server, vendor)
        task = asyncio.ensure_future(events_of(model, ask()))
        await server.wait_for(1)
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, PATIENCE)
        await model.aclose()
    assert server.calls == 1


@each_vendor
async def test_the_sdks_own_variables_say_where_and_with_which_key(
    vendor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer(["Hi."], key="of-the-environment") as server:
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", server.url)
        monkeypatch.setenv("AZURE_OPENAI_API_KEY", "of-the-environment")
        monkeypatch.setenv("OPENAI_API_VERSION", "2024-10-21")
        monkeypatch.setenv("OPENROUTER_API_KEY", "of-the-environment")
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        settings: dict[str, str] = {"openrouter": {"base_url": server.openai_url}}.get(vendor, {})
        settings |= {"api_key": "of-the-environment"} if vendor == "ollama" else {}
        model = resolved(f"{vendor}:scripted", **settings)
        response = await response_of(model, ask())
        await model.aclose()
    assert plain_text(response.message) == "Hi."


@pytest.mark.parametrize("vendor", [vendor for vendor in VENDORS if vendor != "ollama"])
@pytest.mark.parametrize("profiles", [True, False])
async def test_without_any_key_the_error_says_where_it_goes(
    vendor: str, profiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not profiles:  # then the SDK looks in the home folder, which is an empty one here
        monkeypatch.delenv("ANTHROPIC_CONFIG_DIR")
    monkeypatch.setenv("OPENAI_API_VERSION", "2024-10-21")
    model = resolved(f"{vendor}:scripted", base_url="http://127.0.0.1:9/v1")
    variable = "AZURE_OPENAI_API_KEY" if vendor == "azure" else f"{vendor.partition('-')[0].upper()}_API_KEY"
    with pytest.raises(ModelRefused, match=variable):
        await events_of(model, ask())
    await model.aclose()


async def test_settings_that_the_sdk_does_not_take_are_not_called_a_missing_key() -> None:
    model = resolved("openai:scripted", api_key=KEY, base_url="http://127.0.0.1:9", data_residency="nowhere")
    with pytest.raises(Exception, match="residency") as caught:
        await events_of(model, ask())
    assert "credentials" not in str(caught.value)


@each_vendor
def test_a_missing_sdk_says_how_to_install_it(vendor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = "openai" if vendor in OF_CHAT else vendor.partition("-")[0]
    monkeypatch.setitem(sys.modules, "google.genai" if vendor == "gemini" else extra, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'clew\[{extra}\]'"):
        resolve_model(f"{vendor}:scripted")


@each_vendor
async def test_a_model_works_again_after_it_was_closed(vendor: str) -> None:
    async with ModelServer(lambda request: "Hi.") as server:
        model = model_at(server, vendor)
        for _ in range(2):
            assert plain_text((await response_of(model, ask())).message) == "Hi."
            await model.aclose()
        await model.aclose()


@each_vendor
def test_a_model_that_was_not_closed_works_in_the_next_event_loop(vendor: str) -> None:
    async def once(model: VendorModel, *, close: bool) -> str:
        response = await response_of(model, ask())
        if close:
            await model.aclose()
        return plain_text(response.message)

    with ModelServer(lambda request: "Hi.") as server, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of the connection that nobody closed
        model = model_at(server, vendor, max_retries=0)
        assert asyncio.run(once(model, close=False)) == asyncio.run(once(model, close=True)) == "Hi."
        del model
        gc.collect()


@each_vendor
async def test_many_calls_share_a_model(vendor: str) -> None:
    async with ModelServer(lambda request: plain_text(request.messages[-1])) as server:
        model = model_at(server, vendor)
        responses = await asyncio.gather(*(response_of(model, ask(f"number {n}")) for n in range(20)))
        await model.aclose()
    assert [plain_text(response.message) for response in responses] == [f"number {n}" for n in range(20)]


@each_vendor
async def test_a_response_that_was_cut_off_says_so(vendor: str) -> None:
    async with ModelServer([reply("One two", stop="max_tokens")]) as server:
        model = model_at(server, vendor)
        response = await response_of(model, ask(max_tokens=2))
        await model.aclose()
    assert response.message.stop in ("max_tokens", "length", "max_output_tokens", "MAX_TOKENS")


@each_vendor
async def test_a_conversation_of_another_vendor_is_taken_up(vendor: str) -> None:
    """Ids, thinking and errors are made to fit; the server refuses what the vendor would."""
    past = (
        user("Look."),
        assistant(Thinking("Hmm", "signed by another"), ToolCall("call|odd id", "look at", {"x": 1})),
        tool(ToolResult("call|odd id", (Text("A wall."),), True)),
        assistant("There is a wall."),
    )
    async with ModelServer(lambda request: "Right.") as server:
        model = model_at(server, vendor)
        response = await response_of(model, ModelRequest(messages=(*past, user("Sure?"))))
        await model.aclose()
    assert plain_text(response.message) == "Right."
