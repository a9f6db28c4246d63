"""Rewrites a conversation of one agent, the source, to fit another, the target. Tool calls become calls of the target's
own tools, ids of tool calls become ids that the target accepts, and content that only another vendor can read is left
out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

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
    tool_calls,
)
from clew.messages.dialects import Loss
from clew.messages.dialects.arrange import NO_RESULT, CallRules, Ids
from clew.messages.dialects.losses import At, Notes
from clew.messages.dialects.shared import Extra
from clew.providers.base import Conversation
from clew.providers.fields import values
from clew.providers.registry import BUILT_IN_AGENT
from clew.providers.translate.tool_forms import SIDES
from clew.providers.translate.tool_names import map_call

__all__ = ["Fitted", "fit", "thinking_for"]


B = TypeVar("B", bound=Text | Thinking | ToolCall | ToolResult | Json | Image | File)

_DIALECTS = {"claude_code": "anthropic", "codex": "openai-responses", "opencode": "opencode"}
"""The dialect in which each provider keeps its blocks. Additional fields that a block has in other dialects mean
nothing to that provider."""
_IDS = CallRules(id_pattern=r"[a-zA-Z0-9_-]+", id_length=64, unique_in="conversation", name_length=64, has_errors=True)
"""Rules for tool call ids that every vendor accepts. They are used for all providers, because a provider may work with
any vendor."""
_MERE_FORM = frozenset(
    {
        *("arguments", "cache_control", "caller", "detail", "id", "internal_chat_message_metadata_passthrough"),
        *("logprobs", "message", "phase", "role", "status", "type"),
    }
)
"""Additional fields of a block that carry no content of their own, such as ids, types, cache marks and the exact
spelling of arguments. Leaving them out is not reported as a loss."""


class Fitted(NamedTuple):
    """A conversation rewritten for another agent, and what was lost by that."""

    conversation: Conversation
    losses: tuple[Loss, ...]
    """What was lost. The message indexes are those in the original conversation."""
    origins: tuple[int, ...]
    """For each message of the rewritten conversation, the index of the original message that it comes from."""


def fit(conversation: Conversation, source: str, target: str) -> Fitted:
    """Return the conversation of the agent `source` rewritten for the agent `target`, with what was lost by that, and
    for each message the index of the original one. `source` and `target` are names of providers, or `clew` for the
    built-in agent. The given conversation is not changed."""
    if source == target:
        return Fitted(conversation, (), tuple(range(len(conversation.messages))))
    notes = Notes()
    fitter = _Fitter(source, target, conversation.cwd, notes)
    kept = [
        (index, message) for index, said in enumerate(conversation.messages) if (message := fitter.fit(index, said))
    ]
    if target == BUILT_IN_AGENT:
        kept = list(_answered(kept, notes))
    there = msgspec.structs.replace(
        conversation,
        messages=tuple(message for _, message in kept),
        model=conversation.model if target == BUILT_IN_AGENT else "",
        losses=(),
    )
    return Fitted(there, tuple(notes.losses()), tuple(index for index, _ in kept))


class _Fitter:
    """Rewrites the messages of a conversation for another agent, one by one. They must be given in order: a call may
    get a new id, which its result then gets too. What is lost is added to the argument `notes`, which collects
    losses."""

    def __init__(self, source: str, target: str, cwd: str, notes: Notes) -> None:
        self._source = source
        self._target = target
        self._cwd = cwd
        self._notes = notes
        self._ids = Ids(_IDS)
        self._given: dict[str, list[str]] = {}

    def fit(self, index: int, message: Message) -> Message | None:
        """Return the message rewritten for the target agent; None if nothing is left of it. `index` is its index in the
        original conversation."""
        if isinstance(message, Assistant):
            for call in tool_calls(message):
                self._given[call.id] = []
        blocks = [self._block(block, (index, number)) for number, block in enumerate(message.content)]
        content = tuple(block for block in blocks if block is not None)
        if not any(_says_something(block) for block in content):
            return None
        if self._target == BUILT_IN_AGENT:
            return msgspec.structs.replace(message, content=content)
        if isinstance(message, Assistant):
            return Assistant(content, message.model)
        if isinstance(message, System):
            why = "they become a user's text between tags"
            self._notes.add((index, None), "instructions in the conversation", why)
            return User(tuple(_between_tags(block) for block in content))
        return msgspec.structs.replace(message, content=content)

    def _block(self, block: Block, at: At) -> Block | None:
        if isinstance(block, ToolCall):
            return self._call(block, at)
        if isinstance(block, ToolResult):
            return self._result(block, at)
        if isinstance(block, Thinking):
            return self._thinking(block, at)
        if isinstance(block, Opaque):
            return self._opaque(block, at)
        return self._beside(block, at)

    def _call(self, call: ToolCall, at: At) -> ToolCall:
        mapped = map_call(call, _side_of(call, self._source, self._target), self._target, cwd=self._cwd)
        for what, why in mapped.losses:
            self._notes.add(at, what, why)
        there = mapped.call
        if there is call:
            there = self._beside(call, at)
        if self._target == BUILT_IN_AGENT:
            return there
        given = self._ids.give(call.id)
        self._given.setdefault(call.id, []).append(given)
        if given != call.id:
            self._notes.add(
                at, "the id of a tool call", "vendors refuse it, or it is used twice; a new one replaces it"
            )
        return msgspec.structs.replace(there, id=given)

    def _result(self, result: ToolResult, at: At) -> ToolResult:
        """Return a tool result rewritten for the target agent, with the id that `_call` gave to its call. If several
        calls of a response had the same id, the first result is for the first call, and so on. `at` gives the indexes
        of the message and the block."""
        given = self._given.get(result.call_id) or [result.call_id]
        call_id = given.pop(0) if len(given) > 1 else given[0]
        content = tuple(kept for part in result.content if (kept := self._part(part, at)) is not None)
        return msgspec.structs.replace(self._beside(result, at), call_id=call_id, content=content)

    def _part(self, part: Text | Json | Image | File | Opaque, at: At) -> Text | Json | Image | File | Opaque | None:
        return self._opaque(part, at) if isinstance(part, Opaque) else self._beside(part, at)

    def _thinking(self, block: Thinking, at: At) -> Thinking | None:
        kept = thinking_for(block, self._target)
        if kept is None:
            self._notes.add(at, "thinking", f"{self._target} can use only the thinking of its own vendor's models")
        return kept

    def _opaque(self, block: Opaque, at: At) -> Opaque | None:
        dialect = _DIALECTS.get(self._target)
        if dialect is None or block.dialect == dialect:
            return block
        self._notes.add(at, "a block that only another vendor knows", f"{self._target} cannot express it")
        return None

    def _beside(self, block: B, at: At) -> B:
        """Return the block without the fields in `extra` that belong to other vendors' APIs than the target's. If these
        fields had content, a loss is noted. `at` gives the indexes of the message and the block."""
        dialect = _DIALECTS.get(self._target)
        if not block.extra or dialect is None or block.extra.keys() <= {dialect}:
            return block
        others = [fields for name, fields in block.extra.items() if name != dialect]
        if any(_says_more(fields) for fields in others):
            self._notes.add(at, "what a vendor said beside the block", f"{self._target} cannot store it")
        extra: Extra = {dialect: block.extra[dialect]} if dialect in block.extra else None
        return msgspec.structs.replace(block, extra=extra)


def _says_something(block: Block) -> bool:
    return not isinstance(block, Text) or bool(block.text.strip())


def _says_more(fields: Any) -> bool:
    return not isinstance(fields, dict) or any(value not in (None, [], {}) for value in _beyond_form(fields))


def _beyond_form(fields: dict[str, Any]) -> Iterable[Any]:
    return (value for name, value in fields.items() if name not in _MERE_FORM)


def _between_tags(block: Block) -> Block:
    if not isinstance(block, Text) or not block.text.strip():
        return block
    return msgspec.structs.replace(block, text=f"<system>\n{block.text}\n</system>")


def _side_of(call: ToolCall, source: str, target: str) -> str:
    """Return the name of the agent whose tool was called. That is `source`, the agent that has the conversation, unless
    neither `source` nor `target` has a tool of this name and another agent has one. Then it is that other agent: it
    made the call before the thread was moved to `source`."""
    known = [side for side, forms in SIDES.items() if any(form.name == call.name for form in forms)]
    if source in known or target in known or not known:
        return source
    return known[0]


def _answered(placed: Iterable[tuple[int, Message]], notes: Notes) -> Iterator[tuple[int, Message]]:
    """Yield the messages in `placed`, with their indexes. Every tool call without a result gets one that says that the
    outcome is unknown, and this is noted as a loss in `notes`. Without a result, the built-in agent would run the call
    again, although it may have run elsewhere."""
    open_calls: list[ToolCall] = []
    asked_at = 0
    results: list[Block] = []
    for index, message in [*placed, (-1, None)]:
        if isinstance(message, Tool) and open_calls:
            results += message.content
            continue
        if open_calls:
            yield asked_at, Tool((*results, *_missing(open_calls, results, asked_at, notes)))
        if message is not None:
            open_calls, asked_at, results = [*tool_calls(message)], index, []
            yield index, message


def _missing(calls: list[ToolCall], results: list[Block], index: int, notes: Notes) -> list[ToolResult]:
    answered = {block.call_id for block in results if isinstance(block, ToolResult)}
    missing = [call for call in calls if call.id not in answered]
    if missing:
        notes.add((index, None), "calls without a result", "an error result says that the outcome is unknown")
    return [ToolResult(call.id, (Text(NO_RESULT),), is_error=True) for call in missing]


_RESPONSES = "openai-responses"
_OPENCODE = "opencode"


def thinking_for(block: Thinking, target: str) -> Thinking | None:
    """Return the thinking block in the form in which the agent `target` can send it back to a model; None if it cannot.

    Claude Code can send back what Anthropic signed or encrypted, and Codex what has an id of the Responses API.
    opencode and the built-in agent take every block. For a provider of a third party the block stays as it is.
    """
    item = _item_of(block)
    if target == "claude_code":
        is_sealed = bool(block.encrypted) and not block.text and item is None
        own = values(block.extra).get("anthropic")
        kept = Thinking(block.text, block.signature, block.encrypted, {"anthropic": own} if own else None)
        return kept if block.signature or is_sealed else None
    if target == "codex":
        return Thinking(block.text, None, block.encrypted, {_RESPONSES: item}) if item else None
    return block


def _item_of(block: Thinking) -> dict[str, object] | None:
    """Return the fields that OpenAI's Responses API gave a thinking block, above all its id. Returns None if the block
    is not from that API, and an empty dict if it is but has no id."""
    own = values(block.extra).get(_RESPONSES)
    if isinstance(own, dict):
        return own
    for said in values(values(block.extra).get(_OPENCODE)).values():
        fields = values(said)
        if isinstance(fields.get("itemId"), str):
            return {"id": fields["itemId"]}
        if fields.get("reasoningEncryptedContent"):
            return {}
    return None
