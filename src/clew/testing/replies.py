"""Functions with which a test writes the responses of a scripted model, and `Reply`, the form into which every response
is converted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from clew.errors import InvalidInput
from clew.log import Usage
from clew.messages import Assistant, Block, File, Image, Json, Message, Opaque, Text, Thinking, ToolCall, ToolResult
from clew.messages.dialects.shared import arguments_text, dumps
from clew.models.base import ModelResponse, ToolSpec

__all__ = [
    "Reply",
    "Response",
    "call",
    "estimate",
    "fragments",
    "identified",
    "pieces",
    "reply",
    "reply_of",
    "say",
    "think",
]

_BLOCKS = (Text, Thinking, ToolCall, Opaque, Json, Image, File, ToolResult)
_MOST_PIECES = 64
"""The most pieces into which a text is split for streaming, so that a test with a very long text does not have to wait
for thousands of events."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One response of a scripted model, which a test prepares. `say("…") + call("…")` joins two into one response."""

    content: tuple[Block, ...] = ()
    usage: Usage | None = None
    """The tokens to report. With None, one token is reported for every four characters."""
    stop: str = ""
    """The stop reason to report, in any vendor's word. If empty, the reason is tool use for a response with tool calls;
    for any other response it is that the model is done."""
    model: str = ""
    """The model name to report. If empty, it is the name in the request."""
    delay: float = 0
    """Seconds before the first word, in addition to the model's own delay."""

    def __add__(self, other: Reply) -> Reply:
        if not isinstance(other, Reply):
            return NotImplemented
        return Reply(
            content=self.content + other.content,
            usage=other.usage or self.usage,
            stop=other.stop or self.stop,
            model=other.model or self.model,
            delay=self.delay + other.delay,
        )


Part = str | Block | Reply
Response = str | Assistant | ModelResponse | Reply | Block | Sequence[Part] | BaseException | type[BaseException]


def say(text: str) -> Reply:
    """Make a response in which the model says this text."""
    return Reply(content=(Text(text),))


def think(text: str, signature: str | None = None) -> Reply:
    """Make a response in which the model thinks this text. If `signature` is None, a model server signs the text. Over
    OpenAI's Chat Completions API, thinking is not sent."""
    return Reply(content=(Thinking(text, signature),))


def call(name: str, arguments: Any = None, /, **named: Any) -> Reply:
    """Make a response in which the model calls a tool: `call("add", a=1, b=2)`. Arguments that cannot be written as
    keywords are given as one value: `call("add", {"a-1": 1})`.

    The id of the call is made from two numbers: that of the response in the conversation, and that of the call in the
    response. So the id is the same when a run is resumed. To set an id of your own, use a `ToolCall` instead. Raises
    `InvalidInput` if arguments are given both as keywords and as one value.
    """
    if arguments is not None and named:
        raise InvalidInput("a call takes its arguments either as one value or by name, not both")
    return Reply(content=(ToolCall("", name, named if arguments is None else arguments),))


def reply(*parts: Part, usage: Usage | None = None, stop: str = "", model: str = "", delay: float = 0) -> Reply:
    """Join several parts (texts, `say(…)`, `call(…)`, `think(…)`) into one response. `usage`, `stop` (the stop reason),
    `model` (the model's name) and `delay` (seconds before the first word) are for the whole response."""
    whole = Reply(usage=usage, stop=stop, model=model, delay=delay)
    return sum((reply_of(part) for part in parts), Reply()) + whole


def reply_of(response: Response) -> Reply:
    """Convert a response to a `Reply`. A test may write a response in many forms, such as a text, a tool call, a list
    of these or a whole message. If the response is an exception, raise it. Raises `InvalidInput` for a value that
    cannot be a response."""
    if isinstance(response, BaseException) or (isinstance(response, type) and issubclass(response, BaseException)):
        raise response
    if isinstance(response, Reply):
        return response
    if isinstance(response, str):
        return say(response)
    if isinstance(response, Assistant):
        return Reply(content=response.content, stop=response.stop, model=response.model)
    if isinstance(response, ModelResponse):
        return msgspec.structs.replace(
            reply_of(response.message), usage=response.usage, model=response.model or response.message.model
        )
    if isinstance(response, _BLOCKS):
        return Reply(content=(response,))
    if isinstance(response, Sequence):
        return reply(*response)
    raise InvalidInput(
        f"a script's response is a text, say(…), call(…), think(…), a list of those, an Assistant message, "
        f"a ModelResponse or an error, not {type(response).__name__}"
    )


def identified(content: Sequence[Block], number: int, prefix: str = "call") -> tuple[Block, ...]:
    """Return the content of a response, with an id added to every tool call that has none. An id such as `call_1_2` is
    made of `prefix`, the number of the response, and the number of the call among the response's calls. In the id both
    numbers count from 1; the argument `number`, the number of the response, counts from 0."""
    calls = 0
    blocks: list[Block] = []
    for block in content:
        if isinstance(block, ToolCall):
            calls += 1
            if not block.id:
                block = msgspec.structs.replace(block, id=f"{prefix}_{number + 1}_{calls}")
        blocks.append(block)
    return tuple(blocks)


def pieces(text: str) -> list[str]:
    """Split a text into the pieces in which a scripted model streams it, at most 64 (`_MOST_PIECES`). Each piece is one
    word. A text with more than 64 words is split into groups of words instead, of equal size except for the last."""
    words = re.findall(r"\s*\S+\s*?|\s+", text)
    step = -(-len(words) // _MOST_PIECES) or 1
    return ["".join(words[at : at + step]) for at in range(0, len(words), step)]


def fragments(text: str) -> list[str]:
    """Split the JSON text of a tool call's arguments into the pieces in which a model server streams it, at most 64
    (`_MOST_PIECES`). All but the last have the same length, at least 8 characters."""
    step = max(8, -(-len(text) // _MOST_PIECES))
    return [text[at : at + step] for at in range(0, len(text), step)]


def estimate(messages: Sequence[Message], system: str, tools: Sequence[ToolSpec], content: Sequence[Block]) -> Usage:
    """Estimate the tokens of a request and of its response: one token for every four characters. So a test can compute
    the same numbers. `messages`, `system` and `tools` are the request, and `content` is the response."""
    asked = len(system) + sum(_length(block) for message in messages for block in message.content)
    asked += sum(len(tool.name) + len(tool.description) + len(dumps(tool.parameters)) for tool in tools)
    thought = sum(_length(block) for block in content if isinstance(block, Thinking))
    said = sum(_length(block) for block in content)
    return Usage(input_tokens=asked // 4, output_tokens=said // 4, reasoning_tokens=thought // 4)


def _length(block: Block) -> int:
    """Return the number of characters in a block, as a model would read it. Pictures and files count as 0."""
    if isinstance(block, (Text, Thinking)):
        return len(block.text)
    if isinstance(block, ToolCall):
        return len(block.name) + len(arguments_text(block.arguments))
    if isinstance(block, ToolResult):
        return sum(_length(inner) for inner in block.content)
    if isinstance(block, (Json, Opaque)):
        return len(dumps(block.value))
    return 0
