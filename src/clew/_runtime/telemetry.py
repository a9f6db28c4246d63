"""OpenTelemetry spans, if its API package is installed and a tracer is set up; otherwise next to nothing.

A span says which thread, how much and how long. It never holds an entry, a prompt, a key or the text of an error.
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
    """One operation under way."""

    def set(self, **attributes: Attribute) -> None:
        """Add what is known only later: how much was read, say."""


class _NoSpan:
    """Nobody is listening."""

    __slots__ = ()

    def set(self, **attributes: Attribute) -> None:
        pass

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        pass


class _OpenSpan:
    """A span of OpenTelemetry, current while its block runs. An error is named by its type alone."""

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
                from opentelemetry.trace import StatusCode

                self._span.set_status(StatusCode.ERROR)
        self._current.__exit__(kind, error, trace)


_API = "opentelemetry.trace"
_NO_SPAN = _NoSpan()
_tracer: Tracer | None = None
_look_again = 0.0


def is_listened_to() -> bool:
    """Whether a span is worth opening: for what happens so often that one which nobody listens to costs too much.

    A tracer that is set up late is seen within a tenth of a second: to ask for it takes 1.4 µs, which many an append
    would pay for nothing.
    """
    global _look_again
    if _tracer is not None:
        return True
    if _API not in sys.modules or (now := time.monotonic()) < _look_again:
        return False
    _look_again = now + 0.1
    return _find_tracer() is not None


def span(name: str, **attributes: Attribute) -> _NoSpan | _OpenSpan:
    """A span around a block: `with span("clew.load", thread_id=thread_id) as current: ...; current.set(frames=12)`."""
    tracer = _tracer or _find_tracer()
    return _NO_SPAN if tracer is None else _OpenSpan(tracer, name, attributes)


def _find_tracer() -> Tracer | None:
    """The program's tracer, once it has set one up: the API alone records nothing, and takes 7 µs to do so. A program that
    has set one up has imported the API, so nobody else has to."""
    global _tracer
    api: Any = sys.modules.get(_API)
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if not isinstance(provider, api.ProxyTracerProvider):
        from clew import __version__

        _tracer = provider.get_tracer("clew", __version__)
    return _tracer
