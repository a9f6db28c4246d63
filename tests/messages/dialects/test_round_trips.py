"""What holds for every conversation: the payload is the vendor's, it is a fixed point, and losses are told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.messages import Assistant, Block, Json, Message, System, Text, Tool, ToolResult, User
from clew.messages.dialects import DIALECTS, Dialect, from_dialect, losses, to_dialect
from tests.messages.dialects import vendors
from tests.messages.dialects.conversations import (
    conversations,
    examples,
    nearly_sound_conversations,
    sound_conversations,
)

thorough = settings(max_examples=examples(2000, 100))
each_dialect = pytest.mark.parametrize("dialect", DIALECTS)
pytestmark = pytest.mark.crash


@each_dialect
@given(data=st.data())
@thorough
def test_a_payload_is_one_that_the_vendor_takes(dialect: Dialect, data: st.DataObject) -> None:
    vendors.check(to_dialect(data.draw(conversations(dialect)), dialect), dialect)


@each_dialect
@given(data=st.data())
@thorough
def test_reading_a_payload_and_writing_it_again_changes_nothing(dialect: Dialect, data: st.DataObject) -> None:
    payload = to_dialect(data.draw(conversations(dialect, vandal=True)), dialect)
    assert to_dialect(from_dialect(payload, dialect), dialect) == payload


@each_dialect
@given(data=st.data())
@thorough
def test_a_sound_conversation_loses_nothing(dialect: Dialect, data: st.DataObject) -> None:
    assert losses(data.draw(sound_conversations(dialect)), dialect) == []


@each_dialect
@given(data=st.data())
@thorough
def test_a_conversation_that_loses_nothing_comes_back_equal(dialect: Dialect, data: st.DataObject) -> None:
    conversation = data.draw(nearly_sound_conversations(dialect) | conversations(dialect, vandal=True))
    if not losses(conversation, dialect):
        back = from_dialect(to_dialect(conversation, dialect), dialect)
        assert normal(back, dialect) == normal(conversation, dialect)


@each_dialect
@given(data=st.data())
@thorough
def test_what_came_back_loses_nothing_more(dialect: Dialect, data: st.DataObject) -> None:
    """Not even words: what is left after one journey survives all others, so only its form may still be told."""
    once = from_dialect(to_dialect(data.draw(conversations(dialect)), dialect), dialect)
    assert from_dialect(to_dialect(once, dialect), dialect) == once


@each_dialect
@given(data=st.data())
@thorough
def test_losses_name_places_that_exist(dialect: Dialect, data: st.DataObject) -> None:
    conversation = data.draw(conversations(dialect, vandal=True))
    for loss in losses(conversation, dialect):
        assert loss.block is None or loss.block < len(conversation[loss.message].content)
        assert loss.what
        assert loss.why


def normal(conversation: Any, dialect: str) -> list[Message]:
    """The conversation without what docs/dialects.md calls mere form."""
    joined = {
        "anthropic": (Assistant, User, Tool, System),
        "openai-chat": (Tool,),
        "openai-responses": (Assistant, Tool),
        "gemini": (Assistant, User, Tool, System),
    }[dialect]
    messages: list[Message] = []
    for message in conversation:
        content = tuple(_bare(block) for block in message.content if not _empty(block))
        if not content:
            continue
        if messages and type(messages[-1]) is type(message) and isinstance(message, joined):
            content = messages.pop().content + content
        messages.append(type(message)(content))
    return messages


def _empty(block: Block) -> bool:
    return isinstance(block, Text) and not block.text


def _bare(block: Block) -> Block:
    """An empty extra is none; empty texts in results are nothing either."""
    if isinstance(block, ToolResult):
        content = tuple(_bare(inner) for inner in block.content if not _empty(inner))
        block = msgspec.structs.replace(block, content=content)
    if hasattr(block, "extra") and not isinstance(block, Json) and block.extra == {}:
        block = msgspec.structs.replace(block, extra=None)
    return block
