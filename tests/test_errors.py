"""One tree of errors, each of which crosses a process boundary with its message."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta

import pytest

from clew import errors
from clew.errors import (
    ClewError,
    Conflict,
    ContextTooLong,
    Corrupt,
    InvalidInput,
    LeaseLost,
    MissingBlob,
    MissingExtra,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    NewerFormat,
    NotLoggedIn,
    NotSealed,
    ProviderError,
    ProviderLimited,
    ProviderMissing,
    ProviderOutdated,
    Retry,
    SessionNotFound,
    ThreadBusy,
    ThreadNotFound,
    Unavailable,
    UsageError,
    WrongKey,
)

EXAMPLES: list[tuple[ClewError, list[str]]] = [
    (ClewError("something"), ["something"]),
    (InvalidInput("bad value"), ["bad value"]),
    (UsageError("closed"), ["closed"]),
    (MissingExtra("the postgres store", "postgres"), ["the postgres store", "pip install 'clew[postgres]'"]),
    (Conflict("user/1", "its log ends at frame 3, not 2"), ["'user/1'", "frame 3, not 2", "Read its head again"]),
    (ThreadBusy("user/1", "process 7 on box", 12.4), ["'user/1'", "process 7 on box", "12 s", "takeover=True"]),
    (LeaseLost("user/1", "process 7 on box"), ["'user/1'", "process 7 on box", "open the thread again"]),
    (ThreadNotFound("user/1"), ["'user/1'", "Thread.list(checkpointer)"]),
    (MissingBlob(["b" * 64, "a" * 64], thread_id="user/1"), ["'user/1'", "2 blob(s)", "a" * 64]),
    (MissingBlob(["a" * 64]), ["1 blob(s)"]),
    (Unavailable("no answer"), ["no answer"]),
    (Corrupt("frame 3 fails its check"), ["frame 3"]),
    (NotSealed("thread 't'"), ["thread 't' is not sealed", "CLEW_ALLOW_PLAIN=1", "clew rekey --allow-plain"]),
    (WrongKey("thread 't', frame 3", "abcd"), ["thread 't', frame 3", "abcd", "CLEW_KEY"]),
    (NewerFormat("clew.db", 9, 1), ["clew.db", "9", "1", "pip install --upgrade clew"]),
    (ModelError("openai:gpt-5", "something odd"), ["openai:gpt-5", "something odd"]),
    (ContextTooLong("openai:gpt-5", "HTTP 400", status=400), ["openai:gpt-5", "does not fit", "Compact"]),
    (ModelUnavailable("openai:gpt-5", "a timeout", attempts=5), ["openai:gpt-5", "5 attempts", "a timeout"]),
    (ModelRefused("openai:gpt-5", "HTTP 401", "Check it.", status=401), ["openai:gpt-5", "HTTP 401", "Check it."]),
    (ProviderError("codex", "it stopped", "Start it again."), ["codex: it stopped. Start it again."]),
    (ProviderMissing("codex", "npm install -g codex"), ["codex", "not on PATH", "npm install -g codex"]),
    (ProviderOutdated("codex", "0.1.0", "0.120.0", "npm install it"), ["codex", "0.1.0", "0.120.0", "npm install it"]),
    (NotLoggedIn("codex", "HTTP 401"), ["codex", "HTTP 401", "Log in"]),
    (
        ProviderLimited("codex", "HTTP 429", until=datetime(2026, 1, 2, 3, 4, tzinfo=UTC)),
        ["429", "2026-01-02 03:04 UTC"],
    ),
    (SessionNotFound("codex", "abc"), ["codex", "'abc'", "discover()"]),
]
NAMES = [type(error).__name__ for error, _ in EXAMPLES]


@pytest.mark.parametrize(("error", "parts"), EXAMPLES, ids=NAMES)
def test_a_message_says_what_happened_and_what_to_do(error: ClewError, parts: list[str]) -> None:
    for part in parts:
        assert part in str(error)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", [error for error, _ in EXAMPLES], ids=NAMES)
def test_an_error_survives_pickling_with_its_message_and_attributes(error: ClewError, protocol: int) -> None:
    for again in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.args == error.args
        assert vars(again) == vars(error)


def test_notes_survive_pickling() -> None:
    error = Conflict("thread", "moved")
    error.add_note("while saving")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while saving"]


def test_every_error_is_shown_here_and_in_the_drawing_of_the_tree() -> None:
    named = {*errors.__all__} - {"Retry"}
    assert {type(error).__name__ for error, _ in EXAMPLES} == named
    assert errors.__doc__ is not None
    drawn = {line.split("──")[1].split()[0] for line in errors.__doc__.splitlines() if "──" in line}
    assert drawn == named - {"ClewError"}


def test_all_errors_are_clew_errors() -> None:
    for name in {*errors.__all__} - {"Retry"}:
        assert issubclass(getattr(errors, name), ClewError)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (InvalidInput, ValueError),
        (UsageError, RuntimeError),
        (MissingExtra, ImportError),
        (ThreadNotFound, LookupError),
        (SessionNotFound, LookupError),
    ],
)
def test_an_error_is_also_the_built_in_one_that_people_catch(kind: type[ClewError], builtin: type[Exception]) -> None:
    assert issubclass(kind, builtin)


def test_absent_unreachable_and_corrupt_are_apart() -> None:
    kinds = [ThreadNotFound, SessionNotFound, MissingBlob, Unavailable, Corrupt]
    for one in kinds:
        assert not any(issubclass(one, other) for other in kinds if other is not one)


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        (Conflict("t", "its log ends at frame 3"), Retry("now")),
        (ThreadBusy("t", "process 1", 12.0), Retry("later", 12.0)),
        (ThreadBusy("t", "process 1", 0.0), Retry("later", 1.0)),
        (LeaseLost("t", "process 1"), Retry("later", 30.0)),
        (Unavailable("no answer"), Retry("later", 1.0)),
        (ModelUnavailable("m", "a timeout", attempts=3), Retry("later", 10.0)),
        (ProviderLimited("codex", "429"), Retry("later", 60.0)),
        (ProviderLimited("codex", "429", until=datetime(2020, 1, 1, tzinfo=UTC)), Retry("later", 1.0)),
        (ModelRefused("m", "a bad key"), Retry("never")),
        (InvalidInput("no"), Retry("never")),
        (Corrupt("no"), Retry("never")),
        (UsageError("no"), Retry("never")),
    ],
)
def test_an_error_says_whether_the_call_may_succeed_later(error: ClewError, retry: Retry) -> None:
    assert error.retry == retry
    assert pickle.loads(pickle.dumps(error)).retry == retry


def test_a_limit_says_when_to_try_again() -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    assert 3000 < ProviderLimited("codex", "429", until=until).retry.seconds <= 3600
