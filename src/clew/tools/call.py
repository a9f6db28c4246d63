"""Calling a tool: check the arguments, run the body, and turn its value or error into a result for the model."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import difflib
import functools
import inspect
import logging
import os
import random
import re
import threading
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence, Set, ValuesView
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from clew.errors import InvalidInput
from clew.messages import File, Image, Json, Opaque, Text, ToolResult
from clew.tools import values as _pydantic
from clew.tools.context import ToolContext
from clew.tools.decorator import AnyTool
from clew.tools.signals import NOT_DONE, BadArguments, Interrupted, NotDone, OutcomeUnknown, Stopped, ToolError
from clew.tools.values import json_like

__all__ = [
    "ask_reconcile",
    "call_tool",
    "error_place",
    "error_result",
    "error_text",
    "needs_approval",
    "run_in_thread",
    "to_result",
    "unknown_tool",
]


log = logging.getLogger("clew.tools")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 8.0


class _TimedOut(Exception):
    pass


async def call_tool(tool: AnyTool, arguments: Any, ctx: ToolContext) -> ToolResult:
    """Run a tool and return its result. If the tool times out or raises an exception other than `ToolError`, it is run
    again, at most as many times as its `retries` says.

    An error in the tool or in its arguments becomes a result with `is_error`, in words for the model. Four things are
    raised instead: `Interrupted` (the tool waits for a person), `OutcomeUnknown` (the tool's function may still be
    running, so its outcome is not known), `Stopped` (the run cannot go on) and cancellation.
    """
    try:
        values = tool.parameters.decode(arguments)
    except BadArguments as error:
        return error_result(str(error), ctx.call_id)
    except Exception as error:  # noqa: BLE001  # of a user's validator, or of a value nested beyond all measure
        return error_result(f"The arguments cannot be read: {error_text(error)}", ctx.call_id)
    failure = ""
    for number in range(tool.retries + 1):
        if number:
            await asyncio.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (number - 1)) * random.uniform(0.5, 1))  # noqa: S311 - a pause
            if tool.effect != "none":
                await ctx.fence()
        attempt = ctx._for_attempt(ctx.attempt + number)
        try:
            value = await _run(tool, values, attempt)
        except ToolError as error:
            return error_result(str(error), ctx.call_id)
        except _TimedOut:
            failure = _given_up(tool)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a tool may raise anything
            failure = error_text(error)
            log.debug("tool %s raised %s", tool.name, error_place(error))
        else:
            return to_result(value, ctx.call_id, tool.name)
    return error_result(failure, ctx.call_id)


def _given_up(tool: AnyTool) -> str:
    """Return a text that tells the model that the tool timed out. Raises `OutcomeUnknown` instead if the tool has
    effects and its function may still be running."""
    after = f"timed out after {tool.timeout:g} s"
    if tool.goes_on and tool.effect != "none":
        raise OutcomeUnknown(tool.name, f"it {after} and may still be running")
    return f"The tool {after}." + ("" if tool.effect == "none" else " It may have taken effect in part or in whole.")


async def _run(tool: AnyTool, values: Mapping[str, Any], ctx: ToolContext) -> Any:
    """Run the function of the tool once with these argument values, and with `ctx` as its context. Return the
    function's value. Raises `_TimedOut` if it takes longer than the tool's timeout."""
    args, kwargs = tool.parameters.bind(values, ctx)
    call = functools.partial(tool.fn, *args, **kwargs)
    try:
        async with asyncio.timeout(tool.timeout) as limit:
            value = call() if tool.is_async else await run_in_thread(call, f"clew tool {tool.name}")
            return await value if inspect.isawaitable(value) else value
    except TimeoutError:
        if limit.expired():
            ctx.cancel()
            raise _TimedOut from None
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and not task.cancelling():  # something inside the tool was cancelled, and not the call
            raise RuntimeError(f"something the tool waited for was cancelled {error}".strip()) from error
        ctx.cancel()
        raise
    except OutcomeUnknown as unknown:
        raise OutcomeUnknown(tool.name, unknown.reason) from None
    except BaseExceptionGroup as group:
        raise _signal_in(group) or group from None


def _signal_in(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """Search an exception group, and the groups inside it, for an `Interrupted`, an `OutcomeUnknown` or a `Stopped`.
    Return the first one, or None. If a tool uses a task group, such an exception comes wrapped in a group."""
    for inner in group.exceptions:
        found = _signal_in(inner) if isinstance(inner, BaseExceptionGroup) else inner
        if isinstance(found, (Interrupted, OutcomeUnknown, Stopped)):
            return found
    return None


async def ask_reconcile(tool: AnyTool, arguments: Any, ctx: ToolContext) -> ToolResult | NotDone:
    """Ask the tool's own `reconcile` function whether a call with these arguments, which is in doubt, happened: a call
    that was begun, and whose outcome is not on record. Return the call's result if it happened, or `NOT_DONE` if it did
    not.

    Raises `OutcomeUnknown` if the tool has no such function or if the function fails. The call then stays in doubt.
    """
    if tool.reconcile is None:
        raise OutcomeUnknown(tool.name, "it has no reconcile to ask")
    try:
        values = tool.parameters.complete(tool.parameters.decode(arguments))
        value = await _ask(tool.reconcile, ctx._for_attempt(ctx.attempt), values, tool)
    except Exception as error:
        raise OutcomeUnknown(tool.name, f"its reconcile failed with {error_text(error)}") from error
    return NOT_DONE if value is NOT_DONE else to_result(value, ctx.call_id, tool.name)


async def needs_approval(tool: AnyTool, arguments: Any) -> bool:
    """Return whether a person must approve this call before it is run, as the tool's `approve` says. If that is a
    function, it decides, and gets the call's arguments.

    A call with wrong arguments needs no approval, because it fails anyway. If the function fails, approval is needed.
    """
    if isinstance(tool.approve, bool):
        return tool.approve
    try:
        values = tool.parameters.complete(tool.parameters.decode(arguments))
        return bool(await _ask(tool.approve, None, values, tool))
    except BadArguments:
        return False
    except Exception as error:  # noqa: BLE001  # a user's function may raise anything
        log.warning("approve= of tool %s raised %s, so a person is asked", tool.name, error_place(error))
        return True


async def _ask(fn: Any, ctx: ToolContext | None, values: Mapping[str, Any], tool: AnyTool) -> Any:
    call = functools.partial(fn, **values) if ctx is None else functools.partial(fn, ctx, **values)
    if inspect.iscoroutinefunction(fn):
        return await call()
    value = await run_in_thread(call, f"clew tool {tool.name}")
    return await value if inspect.isawaitable(value) else value


def unknown_tool(name: str, known: Collection[str], call_id: str) -> ToolResult:
    """Return an error result for a call of a tool, `name`, that the agent does not have. The result names the tools
    that the agent has, `known`. `call_id` is the id of the call."""
    close = difflib.get_close_matches(name, known, 1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    there = ", ".join(sorted(known)) or "none"
    return error_result(f"There is no tool {name!r}.{meant} The tools are: {there}", call_id)


T = TypeVar("T")


async def run_in_thread(fn: Callable[[], T], name: str) -> T:
    """Run `fn` in a new OS thread, which gets this `name` and a copy of the context variables. Return what `fn`
    returns, or raise what it raises.

    If the caller is cancelled, the OS thread goes on and its result is dropped. It is a daemon thread outside of any
    pool, because a tool that never ends would keep the process from ending, or occupy a place in the pool for ever.
    """
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            value = context.run(fn)
        except BaseException as error:  # noqa: BLE001  # raised again where the caller waits
            settle(
                waiting.set_exception,
                RuntimeError(f"StopIteration: {error}") if isinstance(error, StopIteration) else error,
            )
        else:
            settle(waiting.set_result, value)

    def settle(how: Callable[[Any], None], value: Any) -> None:
        with suppress(RuntimeError):  # the event loop is closed, so nobody waits for the result
            loop.call_soon_threadsafe(lambda: None if waiting.done() else how(value))

    threading.Thread(target=work, name=name, daemon=True).start()
    return await waiting


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_ONLY_AN_ADDRESS = re.compile(r"<.* at 0x[0-9a-fA-F]+.*>", re.DOTALL)
_LEAST, _MOST, _DEEPEST = -(2**63), 2**64, 100
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ToolResult).decode
_BLOCKS = (Text, Json, Image, File, Opaque)
_LONGEST_ERROR = 4000
_MAGIC = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
Content = tuple[Text | Json | Image | File | Opaque, ...]


def to_result(value: Any, call_id: str, tool: str) -> ToolResult:
    """Turn any value that a tool returned into a result that can be stored.

    This never fails: the tool has taken effect by now, and the model must hear of it. Structured data becomes JSON. For
    an object that cannot be shown as text, the result names its type, in words that do not lead the model to call the
    tool again, and a warning is logged for the developer. `call_id` is the id of the call that the result is for, and
    `tool` is the name of the tool for the warning.
    """
    converter = _ResultConverter()
    try:
        if isinstance(value, ToolResult):
            result = msgspec.structs.replace(value, call_id=call_id, content=converter.content(value.content or ""))
        else:
            result = ToolResult(call_id, converter.content(value))
        _decode(_encode(result))  # a block with a field of the wrong type can be written, and makes the log unreadable
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        what = "block that cannot be stored"
        converter.unreadable.append(f"{what} ({error})")
        is_error = isinstance(value, ToolResult) and value.is_error is True
        result = ToolResult(call_id, (Text(f"The tool ran, and returned {_no_text_form(what)}."),), is_error=is_error)
    if converter.unreadable:
        log.warning(
            "tool %s returned a %s, which has no text form: the model is told its type alone. Return text, bytes, JSON-like "
            "data, a dataclass, a msgspec Struct, a pydantic model or blocks of clew.messages.",
            tool,
            ", a ".join(dict.fromkeys(converter.unreadable)),
        )
    return result


class _ResultConverter:
    """Converts one value that a tool returned into blocks for the model. Collects in `unreadable` the names of types
    that could not be converted."""

    def __init__(self) -> None:
        self.unreadable: list[str] = []

    def content(self, value: Any) -> Content:
        if value is None:
            return (Text("done"),)
        if isinstance(value, (list, tuple)) and any(isinstance(part, _BLOCKS) for part in value):
            return tuple(block for part in value for block in self.content(part))
        if isinstance(value, Json):
            return (msgspec.structs.replace(value, value=self._json_or_text(value.value)),)
        if isinstance(value, Text) and isinstance(value.text, str):
            return (msgspec.structs.replace(value, text=_storable(value.text)),)
        if isinstance(value, _BLOCKS):
            return (value,)
        if isinstance(value, str):
            return (Text(_storable(str(value))),)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return (_bytes_block(bytes(value)),)
        plain = self._json_or_text(value)
        if isinstance(plain, str):  # a date, an enum's value or a path, for example
            return (Text(f"The tool ran, and returned {plain}." if self.unreadable else plain),)
        return (Json(plain),)

    def _json_or_text(self, value: Any) -> Any:
        """Return the value as JSON types. If a part of it does not fit into JSON, return the whole value as text."""
        before = len(self.unreadable)
        try:
            return _fit(msgspec.to_builtins(value, str_keys=True, enc_hook=self._as_json), 0)
        except (TypeError, ValueError, OverflowError, RecursionError, InvalidInput):
            del self.unreadable[before:]
            return self._words(value)

    def _as_json(self, value: Any) -> Any:
        """Convert an object that msgspec cannot convert: return it as types that msgspec knows, or as text."""
        with suppress(NotImplementedError):
            return _pydantic.dump(value)
        if isinstance(value, Mapping):
            return dict(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if isinstance(value, BaseException):
            return error_text(value)
        if isinstance(value, os.PathLike):
            return os.fsdecode(value)
        if callable(as_list := getattr(value, "tolist", None)) and not isinstance(value, type):  # numpy, for example
            with suppress(Exception):
                return as_list()
        return list(value) if _is_list(value) else self._words(value)

    def _words(self, value: Any) -> str:
        """Return the object's own `str`. If that text shows only a memory address, return words that name the object's
        type instead, and add the type's name to `unreadable`, the list of types that could not be converted."""
        kind = type(value)
        try:
            text = str(value)
        except Exception:  # noqa: BLE001  # a user's __str__ may do anything
            return self._unreadable(kind)
        if _ONLY_AN_ADDRESS.fullmatch(text):
            return self._unreadable(kind)
        return _storable(_ADDRESS.sub("", text))

    def _unreadable(self, kind: type) -> str:
        self.unreadable.append(kind.__qualname__)
        return _no_text_form(kind.__qualname__)


def _is_list(value: Any) -> bool:
    """Return whether an object is shown to the model as a list of its members, and not by its `str`.

    True for a sequence or a set. For any other collection it is True only if the type does not define a `str` of its
    own. A table or an e-mail defines one: iterating over it would give only the names of its columns or headers.
    """
    if isinstance(value, Sequence | Set | ValuesView):
        return True
    has_words = any(vars(kind).keys() & {"__str__", "__repr__"} for kind in type(value).__mro__[:-1])
    return isinstance(value, Collection) and not isinstance(value, type) and not has_words


def _no_text_form(what: str) -> str:
    return f"a {what}, which has no text form"


def _fit(value: Any, depth: int) -> Any:
    """Return a copy of the value that a log can store: text replaces integers beyond 64 bits, and question marks
    replace lone surrogates (halves of a surrogate pair). `depth` is how many lists and dicts the value is nested in.
    Raises `RecursionError` if anything in the value is nested in more than 100 (`_DEEPEST`)."""
    if depth > _DEEPEST:
        raise RecursionError
    if isinstance(value, str):
        return _storable(value)
    if isinstance(value, list):
        return [_fit(inner, depth + 1) for inner in value]
    if isinstance(value, dict):
        return {_storable(key): _fit(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, int) and not _LEAST <= value < _MOST:
        return str(value)
    return json_like(value, "the result")


def _bytes_block(data: bytes) -> Image | File:
    for start, media_type in _MAGIC.items():
        if data.startswith(start):
            return Image(media_type, data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return Image("image/webp", data)
    return File("", "application/pdf" if data.startswith(b"%PDF-") else "application/octet-stream", data)


def _said(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001  # a user's __str__ may do anything
        return f"a {type(value).__qualname__}"


def error_result(message: str, call_id: str) -> ToolResult:
    return ToolResult(call_id, (Text(_storable(message)),), is_error=True)


def error_text(error: BaseException) -> str:
    """Describe an exception in text for the model: its type and message, cut off if long. The traceback is left out,
    because its lines may hold secrets."""
    if isinstance(error, BaseExceptionGroup):
        text = "; ".join(error_text(inner) for inner in error.exceptions)
    else:
        said = _said(error)
        text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return text if len(text) <= _LONGEST_ERROR else text[:_LONGEST_ERROR] + " …"


def error_place(error: BaseException) -> str:
    """Describe an exception in text for a log line: its type, and the file and line where it was raised. Its message is
    left out, because it may hold content of the conversation."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


def _storable(text: str) -> str:
    """Return the text with a question mark for each lone surrogate (half of a surrogate pair), which no store can keep."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
