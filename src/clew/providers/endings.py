"""How a prompt to a provider ended: what is on record of it, and what whoever waits for an answer is told."""

from __future__ import annotations

import asyncio
from typing import Any

from clew.agent.exchanges import reason_of
from clew.errors import ClewError, ContextTooLong, NotLoggedIn, ProviderError, ProviderLimited, SessionNotFound
from clew.providers.happenings import Failed, Finished

__all__ = ["error_of", "standing_of"]

_LONGEST_REASON = 500


def standing_of(
    ending: Finished | Failed | None, timeout: float | None, failure: BaseException | None
) -> tuple[Any, str]:
    if isinstance(failure, TimeoutError):
        return "interrupted", f"timeout: {timeout:g} s"
    if isinstance(failure, asyncio.CancelledError):
        return "interrupted", "cancelled"
    if failure is not None:
        return "failed", reason_of(failure)
    if isinstance(ending, Failed):
        refused = "the request was refused: " if ending.is_refused and ending.kind == "failed" else ""
        reason = f"{refused}{ending.reason}"[:_LONGEST_REASON]
        return "interrupted" if ending.kind == "stopped" else "failed", reason
    return ("done", "") if ending is not None else ("interrupted", "the program ended without a word")


def error_of(provider: str, ending: Finished | Failed | None, model: str, key: str) -> ClewError:
    """What a failure is to whoever waits for an answer. `key` is what the provider knows the conversation by."""
    failed = ending if isinstance(ending, Failed) else Failed("failed", "its program ended without a word")
    if failed.kind == "login":
        return NotLoggedIn(provider, failed.reason)
    if failed.kind == "limit":
        return ProviderLimited(provider, failed.reason)
    if failed.kind == "context":
        return ContextTooLong(model or provider, failed.reason)
    if failed.kind == "session":
        return SessionNotFound(provider, key)
    return ProviderError(provider, failed.reason, "What it did so far is on record; send again to go on.")
