"""What a tool returned, as the model is given it: never an address, never lost, and no error for a strange type."""

from __future__ import annotations

import collections
import dataclasses
import enum
import logging
import threading
import types
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pydantic
import pytest

from clew import Thread
from clew.agent import Agent
from clew.checkpointers import MemoryCheckpointer
from clew.errors import InvalidInput
from clew.messages import File, Image, Json, Text, ToolResult
from clew.testing import ScriptedModel, call
from clew.tools import ToolContext, call_tool, tool

pytestmark = pytest.mark.anyio


class Plain:
    """An object with nothing to say of itself."""


class Worded:
    def __str__(self) -> str:
        return "in my own words"


class Array:
    """As numpy's arrays and scalars are."""

    def tolist(self) -> list[int]:
        return [1, 2]


class Table:
    """As data frames are: their members are the names of the columns."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        return iter(["price"])

    def __contains__(self, name: object) -> bool:
        return name == "price"

    def __repr__(self) -> str:
        return "price\n1.50"


class Bag:
    """A collection without words of its own."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[int]:
        return iter([7])

    def __contains__(self, number: object) -> bool:
        return number == 7


class Colour(enum.Enum):
    RED = "red"


class Struct(msgspec.Struct):
    when: datetime
    inner: Any


class Model(pydantic.BaseModel):
    price: Decimal


@dataclasses.dataclass
class Data:
    path: Path
    inner: Any


class Sealed:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Sealed({self.lock!r})"


INSIDE = "a Plain, which has no text form"
NO_TEXT = f"The tool ran, and returned {INSIDE}."
WHEN = datetime(2025, 1, 2, tzinfo=UTC)


def numbers() -> Iterator[int]:
    yield 1


async def content_of(value: Any) -> tuple[Any, ...]:
    @tool
    async def give() -> Any:
        return value

    result = await call_tool(give, {}, ToolContext(call_id="c"))
    assert not result.is_error
    msgspec.msgpack.encode(result)
    return result.content


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (None, Text("done")),
        (Colour.RED, Text("red")),
        (WHEN, Text("2025-01-02T00:00:00Z")),
        (timedelta(seconds=90), Text("PT90S")),
        (uuid.UUID(int=1), Text("00000000-0000-0000-0000-000000000001")),
        (Decimal("1.50"), Text("1.50")),
        (PurePosixPath("a/b"), Text("a/b")),
        (ValueError("broken"), Text("ValueError: broken")),
        (Worded(), Text("in my own words")),
        ({3}, Json([3])),
        (collections.deque([1]), Json([1])),
        (range(2), Json([0, 1])),
        ({"a": 1}.values(), Json([1])),
        (types.MappingProxyType({"a": 1}), Json({"a": 1})),
        (Array(), Json([1, 2])),
        (Table(), Text("price\n1.50")),
        ([Table()], Json(["price\n1.50"])),
        (Bag(), Json([7])),
        ({"n": 2**70, "w": Worded()}, Json({"n": str(2**70), "w": "in my own words"})),
        ({"half": "\ud800"}, Json({"half": "?"})),
        (Struct(WHEN, Colour.RED), Json({"when": "2025-01-02T00:00:00Z", "inner": "red"})),
        (Model(price=Decimal("1.50")), Json({"price": "1.50"})),
        (Data(Path("x"), [Model(price=Decimal(2))]), Json({"path": "x", "inner": [{"price": "2"}]})),
        (Json({"inner": Worded()}), Json({"inner": "in my own words"})),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_value_of_a_known_kind_is_text_or_json(value: Any, content: Any) -> None:
    assert await content_of(value) == (content,)


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (Plain(), Text(NO_TEXT)),
        ([1, Plain()], Json([1, INSIDE])),
        ({"a": {"b": Plain()}}, Json({"a": {"b": INSIDE}})),
        (Data(Path("x"), Plain()), Json({"path": "x", "inner": INSIDE})),
        (Struct(WHEN, Plain()), Json({"when": "2025-01-02T00:00:00Z", "inner": INSIDE})),
        (Json(Plain()), Json(INSIDE)),
        ([Text("see"), Plain()], (Text("see"), Text(NO_TEXT))),
        (ToolResult("", (Json(Plain()),)), Json(INSIDE)),
        (numbers(), Text("The tool ran, and returned a generator, which has no text form.")),
        (numbers, Text("The tool ran, and returned a function, which has no text form.")),
        (threading.Lock(), Text("The tool ran, and returned a lock, which has no text form.")),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_an_object_without_a_text_form_is_told_of_by_its_type_and_logged(
    value: Any, content: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "clew.tools"):
        assert await content_of(value) == (content if isinstance(content, tuple) else (content,))
    (logged,) = caplog.messages
    assert "tool give returned a " in logged
    assert "Return text, bytes, JSON-like data" in logged


@pytest.mark.parametrize(
    "value", [Sealed(), {(1, Plain()): 2}, [Sealed(), {(1, 2): Sealed()}]], ids=["object", "key", "nested"]
)
async def test_no_address_is_told_even_inside_the_words_of_an_object(value: Any) -> None:
    assert "0x" not in repr(await content_of(value))


async def test_a_value_that_holds_itself_is_a_result() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert await content_of(endless) == (Text("[[...]]"),)


async def test_a_call_whose_result_has_no_text_form_is_done_and_not_repeated() -> None:
    ran = 0

    @tool
    async def pay() -> Plain:
        nonlocal ran
        ran += 1
        return Plain()

    async with MemoryCheckpointer() as store:
        agent = Agent(ScriptedModel([call("pay"), "Paid."]), tools=[pay], checkpointer=store)
        result = await agent.run("Pay.", thread_id="t")
        state = await Thread.load(store, "t")
    assert (result.status, ran, state.calls) == ("done", 1, ())
    assert [use.output for use in result.tool_uses] == [NO_TEXT]


@pytest.mark.parametrize(
    "value",
    [
        Image("image/png", "aGVsbG8="),  # type: ignore[arg-type]
        File("a.txt", "text/plain", "hello"),  # type: ignore[arg-type]
        Text(5),  # type: ignore[arg-type]
        ToolResult("", (Text("a"),), is_error="no"),  # type: ignore[arg-type]
    ],
    ids=["image", "file", "text", "result"],
)
async def test_a_block_with_a_field_of_the_wrong_type_leaves_the_thread_readable(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    async def give() -> Any:
        return value

    async with MemoryCheckpointer() as store:
        agent = Agent(ScriptedModel([call("give"), "Given."]), tools=[give], checkpointer=store)
        result = await agent.run("Give.", thread_id="t")
        state = await Thread.load(store, "t")
    assert (result.status, state.status) == ("done", "done")
    told = "The tool ran, and returned a block that cannot be stored, which has no text form."
    assert [use.output for use in result.tool_uses] == [told]
    assert "Expected `" in caplog.text, "the developer is told which type was wanted"


async def test_a_step_whose_value_cannot_be_kept_says_that_it_ran() -> None:
    with pytest.raises(InvalidInput, match=r"the step 'charge' ran, and what it returned cannot be kept: .*Plain"):
        await ToolContext().step("charge", Plain)


async def test_a_state_value_that_cannot_be_kept_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"state\['order'\] is of the type Plain"):
        ToolContext().state["order"] = Plain()
