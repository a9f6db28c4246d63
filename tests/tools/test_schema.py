"""From a signature to a schema, and from a model's arguments back to typed values."""

from __future__ import annotations

import dataclasses
import enum
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict

import msgspec
import pydantic
import pytest

from clew.errors import InvalidInput
from clew.tools import BadArguments, ToolContext, tool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Person(TypedDict):
    name: str
    age: NotRequired[int]


class Node(msgspec.Struct):
    label: str
    below: list[Node] = []


class Item(pydantic.BaseModel):
    name: str
    price: float = pydantic.Field(gt=0, description="In euros.")


class Order(pydantic.BaseModel):
    items: list[Item]


def schema_of(hint: Any) -> dict[str, Any]:
    def fn(value: Any) -> None: ...

    fn.__annotations__ = {"value": hint}
    found: dict[str, Any] = tool(fn).schema
    return found


def decode(hint: Any, value: Any) -> Any:
    def fn(value: Any) -> None: ...

    fn.__annotations__ = {"value": hint}
    return tool(fn).parameters.decode({"value": value})["value"]


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (Any, {}),
        (object, {}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (Colour, {"$ref": "#/$defs/Colour"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (set[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        (Path, {"type": "string", "format": "path"}),
        (Point, {"$ref": "#/$defs/Point"}),
        (Annotated[int, "How many."], {"type": "integer", "description": "How many."}),
        (
            Annotated[int, msgspec.Meta(ge=1, description="Many.")],
            {"type": "integer", "minimum": 1, "description": "Many."},
        ),
    ],
)
def test_a_type_has_its_schema(hint: Any, schema: dict[str, Any]) -> None:
    assert schema_of(hint)["properties"]["value"] == schema


def test_shared_types_are_defined_once_at_the_root() -> None:
    @tool
    def draw(start: Point, ends: list[Point], colour: Colour = Colour.RED) -> None: ...

    assert draw.schema == {
        "type": "object",
        "properties": {
            "start": {"$ref": "#/$defs/Point"},
            "ends": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
            "colour": {"$ref": "#/$defs/Colour", "default": "red"},
        },
        "required": ["start", "ends"],
        "additionalProperties": False,
        "$defs": {
            "Point": {
                "title": "Point",
                "type": "object",
                "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
                "required": ["x"],
            },
            "Colour": {"title": "Colour", "enum": ["blue", "red"]},
        },
    }


@pytest.mark.parametrize(
    ("hint", "given", "value"),
    [
        (int, 5, 5),
        (int, "5", 5),
        (int, 5.0, 5),
        (bool, "true", True),
        (int | str, "5", "5"),
        (str, "[1]", "[1]"),
        (float, 3, 3.0),
        (Colour, "red", Colour.RED),
        (Literal[1, "a"], "a", "a"),
        (tuple[int, str], [1, "a"], (1, "a")),
        (set[int], [1, 2], {1, 2}),
        (datetime, "2025-01-02T03:04:05", datetime(2025, 1, 2, 3, 4, 5)),
        (Path, "a/b", Path("a/b")),
        (Point, {"x": 1}, Point(1)),
        (Point, '{"x": 1}', Point(1)),
        (list[int], "[1, 2]", [1, 2]),
        (Person, {"name": "Ada"}, {"name": "Ada"}),
        (Node, {"label": "a", "below": [{"label": "b"}]}, Node("a", [Node("b")])),
        (Item, {"name": "pen", "price": 2}, Item(name="pen", price=2)),
        (list[Item], [{"name": "pen", "price": 2}], [Item(name="pen", price=2)]),
        (Annotated[int, pydantic.Field(ge=1)], 3, 3),
        (dict[str, Any], {"a": [1]}, {"a": [1]}),
    ],
)
def test_arguments_become_values_of_their_types(hint: Any, given: Any, value: Any) -> None:
    decoded = decode(hint, given)
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(
    ("hint", "given", "words"),
    [
        (int, "five", ["`value`", "expected int", '"five"']),
        (Point, {"x": "q"}, ["`value.x`", "expected int", '"q"']),
        (list[Point], [{"x": 1}, {"y": 1}], ["`value[1]`", "missing required field x", '{"y": 1}']),
        (Literal["a", "b"], "c", ["`value`", 'one of "a", "b"', '"c"']),
        (Colour, "green", ["`value`", 'one of "blue", "red"', '"green"']),
        (datetime, "soon", ["`value`", "RFC3339", '"soon"']),
        (Path, 5, ["`value`", "expected path", "5"]),
        (int, None, ["`value`", "expected int", "null"]),
        (Item, {"name": "pen", "price": -1}, ["`value.price`", "greater than 0", "-1"]),
        (Order, {"items": [{"price": 1}]}, ["`value.items[0].name`", "required"]),
    ],
)
def test_a_wrong_argument_is_explained(hint: Any, given: Any, words: list[str]) -> None:
    with pytest.raises(BadArguments) as raised:
        decode(hint, given)
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    @tool
    def book(day: datetime, seats: int, note: str = "") -> None: ...

    with pytest.raises(BadArguments) as raised:
        book.parameters.decode({"seats": "two", "notes": "x"})
    assert str(raised.value).splitlines()[1:] == [
        '- `seats`: expected int, got str; given: "two"',
        "- `notes`: there is no such argument; the arguments are: `day`, `seats`, `note`",
        "- `day`: missing; expected a string",
    ]


@pytest.mark.parametrize("arguments", ['{"a": ', [1], 5, {1: 2}])
def test_arguments_that_are_no_object_are_refused(arguments: Any) -> None:
    @tool
    def greet(name: str = "") -> None: ...

    with pytest.raises(BadArguments, match="one JSON object"):
        greet.parameters.decode(arguments)


@pytest.mark.parametrize("arguments", [None, "", {}, {"name": None, "count": None}])
def test_what_may_be_left_out_may_be_null(arguments: Any) -> None:
    @tool
    def greet(name: str = "you", count: int = 1) -> None: ...

    assert greet.parameters.decode(arguments) == {}


def test_none_as_a_default_allows_null_whatever_the_type_says() -> None:
    @tool
    def greet(name: str = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert greet.parameters.decode({"name": None}) == {"name": None}


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(BadArguments) as raised:
        decode(int, "x" * 10_000)
    assert len(str(raised.value)) < 400


def test_a_context_is_no_part_of_the_schema() -> None:
    @tool
    def one(a: int, ctx: ToolContext) -> None: ...

    @tool
    def other(a: int, c: ToolContext | None = None) -> None: ...

    assert list(one.schema["properties"]) == list(other.schema["properties"]) == ["a"]
    assert (one.parameters.context, other.parameters.context) == ("ctx", "c")
    with pytest.raises(BadArguments, match="no such argument"):
        one.parameters.decode({"a": 1, "ctx": {}})


def test_a_parameter_without_annotation_takes_any_json() -> None:
    @tool
    def note(value):  # type: ignore[no-untyped-def]
        ...

    assert note.schema["properties"] == {"value": {}}
    assert note.parameters.decode({"value": [{"a": None}]}) == {"value": [{"a": None}]}


def test_keyword_arguments_are_further_properties() -> None:
    @tool
    def label(name: str, **labels: int) -> None: ...

    assert label.schema["additionalProperties"] == {"type": "integer"}
    assert label.parameters.decode({"name": "a", "b": "2"}) == {"name": "a", "b": 2}


def test_positional_only_parameters_are_given_by_position() -> None:
    @tool
    def add(ctx: ToolContext, a: int, b: int = 2, /, c: int = 3) -> tuple[ToolContext, int]:
        return ctx, a * 100 + b * 10 + c

    ctx = ToolContext()
    args, kwargs = add.parameters.bind(add.parameters.decode({"a": 1}), ctx)
    assert add(*args, **kwargs) == (ctx, 123)


def test_star_args_are_refused_with_a_way_out() -> None:
    with pytest.raises(InvalidInput, match=r"\*names.*Take a list"):

        @tool
        def greet(*names: str) -> None: ...


@pytest.mark.parametrize("hint", [complex, Callable[[], None], list[complex], int | list[int] | list[str]])
def test_a_type_that_json_cannot_give_is_refused_where_the_tool_is_written(hint: Any) -> None:
    with pytest.raises(InvalidInput, match=r"the tool 'fn'.*'value'"):
        schema_of(hint)


def test_an_annotation_that_cannot_be_read_is_refused() -> None:
    def fn(value: int) -> None: ...

    fn.__annotations__ = {"value": "Nowhere"}
    with pytest.raises(InvalidInput, match=r"'fn'.*'Nowhere' is not defined"):
        tool(fn)


def test_the_annotation_of_the_result_is_not_looked_at() -> None:
    def fn(value: int) -> None: ...

    fn.__annotations__ = {"value": "int", "return": "Nowhere"}
    assert tool(fn).schema["required"] == ["value"]


def test_types_that_are_local_where_the_tool_is_declared_are_found() -> None:
    @dataclasses.dataclass
    class Local:
        a: int

    @tool
    def take(value: Local) -> None: ...

    assert take.parameters.decode({"value": {"a": 1}}) == {"value": Local(1)}


def test_pydantic_models_share_their_definitions() -> None:
    @tool
    def buy(first: Item, order: Order) -> None:
        """Buy."""

    assert set(buy.schema["$defs"]) == {"Item", "Order"}
    assert buy.schema["properties"]["first"] == {"$ref": "#/$defs/Item"}
    assert buy.schema["$defs"]["Item"]["properties"]["price"]["description"] == "In euros."


def test_two_types_of_one_name_are_refused_if_one_is_pydantics() -> None:
    plain = msgspec.defstruct("Item", [("a", int)])

    def fn(one: Any, two: Any) -> None: ...

    fn.__annotations__ = {"one": plain, "two": Item}
    with pytest.raises(InvalidInput, match="two types called 'Item'"):
        tool(fn)


def test_pydantic_and_mcp_are_not_imported_by_clew() -> None:
    code = """
import sys, dataclasses
from clew.tools import *
@dataclasses.dataclass
class P: x: int
@tool
def f(p: P, q: int = 1) -> str: ...
f.parameters.decode({"p": {"x": 1}})
print(sorted({"pydantic", "mcp", "anyio"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


GOOGLE = """Send a letter
to somebody.

More, that the model is not told.

Args:
    to (str): Whom to send it to,
        by name.
    text: The words: all of them.

Returns:
    nothing: at all
"""
NUMPY = """Send a letter
to somebody.

Parameters
----------
to : str
    Whom to send it to,
    by name.
text
    The words: all of them.

Returns
-------
nothing
    at all
"""
SPHINX = """Send a letter
to somebody.

:param str to: Whom to send it to,
    by name.
:param text: The words: all of them.
:returns: nothing
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_a_docstring_describes_the_tool_and_its_parameters(text: str) -> None:
    def send(to: str, text: str, nothing: int = 0) -> None: ...

    send.__doc__ = text
    made = tool(send)
    assert made.description == "Send a letter to somebody."
    assert made.schema["properties"]["to"]["description"] == "Whom to send it to, by name."
    assert made.schema["properties"]["text"]["description"] == "The words: all of them."
    assert "description" not in made.schema["properties"]["nothing"]


@pytest.mark.parametrize(
    "text", [None, "", "Args:\n    to: Whom.", ":param to: Whom.", "Parameters\n----------\nto\n    Whom."]
)
def test_a_docstring_without_a_first_paragraph_describes_nothing(text: str | None) -> None:
    def send(to: str) -> None: ...

    send.__doc__ = text
    assert tool(send).description == ""
