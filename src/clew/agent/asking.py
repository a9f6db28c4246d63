"""One call of the model, from a request to its response and what that cost."""

from __future__ import annotations

from clew._telemetry import span
from clew.agent.runs import Emit
from clew.agent.settings import Settings
from clew.models import ModelRequest, ModelResponse, cost_of

__all__ = ["ask"]


async def ask(settings: Settings, request: ModelRequest, emit: Emit) -> tuple[ModelResponse, float | None]:
    """The response, and its price in dollars if that is known. What is streamed before it goes to `emit`."""
    model = settings.model
    response: ModelResponse | None = None
    with span("clew.model_call", model=model.name, messages=len(request.messages)) as current:
        async for event in model.stream(request):  # to its end, so that its connection is given back now
            if isinstance(event, ModelResponse):
                response = event
            else:
                emit(event)
        if response is None:
            raise RuntimeError(f"the model {model.name} ended its stream without a response")
        current.set(input_tokens=response.usage.input_tokens, output_tokens=response.usage.output_tokens)
    return response, cost_of([response.model, model.name], response.usage, settings.prices)
