"""`ScriptedModel`: a model for tests, which runs in the same process and answers from a script of prepared
responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from clew.errors import ContextTooLong
from clew.log import Usage
from clew.messages import Assistant, Text, Thinking, ToolCall
from clew.models.base import ModelEvent, ModelRequest, ModelResponse, TextDelta, ThinkingDelta
from clew.testing.model_server.scripts import By, Script, ScriptSource, turns_in
from clew.testing.replies import (
    Reply,
    Response,
    call,
    estimate,
    identified,
    pieces,
    reply,
    reply_of,
    say,
    think,
)

__all__ = ["Reply", "Response", "ScriptedModel", "call", "reply", "say", "think", "turns_in"]


class ScriptedModel:
    """A `Model` that answers from a script: a list of responses, or a function of the request, sync or async.

        model = ScriptedModel([call("add", a=1, b=2), "It is 3."])

    A response is a text, `say(…)`, `call(…)`, `think(…)`, several of them joined with `+` or in a list, an `Assistant`
    message, a `ModelResponse`, or an error to raise.

    **The conversation, and not a counter, decides which response comes next:** the number of assistant messages in the
    request is the index in the list. So a run that was killed and is resumed in another process, with a new
    `ScriptedModel` of the same script, gets the right response; a call that is made again gets the same response again;
    and one model can serve any number of threads. If a conversation loses messages, for example because a summary
    replaces them, use a function, or `by="order"`: then each call takes the next response of the list, counted in this
    object.

    A request past the end of the list raises a `UsageError` that says how long the list is.
    """

    def __init__(
        self,
        script: ScriptSource,
        *,
        name: str = "scripted",
        by: By = "turns",
        delay: float = 0,
        usage: Usage | None = None,
        context_window: int | None = None,
    ) -> None:
        """`script` says what the model answers: a list of responses, or a function of the request. `name`: the model's
        name. `by`: which response of the list comes next: with `turns`, the one whose index is the number of model
        responses in the request's conversation; with `order`, the next of the list for each call. `delay`: seconds
        before each response. `usage`: the tokens to report for responses that name none, instead of an estimate of one
        token for every four characters. `context_window`: a request with more tokens, by that estimate, raises
        `ContextTooLong`, as with a real model."""
        self._script = Script(script)
        self._name = name
        self._by = by
        self._delay = delay
        self._usage = usage
        self._context_window = context_window
        self._answered = 0
        self.requests: list[ModelRequest] = []
        """All requests that the model got, in the order of arrival."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def context_window(self) -> int | None:
        return self._context_window

    @property
    def calls(self) -> int:
        """How many requests the model has got so far."""
        return len(self.requests)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Yield the text and thinking of the script's next response in pieces, as a vendor does, and then the whole
        response. If the script's response is an error, raises it. Raises `UsageError` if the script has no more
        responses, and `ContextTooLong` if the request is longer than the context window."""
        self.requests.append(request)
        self._check_fit(request)
        number = self._answered if self._by == "order" else turns_in(request)
        self._answered += 1
        answer = reply_of(await self._script.response(request, number))
        if self._delay + answer.delay:
            await asyncio.sleep(self._delay + answer.delay)
        for block in answer.content:
            if isinstance(block, (Text, Thinking)):
                for piece in pieces(block.text):
                    yield TextDelta(piece) if isinstance(block, Text) else ThinkingDelta(piece)
                    await asyncio.sleep(0)
        content = identified(answer.content, number)
        stop = answer.stop or ("tool_use" if any(isinstance(block, ToolCall) for block in content) else "end_turn")
        model = answer.model or self._name
        usage = answer.usage or self._usage or estimate(request.messages, request.system, request.tools, content)
        yield ModelResponse(Assistant(content, model, stop), usage, model)

    def _check_fit(self, request: ModelRequest) -> None:
        if self._context_window is None:
            return
        size = estimate(request.messages, request.system, request.tools, ()).input_tokens
        if size > self._context_window:
            raise ContextTooLong(self._name, f"about {size} tokens, and {self._context_window} fit")
