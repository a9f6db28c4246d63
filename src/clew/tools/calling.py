"""One call of a tool, from a model's arguments to the result it is given."""

from __future__ import annotations

import asyncio
import difflib
import functools
import inspect
import logging
import random
from collections.abc import Collection, Mapping
from typing import Any

from clew.messages import ToolResult
from clew.tools._results import error_place, error_result, error_text, to_result
from clew.tools._threads import run_in_thread
from clew.tools.context import ToolContext
from clew.tools.declaring import AnyTool
from clew.tools.signals import NOT_DONE, BadArguments, Interrupted, NotDone, OutcomeUnknown, Stopped, ToolError

__all__ = ["ask_reconcile", "call_tool", "needs_approval", "unknown_tool"]

log = logging.getLogger("clew.tools")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 8.0


class _TimedOut(Exception):
    pass


async def call_tool(tool: AnyTool, arguments: Any, ctx: ToolContext) -> ToolResult:
    """Run a tool once, or as often as its `retries` allow, and say what it came to.

    Whatever goes wrong in the tool or with its arguments is a result with `is_error`, in words for the model. Four things
    are none, and are raised: `Interrupted` (the tool waits for a person), `OutcomeUnknown` (its body may go on; the call is
    in doubt), `Stopped` (the run itself cannot go on) and cancellation.
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
            await asyncio.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (number - 1)) * random.uniform(0.5, 1))  # noqa: S311
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
    """What a timeout is to the model; or not to the model, if the body goes on and has effects."""
    after = f"timed out after {tool.timeout:g} s"
    if tool.goes_on and tool.effect != "none":
        raise OutcomeUnknown(tool.name, f"it {after} and may still be running")
    return f"The tool {after}." + ("" if tool.effect == "none" else " It may have taken effect in part or in whole.")


async def _run(tool: AnyTool, values: Mapping[str, Any], ctx: ToolContext) -> Any:
    """One run of the body."""
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
    """A question, or a doubt, that a task group inside the tool wrapped."""
    for inner in group.exceptions:
        found = _signal_in(inner) if isinstance(inner, BaseExceptionGroup) else inner
        if isinstance(found, (Interrupted, OutcomeUnknown, Stopped)):
            return found
    return None


async def ask_reconcile(tool: AnyTool, arguments: Any, ctx: ToolContext) -> ToolResult | NotDone:
    """What the tool's `reconcile` says of a call in doubt: its result, or `NOT_DONE`.

    `OutcomeUnknown` if it has none, or if that fails: what is not certain stays in doubt.
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
    """Whether a person is to be asked before this call. Arguments that do not fit are not asked about: they fail anyway.

    If the tool's own function for this fails, a person is asked.
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
    """The answer to a call of a tool that there is not."""
    close = difflib.get_close_matches(name, known, 1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    there = ", ".join(sorted(known)) or "none"
    return error_result(f"There is no tool {name!r}.{meant} The tools are: {there}", call_id)
