"""Scripts. A script says what a model answers in a test: it is a list of responses, or a function that makes them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from clew.errors import InvalidInput, UsageError
from clew.messages import Assistant
from clew.models.base import ModelRequest
from clew.testing.replies import Reply, Response

__all__ = ["By", "Script", "ScriptSource", "turns_in"]

By = Literal["turns", "order"]
ScriptSource = Sequence[Response] | Assistant | Reply | Callable[[ModelRequest], Response | Awaitable[Response]]
"""What can be given as a script: a list of responses, one response, or a function of the request. A text is one
response, not a list of letters."""


def turns_in(request: ModelRequest) -> int:
    """Return how many responses of the model are in the request's conversation. That is also the index, from 0, of the
    next response in a script's list of responses."""
    return sum(isinstance(message, Assistant) for message in request.messages)


class Script:
    """What a model answers in a test: a list of responses, or a function that makes them. A `Script` does not remember
    which response comes next: its caller says the index of the response."""

    def __init__(self, source: object) -> None:
        self._ask: Callable[[ModelRequest], Any] | None = None
        self._responses: tuple[Any, ...] = ()
        if isinstance(source, (str, Assistant, Reply)):
            self._responses = (source,)
        elif callable(source):
            self._ask = source
        elif isinstance(source, Sequence):
            self._responses = tuple(source)
        else:
            raise InvalidInput(f"a script is a list of responses or a function, not {type(source).__name__}")

    async def response(self, request: ModelRequest, number: int) -> Any:
        """Return the response at the index `number` of the script's list. If the script is a function, ignore the
        number and return what the function returns for the request. Raises `UsageError` if the list has no such
        response."""
        if self._ask is not None:
            given = self._ask(request)
            return await given if inspect.isawaitable(given) else given
        if number >= len(self._responses):
            raise UsageError(past_the_end(len(self._responses), number))
        return self._responses[number]


def past_the_end(length: int, number: int) -> str:
    held = {0: "no response", 1: "1 response"}.get(length, f"{length} responses")
    return (
        f"the script has {held}, and response {number + 1} was asked for. Add it to the script, "
        "or look for what makes the agent go on: each response after which it calls the model again needs another."
    )
