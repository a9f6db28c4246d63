"""Structured output: read the model's answer as a value of the wanted type, from its text or from its call of the
finish tool, a tool with which a model can end its run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from clew.errors import InvalidInput
from clew.log import Present
from clew.messages import Assistant, Json, Text, Tool, ToolResult, tool_calls
from clew.tools import AnyTool, as_tool, tool, values

__all__ = ["Output", "finish_tool", "finished_with", "not_finished", "value_of"]


_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?```\s*", re.DOTALL)


class Output:
    """The type that the model's final answer must have, with its JSON schema.

    The type can be a msgspec struct, a dataclass, a TypedDict, a pydantic model, or a built-in type of Python.
    """

    def __init__(self, wanted: Any) -> None:
        self.wanted = wanted
        self._adapter = values.make_adapter(wanted) if values.needs_pydantic(wanted) else None
        try:
            self.schema: dict[str, Any] = self._adapter.json_schema() if self._adapter else msgspec.json.schema(wanted)
        except TypeError as error:
            raise InvalidInput(
                f"output={wanted!r} cannot be the type of an answer: {error}. Use basic types, dataclasses, TypedDicts, "
                "msgspec Structs or pydantic models."
            ) from error

    def read(self, text: str) -> tuple[Any, str]:
        """Read the model's text as JSON of the wanted type. Returns the value and "". If the text does not fit the
        type, returns None and a text that asks the model to correct its answer."""
        fenced = _FENCED.fullmatch(text)
        words = fenced[1] if fenced else text
        if self._adapter is not None:
            try:
                return self._adapter.validate_json(words), ""
            except ValueError as error:
                return None, self._correction(str(error))
        try:
            return msgspec.json.decode(words, type=self.wanted), ""
        except (msgspec.MsgspecError, UnicodeError) as error:
            return None, self._correction(str(error))

    def _correction(self, reason: str) -> str:
        schema = msgspec.json.encode(self.schema).decode()
        return (
            "Your answer could not be read. It is to be JSON of this schema, and nothing else: "
            f"{schema}\nWhat is wrong: {reason}"
        )


def finish_tool(given: bool | AnyTool | Callable[..., Any], output: Output | None) -> AnyTool | None:
    """Return the tool with which the model ends a run, or None if `given` is False.

    For True it is Clew's own tool, which takes the answer as its argument: of the type in `output`, or a text if that
    is None. Otherwise it is the user's tool `given`, whose result is the answer.
    """
    if given is False:
        return None
    if given is True:
        return _own(str if output is None else output.wanted)
    return as_tool(given)


def _own(answer: Any) -> AnyTool:
    def finish(answer: Any) -> Any:
        return answer

    finish.__annotations__ = {"answer": answer}
    description = "Call this once, when the task is done, with your whole answer. The user sees nothing else."
    return tool(name="finish", description=description, effect="none")(finish)


def finished_with(state: Present, finish: AnyTool | None) -> ToolResult | None:
    """Return the result of the finish tool if the last turn called it without an error; otherwise None. The finish tool
    is the tool that the model calls to end its run with an answer."""
    if finish is None or len(state.messages) < 2:
        return None
    response, results = state.messages[-2:]
    if type(response) is not Assistant or type(results) is not Tool:
        return None
    for call, result in zip(tool_calls(response), results.content, strict=False):
        if call.name == finish.name and isinstance(result, ToolResult) and not result.is_error:
            return result
    return None


def value_of(result: ToolResult, output: Output | None) -> tuple[Any, str]:
    """Read the answer from a result of the finish tool, which the model calls to end its run. `output` holds the type
    that the answer must have; None allows any.

    Returns the answer and "". If the answer does not have that type, returns None and a text that asks the model to
    correct it.
    """
    json = next((block.value for block in result.content if isinstance(block, Json)), None)
    text = "\n".join(block.text for block in result.content if isinstance(block, Text))
    if output is None or output.wanted is str:
        return text if json is None else json, ""
    return output.read(text if json is None else msgspec.json.encode(json).decode())


def not_finished(finish: AnyTool) -> str:
    """Return a text that tells the model to call the finish tool, the tool with which it has to give its answer. The
    text is for a model that stopped without calling it."""
    return f"Nothing ends the task but a call of {finish.name}. Go on; when you are done, call it with your answer."
