"""`@tool` on all that can be called, and what it refuses."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from clew.errors import InvalidInput
from clew.models.base import ToolSpec
from clew.tools import DEFAULT_TOOLS, Tool, ToolContext, as_tool, tool
from clew.tools.decorator import Effect


class Simulation:
    def step(self, key: str) -> None: ...


def test_a_bare_decorator_takes_all_from_the_function() -> None:
    @tool
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    assert (add.name, add.description, add.effect, add.in_doubt) == ("add", "Add two numbers.", "once", "tell")
    assert add(2) == 3
    assert add.spec == ToolSpec("add", "Add two numbers.", add.schema)


def test_a_decorator_with_arguments_overrides_them() -> None:
    @tool(name="plus", description="Sum.", effect="none", timeout=3, retries=2, approve=True, in_doubt="ask")
    async def add(a: int) -> int:
        return a

    assert (add.name, add.description, add.effect, add.timeout) == ("plus", "Sum.", "none", 3)
    assert (add.retries, add.approve, add.in_doubt, add.is_async) == (2, True, "ask", True)


def test_a_plain_function_is_wrapped_and_a_tool_left_alone() -> None:
    def add(a: int) -> int:
        return a

    made = as_tool(add)
    assert isinstance(made, Tool)
    assert as_tool(made) is made


def test_a_method_is_a_tool_of_its_instance() -> None:
    class Desk:
        def __init__(self, owner: str) -> None:
            self.owner = owner

        @tool
        def greet(self, name: str) -> str:
            """Greet."""
            return f"{self.owner} greets {name}"

        def plain(self, name: str) -> str:
            return f"{self.owner}: {name}"

    ada = Desk("Ada")
    assert as_tool(ada.greet)("Bob") == "Ada greets Bob"
    assert list(ada.greet.schema["properties"]) == ["name"]
    assert as_tool(ada.plain).fn(name="x") == "Ada: x"
    assert list(as_tool(ada.plain).schema["properties"]) == ["name"]
    with pytest.raises(InvalidInput, match=r"instance\.greet"):
        as_tool(Desk.greet)


def test_a_tool_that_is_an_attribute_of_a_class_stays_what_it_is() -> None:
    @tool
    def add(a: int) -> int:
        return a

    class Holder:
        added = add

    assert Holder().added is add


def test_partials_wrappers_statics_and_callable_objects_are_tools() -> None:
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    @functools.wraps(add)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return add(*args, **kwargs)

    class Adder:
        async def __call__(self, a: int) -> int:
            """Add one."""
            return a + 1

    assert as_tool(wrapped).schema == as_tool(add).schema
    assert tool(name="one_more")(functools.partial(add, 1)).schema["required"] == ["b"]
    made = tool(name="adder")(Adder())
    assert (made.description, made.is_async, made.schema["required"]) == ("Add one.", True, ["a"])
    assert tool(name="s")(staticmethod(add)).schema == as_tool(add).schema


def test_generators_are_refused_with_a_reason() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    for fn in (numbers, later):
        with pytest.raises(InvalidInput, match=r"generator.*one result"):
            as_tool(fn)


@pytest.mark.parametrize(
    "options",
    [
        {"effect": "twice"},
        {"in_doubt": "guess"},
        {"timeout": 0},
        {"timeout": True},
        {"retries": -1},
        {"retries": True},
        {"name": "a b"},
        {"name": ""},
        {"name": "x" * 65},
        {"reconcile": 5},
        {"approve": "yes"},
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    def add(a: int) -> int:
        return a

    with pytest.raises(InvalidInput):
        tool(**options)(add)


def test_retries_of_a_tool_that_runs_once_are_refused() -> None:
    def pay(amount: int) -> None: ...

    with pytest.raises(InvalidInput, match=r"'pay' has retries=2 and effect='once'"):
        tool(retries=2)(pay)


@pytest.mark.parametrize("thing", [5, "add", None, int, lambda: None, classmethod(lambda cls: None)])
def test_what_is_no_function_with_a_name_is_refused(thing: Any) -> None:
    with pytest.raises(InvalidInput):
        as_tool(thing)


def test_a_tool_cannot_be_decorated_twice() -> None:
    with pytest.raises(InvalidInput, match="already"):
        tool(tool(test_generators_are_refused_with_a_reason))


def test_a_function_that_makes_steps_or_asks_has_the_effect_steps() -> None:
    @tool
    async def steps(ctx: ToolContext) -> None:
        await ctx.step("a", lambda: 1)

    @tool
    async def asks(c: ToolContext) -> None:
        await c.interrupt("Sure?")

    @tool
    def blocking(a: int, ctx: ToolContext) -> None:
        ctx.blocking.step("a", lambda: a)

    @tool
    async def inner(ctx: ToolContext) -> None:
        async def work() -> None:
            await ctx.step("a", lambda: 1)

        await work()

    assert [made.effect for made in (steps, asks, blocking, inner)] == ["steps"] * 4


def test_a_step_of_something_else_does_not_make_a_tool_run_again() -> None:
    @tool
    def simulate(ctx: ToolContext) -> None:
        Simulation().step(ctx.call_id)

    @tool
    async def told(ctx: ToolContext) -> None:
        print(ctx.thread_id)

    @tool(effect="once")
    async def explicit(ctx: ToolContext) -> None:
        await ctx.step("a", lambda: 1)

    assert [made.effect for made in (simulate, told, explicit)] == ["once"] * 3


def test_the_digest_changes_with_the_schema_the_words_and_the_effect() -> None:
    def make(name: str, hint: type, text: str, effect: Effect = "once") -> str:
        def fn(a: Any) -> None: ...

        fn.__annotations__ = {"a": hint}
        return tool(name=name, description=text, effect=effect)(fn).digest

    first = make("fn", int, "one")
    assert len(first) == 64
    assert first == make("fn", int, "one")
    others = [make("fn", str, "one"), make("gn", int, "one"), make("fn", int, "two"), make("fn", int, "one", "none")]
    assert len({first, *others}) == 5


def test_the_default_tools_say_what_they_do() -> None:
    assert {made.name: made.effect for made in DEFAULT_TOOLS} == {
        "read_file": "none",
        "write_file": "idempotent",
        "edit_file": "idempotent",
        "list_files": "none",
        "run_command": "once",
    }
    for made in DEFAULT_TOOLS:
        assert made.description
        assert all("description" in each for each in made.schema["properties"].values())


def test_an_unknown_option_is_named_with_those_there_are() -> None:
    for options in ({"effects": "none"}, {"unknown": 1, "timeout": 3}):
        with pytest.raises(InvalidInput, match=r"@tool has no option (effects|unknown)=. It takes approve, .* timeout"):
            tool(**options)
