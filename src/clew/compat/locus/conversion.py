"""Translates conversations between the messages of Locus, another agent library, and those of Clew.

In Locus each tool result is a message of its own, and an image that a tool returned is written into its text. In Clew
the results of one response are one message, and images are blocks.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from clew import messages as clew_messages
from clew.compat.locus.state import AgentState, Message, Role, ToolCall, ToolExecution
from clew.log import Checkpoint, Logged, MessageAdded, ToolIntent
from clew.messages import Assistant, Image, Json, System, Text, Tool, User, plain_text, tool_calls

__all__ = [
    "added_messages",
    "conversation_of",
    "executions_in",
    "is_answered",
    "messages_at",
    "shared_with",
    "split_prompt",
    "state_of",
]

Block = Text | Image


def split_prompt(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """Return two things: the system prompt with which a conversation of Locus begins ("" if there is none), and the
    messages after the system prompt."""
    if messages and messages[0].role is Role.SYSTEM:
        return messages[0].content or "", messages[1:]
    return "", messages


def conversation_of(
    messages: Iterable[Message], executions: Iterable[ToolExecution] = ()
) -> list[clew_messages.Message]:
    """Translate messages of Locus, without the system prompt, into messages of Clew. `executions` tell which tool
    results are errors: the messages themselves do not say it."""
    failed = {done.tool_call_id: done.error for done in executions if done.error is not None}
    found: list[clew_messages.Message] = []
    for role, run in groupby(messages, lambda message: message.role):
        if role is Role.TOOL:
            found.append(Tool(tuple(_result(message, failed) for message in run)))
        elif role is Role.ASSISTANT:
            found += map(_response, run)
        else:
            kind = User if role is Role.USER else System
            found += [kind((Text(message.content or ""),)) for message in run]
    return found


def _response(message: Message) -> Assistant:
    said = (Text(message.content),) if message.content else ()
    calls = tuple(
        clew_messages.ToolCall(
            call.id, call.name, call.arguments if call.malformed_arguments is None else call.malformed_arguments
        )
        for call in message.tool_calls
    )
    return Assistant((*said, *calls))


def _result(message: Message, failed: Mapping[str, str]) -> clew_messages.ToolResult:
    call_id = message.tool_call_id or ""
    text = message.content or failed.get(call_id, "")
    return clew_messages.ToolResult(call_id, tuple(_blocks(text)), call_id in failed)


_IMAGE = re.compile(r"\n?\[locus-image media_type=([\w.+-]+/[\w.+-]+)\]\n([A-Za-z0-9+/=\s]*?)\n\[/locus-image\]\n?")


def _blocks(text: str) -> Iterator[Block]:
    """Split the text of a tool result of Locus into blocks: texts, and the images that Locus writes into such a text.
    What looks like an image but cannot be decoded stays text."""
    end = 0
    for found in _IMAGE.finditer(text):
        try:
            data = base64.b64decode("".join(found[2].split()), validate=True)
        except binascii.Error:
            continue
        if found.start() > end:
            yield Text(text[end : found.start()])
        yield Image(found[1], data)
        end = found.end()
    if end < len(text):
        yield Text(text[end:])


def messages_at(messages: Iterable[clew_messages.Message]) -> list[list[Message]]:
    """Translate messages of Clew into messages of Locus. Returns a list for each message of Clew, with the messages of
    Locus that stand for it: one for each tool result, or just one for any other message."""
    names: dict[str, str] = {}
    found: list[list[Message]] = []
    for message in messages:
        if isinstance(message, Tool):
            results = [block for block in message.content if isinstance(block, clew_messages.ToolResult)]
            found.append(
                [
                    Message(
                        role=Role.TOOL,
                        content=_text_of(result),
                        tool_call_id=result.call_id,
                        name=names.get(result.call_id),
                    )
                    for result in results
                ]
            )
            continue
        names |= {call.id: call.name for call in tool_calls(message)}
        calls = [_call(call) for call in tool_calls(message)]
        role = (
            Role.ASSISTANT
            if isinstance(message, Assistant)
            else Role.USER
            if isinstance(message, User)
            else Role.SYSTEM
        )
        said = plain_text(message)
        found.append([Message(role=role, content=said or (None if calls else ""), tool_calls=calls)])
    return found


def _call(call: clew_messages.ToolCall) -> ToolCall:
    if isinstance(call.arguments, dict):
        return ToolCall(id=call.id, name=call.name, arguments=call.arguments)
    return ToolCall(id=call.id, name=call.name, malformed_arguments=str(call.arguments))


def _text_of(result: clew_messages.ToolResult) -> str:
    parts: list[str] = []
    for block in result.content:
        if isinstance(block, Text):
            parts.append(block.text)
        elif isinstance(block, Json):
            parts.append(msgspec.json.encode(block.value).decode())
        elif isinstance(block, Image) and block.data is not None:
            data = base64.b64encode(block.data).decode()
            parts.append(f"\n[locus-image media_type={block.media_type}]\n{data}\n[/locus-image]\n")
    return "".join(parts)


def shared_with(before: Sequence[clew_messages.Message], messages: Sequence[Message]) -> tuple[int, int]:
    """Return how many messages at the beginning of two conversations are the same, as two numbers: how many they are in
    `before`, a conversation of Clew, and how many in `messages`, one of Locus. Only what Locus keeps of a message is
    compared: thinking, for example, is not."""
    shared, place = 0, 0
    for group in messages_at(before):
        if [_key(message) for message in group] != [_key(other) for other in messages[place : place + len(group)]]:
            break
        place += len(group)
        shared += 1
    return shared, place


def _key(message: Message) -> tuple[Any, ...]:
    return message.role, message.content or "", message.tool_calls, message.tool_call_id


def added_messages(messages: Sequence[clew_messages.Message], place: int) -> Iterator[Logged]:
    """Yield the log entries that add these messages to a thread. `place` is the index that the first one gets in the
    thread's history.

    A tool call without a result is recorded as one that may have begun, because nobody knows whether it did. The agent
    that goes on then decides by the tool's declared effect whether to run it again.
    """
    for index, message in enumerate(messages):
        yield MessageAdded(message)
        calls = tool_calls(message)
        following = messages[index + 1] if index + 1 < len(messages) else None
        answered = (
            {block.call_id for block in following.content if isinstance(block, clew_messages.ToolResult)}
            if isinstance(following, Tool)
            else set()
        )
        for number, call in enumerate(calls):
            if call.id not in answered:
                yield ToolIntent(place + index, number)


def is_answered(messages: Sequence[clew_messages.Message]) -> bool:
    """Return whether the conversation ends with a response of the model that calls no tool, so that there is nothing
    left to do."""
    return bool(messages) and isinstance(messages[-1], Assistant) and not tool_calls(messages[-1])


def executions_in(messages: Sequence[clew_messages.Message]) -> Iterator[ToolExecution]:
    """Yield a `ToolExecution` for each tool call that has a result, in the order of the conversation."""
    calls: dict[str, clew_messages.ToolCall] = {}
    for message in messages:
        calls |= {call.id: call for call in tool_calls(message)}
        for block in message.content:
            if not isinstance(block, clew_messages.ToolResult) or block.call_id not in calls:
                continue
            call, text = calls[block.call_id], _text_of(block)
            yield ToolExecution(
                tool_name=call.name,
                tool_call_id=call.id,
                arguments=_call(call).arguments,
                result=None if block.is_error else text,
                error=text if block.is_error else None,
            )


def state_of(thread_id: str, state: Checkpoint, messages: Sequence[clew_messages.Message]) -> AgentState:
    """Return the state of a thread as an `AgentState`, the form that Locus has for it. `messages` is the conversation
    up to the point for which the state is wanted. `state` is the thread's state in Clew, with the tokens, the cost and
    the values."""
    prompt = [Message.system(state.system_prompt)] if state.system_prompt else []
    done = tuple(executions_in(messages))
    usage = state.usage
    limit = state.limits.get("max_turns")
    return AgentState(
        run_id=thread_id,
        agent_id=state.agent or None,
        messages=(*prompt, *(message for group in messages_at(messages) for message in group)),
        iteration=sum(isinstance(message, Assistant) for message in messages),
        max_iterations=limit if isinstance(limit, int) else 20,
        tool_executions=done,
        tool_history=tuple(execution.tool_name for execution in done),
        total_tokens_used=usage.input_tokens + usage.output_tokens,
        prompt_tokens_used=usage.input_tokens,
        completion_tokens_used=usage.output_tokens,
        cache_creation_tokens_used=usage.cache_write_tokens,
        cache_read_tokens_used=usage.cache_read_tokens,
        cost_usd_used=state.cost_usd or 0.0,
        metadata={
            key: value for key, value in state.state.items() if not key.startswith("clew:") and value is not None
        },
    )
