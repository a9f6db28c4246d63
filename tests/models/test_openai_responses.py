"""What is particular to the responses API: nothing is stored there, so everything must go along."""

from __future__ import annotations

from typing import Any

import pytest

from clew.errors import ContextTooLong, ModelRefused, ModelUnavailable
from clew.log import Usage
from clew.messages import Opaque, Text, Thinking, ToolCall, ToolResult, assistant, plain_text, tool, tool_calls, user
from clew.models import Retrying, ToolSpec
from tests.models.asking import Wire, ask, events_of, refusal, response_of, sse, texts

pytestmark = pytest.mark.anyio

REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "add",
    "arguments": '{"a": 1}',
    "status": "completed",
}
MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hi", "annotations": []}],
}


def response(*output: dict[str, Any], status: str = "completed", **fields: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-5-2025-08-07",
        "status": status,
        "output": list(output),
        **fields,
    }


def ended(*output: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "response.completed", "sequence_number": 9, "response": response(*output, **fields)}


async def test_nothing_is_stored_and_reasoning_comes_sealed() -> None:
    wire = Wire(sse(ended(REASONING, MESSAGE)))
    await response_of(wire.model("openai-responses:gpt-5"), ask(system="Be brief.", options={"include": ["x"]}))
    body = wire.bodies[0]
    assert body["store"] is False
    assert body["include"] == ["reasoning.encrypted_content", "x"]
    assert body["instructions"] == "Be brief."


async def test_models_that_do_not_reason_are_not_asked_for_reasoning() -> None:
    wire = Wire(sse(ended(MESSAGE)))
    await response_of(wire.model("openai-responses:gpt-4.1"), ask())
    assert "include" not in wire.bodies[0]


async def test_reasoning_goes_back_to_the_byte_with_what_came_of_it() -> None:
    wire = Wire(sse(ended(REASONING, CALL)), sse(ended(MESSAGE)))
    model = wire.model("openai-responses:gpt-5")
    first = await response_of(model, ask("1?", tools=(ToolSpec("add"),)))
    assert isinstance(first.message.content[0], Thinking)
    assert tool_calls(first.message)[0].id == "call_1"
    await response_of(model, ask(user("1?"), first.message, tool(ToolResult("call_1", (Text("1"),)))))
    assert wire.bodies[1]["input"][1:3] == [REASONING, CALL]


async def test_reasoning_of_another_account_is_left_out_with_the_ids_that_need_it() -> None:
    refused = refusal(400, "The encrypted content for item rs_1 could not be verified.")
    wire = Wire(sse(ended(REASONING, CALL, MESSAGE)), refused, sse(ended(MESSAGE)))
    model = wire.model("openai-responses:gpt-5")
    first = await response_of(model, ask("1?"))
    request = ask(user("1?"), first.message, tool(ToolResult("call_1", (Text("1"),))))
    events = await events_of(model, request)
    assert isinstance(events[0], Retrying)
    sent = wire.bodies[2]["input"]
    assert [item["type"] for item in sent] == ["message", "function_call", "message", "function_call_output"]
    assert not any("id" in item for item in sent)
    assert sent[1]["arguments"] == '{"a": 1}'


async def test_thinking_that_is_refused_twice_is_an_error() -> None:
    wire = Wire(refusal(400, "Invalid `signature` in `thinking` block"))
    with pytest.raises(ModelRefused):
        await events_of(wire.model("openai-responses:gpt-5"), ask())
    assert len(wire.bodies) == 2


async def test_usage_with_its_parts() -> None:
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 20},
        "output_tokens": 30,
        "output_tokens_details": {"reasoning_tokens": 25},
        "total_tokens": 130,
    }
    answer = await response_of(Wire(sse(ended(MESSAGE, usage=usage))).model("openai-responses:gpt-5"), ask())
    assert answer.usage == Usage(100, 30, 60, 20, 25)


async def test_a_response_that_is_incomplete_says_why() -> None:
    event = {
        "type": "response.incomplete",
        "sequence_number": 1,
        "response": response(MESSAGE, status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
    }
    answer = await response_of(Wire(sse(event)).model("openai-responses:gpt-5"), ask())
    assert answer.message.stop == "max_output_tokens"
    assert plain_text(answer.message) == "Hi"


async def test_items_are_taken_from_the_stream_if_the_end_does_not_repeat_them() -> None:
    done = [
        {"type": "response.output_item.done", "sequence_number": n, "output_index": n, "item": item}
        for n, item in enumerate([REASONING, MESSAGE])
    ]
    answer = await response_of(Wire(sse(*done, ended())).model("openai-responses:gpt-5"), ask())
    assert plain_text(answer.message) == "Hi"
    assert isinstance(answer.message.content[0], Thinking)


async def test_items_without_a_name_here_stay_in_the_one_response() -> None:
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "x"},
    }
    shell = {"type": "shell_call_output", "id": "sh_1", "call_id": "call_2", "output": []}
    answer = await response_of(Wire(sse(ended(search, shell, MESSAGE))).model("openai-responses:gpt-5"), ask())
    kinds = [block.value["type"] for block in answer.message.content if isinstance(block, Opaque)]
    assert kinds == ["web_search_call", "shell_call_output"]
    assert plain_text(answer.message) == "Hi"


async def test_an_empty_response_is_one() -> None:
    answer = await response_of(Wire(sse(ended())).model("openai-responses:gpt-5"), ask())
    assert answer.message == assistant(model="gpt-5-2025-08-07", stop="completed")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("server_error", ModelUnavailable),
        ("rate_limit_exceeded", ModelUnavailable),
        ("context_length_exceeded", ContextTooLong),
        ("invalid_prompt", ModelRefused),
        ("something_new", ModelUnavailable),
    ],
)
@pytest.mark.parametrize("form", ["failed", "flat", "nested"])
async def test_a_response_that_fails_is_read_by_its_code(code: str, error: type[Exception], form: str) -> None:
    said = {"code": code, "message": "It went wrong.", "param": None}
    forms: dict[str, dict[str, Any]] = {
        "failed": {"type": "response.failed", "sequence_number": 1, "response": response(status="failed", error=said)},
        "flat": {"type": "error", "sequence_number": 1, **said},
        "nested": {"type": "error", "sequence_number": 1, "error": said},
    }
    with pytest.raises(error, match=code):
        await events_of(Wire(sse(forms[form])).model("openai-responses:gpt-5", max_retries=1), ask())


async def test_custom_tools_keep_their_kind_without_thinking() -> None:
    """Leaving thinking out takes only the ids."""
    made = ToolCall("call_1", "run", "ls", {"openai-responses": {"type": "custom_tool_call", "id": "ctc_1"}})
    past = (user("Go."), assistant(Thinking("x", None, "sealed", {"openai-responses": {"id": "rs_1"}}), made))
    wire = Wire(refusal(400, "Items are not persisted when `store` is set to false."), sse(ended(MESSAGE)))
    events = await events_of(wire.model("openai-responses:gpt-5"), ask(*past, tool(ToolResult("call_1", (Text("a"),)))))
    assert texts(events) == ""
    assert wire.bodies[1]["input"][1] == {
        "type": "custom_tool_call",
        "call_id": "call_1",
        "name": "run",
        "input": "ls",
    }
