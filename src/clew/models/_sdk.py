"""A vendor's SDK: imported when it is first needed, its client made for the event loop that asks, and closed."""

from __future__ import annotations

import asyncio
import inspect
import sys
import weakref
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, Protocol, TypeVar

from clew.errors import InvalidInput, MissingExtra
from clew.models.base import ModelEvent, ModelRequest, ModelResponse
from clew.models.retrying import call

__all__ = ["Clients", "Vendor", "arguments"]


class Client(Protocol):
    def close(self) -> Awaitable[None]: ...


_C = TypeVar("_C", bound=Client)


class Reading(Protocol):
    """A response that is put together from the events of its stream."""

    def take(self, event: Mapping[str, Any]) -> Iterable[ModelEvent]:
        """What of it can be told at once."""

    def response(self, asked: str) -> ModelResponse:
        """The whole; `asked` is the model's name, where the vendor does not say which one answered."""


class Vendor(Generic[_C]):
    """A vendor's API as a model calls it: one client for each event loop, and calls that are made again if they fail."""

    def __init__(
        self,
        package: str,
        maker: str,
        model: str,
        *,
        name: str,
        client: _C | None,
        settings: Mapping[str, Any],
        max_retries: int,
        advice: Callable[[int | None], str],
    ) -> None:
        """`maker` is the SDK's class of async clients, `settings` what it is made with unless there is a `client`."""
        if client is not None and settings:
            raise InvalidInput(f"a client of your own has its settings already: {', '.join(sorted(settings))}")
        self._model = model
        self._name = name
        self._max_retries = max_retries
        self._advice = advice
        self._clients: Clients[_C] = Clients(
            package, f"the model {name!r}", lambda sdk: getattr(sdk, maker)(**settings, max_retries=0), client
        )

    def stream(
        self, request: ModelRequest, ask: Callable[[_C, bool], tuple[Callable[..., Any], dict[str, Any], Reading]]
    ) -> AsyncGenerator[ModelEvent, None]:
        """Make a call, again if it fails. `ask` says, for a client and with or without earlier thinking, which method is
        called, with what body, and what its stream is read by."""

        async def attempt(thinking: bool) -> AsyncGenerator[ModelEvent, None]:
            create, body, reading = ask(await self._clients.get(), thinking)
            async with await create(**arguments(create, {**body, "stream": True})) as events:
                async for event in events:
                    for told in reading.take(event.to_dict()):
                        yield told
            yield reading.response(self._model)

        return call(
            attempt,
            request,
            model=self._name,
            max_retries=self._max_retries,
            secrets=lambda: [self._clients.secret],
            advice=self._advice,
        )

    async def aclose(self) -> None:
        """Close the connections. A later call opens new ones."""
        await self._clients.aclose()


class Clients(Generic[_C]):
    """The SDK's clients, one for each event loop: connections belong to the loop they were opened in.

    A client that the user gives is used as it is, but for its retries, and is the user's to close.
    """

    def __init__(self, package: str, what: str, make: Callable[[Any], _C], given: Any = None) -> None:
        if find_spec(package) is None:
            raise MissingExtra(what, package)
        self._package = package
        self._what = what
        self._make = make
        self._given: _C | None = None if given is None else given.with_options(max_retries=0)
        self._made: weakref.WeakKeyDictionary[AbstractEventLoop, _C] = weakref.WeakKeyDictionary()
        self.secret = ""
        """The key that the newest client sends, so that it can be kept out of errors."""

    async def get(self) -> _C:
        """The client of the running loop. Importing an SDK takes a second or more, so a thread does it."""
        loop = asyncio.get_running_loop()
        client = self._given or self._made.get(loop)
        if client is None:
            try:
                if self._package not in sys.modules:
                    await asyncio.to_thread(import_module, self._package)
                sdk = import_module(self._package)
            except ImportError as error:
                raise MissingExtra(self._what, self._package) from error
            client = self._made.get(loop)
            if client is None:
                client = self._made[loop] = self._make(sdk)
        self.secret = key if isinstance(key := getattr(client, "api_key", ""), str) else ""
        return client

    async def aclose(self) -> None:
        """Close the running loop's client. The next call makes another."""
        client = self._made.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()


def arguments(create: Callable[..., Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """The body as arguments of the SDK's method. What it has no parameter for is sent all the same."""
    known = inspect.signature(create).parameters
    named = {key: value for key, value in body.items() if key in known}
    other = {key: value for key, value in body.items() if key not in known}
    if other:
        extra = named.get("extra_body") or {}
        if not isinstance(extra, Mapping):
            raise InvalidInput("the option 'extra_body' is not a mapping")
        named["extra_body"] = {**other, **extra}
    return named
