"""OpenTelemetry spans. They cost almost nothing unless the program has imported the OpenTelemetry API and set up a
tracer.

A span says which thread an operation was about, how much it read or wrote, and how long it took. It never holds an
entry, a prompt, a key or the text of an error.
"""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from opentelemetry.trace import Span as _OtelSpan
    from opentelemetry.trace import Tracer

__all__ = ["Attribute", "Span", "is_listened_to", "span"]

Attribute = str | int | float | bool


class Span(Protocol):
    """An OpenTelemetry span (the timed record of one operation) that has not ended."""

    def set(self, **attributes: Attribute) -> None:
        """Add attributes to the span that are known only after its start, for example how much was read."""


class _NoSpan:
    """Takes the place of an OpenTelemetry span if the program has set up no tracer. Its methods do nothing."""

    __slots__ = ()

    def set(self, **attributes: Attribute) -> None:
        pass

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        pass


class _OpenSpan:
    """An OpenTelemetry span around a `with` block. While the block runs, the span is OpenTelemetry's current span. If
    the block raises an error, the span records only the type of the error."""

    __slots__ = ("_attributes", "_current", "_name", "_span", "_tracer")
    _current: AbstractContextManager[_OtelSpan]
    _span: _OtelSpan

    def __init__(self, tracer: Tracer, name: str, attributes: dict[str, Attribute]) -> None:
        self._tracer = tracer
        self._name = name
        self._attributes = attributes

    def set(self, **attributes: Attribute) -> None:
        for name, value in attributes.items():
            self._span.set_attribute(f"clew.{name}", value)

    def __enter__(self) -> _OpenSpan:
        self._current = self._tracer.start_as_current_span(
            self._name,
            attributes={f"clew.{name}": value for name, value in self._attributes.items()},
            record_exception=False,
            set_status_on_exception=False,
        )
        self._span = self._current.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._span.set_attribute("error.type", kind.__qualname__)
            if issubclass(kind, Exception):
                from opentelemetry.trace import StatusCode  # an optional dependency

                self._span.set_status(StatusCode.ERROR)
        self._current.__exit__(kind, error, trace)


_API = "opentelemetry.trace"
_NO_SPAN = _NoSpan()
_tracer: Tracer | None = None
_look_again = 0.0


def is_listened_to() -> bool:
    """Return whether the program has set up a tracer. Callers that run very often ask this before they open a span.

    Asking OpenTelemetry takes 1.4 µs. So if there was no tracer, this returns False for the next tenth of a second
    without asking again. A tracer that is set up meanwhile is noticed that much later.
    """
    global _look_again
    if _tracer is not None:
        return True
    if _API not in sys.modules or (now := time.monotonic()) < _look_again:
        return False
    _look_again = now + 0.1
    return _find_tracer() is not None


def span(name: str, **attributes: Attribute) -> _NoSpan | _OpenSpan:
    """Return a span for a `with` block: `with span("clew.load", thread_id=thread_id) as current: ...;
    current.set(frames=12)`. The span does nothing if no tracer is set up."""
    tracer = _tracer or _find_tracer()
    return _NO_SPAN if tracer is None else _OpenSpan(tracer, name, attributes)


def _find_tracer() -> Tracer | None:
    """Return the tracer that the program has set up, or None if there is none yet. Without a tracer, each span of
    OpenTelemetry's API would cost 7 µs and record nothing. Clew never imports that API here: a program that sets up a
    tracer has imported it."""
    global _tracer
    api: Any = sys.modules.get(_API)
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if not isinstance(provider, api.ProxyTracerProvider):
        from clew import __version__  # clew itself imports this module

        _tracer = provider.get_tracer("clew", __version__)
    return _tracer
