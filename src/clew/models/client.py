"""What the model classes of all vendors share: loading the vendor's SDK, making a client for each event loop, retrying
calls, and building request bodies."""

from __future__ import annotations

import asyncio
import inspect
import sys
import weakref
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from clew.errors import InvalidInput, MissingExtra
from clew.messages import Assistant, Block, File, Image, Message, Opaque, Text, Thinking, ToolCall
from clew.models.base import ModelEvent, ModelRequest, ModelResponse, ToolSpec
from clew.models.retry import call

__all__ = ["Clients", "Vendor", "arguments", "is_installed", "is_strict", "merged", "parameters", "without_thinking"]


class Client(Protocol):
    """The part of a vendor's async SDK client that Clew needs for every vendor: the method that closes the client."""

    def close(self) -> Awaitable[None]: ...


class AdjustableClient(Client, Protocol):
    """A vendor's SDK client with a method that turns off the SDK's own retries, because Clew retries calls itself."""

    def with_options(self, *, max_retries: int) -> Any: ...


_C = TypeVar("_C", bound=Client)
_A = TypeVar("_A", bound=AdjustableClient)


class ResponseBuilder(Protocol):
    """The interface of an object that builds one response of a model from the events in which a vendor streams it."""

    def take(self, event: Mapping[str, Any]) -> Iterable[ModelEvent]:
        """Add one event of the stream to the response that is being built, and return the pieces of text and thinking
        in that event."""

    def response(self, asked: str) -> ModelResponse:
        """Return the complete response. Called after the last event of the stream. `asked` is the model's name in the
        request, which is recorded if the vendor does not say which model answered. Raises `StreamBroken` if the stream
        ended too early."""


class Vendor(Generic[_A]):
    """Makes calls to one vendor's API for one model, and retries calls that fail. Uses an SDK client of its own for
    each event loop, because connections belong to the loop in which they were opened."""

    def __init__(
        self,
        package: str,
        maker: str | Callable[..., _A],
        model: str,
        *,
        name: str,
        client: _A | None,
        settings: Mapping[str, Any],
        max_retries: int,
        advice: Callable[[int | None], str],
        prepare: Callable[[], None] | None = None,
        extra: str = "",
    ) -> None:
        """`package` is the SDK, and `maker` is the name of its async client class, or a function that takes the
        imported SDK and returns a client. A client is made with `settings`, unless the user gives one as `client`;
        giving both raises `InvalidInput`. `model` is the vendor's name of the model, and `name` is how the user names
        it, for error messages. A call is retried at most `max_retries` times. `advice` takes the HTTP status of a
        failed call (None if there was no answer), and returns what the user should check. `prepare` is called on
        another OS thread before a client is made, for work that may take long. `extra` is the extra of Clew that
        installs the SDK; by default it has the name of the package."""
        if client is not None and settings:
            raise InvalidInput(
                f"give these settings to your own client, not to the model: {', '.join(sorted(settings))}"
            )
        self._model = model
        self._name = name
        self._max_retries = max_retries
        self._advice = advice

        def make(sdk: Any) -> _A:
            made: _A = (
                getattr(sdk, maker)(**settings, max_retries=0)
                if isinstance(maker, str)
                else maker(sdk, **settings, max_retries=0)
            )
            return made

        self._clients: Clients[_A] = Clients(
            package,
            f"the model {name!r}",
            make,
            None if client is None else client.with_options(max_retries=0),
            prepare=prepare if client is None else None,
            extra=extra,
        )

    def stream(
        self,
        request: ModelRequest,
        ask: Callable[[_A, bool], tuple[Callable[..., Any], dict[str, Any], ResponseBuilder]],
    ) -> AsyncGenerator[ModelEvent, None]:
        """Make a model call with retries, and yield its events.

        The function `ask` is called for each attempt with two arguments: an SDK client, and whether to send the
        thinking of earlier turns. `ask` returns three things: the SDK method to call, the request body, and an object
        that builds the response from the events of its stream.
        """

        async def attempt(thinking: bool) -> AsyncGenerator[ModelEvent, None]:
            create, body, builder = ask(await self._clients.get(), thinking)
            async with await create(**arguments(create, {**body, "stream": True})) as events:
                async for event in events:
                    for told in builder.take(event.to_dict()):
                        yield told
            yield builder.response(self._model)

        return call(
            attempt,
            request,
            model=self._name,
            max_retries=self._max_retries,
            secrets=lambda: [self._clients.secret],
            advice=self._advice,
        )

    async def aclose(self) -> None:
        """Close the connections to the vendor that were opened on the running event loop. A later call of the model
        opens new ones."""
        await self._clients.aclose()


class Clients(Generic[_C]):
    """The clients of a vendor's SDK, one for each event loop, because connections belong to the loop in which they were
    opened.

    `package` is the SDK, and `make` makes a client from the imported package. If the user gives a client (`given`),
    that one is used in all loops instead, and the user has to close it. `prepare` is called on another OS thread before
    a client is made, for work that may take long. For the error message if the SDK is not installed, `what` names the
    thing that needs the SDK, and `extra` is the extra of Clew that installs the SDK; by default it has the name of the
    package. `Clients(…)` raises `MissingExtra` in that case.
    """

    def __init__(
        self,
        package: str,
        what: str,
        make: Callable[[Any], _C],
        given: _C | None = None,
        *,
        prepare: Callable[[], None] | None = None,
        extra: str = "",
    ) -> None:
        self._extra = extra or package
        self._prepare = prepare
        if not is_installed(package):
            raise MissingExtra(what, self._extra)
        self._package = package
        self._what = what
        self._make = make
        self._given = given
        self._made: weakref.WeakKeyDictionary[AbstractEventLoop, _C] = weakref.WeakKeyDictionary()
        self.secret = ""
        """The API key of the client that was used last. It is kept so that it can be removed from error messages."""

    async def get(self) -> _C:
        """Return the SDK client for the running event loop, and make one if there is none. If necessary, imports the
        SDK in another OS thread, because that takes a second or more. Raises `MissingExtra` if the SDK cannot be
        imported."""
        loop = asyncio.get_running_loop()
        client = self._given or self._made.get(loop)
        if client is None:
            try:
                if self._package not in sys.modules:
                    await asyncio.to_thread(import_module, self._package)
                sdk = import_module(self._package)
                if self._prepare is not None:
                    await asyncio.to_thread(self._prepare)
            except ImportError as error:
                raise MissingExtra(self._what, self._extra) from error
            client = self._made.get(loop)
            if client is None:
                client = self._made[loop] = self._make(sdk)
        self.secret = key if isinstance(key := getattr(client, "api_key", ""), str) else ""
        return client

    async def aclose(self) -> None:
        """Close the SDK client that was made for the running event loop. A later call of `get` makes another. A client
        that the user gave stays open."""
        client = self._made.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()


def is_installed(package: str) -> bool:
    """Return whether a Python package can be imported, without importing it."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the package that it would be in is not there either
        return False


def arguments(create: Callable[..., Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request body as keyword arguments for `create`, a method of a vendor's SDK. Fields for
    which `create` has no parameter go into the argument `extra_body`, whose content the SDK adds to the request's body.
    """
    known = inspect.signature(create).parameters
    named = {key: value for key, value in body.items() if key in known}
    other = {key: value for key, value in body.items() if key not in known}
    if other:
        extra = named.get("extra_body") or {}
        if not isinstance(extra, Mapping):
            raise InvalidInput("the option 'extra_body' is not a mapping")
        named["extra_body"] = {**other, **extra}
    return named


_OURS = ("messages", "input", "contents", "system_instruction", "model", "stream", "n", "candidate_count")
_BOUND = {"openai-responses": ("id", "message"), "gemini": ("thoughtSignature",)}
"""Fields that an API adds to a block, and that tie the block to the reasoning before it, by the name of the dialect.
They are removed when the reasoning is removed."""


def merged(body: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request body with the user's options added. If the body and the options have a mapping or a list under
    the same key, the two are joined. Any other option replaces the value in the body. Raises `InvalidInput` for an
    option that only Clew may set, such as `messages`."""
    for key in options:
        if key in _OURS:
            raise InvalidInput(f"the option {key!r} cannot be set: Clew sets it itself")
    together = dict(body)
    for key, value in options.items():
        ours = together.get(key)
        if isinstance(ours, Mapping) and isinstance(value, Mapping):
            together[key] = {**ours, **value}
        elif isinstance(ours, list) and isinstance(value, (list, tuple)):
            together[key] = [*ours, *(one for one in value if one not in ours)]
        else:
            together[key] = value
    return together


def parameters(tool: ToolSpec) -> dict[str, Any]:
    return tool.parameters or {"type": "object", "properties": {}}


def without_thinking(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without the model's thinking. OpenAI's Responses API gives an id, and Gemini's API a
    signature, to other blocks that came after the thinking; these ids and signatures are removed too, because they are
    not valid without the thinking."""
    return [
        Assistant(tuple(_loose(block) for block in message.content if not _is_thinking(block)))
        if isinstance(message, Assistant)
        else message
        for message in messages
    ]


def _is_thinking(block: Block) -> bool:
    if isinstance(block, Opaque):
        return isinstance(block.value, dict) and block.value.get("type") == "reasoning"
    return isinstance(block, Thinking)


def _loose(block: Block) -> Block:
    if not isinstance(block, (Text, ToolCall, Image, File)) or not block.extra:
        return block
    extra = dict(block.extra)
    for dialect, bound in _BOUND.items():
        said = extra.get(dialect)
        if isinstance(said, Mapping):
            kept = {key: value for key, value in said.items() if key not in bound}
            extra = {**extra, dialect: kept} if kept else {key: extra[key] for key in extra if key != dialect}
    return block if extra == block.extra else msgspec.structs.replace(block, extra=extra or None)


def is_strict(schema: Any) -> bool:
    """Return whether OpenAI can enforce this JSON schema for the model's output. That is so if its objects allow no
    additional properties, and all their properties are required.

    A schema that cannot be enforced is still sent to the model, as a hint.
    """
    if isinstance(schema, list):
        return all(is_strict(one) for one in schema)
    if not isinstance(schema, Mapping):
        return True
    named = schema.get("properties")
    if schema.get("type") == "object" or isinstance(named, Mapping):
        required = schema.get("required")
        names = set(named) if isinstance(named, Mapping) else set()
        if schema.get("additionalProperties") is not False or names - set(required or ()):
            return False
    inner = [
        value for key, value in schema.items() if key not in ("properties", "$defs", "definitions", "enum", "const")
    ]
    for key in ("properties", "$defs", "definitions"):
        inner += list(schema[key].values()) if isinstance(schema.get(key), Mapping) else []
    return all(is_strict(one) for one in inner if isinstance(one, (Mapping, list)))
