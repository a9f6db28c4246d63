"""Every error Clew raises, in one tree.

    ClewError
    ├── InvalidInput       a value that no store could accept: a bad id, position, size or URL
    ├── UsageError         the right call at the wrong place: closed, forked child, second event loop
    ├── MissingExtra       an optional dependency is not installed
    ├── Conflict           the log is not where the caller thought it was
    ├── ThreadBusy         another live process holds the thread's lease
    ├── LeaseLost          this process held the lease and another one has taken over
    ├── ThreadNotFound     no such thread in this store
    ├── MissingBlob        a blob that a frame points at is not in the store
    ├── Unavailable        the store could not be reached or did not answer; the call may be made again
    ├── Corrupt            the store answered with something that fails its check
    ├── WrongKey           encrypted, and the key that opens it is not here
    ├── NewerFormat        written by a newer Clew than this one
    ├── ModelError         a model gave no answer
    │   ├── ContextTooLong     the request does not fit the model's window
    │   ├── ModelUnavailable   limits, outages, timeouts, dropped streams: after all retries
    │   └── ModelRefused       a bad key, an unknown model, a request the vendor does not take
    └── ProviderError      a coding agent's program gave no answer
        ├── ProviderMissing    the program is not installed
        │   └── ProviderOutdated   it is, in a version that does not keep what it is told
        ├── NotLoggedIn        the program has no account, or one that is no longer good
        ├── ProviderLimited    a rate or usage limit of the account
        └── SessionNotFound    the program has no such conversation

Absent, unreachable and corrupt are three different results, and none is ever taken for another. A message says what
happened, to which thread, and what to do. It never holds a prompt, a key or any other content.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from clew import advice

__all__ = [
    "ClewError",
    "Conflict",
    "ContextTooLong",
    "Corrupt",
    "InvalidInput",
    "LeaseLost",
    "MissingBlob",
    "MissingExtra",
    "ModelError",
    "ModelRefused",
    "ModelUnavailable",
    "NewerFormat",
    "NotLoggedIn",
    "ProviderError",
    "ProviderLimited",
    "ProviderMissing",
    "ProviderOutdated",
    "SessionNotFound",
    "ThreadBusy",
    "ThreadNotFound",
    "Unavailable",
    "UsageError",
    "WrongKey",
]


class ClewError(Exception):
    """The root of all errors that Clew raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling, so that an error can cross a process boundary whatever its constructor takes."""
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[ClewError], args: tuple[Any, ...], attributes: dict[str, Any]) -> ClewError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(attributes)
    return error


class InvalidInput(ClewError, ValueError):
    """A value that no store could accept. Nothing was written."""


class UsageError(ClewError, RuntimeError):
    """A call where it cannot work: after close, in a forked child, on a second event loop. Nothing was written."""


class MissingExtra(ClewError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{what} needs an extra that is not installed. Install it: {advice.install(extra)}")


class Conflict(ClewError):
    """The log does not end where the caller thought: another writer was there first. Nothing was written."""

    def __init__(self, thread_id: str, reason: str) -> None:
        self.thread_id = thread_id
        super().__init__(f"thread {thread_id!r}: {reason}. Read its head again and append from there.")


class ThreadBusy(ClewError):
    """Another live process holds the lease of this thread."""

    def __init__(self, thread_id: str, holder: str, expires_in: float) -> None:
        self.thread_id = thread_id
        self.holder = holder
        self.expires_in = expires_in
        super().__init__(
            f"thread {thread_id!r} is being run by {holder}; its lease ends in {expires_in:.0f} s. "
            f"Wait, stop that process, or take over: {advice.take_over()}"
        )


class LeaseLost(ClewError):
    """This process held the lease, and another has taken over. What was not acknowledged was not written."""

    def __init__(self, thread_id: str, holder: str) -> None:
        self.thread_id = thread_id
        self.holder = holder
        super().__init__(
            f"thread {thread_id!r} was taken over by {holder}. Nothing more is written from here; "
            "open the thread again to continue from what is on record."
        )


class ThreadNotFound(ClewError, LookupError):
    """The store answered, and has no such thread."""

    def __init__(self, thread_id: str, where: str = "this store", more: str = "") -> None:
        self.thread_id = thread_id
        super().__init__(
            f"no thread {thread_id!r} in {where}. Those that are there are listed by: {advice.list_in_program()}"
            + (f". {more}" if more else "")
        )


class MissingBlob(ClewError):
    """Blobs that a frame points at are not in the store. Nothing was written."""

    def __init__(self, digests: Collection[str], *, thread_id: str | None = None) -> None:
        self.digests = frozenset(digests)
        self.thread_id = thread_id
        named = ", ".join(sorted(self.digests)[:3]) + (" …" if len(self.digests) > 3 else "")
        where = f"thread {thread_id!r} points at" if thread_id is not None else "asked for"
        super().__init__(
            f"{where} {len(self.digests)} blob(s) that the store does not have: {named}. "
            "Put blobs before the frames that point at them; if they were there, restore them from a copy."
        )


class Unavailable(ClewError):
    """The store could not be reached or could not write. The same call may be made again: it is safe."""


class Corrupt(ClewError):
    """Stored bytes fail their check. The message names the thread and frame, or the file."""


class WrongKey(ClewError):
    """Encrypted, and the key that opens it is not here; or it is not in the place it was sealed for."""

    def __init__(self, what: str, key_id: str | None) -> None:
        self.key_id = key_id
        needed = f"it needs the key with the id {key_id}" if key_id else "it does not open in this place"
        super().__init__(f"{what} is encrypted, and {needed}. Give the key {advice.KEY_IN_PROGRAM}.")


class NewerFormat(ClewError):
    """Written by a newer Clew. Nothing was changed."""

    def __init__(self, what: str, found: int, supported: int) -> None:
        self.found = found
        self.supported = supported
        super().__init__(
            f"{what} has format version {found}; this Clew reads up to {supported}. Upgrade with: {advice.upgrade()}"
        )


NOT_CARRIED_OUT = frozenset({400, 401, 402, 403, 404, 405, 413, 414, 415, 422, 429, 431})
"""Statuses by which a vendor says that it did not carry a request out, and so does not charge it.

429 is among them: limits are checked before the model is asked, and vendors say that such a request is not charged. Not
among them are 408, 409, 499 and 5xx: a server, or a proxy before it, sends those also while or after the model worked.
"""


class ModelError(ClewError):
    """A model gave no answer.

    `model` is its name as the user writes it, `reason` what happened, `status` the HTTP status if there was one. `is_free`
    tells whether the request was refused for certain and so cost nothing. If it is not given, the status decides: 400, 401
    or 429 for example are refusals, while after a timeout or a 500 the model may have worked, and that may be charged.
    """

    def __init__(
        self, model: str, reason: str, advice: str = "", *, status: int | None = None, is_free: bool | None = None
    ) -> None:
        self.model = model
        self.reason = reason
        self.status = status
        self.is_free = status in NOT_CARRIED_OUT if is_free is None else is_free
        super().__init__(f"{model}: {reason}." + (f" {advice}" if advice else ""))


class ContextTooLong(ModelError):
    """The request does not fit the model's context window. The same request never will."""

    def __init__(self, model: str, reason: str, *, status: int | None = None, is_free: bool | None = None) -> None:
        advice = "Compact the conversation, or take a model with a larger window."
        super().__init__(model, f"the conversation does not fit ({reason})", advice, status=status, is_free=is_free)


class ModelUnavailable(ModelError):
    """The vendor could not be reached, had no capacity or broke off, in every attempt. A later call may succeed."""

    def __init__(
        self, model: str, reason: str, *, attempts: int, status: int | None = None, is_free: bool | None = None
    ) -> None:
        self.attempts = attempts
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        why = f"no answer in {times}, the last time because of {reason}"
        super().__init__(model, why, "Try again later.", status=status, is_free=is_free)


class ModelRefused(ModelError):
    """The vendor does not take the request: a bad key, an unknown model, something in it that is amiss."""

    def __init__(
        self, model: str, reason: str, advice: str = "", *, status: int | None = None, is_free: bool | None = None
    ) -> None:
        super().__init__(model, f"the request was refused ({reason})", advice, status=status, is_free=is_free)


class ProviderError(ClewError):
    """A coding agent's program gave no answer. `provider` is its name, `reason` what happened, `advice` the way out."""

    def __init__(self, provider: str, reason: str, advice: str = "") -> None:
        self.provider = provider
        self.reason = reason
        self.advice = advice
        super().__init__(
            f"{provider}: {reason}{'' if reason.endswith('.') else '.'}" + (f" {advice}" if advice else "")
        )


class ProviderMissing(ProviderError):
    """The program is not installed, or what is installed cannot be run. `install` is the command that installs it."""

    def __init__(self, provider: str, install: str, problem: str = "") -> None:
        self.install = install
        reason = f"its program cannot be run ({problem})" if problem else "its program is not on PATH"
        super().__init__(provider, reason, f"Install it{' again' if problem else ''}: {install}")


class ProviderOutdated(ProviderMissing):
    """The program is installed in a version that does not keep what it is told. It is not asked anything."""

    def __init__(self, provider: str, version: str, oldest: str, install: str, path: str = "") -> None:
        self.install = install
        self.version = version
        self.oldest = oldest
        where = f" ({path})" if path else ""
        ProviderError.__init__(
            self,
            provider,
            f"its version {version}{where} is too old: older than {oldest}, it loses what it was told, or fails",
            f"Upgrade it: {install}",
        )


class NotLoggedIn(ProviderError):
    """The program has no account to work with, or one that is no longer good."""

    def __init__(
        self, provider: str, reason: str, advice: str = "Log in with the program itself, or set its API key."
    ) -> None:
        said = "not logged in" in reason.lower()
        super().__init__(provider, reason if said else f"it is not logged in ({reason})", advice)


class ProviderLimited(ProviderError):
    """A rate or usage limit of the account holds; until when, if that is known."""

    def __init__(self, provider: str, reason: str, *, until: datetime | None = None) -> None:
        self.until = until
        when = "later" if until is None else f"after {until:%Y-%m-%d %H:%M %Z}".rstrip()
        super().__init__(
            provider, f"its limit is reached ({reason})", f"Try again {when}, or move the session to another provider."
        )


class SessionNotFound(ProviderError, LookupError):
    """The program has no such conversation on this machine."""

    def __init__(self, provider: str, session: str) -> None:
        self.session = session
        super().__init__(
            provider,
            f"no session {session!r} on this machine",
            f"Those that are there are listed by: {advice.discover()}",
        )
