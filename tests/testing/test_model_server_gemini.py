"""`ModelServer`, as Google's own client sees it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from google.genai import errors, types

from clew.log import Usage
from clew.messages import Image, ToolResult, plain_text
from clew.testing import ModelServer, call, reply, say, think
from tests.testing.test_model_server import gemini_client

pytestmark = pytest.mark.anyio

USAGE = Usage(input_tokens=100, output_tokens=20, cache_read_tokens=60, reasoning_tokens=8)
BUSY = reply(
    think("Two sums."), say("Let me see."), call("add", a=1, b=2), call("add", a="\u00e4\n", b=[4]), usage=USAGE
)
MODEL = "gemini-3.8-flash"


def content(role: str, *parts: Any) -> types.Content:
    return types.Content.model_validate({"role": role, "parts": parts})


def check(response: types.GenerateContentResponse) -> None:
    assert response.candidates is not None
    (candidate,) = response.candidates
    assert candidate.content is not None
    assert candidate.finish_reason == types.FinishReason.STOP
    parts = candidate.content.parts or []
    assert [(part.text, part.thought) for part in parts[:2]] == [("Two sums.", True), ("Let me see.", None)]
    made = [part.function_call for part in parts if part.function_call]
    assert [(one.id, one.name, one.args) for one in made] == [
        ("call_1_1", "add", {"a": 1, "b": 2}),
        ("call_1_2", "add", {"a": "\u00e4\n", "b": [4]}),
    ]
    assert [bool(part.thought_signature) for part in parts] == [False, False, True, False]
    usage = response.usage_metadata
    assert usage is not None
    counted = (usage.prompt_token_count, usage.cached_content_token_count, usage.total_token_count)
    assert counted == (100, 60, 120)
    assert (usage.candidates_token_count, usage.thoughts_token_count) == (12, 8)
    assert response.model_version == MODEL


async def test_a_response_comes_whole_and_in_pieces_to_both_clients() -> None:
    async with ModelServer([BUSY]) as server, httpx.AsyncClient() as http:
        with gemini_client(server, later=http) as client:
            check(client.models.generate_content(model=MODEL, contents="Hi"))
            pieces = list(client.models.generate_content_stream(model=MODEL, contents="Hi"))
            check(await client.aio.models.generate_content(model=MODEL, contents="Hi"))
            later = [
                piece async for piece in await client.aio.models.generate_content_stream(model=MODEL, contents="Hi")
            ]
    for stream in (pieces, later):
        assert "".join(piece.text or "" for piece in stream[:-1]) == "Let me see."
        assert sum(len(piece.function_calls or ()) for piece in stream) == 2
        assert [bool(piece.candidates and piece.candidates[0].finish_reason) for piece in stream][-2:] == [False, True]
    assert [record.outcome for record in server.requests] == ["answered"] * 4
    assert {record.dialect for record in server.requests} == {"gemini"}


def test_what_the_client_sends_is_recorded_in_canonical_words() -> None:
    tool = {"name": "add", "description": "Add.", "parameters_json_schema": {"type": "object"}}
    config: Any = {
        "system_instruction": "Be brief.",
        "tools": [{"function_declarations": [tool]}],
        "tool_config": {"function_calling_config": {"mode": "ANY"}},
        "max_output_tokens": 9,
    }
    asked = content("user", {"text": "Look."}, {"inline_data": {"mime_type": "image/png", "data": b"\x89PNG"}})
    made = content("model", {"function_call": {"id": "c1", "name": "add", "args": {"a": 1}}, "thought_signature": b"s"})
    result = content("user", {"function_response": {"id": "c1", "name": "add", "response": {"output": "3"}}})
    with ModelServer(["Hi.", "Ho."]) as server, gemini_client(server) as client:
        client.models.generate_content(model=MODEL, contents=[asked, made, result], config=config)
    (record,) = server.requests
    assert record.request is not None
    assert (record.request.system, record.request.tool_choice, record.request.max_tokens) == (
        "Be brief.",
        "required",
        9,
    )
    assert (record.request.tools[0].name, record.request.tools[0].parameters) == ("add", {"type": "object"})
    assert record.headers["x-goog-api-key"] == "(not kept)"
    first, _, last = record.conversation
    assert first.content[1] == Image("image/png", b"\x89PNG")
    assert isinstance(last.content[0], ToolResult)
    assert (plain_text(first), last.content[0].call_id) == ("Look.", "c1")


def test_tokens_are_counted_and_models_are_listed() -> None:
    with ModelServer(models=("one", "two")) as server, gemini_client(server) as client:
        assert client.models.count_tokens(model="one", contents="x" * 40).total_tokens == 10
        assert [model.name for model in client.models.list()] == ["models/one", "models/two"]
        assert client.models.get(model="two").display_name == "two"
        with pytest.raises(errors.ClientError) as caught:
            client.models.get(model="three")
    assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")
    assert server.calls == 0


CALLED = {"function_call": {"id": "c1", "name": "add", "args": {}}}
SIGNED = {**CALLED, "thought_signature": b"signed"}
ANSWERED = {"function_response": {"id": "c1", "name": "add", "response": {"output": "3"}}}


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ([content("user", {"text": "Hi"}), content("model", SIGNED)], "number of function response parts"),
        ([content("user", ANSWERED)], "immediately after a function call turn"),
        ([content("model", {"text": "Hi"}), content("user", {"text": "Hi"})], "begin with a user role"),
        (
            [content("user", {"text": "Hi"}), content("model", CALLED), content("user", ANSWERED)],
            "missing a thought_sig",
        ),
    ],
)
def test_a_conversation_is_refused_in_the_vendors_words(contents: Any, words: str) -> None:
    with (
        ModelServer(["Hi"] * 3) as server,
        gemini_client(server) as client,
        pytest.raises(errors.ClientError, match=words),
    ):
        client.models.generate_content(model=MODEL, contents=contents)
    with ModelServer(["Hi"] * 3, strict=False) as server, gemini_client(server) as client:
        assert client.models.generate_content(model=MODEL, contents=contents).text == "Hi"


def test_calls_of_models_before_gemini_3_need_no_signature() -> None:
    contents: Any = [content("user", {"text": "Hi"}), content("model", CALLED), content("user", ANSWERED)]
    with ModelServer(["Hi", "Ho"]) as server, gemini_client(server) as client:
        assert client.models.generate_content(model="gemini-2.5-pro", contents=contents).text == "Ho"


def test_a_thought_that_was_changed_is_refused_by_its_signature() -> None:
    with ModelServer([think("So.") + say("Yes."), "Fine."]) as server, gemini_client(server) as client:
        first = client.models.generate_content(model=MODEL, contents="Hi")
        assert first.candidates is not None
        said = first.candidates[0].content
        assert said is not None
        assert said.parts is not None
        again: Any = [content("user", {"text": "Hi"}), said, content("user", {"text": "And?"})]
        assert client.models.generate_content(model=MODEL, contents=again).text == "Fine."
        said.parts[0].text = "Otherwise."
        with pytest.raises(errors.ClientError, match="Corrupted thought signature"):
            client.models.generate_content(model=MODEL, contents=again)


def test_a_key_that_is_required_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    with ModelServer(["Hi"], key="right") as server:
        with gemini_client(server) as client, pytest.raises(errors.ClientError) as caught:
            client.models.generate_content(model=MODEL, contents="Hi")
        assert (caught.value.code, caught.value.status) == (401, "UNAUTHENTICATED")
        with gemini_client(server, "right") as client:
            assert client.models.generate_content(model=MODEL, contents="Hi").text == "Hi"
    assert all("right" not in str(record) for record in server.requests)


@pytest.mark.parametrize(
    ("stop", "reason"), [("length", "MAX_TOKENS"), ("refusal", "SAFETY"), ("RECITATION", "RECITATION"), ("", "STOP")]
)
def test_stop_reasons_are_put_into_the_vendors_words(stop: str, reason: str) -> None:
    with ModelServer([reply("I", stop=stop)]) as server, gemini_client(server) as client:
        candidates = client.models.generate_content(model=MODEL, contents="Hi").candidates
        assert candidates is not None
        assert candidates[0].finish_reason == types.FinishReason(reason)
