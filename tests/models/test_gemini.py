"""What is particular to Gemini's API."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from google import genai
from google.genai import types
from google.oauth2.credentials import Credentials

from clew.errors import InvalidInput, ModelRefused, ModelUnavailable
from clew.log import Usage
from clew.messages import (
    Message,
    Opaque,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    assistant,
    plain_text,
    tool,
    tool_calls,
    user,
)
from clew.models import Retrying, TextDelta, ThinkingDelta, ToolSpec, cost_of
from clew.models.gemini import GeminiModel
from clew.testing import Fault, ModelServer, call, reply, say, think
from tests.models.asking import KEY, ask, events_of, last_body, model_at, resolved, response_of, texts, thoughts

pytestmark = pytest.mark.anyio

NEW = "gemini-3.8-flash"
USAGE = {
    "promptTokenCount": 100,
    "cachedContentTokenCount": 60,
    "candidatesTokenCount": 7,
    "thoughtsTokenCount": 20,
    "toolUsePromptTokenCount": 5,
    "totalTokenCount": 132,
}


def chunk(*parts: dict[str, Any], **candidate: Any) -> dict[str, Any]:
    content = {"parts": list(parts), "role": "model"}
    told = {"candidates": [{"content": content, "index": 0, **candidate}], "modelVersion": NEW, "responseId": "r1"}
    return {**told, "usageMetadata": USAGE} if candidate else told


class Wire:
    """What the vendor sends, byte by byte, to the real SDK: for what no well-behaved server says."""

    def __init__(self, *answers: httpx.Response) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._answers = list(answers)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(json.loads(request.content))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def model(self, **settings: Any) -> GeminiModel:
        client = httpx.AsyncClient(transport=httpx.MockTransport(self))
        return GeminiModel(NEW, http_client=client, api_key=KEY, **settings)


def stream(*chunks: dict[str, Any]) -> httpx.Response:
    data = "".join(f"data: {json.dumps(one)}\r\n\r\n" for one in chunks)
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=data)


def error(code: int, status: str, message: str = "no", *details: dict[str, Any]) -> httpx.Response:
    return httpx.Response(
        code, json={"error": {"code": code, "status": status, "message": message, "details": details}}
    )


async def test_nothing_of_a_stream_is_lost() -> None:
    sources = {"webSearchQueries": ["q"]}
    wire = Wire(
        stream(
            chunk({"text": "H", "thought": True}),
            chunk({"text": "m", "thought": True}),
            chunk({"executableCode": {"code": "1 + 1", "language": "PYTHON"}}),
            chunk({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}}),
            chunk({"text": "It is"}),
            chunk({"text": " 2."}),
            chunk({"functionCall": {"name": "add", "args": {"a": 1}}, "thoughtSignature": "QUJD"}),
            chunk({"functionCall": {"name": "now"}}, groundingMetadata=sources),
            chunk({"text": "", "thoughtSignature": "REVG"}, finishReason="STOP"),
        )
    )
    events = await events_of(wire.model(), ask())
    response = events[-1]
    assert (thoughts(events), texts(events)) == ("Hm", "It is 2.")
    assert [type(event) for event in events[:4]] == [ThinkingDelta, ThinkingDelta, TextDelta, TextDelta]
    content = response.message.content  # type: ignore[union-attr]
    assert content == (
        Thinking("Hm", extra={"gemini": {"thought": True}}),
        Opaque("gemini", {"executableCode": {"code": "1 + 1", "language": "PYTHON"}}),
        Opaque("gemini", {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}}),
        Text("It is 2.", {"gemini": {"candidate": {"groundingMetadata": sources}}}),
        ToolCall("call_r1_0", "add", {"a": 1}, {"gemini": {"thoughtSignature": "QUJD"}}),
        ToolCall("call_r1_1", "now", {}),
        Thinking(extra={"gemini": {"thoughtSignature": "REVG"}}),
    )
    assert response.usage == Usage(105, 27, cache_read_tokens=60, reasoning_tokens=20)  # type: ignore[union-attr]
    assert plain_text(response.message) == "It is 2."  # type: ignore[union-attr]


async def test_a_signature_at_the_end_of_a_text_does_not_cut_it() -> None:
    last = chunk({"text": " 2.", "thoughtSignature": "REVG"}, finishReason="STOP")
    message = (await response_of(Wire(stream(chunk({"text": "It is"}), last)).model(), ask())).message
    assert plain_text(message) == "It is 2."
    assert message.content == (Text("It is 2."), Thinking(extra={"gemini": {"thoughtSignature": "REVG"}}))


async def test_a_response_goes_back_as_it_came() -> None:
    parts: list[dict[str, Any]] = [
        {"text": "Hm", "thought": True},
        {"text": "Looking."},
        {"functionCall": {"id": "f1", "name": "add", "args": {"a": 1}}, "thoughtSignature": "-_8="},
    ]
    wire = Wire(stream(chunk(*parts, finishReason="STOP")), stream(chunk({"text": "3"}, finishReason="STOP")))
    model = wire.model()
    first = (await response_of(model, ask())).message
    result = tool(ToolResult("f1", (Text("3"),)))
    await response_of(model, ask(user("Hello"), first, result))
    sent = wire.bodies[1]["contents"]
    made = types.Content.model_validate_json(json.dumps(sent[1])).parts or []
    assert [(part.text, part.thought) for part in made[:2]] == [("Hm", True), ("Looking.", None)]
    assert made[2].thought_signature == b"\xfb\xff"
    assert made[2].function_call == types.FunctionCall(id="f1", name="add", args={"a": 1})
    answer = types.Content.model_validate_json(json.dumps(sent[2])).parts or []
    assert answer[0].function_response == types.FunctionResponse(id="f1", name="add", response={"output": "3"})


async def test_a_response_can_be_had_in_one_piece() -> None:
    async with ModelServer([think("Hm.") + say("One two.") + call("now")]) as server:
        model = model_at(server, "gemini", streaming=False)
        events = await events_of(model, ask(tools=(ToolSpec("now"),)))
        await model.aclose()
    assert server.requests[0].path.endswith(":generateContent")
    assert (thoughts(events), texts(events)) == ("Hm.", "One two.")
    assert len(tool_calls(events[-1].message)) == 1  # type: ignore[union-attr]


PAST: tuple[Message, ...] = (
    user("Add."),
    assistant(Thinking("Hm", "signed by another"), ToolCall("c1", "add", {}), ToolCall("c2", "add", {})),
    tool(ToolResult("c1", (Text("3"),)), ToolResult("c2", (Text("4"),))),
)


@pytest.mark.parametrize(("name", "signed"), [(NEW, [True, False]), ("gemini-2.5-pro", [False, False])])
async def test_calls_of_another_vendors_model_get_the_stand_in_that_new_models_ask_for(
    name: str, signed: list[bool]
) -> None:
    async with ModelServer(lambda _: "Right.") as server:
        model = model_at(server, "gemini", name)
        response = await response_of(model, ask(*PAST))
        await model.aclose()
    assert plain_text(response.message) == "Right."
    sent = server.requests[0].conversation[1]
    assert [made.extra is not None for made in tool_calls(sent)] == signed


async def test_a_signature_that_is_refused_is_left_out_and_the_call_is_made_again() -> None:
    mine = ToolCall("c1", "add", {}, {"gemini": {"thoughtSignature": "QUJD"}})
    fault = Fault(status=400, message="Corrupted thought signature.")
    async with ModelServer(lambda _: "Right.", faults={1: fault}) as server:
        model = model_at(server, "gemini", NEW)
        events = await events_of(model, ask(user("Add."), assistant(mine), tool(ToolResult("c1", (Text("3"),)))))
        await model.aclose()
    assert isinstance(events[0], Retrying)
    (made,) = tool_calls(server.requests[1].conversation[1])
    assert made.extra is not None
    assert made.extra != mine.extra


async def test_the_wait_that_the_vendor_asks_for_is_in_the_error() -> None:
    wait = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.05s"}
    wire = Wire(error(429, "RESOURCE_EXHAUSTED", "slow down", wait), stream(chunk({"text": "Hi"}, finishReason="STOP")))
    first, *_ = await events_of(wire.model(), ask())
    assert isinstance(first, Retrying)
    assert (first.after, first.reason) == (0.05, "HTTP 429, RESOURCE_EXHAUSTED")


async def test_the_quota_of_a_whole_day_is_not_waited_for() -> None:
    quota = {"@type": "x", "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}
    wire = Wire(error(429, "RESOURCE_EXHAUSTED", "You exceeded your quota", quota))
    with pytest.raises(ModelRefused, match="exceeded your quota"):
        await events_of(wire.model(), ask())
    assert len(wire.bodies) == 1


async def test_a_key_that_is_not_valid_is_called_that() -> None:
    reason = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
    wire = Wire(error(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", reason))
    with pytest.raises(ModelRefused, match="GEMINI_API_KEY") as caught:
        await events_of(wire.model(), ask())
    assert caught.value.status == 401
    assert caught.value.is_free


@pytest.mark.parametrize("code", [429, 503])
async def test_an_error_inside_a_stream_may_have_cost_something(code: int) -> None:
    said = {"error": {"code": code, "status": "UNAVAILABLE", "message": "overloaded"}}
    wire = Wire(stream(chunk({"text": "On"}), said))
    with pytest.raises(ModelUnavailable) as caught:
        await events_of(wire.model(max_retries=0), ask())
    assert not caught.value.is_free


async def test_a_prompt_that_is_blocked_is_refused_and_not_sent_again() -> None:
    blocked = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 9}}
    wire = Wire(stream(blocked))
    with pytest.raises(ModelRefused, match="PROHIBITED_CONTENT"):
        await events_of(wire.model(), ask())
    assert len(wire.bodies) == 1


async def test_a_call_that_the_vendor_could_not_read_is_asked_for_again() -> None:
    spoilt = stream(chunk(finishReason="MALFORMED_FUNCTION_CALL"))
    wire = Wire(spoilt, stream(chunk({"text": "Hi"}, finishReason="STOP")))
    events = await events_of(wire.model(), ask())
    assert [event.attempt for event in events if isinstance(event, Retrying)] == [2]
    assert texts(events) == "Hi"


@pytest.mark.parametrize("reason", ["SAFETY", "MAX_TOKENS"])
async def test_a_response_may_say_nothing_but_why(reason: str) -> None:
    wire = Wire(stream(chunk(finishReason=reason)))
    message = (await response_of(wire.model(), ask())).message
    assert (message.content, message.stop) == ((), reason)


async def test_options_are_the_vendors_in_either_spelling() -> None:
    options = {"thinkingConfig": {"include_thoughts": True}, "tools": [{"google_search": {}}], "top_k": 4}
    async with ModelServer(["ok"]) as server:
        model = model_at(server, "gemini")
        await response_of(model, ask(options=options, tools=(ToolSpec("now"),)))
        await model.aclose()
    body = last_body(server)
    assert body["generationConfig"]["thinkingConfig"] in ({"includeThoughts": True}, {"include_thoughts": True})
    assert body["generationConfig"]["topK"] == 4
    assert {key for tools in body["tools"] for key in tools} == {"functionDeclarations", "googleSearch"}


async def test_options_that_the_sdk_cannot_read_are_named() -> None:
    with pytest.raises(InvalidInput, match="temperature"):
        await response_of(Wire(stream()).model(), ask(options={"temperature": "hot"}))


@pytest.mark.parametrize("name", ["contents", "systemInstruction", "candidate_count"])
async def test_an_option_that_clew_sets_itself_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="Clew sets it itself"):
        await response_of(Wire(stream()).model(), ask(options={name: 2}))


async def test_what_the_sdk_refuses_is_told_in_its_words() -> None:
    with pytest.raises(InvalidInput, match="audio_timestamp"):
        await response_of(Wire(stream()).model(), ask(options={"audio_timestamp": True}))


async def test_a_response_in_another_format_is_asked_for_again_and_not_quoted() -> None:
    strange = stream({"candidates": [{"content": {"parts": "secret"}, "finishReason": "STOP"}]})
    with pytest.raises(ModelUnavailable, match="format") as caught:
        await response_of(Wire(strange).model(max_retries=0), ask())
    assert "secret" not in str(caught.value)


def test_a_timeout_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidInput, match="seconds"):
        GeminiModel(NEW, timeout=httpx.Timeout(5))


async def test_a_part_that_the_sdk_does_not_know_is_named_without_what_it_says() -> None:
    strange = user("Hello", Opaque("gemini", {"hologram": "secret"}))
    with pytest.raises(InvalidInput, match="hologram") as caught:
        await response_of(Wire(stream()).model(), ask(strange))
    assert "secret" not in str(caught.value)


async def test_settings_that_other_vendors_have_as_arguments_are_arguments_here() -> None:
    async with ModelServer(["Hi."]) as server:
        headers = {"x-mine": "yes"}
        model = GeminiModel(NEW, api_key=KEY, base_url=server.gemini_url, timeout=7, default_headers=headers)
        await response_of(model, ask())
        await model.aclose()
    assert server.requests[0].headers["x-mine"] == "yes"
    assert server.requests[0].headers["x-server-timeout"] == "7"


async def test_google_cloud_is_asked_with_a_project_in_place_of_a_key() -> None:
    script = [think("Hm.") + call("now"), say("Noon.")]
    async with ModelServer(script, key="a-token") as server:
        credentials = Credentials(token="a-token")  # type: ignore[no-untyped-call]
        where: dict[str, Any] = {"vertexai": True, "project": "p", "location": "global", "credentials": credentials}
        model = GeminiModel(NEW, base_url=server.gemini_url, **where)
        first = (await response_of(model, ask(tools=(ToolSpec("now"),)))).message
        (made,) = tool_calls(first)
        again = ask(user("Hello"), first, tool(ToolResult(made.id, (Text("12"),))), tools=(ToolSpec("now"),))
        assert plain_text((await response_of(model, again)).message) == "Noon."
        await model.aclose()
    place = "/v1beta1/projects/p/locations/global/publishers/google/models"
    assert server.requests[0].path == f"{place}/{NEW}:streamGenerateContent"


async def test_a_client_of_the_users_own_is_used_and_left_open() -> None:
    async with ModelServer(lambda _: "Hi.") as server, httpx.AsyncClient() as http:
        options = types.HttpOptions(base_url=server.gemini_url, httpx_async_client=http)
        client = genai.Client(api_key=KEY, http_options=options)
        model = GeminiModel(NEW, client=client)
        for _ in range(2):
            assert plain_text((await response_of(model, ask())).message) == "Hi."
            await model.aclose()
        client.close()


def test_a_client_of_the_users_own_takes_no_settings() -> None:
    with pytest.raises(InvalidInput, match="base_url"):
        GeminiModel(NEW, client=genai.Client(api_key=KEY), base_url="http://127.0.0.1:9")


def test_the_window_is_known_or_said_or_none() -> None:
    assert resolved("gemini:gemini-2.5-pro").context_window == 1_048_576
    assert resolved("gemini:gemini-2.5-pro", context_window=5).context_window == 5
    assert resolved("gemini:of-nobody").context_window is None


async def test_what_a_response_cost_is_known_with_its_thoughts_and_its_cache() -> None:
    usage = Usage(1_000_000, 200_000, cache_read_tokens=400_000, reasoning_tokens=150_000)
    async with ModelServer([reply("Hi.", usage=usage)]) as server:
        model = model_at(server, "gemini", NEW)
        response = await response_of(model, ask())
        await model.aclose()
    cost = cost_of([response.model, model.name], response.usage)
    assert cost == pytest.approx(0.6 * 0.75 + 0.4 * 0.075 + 0.2 * 3.75)
    assert cost_of("gemini:gemini-2.5-pro", Usage(200_001, 0)) == pytest.approx(0.200001 * 2.5)
