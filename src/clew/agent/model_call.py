"""Ask the model for one response: send a request, and return the response and its cost."""

from __future__ import annotations

from typing import Any

import msgspec

from clew._runtime.telemetry import span
from clew.agent.journal import Journal
from clew.agent.run import Emit
from clew.agent.settings import Settings
from clew.errors import ModelError
from clew.messages import Assistant
from clew.models import ModelRequest, ModelResponse, cost_of

__all__ = ["ask"]


async def ask(
    settings: Settings, journal: Journal, request: ModelRequest, emit: Emit
) -> tuple[ModelResponse, float | None]:
    """Ask the model. Return its response and the cost in dollars, which is None if it is unknown.

    The events that the model streams before its response go to `emit`. The start of the model call must be on record.
    If the lease has ended since, it is renewed before the request is sent. Before a failed request is sent again, the
    store is asked whether this process still holds the thread, because another may have taken it over meanwhile. Raises
    `LeaseLost` if another process has taken the thread, because that process asks the model now.
    """
    model = settings.model
    request = msgspec.structs.replace(request, before_retry=journal.fence)
    response: ModelResponse | None = None
    await journal.keep_lease()
    with journal.asking(), span("clew.model_call", model=model.name, messages=len(request.messages)) as current:
        try:
            async for event in model.stream(request):  # read to the end, so that the connection is released now
                if isinstance(event, ModelResponse):
                    response = event
                else:
                    emit(event)
        except ModelError as error:
            current.set(refused=error.is_free, **({} if error.status is None else {"status": error.status}))
            raise
        if response is None:
            raise RuntimeError(f"the model {model.name} ended its stream without a response")
        current.set(input_tokens=response.usage.input_tokens, output_tokens=response.usage.output_tokens)
    if response.cost is not None:
        return _storable(response), response.cost
    return _storable(response), cost_of([response.model, model.name], response.usage, settings.prices)


def _storable(response: ModelResponse) -> ModelResponse:
    """Return the response with every lone surrogate (half of a UTF-16 surrogate pair) replaced by a question mark.

    A model may end a text with a lone surrogate, and no store can keep one. The rest of the response was paid for, and
    is kept.
    """
    try:
        msgspec.msgpack.encode(response.message)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(response.message, builtin_types=(bytes,))
        return msgspec.structs.replace(response, message=msgspec.convert(_cleaned(plain), Assistant))
    return response


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    return value
