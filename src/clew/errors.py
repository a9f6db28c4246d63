"""Every error that Clew raises, in one tree.

    ClewError
    ├── InvalidInput       a value that no store could accept: a bad id, position, size or URL
    ├── UsageError         the call cannot work here: closed, forked child, second event loop
    ├── MissingExtra       an optional dependency is not installed
    ├── Conflict           the thread's log does not end where the caller thought
    ├── ThreadBusy         another live process holds the thread's lease
    ├── LeaseLost          this process held the lease and another one has taken over
    ├── ThreadNotFound     the store has no thread with this id
    ├── MissingBlob        a frame points at a blob that is not in the store
    ├── Unavailable        the store could not be reached or did not answer, or there was no memory or room for the call;
    │                      the same call may be made again
    ├── Corrupt            the store answered with bytes that fail their check
    │   └── NotSealed          the store was opened with an encryption key, and the data was written without one
    ├── WrongKey           the data is encrypted and the key that opens it was not given
    ├── NewerFormat        the data was written by a newer version of Clew
    ├── ModelError         a model gave no answer
    │   ├── ContextTooLong     the request does not fit the model's context window
    │   ├── ModelUnavailable   limits, outages, timeouts or dropped streams, after all retries
    │   └── ModelRefused       a bad key, an unknown model, or a request that the vendor does not accept
    └── ProviderError      a coding agent's program gave no answer
        ├── ProviderMissing    the program is not installed
        │   └── ProviderOutdated   the installed version is too old to keep a conversation
        ├── NotLoggedIn        the program has no account, or its login has expired
        ├── ProviderLimited    the account has reached a rate or usage limit
        └── SessionNotFound    the program has no such conversation

Absent, unreachable and corrupt are three different errors, and none is ever reported as another. A message says what
happened, to which thread, and what to do. It never contains a prompt, a key or any other content.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

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
    "NotSealed",
    "ProviderError",
    "ProviderLimited",
    "ProviderMissing",
    "ProviderOutdated",
    "Retry",
    "SessionNotFound",
    "ThreadBusy",
    "ThreadNotFound",
    "Unavailable",
    "UsageError",
    "WrongKey",
]


class Retry(NamedTuple):
    """Whether the call that raised an error may succeed if it is made again: `now`, `later`, after so many `seconds`, or
    `never`, unless something is changed first."""

    when: Literal["now", "later", "never"]
    seconds: float = 0.0


class ClewError(Exception):
    """Base class of all errors that Clew raises."""

    @property
    def retry(self) -> Retry:
        """Whether the same call may succeed if it is made again, and after how long. A program that runs agents for
        others, such as a pool of workers, decides by it, and need not know each kind of error."""
        return Retry("never")

    def __reduce__(self) -> tuple[Any, ...]:
        """Make every error picklable, whatever arguments its constructor takes, so that it can be sent to another
        process."""
        return rebuild, (type(self), self.args, self.__dict__.copy())


def rebuild(cls: type[ClewError], args: tuple[Any, ...], attributes: dict[str, Any]) -> ClewError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(attributes)
    return error


class InvalidInput(ClewError, ValueError):
    """An argument or another input is invalid, such as a malformed id or URL, a wrong setting, or a number that is out
    of range. Nothing was written."""


class UsageError(ClewError, RuntimeError):
    """The call cannot work here: the object is closed, it is used in a forked child process, or it is used on a second
    event loop.

    Nothing was written.
    """


class MissingExtra(ClewError, ImportError):
    """An optional dependency is not installed.

    `extra` names the extra of Clew that installs it: `pip install clew[extra]`.
    """

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{what} needs an extra that is not installed. Install it: {advice.install(extra)}")


class Conflict(ClewError):
    """The thread's log does not end where the caller thought, because another writer appended to it first. Nothing was
    written."""

    def __init__(self, thread_id: str, reason: str) -> None:
        self.thread_id = thread_id
        super().__init__(f"thread {thread_id!r}: {reason}. Read its head again and append from there.")

    @property
    def retry(self) -> Retry:
        return Retry("now")


class ThreadBusy(ClewError):
    """Another live process holds the lease of this thread.

    `expires_in` is the number of seconds after which that lease ends unless the process renews it.
    """

    def __init__(self, thread_id: str, holder: str, expires_in: float) -> None:
        self.thread_id = thread_id
        self.holder = holder
        self.expires_in = expires_in
        super().__init__(
            f"thread {thread_id!r} is being run by {holder}; its lease ends in {expires_in:.0f} s. "
            f"To tell it something: {advice.post_in_program(thread_id)}. "
            f"Wait, stop that process, or take over: {advice.take_over()}"
        )

    @property
    def retry(self) -> Retry:
        return Retry("later", max(1.0, self.expires_in))


class LeaseLost(ClewError):
    """Another process has taken over the lease that this process held.

    Appends of this process that the store did not confirm were not written.
    """

    def __init__(self, thread_id: str, holder: str) -> None:
        self.thread_id = thread_id
        self.name_holder(holder)

    def name_holder(self, holder: str) -> None:
        """Set `holder`, the process that has taken over the lease, and name it in the message. It may become known only
        after the error object was made."""
        self.holder = holder
        self.args = (
            f"thread {self.thread_id!r} was taken over by {holder}. Nothing more is written from here; "
            "open the thread again to continue from what is on record.",
        )

    @property
    def retry(self) -> Retry:
        return Retry("later", 30.0)  # the process that has the thread now works on it; its lease lasts that long


class ThreadNotFound(ClewError, LookupError):
    """The store was reached, and it has no thread with this id. `where` names the store in the message, and `more` is a
    text that is added to the message."""

    def __init__(self, thread_id: str, where: str = "this store", more: str = "") -> None:
        self.thread_id = thread_id
        super().__init__(
            f"no thread {thread_id!r} in {where}. List the threads with: {advice.list_in_program()}"
            + (f". {more}" if more else "")
        )


class MissingBlob(ClewError):
    """A frame, or an argument of the method that was called, names blobs that are not in the store. No frame was
    written. `digests` are the names of these blobs."""

    def __init__(self, digests: Collection[str], *, thread_id: str | None = None) -> None:
        self.digests = frozenset(digests)
        self.thread_id = thread_id
        named = ", ".join(sorted(self.digests)[:3]) + (" …" if len(self.digests) > 3 else "")
        where = f"thread {thread_id!r} points at" if thread_id is not None else "the call names"
        super().__init__(
            f"{where} {len(self.digests)} blob(s) that the store does not have: {named}. "
            "Put blobs before the frames that point at them; if they were there, restore them from a copy."
        )


class Unavailable(ClewError):
    """The store could not be reached or could not write, or this process got no memory or no OS thread for the call. It is
    safe to make the same call again."""

    @property
    def retry(self) -> Retry:
        return Retry("later", 1.0)


class Corrupt(ClewError):
    """Stored bytes do not match their checksum, or cannot be decoded. The message names the thread and frame, or the
    file."""


class NotSealed(Corrupt):
    """The store was opened with an encryption key, and stored data was written without one: before the store had a key,
    or by somebody who does not have it. `what` names the data: a thread, a frame or a blob."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            f"{what} is not sealed with a key, so anybody who can write to the store may have written it. If it is yours, "
            f"from before the store had a key, or from before heads were sealed: {advice.ALLOW_PLAIN}."
        )


class WrongKey(ClewError):
    """The data is encrypted and cannot be decrypted.

    If `key_id` is set, the key with that id is not among the given keys. If it is None, the key is there, but the data
    was encrypted for another thread or frame number, or was changed later.
    """

    def __init__(self, what: str, key_id: str | None) -> None:
        self.key_id = key_id
        needed = f"it needs the key with the id {key_id}" if key_id else "it does not open in this place"
        super().__init__(f"{what} is encrypted, and {needed}. Give the key {advice.KEY_IN_PROGRAM}.")


class NewerFormat(ClewError):
    """The data was written by a newer version of Clew. Nothing was changed.

    `found` is the data's format version, and `supported` is the newest that this version of Clew reads.
    """

    def __init__(self, what: str, found: int, supported: int) -> None:
        self.found = found
        self.supported = supported
        super().__init__(
            f"{what} has format version {found}; this Clew reads up to {supported}. Upgrade with: {advice.upgrade()}"
        )


NOT_CARRIED_OUT = frozenset({400, 401, 402, 403, 404, 405, 413, 414, 415, 422, 429, 431})
"""HTTP statuses that mean the vendor did not run the request, and so does not charge for it.

429 is one of them: vendors check limits before they ask the model, and say that such a request is not charged. 408,
409, 499 and 5xx are not: a server or a proxy also sends those while the model works or after it has worked.
"""


class ModelError(ClewError):
    """A model gave no answer.

    `model` is the model's name as the user writes it, `reason` is what happened, and `status` is the HTTP status, if
    any. `is_free` is True if the vendor refused the request for certain, so that it cost nothing. If `is_free` is not
    given, the status decides: 400, 401 and 429, for example, are refusals. After a timeout or a status of 500 the model
    may have worked, and the vendor may charge for it.
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
    """The request is longer than the model's context window allows. Sending the same request again cannot succeed."""

    def __init__(self, model: str, reason: str, *, status: int | None = None, is_free: bool | None = None) -> None:
        advice = "Compact the conversation, or take a model with a larger window."
        super().__init__(model, f"the conversation does not fit ({reason})", advice, status=status, is_free=is_free)


class ModelUnavailable(ModelError):
    """Every attempt failed because the vendor was unreachable, had no capacity or broke off its response. A later call
    may succeed."""

    def __init__(
        self, model: str, reason: str, *, attempts: int, status: int | None = None, is_free: bool | None = None
    ) -> None:
        self.attempts = attempts
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        why = f"no answer in {times}, the last time because of {reason}"
        super().__init__(model, why, "Try again later.", status=status, is_free=is_free)

    @property
    def retry(self) -> Retry:
        return Retry("later", 10.0)


class ModelRefused(ModelError):
    """The vendor refused the request: because of a bad key, an unknown model, or something else in the request that the
    vendor does not accept."""

    def __init__(
        self, model: str, reason: str, advice: str = "", *, status: int | None = None, is_free: bool | None = None
    ) -> None:
        super().__init__(model, f"the request was refused ({reason})", advice, status=status, is_free=is_free)


class ProviderError(ClewError):
    """A coding agent's program gave no answer. `provider` is the program's name, `reason` what happened, `advice` what
    to do."""

    def __init__(self, provider: str, reason: str, advice: str = "") -> None:
        self.provider = provider
        self.reason = reason
        self.advice = advice
        super().__init__(
            f"{provider}: {reason}{'' if reason.endswith('.') else '.'}" + (f" {advice}" if advice else "")
        )


class ProviderMissing(ProviderError):
    """The coding agent's program is not installed, or cannot be run. `install` is the command that installs it."""

    def __init__(self, provider: str, install: str, problem: str = "") -> None:
        self.install = install
        reason = f"its program cannot be run ({problem})" if problem else "its program is not on PATH"
        super().__init__(provider, reason, f"Install it{' again' if problem else ''}: {install}")


class ProviderOutdated(ProviderMissing):
    """The installed version of the coding agent's program is too old: it would lose prompts. Clew sends it nothing.

    `version` is the installed version, `oldest` the oldest that Clew supports, and `install` the command that installs
    a newer one.
    """

    def __init__(self, provider: str, version: str, oldest: str, install: str, path: str = "") -> None:
        self.install = install
        self.version = version
        self.oldest = oldest
        where = f" ({path})" if path else ""
        ProviderError.__init__(
            self,
            provider,
            f"its version {version}{where} is too old: versions before {oldest} lose prompts, or fail",
            f"Upgrade it: {install}",
        )


class NotLoggedIn(ProviderError):
    """The coding agent's program has no account to work with, or its login has expired."""

    def __init__(
        self, provider: str, reason: str, advice: str = "Log in with the program itself, or set its API key."
    ) -> None:
        said = "not logged in" in reason.lower()
        super().__init__(provider, reason if said else f"it is not logged in ({reason})", advice)


class ProviderLimited(ProviderError):
    """The account of the coding agent's program has reached a rate or usage limit.

    `until` is when the limit ends, or None if that is unknown.
    """

    def __init__(self, provider: str, reason: str, *, until: datetime | None = None) -> None:
        self.until = until
        when = "later" if until is None else f"after {until:%Y-%m-%d %H:%M %Z}".rstrip()
        super().__init__(
            provider, f"its limit is reached ({reason})", f"Try again {when}, or move the session to another provider."
        )

    @property
    def retry(self) -> Retry:
        if self.until is None:
            return Retry("later", 60.0)
        until = self.until if self.until.tzinfo is not None else self.until.astimezone()
        return Retry("later", max(1.0, (until - datetime.now(UTC)).total_seconds()))


class SessionNotFound(ProviderError, LookupError):
    """The coding agent's program has no such conversation on this machine."""

    def __init__(self, provider: str, session: str) -> None:
        self.session = session
        super().__init__(
            provider,
            f"no session {session!r} on this machine",
            f"List the sessions with: {advice.discover()}",
        )
