"""Random conversations for the dialects: likely ones, silly ones, and ones that only a vandal would make."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from clew.messages import (
    Assistant,
    Block,
    File,
    Image,
    Json,
    Message,
    Opaque,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    User,
)
from tests import strategies as any_
from tests.sampling import FULL


def examples(full: int, sample: int) -> int:
    """How many examples a property gets: all in the long run, a sample otherwise."""
    return full if FULL else sample


_EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
_CITATION = {"type": "web_search_result_location", "cited_text": "x", "encrypted_index": "e", "title": None, "url": "u"}
_ANNOTATION = {"type": "url_citation", "start_index": 0, "end_index": 1, "title": "t", "url": "https://x.example"}
_BREAKPOINT = {"prompt_cache_breakpoint": {"mode": "explicit"}}

EXTRAS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "anthropic": {
        "text": [_EPHEMERAL, {"citations": [_CITATION]}],
        "image": [_EPHEMERAL],
        "file": [_EPHEMERAL, {"citations": {"enabled": True}, "context": "c"}],
        "thinking": [],
        "call": [_EPHEMERAL, {"caller": {"type": "direct"}}],
        "result": [_EPHEMERAL],
    },
    "openai-chat": {
        "text": [_BREAKPOINT],
        "image": [{"image_url": {"detail": "low"}}, _BREAKPOINT],
        "file": [_BREAKPOINT],
        "thinking": [],
        "call": [{"type": "custom"}, {"arguments": '{ "a": 1 }'}, {"index": 0}],
        "result": [{"name": "f"}],
    },
    "openai-responses": {
        "text": [
            {"message": {"id": "msg_1"}},
            {"message": {"id": "msg_2", "phase": "final_answer", "status": "incomplete"}},
            {"message": {"phase": "commentary"}},
            {"message": {"role": "developer"}},
            {"annotations": [_ANNOTATION]},
            {"annotations": [_ANNOTATION], "message": {"id": "msg_3", "status": "completed"}},
        ],
        "image": [{"detail": "low"}, {"detail": "auto"}, {"message": {"id": "msg_4"}}],
        "file": [_BREAKPOINT],
        "thinking": [
            {"id": "rs_1"},
            {"id": "rs_2", "status": "completed"},
            {"id": "rs_3", "summary": [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]},
        ],
        "call": [{"id": "fc_1", "status": "completed"}, {"type": "custom_tool_call"}, {"arguments": '{ "a": 1 }'}],
        "result": [{"id": "fco_1", "status": "completed"}],
    },
    "gemini": {
        "text": [{"thoughtSignature": "QUJD"}, {"candidate": {"groundingMetadata": {"webSearchQueries": ["q"]}}}],
        "image": [{"mediaResolution": {"level": "MEDIA_RESOLUTION_LOW"}}, {"thoughtSignature": "QUJD"}],
        "file": [{"videoMetadata": {"fps": 1.0}}, {"mediaResolution": {"level": "MEDIA_RESOLUTION_LOW"}}],
        "thinking": [{"thought": True}, {"thought": True, "thoughtSignature": "QUJD"}, {"thoughtSignature": "QUJD"}],
        "call": [{"thoughtSignature": "QUJD"}, {"functionCall": {"willContinue": False}}],
        "result": [{"functionResponse": {"scheduling": "SILENT"}}],
    },
}
OPAQUES: dict[str, list[Any]] = {
    "anthropic": [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [{"type": "web_search_result", "encrypted_content": "e", "title": "t", "url": "u"}],
        },
        {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "x"}]},
        {"type": "container_upload", "file_id": "file_1"},
        {"type": "tool_reference", "tool_name": "t"},
        {"type": "text", "text": "a text after all"},
        {"type": "tool_use", "id": "a", "name": "f", "input": {}},
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "tool_result", "tool_use_id": "b"}]},
        {"type": "document", "source": {"type": "content", "content": "words"}},
    ],
    "openai-chat": [
        {"type": "refusal", "refusal": "No."},
        {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}},
        {"type": "text", "text": "a text after all"},
        {"type": "image_url", "image_url": {"url": "https://x.example/a.png", "detail": "high"}},
        {"message": {"name": "bob"}},
        {"message": {"role": "developer", "name": "eve"}},
        {"message": {"audio": {"id": "audio_1"}}},
        {"message": {"role": "function", "name": "f", "content": "result"}},
        {"message": {"role": "user", "content": "not so", "tool_calls": 5}},
    ],
    "openai-responses": [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "item_reference", "id": "msg_9"},
        {
            "type": "message",
            "id": "msg_5",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "refusal", "refusal": "No."}],
        },
        {"type": "local_shell_call_output", "id": "lso_1", "output": "{}"},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "message", "role": "user", "content": "a text after all"},
    ],
    "gemini": [
        {"executableCode": {"code": "1 + 1", "language": "PYTHON"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
        {"inlineData": {"mimeType": "image/gif", "data": "QUJD"}},
        {"partMetadata": {"a": 1}},
        {"text": "a text after all"},
        {"text": "", "thoughtSignature": "QUJD"},
        {"text": "hm", "thought": True},
        {"functionCall": {"name": "f", "args": {}}},
        {"functionResponse": {"id": "a", "name": "f", "response": {"result": 1}}},
    ],
}
_GARBLED: list[Any] = [
    {"type": "text", "text": 5},
    {"type": "x", "content": [1]},
    {"type": "message", "role": "user", "content": [{"type": "novel", "x": 1}]},
    {"type": "message", "role": "assistant", "id": "msg_1", "content": [{"type": "input_image"}]},
    {"type": "image", "source": {"type": "novel"}},
    {"type": "image_url", "image_url": {"url": "data:image/jpg;base64,QQ=="}},
    {"type": "reasoning", "summary": [], "encrypted_content": "sealed"},
    {"type": "reasoning", "id": "rs_1", "summary": 7},
    {"type": 5},
    {"role": "user"},
    {"message": {"role": "novel", "type": "text"}},
    {"message": {"name": None, "annotations": [], "x": 1}},
    {"message": {}},
    {"text": "two", "functionCall": {"name": "f"}},
    {"text": "", "thought": True},
    {"text": "x", "thought": "yes"},
    {"inlineData": {"mimeType": "image/png", "data": "_-8"}},
    {"fileData": {"fileUri": "ftp://x"}},
    {"fileData": {"fileUri": "gs://x/y", "displayName": "y"}},
    {"functionCall": {"args": {}}},
    {"functionResponse": {"response": 5}},
    {"functionResponse": {"name": "f", "response": {"output": ["a", None, [1]]}, "parts": [{"inlineData": {}}]}},
    {"thoughtSignature": "alone"},
    {"text": None},
    [],
    None,
]

_words = st.sampled_from(["", " ", "hello", "bye  ", "\n", "[attachment 1]", '{"a":1}', "5"]) | any_.text
_marks = st.just("[attachment 1: see the user message after the tool results]")
_ids = st.sampled_from(["a", "b", "c", "", "not ok", "x" * 80, "é", "a\n"])
_names = st.sampled_from(["search", "", "a.b/c", "n" * 200])
_arguments = (
    st.dictionaries(any_.text, any_.json_values, max_size=2)
    | st.sampled_from(["", "{", '{"a":1}', "5", "NaN", {"a": 1}, {"a": float("nan")}, {"n": 10**30}, None, [1], (1,)])
    | any_.json_values
)
_media = st.sampled_from(
    ["image/png", "image/jpg", "image/tiff", "application/pdf", "text/plain", "text/csv", "", "x;y"]
)
_data = st.sampled_from([None, b"", b"\x89PNG", b"some text", b"\xff"])
_urls = st.sampled_from([None, "", "https://x.example/a", "ftp://x", "data:image/png;base64,QQ=="])
_file_ids = st.sampled_from([None, "", "file_1", "file-1", "gs://bucket/a.png"])


def _extras(dialect: str, kind: str, vandal: bool) -> st.SearchStrategy[Any]:
    known = [{name: fields} for name, kinds in EXTRAS.items() for fields in kinds[kind]]
    mine = [{dialect: fields} for fields in EXTRAS[dialect][kind]]
    some = st.none() | st.none() | st.sampled_from([*known, {}, {dialect: {}}, {"other": 1}, {dialect: 1}])
    if mine:
        some |= st.sampled_from(mine)
    if vandal:
        keys = st.sampled_from(
            [
                *("type", "text", "id", "message", "role", "arguments", "custom", "image_url", "content"),
                *("thought", "functionCall", "functionResponse", "inlineData"),
            ]
        )
        some |= st.dictionaries(keys, any_.json_values | st.just({"id": 5}) | st.just([]), max_size=3).map(
            lambda fields: {dialect: fields}
        )
    return some


class _Kinds:
    """Strategies for the kinds of blocks, with extras and opaque values that this dialect may meet."""

    def __init__(self, dialect: str, vandal: bool) -> None:
        def extra(kind: str) -> st.SearchStrategy[Any]:
            return _extras(dialect, kind, vandal)

        values = [(name, value) for name, all_of in OPAQUES.items() for value in all_of]
        values += [(dialect, value) for value in OPAQUES[dialect]] * 2
        values += [(dialect, value) for value in _GARBLED] if vandal else []
        self.opaques = st.sampled_from(values).map(lambda pair: Opaque(*pair))
        self.images = st.builds(Image, _media, _data, _urls, _file_ids, extra("image"))
        self.files = st.builds(File, st.sampled_from(["", "a.pdf"]), _media, _data, _urls, _file_ids, extra("file"))
        self.texts = st.builds(Text, _words, extra("text"))
        self.jsons = st.builds(Json, any_.json_values)
        sealed = st.sampled_from([None, "", "sealed"])
        self.thinking = st.builds(Thinking, st.sampled_from(["", "hm", "a\n\nb"]), sealed, sealed, extra("thinking"))
        self.calls = st.builds(ToolCall, _ids, _names, _arguments, extra("call"))
        inside = st.one_of(self.texts, self.images, self.files, self.jsons, self.opaques, st.builds(Text, _marks))
        self.results = st.builds(
            ToolResult, _ids, st.lists(inside, max_size=3).map(tuple), st.booleans(), extra("result")
        )

    def any_block(self) -> st.SearchStrategy[Block]:
        return st.one_of(
            self.texts, self.images, self.files, self.jsons, self.opaques, self.thinking, self.calls, self.results
        )


@cache
def conversations(dialect: str, vandal: bool = False) -> st.SearchStrategy[list[Message]]:
    """Any block in any role, in any order; ids and the like from so few that they often meet."""
    kinds = _Kinds(dialect, vandal)
    silly = _contents(kinds.any_block())
    response = _contents(st.one_of(kinds.texts, kinds.thinking, kinds.calls, kinds.calls, kinds.opaques))
    return st.lists(
        st.one_of(
            st.builds(System, silly),
            st.builds(User, silly),
            st.builds(Tool, silly),
            st.builds(Assistant, silly, st.sampled_from(["", "m"])),
            st.builds(System, _contents(kinds.texts)),
            st.builds(User, _contents(st.one_of(kinds.texts, kinds.images, kinds.files, kinds.opaques))),
            st.builds(Assistant, response),
            st.builds(Tool, _contents(kinds.results)),
            st.builds(Tool, _contents(kinds.results)),
        ),
        max_size=6,
    )


@cache
def sound_conversations(dialect: str) -> st.SearchStrategy[list[Message]]:
    """Conversations as they really are, that lose nothing."""
    words = st.sampled_from(["hello", "bye", "é", "5", "{}"])
    text = st.builds(Text, words)
    linked = Image("image/png" if dialect == "gemini" else "", url="https://x.example")
    image = st.builds(Image, st.just("image/png"), st.just(b"png")) | st.just(linked)
    name = "" if dialect == "gemini" else "a.pdf"
    file = st.builds(File, st.just(name), st.just("application/pdf"), st.just(b"%PDF"))
    content = st.lists(text | image | file, min_size=1, max_size=2).map(tuple)
    arguments = st.sampled_from([{"a": 1}, {}, {"b": [None, 1.5]}])
    errors = st.booleans() if dialect in ("anthropic", "gemini") else st.just(False)
    sealed = {
        "anthropic": [Thinking("hm", "sig"), Thinking(encrypted="sealed")],
        "openai-chat": [],
        "openai-responses": [Thinking("hm", encrypted="sealed")],
        "gemini": [Thinking("hm", extra=_gemini(thought=True)), Thinking(extra=_gemini(thoughtSignature="QUJD"))],
    }[dialect]

    @st.composite
    def conversation(draw: st.DrawFn) -> list[Message]:
        messages: list[Message] = [System((draw(text),))] if draw(st.booleans()) else []
        messages.append(User(draw(content)))
        for turn in range(draw(st.integers(0, 2))):
            ids = [f"call_{turn}_{number}" for number in range(draw(st.integers(0, 2)))]
            thinking: list[Block] = [*draw(st.lists(st.sampled_from(sealed), max_size=1))] if sealed else []
            if dialect == "openai-responses":
                thinking = [Thinking("hm", encrypted="sealed", extra=_item(f"rs_t{turn}")) for _ in thinking]
            calls = [ToolCall(one, "search", draw(arguments)) for one in ids]
            messages.append(Assistant((*thinking, draw(text), *calls)))
            if ids:
                messages.append(Tool(tuple(ToolResult(one, draw(content), draw(errors)) for one in ids)))
            messages += draw(st.lists(st.builds(User, content), max_size=2))
        return messages

    return conversation()


@cache
def nearly_sound_conversations(dialect: str) -> st.SearchStrategy[list[Message]]:
    """Sound but for one block, somewhere: nothing else is lost that could hide what becomes of it."""
    odd = _Kinds(dialect, True).any_block()
    same = st.sampled_from(["call_0_0", "call_1_0", "call_9_9"])
    close = st.one_of(
        odd,
        odd,
        st.builds(ToolResult, same, st.lists(st.builds(Text, _words), max_size=1).map(tuple)),
        st.builds(ToolCall, same, st.just("search"), st.just({})),
    )

    @st.composite
    def conversation(draw: st.DrawFn) -> list[Message]:
        messages = draw(sound_conversations(dialect))
        index = draw(st.integers(0, len(messages)))
        if index == len(messages):
            kind: Any = draw(st.sampled_from([System, User, Assistant, Tool]))
            messages.insert(draw(st.integers(0, len(messages))), kind((draw(close),)))
            return messages
        content = list(messages[index].content)
        content.insert(draw(st.integers(0, len(content))), draw(close))
        if draw(st.booleans()) and len(content) > 1:
            content.pop(draw(st.integers(0, len(content) - 1)))
        messages[index] = type(messages[index])(tuple(content))
        return messages

    return conversation()


def _gemini(**fields: Any) -> dict[str, Any]:
    return {"gemini": fields}


def _item(item_id: str) -> dict[str, Any]:
    return {"openai-responses": {"id": item_id}}


def _contents(kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Block, ...]]:
    return st.lists(kinds, max_size=4).map(tuple)
