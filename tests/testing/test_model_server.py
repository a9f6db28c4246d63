"""`ModelServer`, as the vendors' own clients see it."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import textwrap
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types

from clew.errors import UsageError
from clew.log import Usage
from clew.messages import Image, Text, ToolCall, ToolResult, assistant, plain_text, tool, user
from clew.models.base import ModelRequest, ToolSpec
from clew.testing import Fault, ModelServer, Response, call, reply, say, think, turns_in
from clew.testing.model_server.http import Connection
from tests.limits import PATIENCE
from tests.testing.raw import ask

pytestmark = pytest.mark.anyio

USAGE = Usage(input_tokens=100, output_tokens=20, cache_read_tokens=60, cache_write_tokens=30, reasoning_tokens=8)
BUSY = reply(think("Two sums."), say("Let me see."), call("add", a=1, b=2), call("add", a="ä\n", b=[4]), usage=USAGE)
HI: Any = [{"role": "user", "content": "Hi"}]


def anthropic_client(server: ModelServer, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.anthropic_url, api_key="any", **{"max_retries": 0, **options})


def openai_client(server: ModelServer, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.openai_url, api_key="any", **{"max_retries": 0, **options})


def gemini_client(server: ModelServer, key: str = "any", *, timeout: float = 60, later: Any = None) -> genai.Client:
    """A client of Google's; `later` is the HTTP client for its async calls."""
    options = types.HttpOptions(base_url=server.gemini_url, timeout=int(timeout * 1000), httpx_async_client=later)
    return genai.Client(api_key=key, http_options=options)


def async_anthropic(server: ModelServer) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=server.anthropic_url, api_key="any", max_retries=0)


def async_openai(server: ModelServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.openai_url, api_key="any", max_retries=0)


# Anthropic


def check_message(message: anthropic.types.Message) -> None:
    thinking, text, first, second = message.content
    assert thinking.type == "thinking"
    assert (thinking.thinking, thinking.signature[:3]) == ("Two sums.", "sig")
    assert text.type == "text"
    assert text.text == "Let me see."
    assert first.type == second.type == "tool_use"
    assert [(use.id, use.name, use.input) for use in (first, second)] == [
        ("toolu_1_1", "add", {"a": 1, "b": 2}),
        ("toolu_1_2", "add", {"a": "ä\n", "b": [4]}),
    ]
    assert (message.model, message.role, message.stop_reason) == ("claude", "assistant", "tool_use")
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (10, 60, 30)
    assert usage.output_tokens == 20
    assert usage.output_tokens_details is not None
    assert usage.output_tokens_details.thinking_tokens == 8


async def test_anthropic_messages_whole_and_streamed_by_both_clients() -> None:
    async with ModelServer([BUSY]) as server:
        with anthropic_client(server) as client:
            check_message(client.messages.create(model="claude", max_tokens=99, messages=HI))
            with client.messages.stream(model="claude", max_tokens=99, messages=HI) as stream:
                assert "".join(stream.text_stream) == "Let me see."
                check_message(stream.get_final_message())
        async with async_anthropic(server) as later:
            check_message(await later.messages.create(model="claude", max_tokens=99, messages=HI))
            async with later.messages.stream(model="claude", max_tokens=99, messages=HI) as flow:
                check_message(await flow.get_final_message())
    assert [record.outcome for record in server.requests] == ["answered"] * 4


def test_a_client_that_has_the_whole_answer_finds_its_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    flush = Connection._flush

    async def slow(connection: Connection) -> None:
        await flush(connection)
        await asyncio.sleep(0.1)

    monkeypatch.setattr(Connection, "_flush", slow)
    faults = {3: Fault(status=400), 4: Fault(drop_after=3)}
    ask: Any = {"model": "claude", "max_tokens": 99, "messages": HI}
    outcomes: list[str] = []
    with ModelServer(["One.", "Two."], faults=faults) as server, anthropic_client(server) as client:
        client.messages.create(**ask)
        outcomes.append(server.requests[-1].outcome)
        with client.messages.stream(**ask) as stream:
            stream.get_final_message()
        outcomes.append(server.requests[-1].outcome)
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(**ask)
        outcomes.append(server.requests[-1].outcome)
        with pytest.raises(Exception, match="peer closed"), client.messages.stream(**ask) as stream:
            stream.get_final_message()
        outcomes.append(server.requests[-1].outcome)
    assert outcomes == ["answered", "answered", "failed", "failed"]


def test_anthropic_counts_tokens_and_lists_models() -> None:
    with ModelServer(models=("one", "two")) as server, anthropic_client(server) as client:
        messages: Any = [{"role": "user", "content": "x" * 40}]
        count = client.messages.count_tokens(model="claude", system="y" * 8, messages=messages)
        assert count.input_tokens == 12
        assert [model.id for model in client.models.list()] == ["one", "two"]
        assert client.models.retrieve("two").display_name == "two"
        with pytest.raises(anthropic.NotFoundError):
            client.models.retrieve("three")
    assert server.calls == 0
    assert [record.call for record in server.requests] == [0, 0, 0, 0]


# Chat completions


def check_completion(completion: Any) -> None:
    (choice,) = completion.choices
    assert (choice.finish_reason, choice.message.role, choice.message.content) == (
        "tool_calls",
        "assistant",
        "Let me see.",
    )
    assert [(made.id, made.function.name, made.function.arguments) for made in choice.message.tool_calls] == [
        ("call_1_1", "add", '{"a":1,"b":2}'),
        ("call_1_2", "add", '{"a":"ä\\n","b":[4]}'),
    ]
    assert completion.model == "gpt"
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens, completion.usage.total_tokens) == (
        100,
        20,
        120,
    )
    assert completion.usage.prompt_tokens_details.cached_tokens == 60
    assert completion.usage.completion_tokens_details.reasoning_tokens == 8


async def test_chat_completions_whole_and_streamed_by_both_clients() -> None:
    counted: Any = {"include_usage": True}
    async with ModelServer([BUSY]) as server:
        with openai_client(server) as client:
            check_completion(client.chat.completions.create(model="gpt", messages=HI))
            with client.chat.completions.stream(model="gpt", messages=HI, stream_options=counted) as stream:
                check_completion(stream.get_final_completion())
        async with async_openai(server) as later:
            check_completion(await later.chat.completions.create(model="gpt", messages=HI))
            async with later.chat.completions.stream(model="gpt", messages=HI, stream_options=counted) as flow:
                check_completion(await flow.get_final_completion())


def test_chat_usage_is_streamed_only_if_it_is_asked_for() -> None:
    with ModelServer(["Hello there."]) as server, openai_client(server) as client:
        chunks = list(client.chat.completions.create(model="gpt", messages=HI, stream=True))
        assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)
        *others, last = client.chat.completions.create(
            model="gpt", messages=HI, stream=True, stream_options={"include_usage": True}
        )
        assert all(chunk.usage is None for chunk in others)
        assert (last.choices, last.usage and last.usage.completion_tokens) == ([], 3)


def test_openai_lists_models() -> None:
    with ModelServer(models=("one", "two")) as server, openai_client(server) as client:
        assert [model.id for model in client.models.list()] == ["one", "two"]
        assert client.models.retrieve("one").id == "one"


# Responses


def check_response(response: Any) -> None:
    reasoning, message, first, second = response.output
    assert (reasoning.type, reasoning.summary[0].text) == ("reasoning", "Two sums.")
    assert (message.type, message.status, message.content[0].text) == ("message", "completed", "Let me see.")
    assert [(made.type, made.call_id, made.name, made.arguments) for made in (first, second)] == [
        ("function_call", "call_1_1", "add", '{"a":1,"b":2}'),
        ("function_call", "call_1_2", "add", '{"a":"ä\\n","b":[4]}'),
    ]
    assert (response.model, response.status, response.output_text) == ("gpt", "completed", "Let me see.")
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (100, 20, 120)
    assert response.usage.input_tokens_details.cached_tokens == 60
    assert response.usage.output_tokens_details.reasoning_tokens == 8


async def test_responses_whole_and_streamed_by_both_clients() -> None:
    async with ModelServer([BUSY]) as server:
        with openai_client(server) as client:
            check_response(client.responses.create(model="gpt", input="Hi"))
            with client.responses.stream(model="gpt", input="Hi") as stream:
                check_response(stream.get_final_response())
        async with async_openai(server) as later:
            check_response(await later.responses.create(model="gpt", input=HI))
            async with later.responses.stream(model="gpt", input=HI) as flow:
                check_response(await flow.get_final_response())


def test_the_events_of_a_response_come_in_the_vendors_order() -> None:
    with ModelServer([think("So.") + say("Yes.") + call("add")]) as server, openai_client(server) as client:
        events = list(client.responses.create(model="gpt", input="Hi", stream=True))
    assert [event.type.removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta"),
        *("reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_reasoning_is_sealed_if_the_request_asks_for_it_and_custom_tools_get_text() -> None:
    tools: Any = [{"type": "custom", "name": "patch"}]
    with ModelServer([think("So.") + call("patch", "*** Begin")]) as server, openai_client(server) as client:
        include: Any = ["reasoning.encrypted_content"]
        with client.responses.stream(model="gpt", input="Hi", include=include, tools=tools) as stream:
            reasoning, patch = stream.get_final_response().output
    assert reasoning.type == "reasoning"
    assert reasoning.encrypted_content
    assert patch.type == "custom_tool_call"
    assert (patch.name, patch.input) == ("patch", "*** Begin")


def test_tools_that_responses_are_offered_in_the_input_are_no_part_of_the_conversation() -> None:
    nested = [{"type": "custom", "name": "exec"}, {"type": "function", "name": "wait", "parameters": {}}]
    offer = {
        "type": "additional_tools",
        "role": "developer",
        "tools": [{"type": "namespace", "name": "functions", "tools": nested}],
    }
    with ModelServer([call("exec", "1 + 1")]) as server:
        _, _, body = ask(server, "openai-responses", input=[offer, {"role": "user", "content": "Hi"}])
    (made,) = json.loads(body)["output"]
    assert (made["type"], made["input"]) == ("custom_tool_call", "1 + 1")
    asked = server.requests[0].request
    assert asked is not None
    assert [tool.name for tool in asked.tools] == ["exec", "wait"]
    assert [type(message).__name__ for message in asked.messages] == ["User"]


def test_a_response_can_be_continued_by_its_id() -> None:
    with ModelServer([call("add", a=1), "It is 1."]) as server, openai_client(server) as client:
        first = client.responses.create(model="gpt", input="Hi")
        result: Any = [{"type": "function_call_output", "call_id": "call_1_1", "output": "1"}]
        second = client.responses.create(model="gpt", input=result, previous_response_id=first.id)
        assert second.output_text == "It is 1."
        assert [type(message).__name__ for message in server.requests[1].conversation] == ["User", "Assistant", "Tool"]
        with pytest.raises(openai.BadRequestError, match="not found"):
            client.responses.create(model="gpt", input="Hi", previous_response_id="resp_other")


# Scripts


async def test_a_script_is_followed_by_the_turns_of_the_conversation_in_all_three() -> None:
    script: list[Response] = [call("add", a=1, b=2), "It is 3.", "You are welcome."]
    async with ModelServer(script) as server:
        with anthropic_client(server) as claude, openai_client(server) as gpt:
            spoken: Any = [
                *HI,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "add", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "3"}]},
            ]
            for _ in range(2):
                message = claude.messages.create(model="claude", max_tokens=9, messages=spoken)
                assert message.content[0].type == "text"
                assert message.content[0].text == "It is 3."
            made = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
            chat: Any = [
                *HI,
                {"role": "assistant", "content": None, "tool_calls": [made]},
                {"role": "tool", "tool_call_id": "c1", "content": "3"},
            ]
            completion = gpt.chat.completions.create(model="gpt", messages=chat)
            assert completion.choices[0].message.content == "It is 3."
            items: Any = [
                *HI,
                {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "3"},
                {"role": "assistant", "content": "It is 3."},
                {"role": "user", "content": "Thanks."},
            ]
            assert gpt.responses.create(model="gpt", input=items).output_text == "You are welcome."


def test_in_order_each_call_takes_the_next_response() -> None:
    with ModelServer(["One.", "Two."], by="order") as server, openai_client(server) as client:
        said = [client.responses.create(model="gpt", input="Hi").output_text for _ in range(2)]
        with pytest.raises(openai.BadRequestError, match="has 2 responses, and response 3 was asked for"):
            client.responses.create(model="gpt", input="Hi")
    assert said == ["One.", "Two."]
    assert server.requests[-1].outcome == "refused"


def test_a_function_gets_what_was_asked_in_our_own_words_whoever_asks() -> None:
    asked: list[ModelRequest] = []

    async def respond(request: ModelRequest) -> str:
        asked.append(request)
        return f"{turns_in(request)} {request.options['temperature']}"

    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    with ModelServer(respond) as server, anthropic_client(server) as claude, openai_client(server) as gpt:
        uses: Any = [{"name": "add", "description": "Adds.", "input_schema": schema}]
        claude.messages.create(
            model="m",
            max_tokens=9,
            system="Be brief.",
            messages=HI,
            tools=uses,
            tool_choice={"type": "any"},
            extra_body={"temperature": 0.5},
        )
        functions: Any = [
            {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": schema}}
        ]
        chat: Any = [{"role": "system", "content": "Be brief."}, *HI]
        completion = gpt.chat.completions.create(
            model="m",
            max_completion_tokens=9,
            messages=chat,
            tools=functions,
            tool_choice="required",
            temperature=0.5,
        )
        flat: Any = [{"type": "function", "strict": None, "name": "add", "description": "Adds.", "parameters": schema}]
        gpt.responses.create(
            model="m",
            max_output_tokens=9,
            instructions="Be brief.",
            input="Hi",
            tools=flat,
            tool_choice="required",
            temperature=0.5,
        )
    assert completion.choices[0].message.content == "0 0.5"
    for request in asked:
        assert (request.messages, request.system) == ((user("Hi"),), "Be brief.")
        assert request.tools == (ToolSpec("add", "Adds.", schema),)
        assert (request.tool_choice, request.max_tokens) == ("required", 9)
        assert request.options == {"model": "m", "temperature": 0.5}


def test_what_the_script_raises_is_told_the_client() -> None:
    def respond(request: ModelRequest) -> str:
        raise ValueError("no idea")

    with (
        ModelServer(respond) as server,
        openai_client(server, max_retries=3) as client,
        pytest.raises(openai.BadRequestError, match="no idea"),
    ):
        client.responses.create(model="gpt", input="Hi")
    assert server.calls == 1


@pytest.mark.parametrize("stop", ["max_tokens", "length", "max_output_tokens"])
def test_a_response_may_be_cut_off_in_any_vendors_word(stop: str) -> None:
    with (
        ModelServer([reply("Once upon", stop=stop)]) as server,
        anthropic_client(server) as claude,
        openai_client(server) as gpt,
    ):
        assert claude.messages.create(model="m", max_tokens=9, messages=HI).stop_reason == "max_tokens"
        assert gpt.chat.completions.create(model="m", messages=HI).choices[0].finish_reason == "length"
        for response in (
            gpt.responses.create(model="m", input="Hi"),
            list(gpt.responses.create(model="m", input="Hi", stream=True))[-1].response,  # type: ignore[union-attr]
        ):
            assert response.status == "incomplete"
            assert response.incomplete_details is not None
            assert response.incomplete_details.reason == "max_output_tokens"


def test_arguments_that_are_no_json_reach_openais_clients_as_they_are() -> None:
    with ModelServer([call("add", '{"a": ')]) as server, openai_client(server) as client:
        message = client.chat.completions.create(model="m", messages=HI).choices[0].message
        assert message.tool_calls is not None
        assert message.tool_calls[0].type == "function"
        assert message.tool_calls[0].function.arguments == '{"a": '


# What is recorded


def test_requests_are_recorded_without_their_secrets() -> None:
    picture = base64.b64encode(b"\x89PNG").decode()
    source = {"type": "base64", "media_type": "image/png", "data": picture}
    content = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]
    messages: Any = [{"role": "user", "content": content}]
    with ModelServer(["A picture."]) as server, anthropic_client(server) as client:
        client.messages.create(model="claude", max_tokens=9, messages=messages)
    (record,) = server.requests
    assert (record.method, record.path, record.call, record.dialect) == ("POST", "/v1/messages", 1, "anthropic")
    assert record.headers["authorization"] == "(not kept)"
    assert "anthropic-version" in record.headers
    assert record.body["model"] == "claude"
    assert record.conversation == (user("What is it?", Image("image/png", b"\x89PNG")),)


def test_images_are_taken_by_the_other_two_as_well() -> None:
    picture = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
    chat: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": picture}}]}]
    items: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": picture}]}]
    with ModelServer(["A picture."]) as server, openai_client(server) as client:
        client.chat.completions.create(model="m", messages=chat)
        client.responses.create(model="m", input=items)
    assert [plain_text(record.conversation[0]) for record in server.requests] == ["", ""]
    assert all(isinstance(record.conversation[0].content[0], Image) for record in server.requests)


async def test_a_test_can_wait_for_calls() -> None:
    async with ModelServer(["Hi"], delay=3600) as server, async_openai(server) as client:
        task = asyncio.create_task(client.responses.create(model="m", input="Hi"))
        await server.wait_for(1)
        assert (server.calls, server.requests[0].outcome) == (1, "")
        with pytest.raises(TimeoutError, match=r"1 of 2 model calls came within 0\.05 s"):
            await server.wait_for(2, timeout=0.05)
        with pytest.raises(TimeoutError):
            server.wait_for_blocking(2, timeout=0.05)
        server.wait_for_blocking(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(3000):
            if server.requests[0].outcome:
                break
            await asyncio.sleep(0.02)
        assert server.requests[0].outcome == "abandoned"


# What vendors refuse


def test_a_call_without_its_result_is_refused_in_the_vendors_words() -> None:
    with ModelServer(["Hi"] * 5) as server, anthropic_client(server) as claude, openai_client(server) as gpt:
        use: Any = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "add", "input": {}}]}
        with pytest.raises(anthropic.BadRequestError, match="without `tool_result` blocks immediately after: t1"):
            claude.messages.create(model="m", max_tokens=9, messages=[*HI, use, *HI])
        made: Any = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        with pytest.raises(openai.BadRequestError, match="did not have response messages: c1"):
            gpt.chat.completions.create(model="m", messages=[*HI, {"role": "assistant", "tool_calls": [made]}])
        item: Any = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
        with pytest.raises(openai.BadRequestError, match="No tool output found for function call c1"):
            gpt.responses.create(model="m", input=[*HI, item, *HI])
        output: Any = [{"type": "function_call_output", "call_id": "c9", "output": "1"}]
        with pytest.raises(openai.BadRequestError, match="No tool call found"):
            gpt.responses.create(model="m", input=output)
    assert {record.outcome for record in server.requests} == {"refused"}


def test_a_server_that_is_not_strict_takes_it() -> None:
    with ModelServer(["Hi"] * 5, strict=False) as server, anthropic_client(server) as claude:
        use: Any = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "add", "input": {}}]}
        assert claude.messages.create(model="m", max_tokens=9, messages=[*HI, use, *HI])


def test_thinking_that_was_changed_is_refused_by_its_signature() -> None:
    with ModelServer([think("So.") + say("Yes."), "Fine."]) as server, anthropic_client(server) as client:
        said: Any = client.messages.create(model="m", max_tokens=9, messages=HI).to_dict()["content"]
        again: Any = [*HI, {"role": "assistant", "content": said}, *HI]
        assert client.messages.create(model="m", max_tokens=9, messages=again)
        said[0]["thinking"] = "Otherwise."
        with pytest.raises(anthropic.BadRequestError, match="Invalid `signature`"):
            client.messages.create(model="m", max_tokens=9, messages=again)


def test_a_key_that_is_required_is_required() -> None:
    with ModelServer(["Hi"], key="right") as server:
        with anthropic_client(server) as claude, pytest.raises(anthropic.AuthenticationError):
            claude.messages.create(model="m", max_tokens=9, messages=HI)
        with openai_client(server) as gpt, pytest.raises(openai.AuthenticationError) as caught:
            gpt.responses.create(model="m", input="Hi")
        assert caught.value.code == "invalid_api_key"
        with openai.OpenAI(base_url=server.openai_url, api_key="right") as client:
            assert client.responses.create(model="m", input="Hi").output_text == "Hi"
    assert all("right" not in str(record) for record in server.requests)


# Lifetime


def test_clients_of_another_process_are_led_here_by_the_environment() -> None:
    code = """
        import anthropic, openai
        print(openai.OpenAI().responses.create(model="m", input="Hi").output_text)
        messages = [{"role": "user", "content": "Hi"}]
        print(anthropic.Anthropic().messages.create(model="m", max_tokens=9, messages=messages).content[0].text)
    """
    with ModelServer(["Hello."], key="right") as server:
        run = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**server.env(), "NO_PROXY": "*"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert run.stdout.split() == ["Hello.", "Hello."], run.stderr


def test_a_server_says_when_it_is_not_running_or_running_already() -> None:
    server = ModelServer(["Hi"])
    with pytest.raises(UsageError, match="no port yet"):
        _ = server.url
    with server:
        with pytest.raises(UsageError, match="running already"):
            server.start()
        with pytest.raises(OSError, match="address"), ModelServer(port=int(server.url.rsplit(":", 1)[1])):
            pass
    server.close()


def test_the_conversation_of_a_recorded_request_is_canonical() -> None:
    with ModelServer(["One.", "Two."]) as server, openai_client(server) as client:
        made = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
        chat: Any = [
            *HI,
            {"role": "assistant", "content": "So:", "tool_calls": [made]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ]
        client.chat.completions.create(model="m", messages=chat)
    assert server.requests[0].conversation == (
        user("Hi"),
        assistant("So:", ToolCall("c1", "add", {"a": 1})),
        tool(ToolResult("c1", (Text("3"),))),
    )
