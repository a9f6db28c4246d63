"""Handles: what is said in one, who may have said it, and what is never said."""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given

from clew.agent.handles import Handle, expiry, read_handle, without_credentials, write_handle
from clew.errors import InvalidInput
from tests.strategies import text

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
KEY = "a long random key"
PLAIN = {"version": 1, "provider": "codex", "session_id": "s", "resume_key": "k"}


def changed(handle: str, **fields: Any) -> str:
    return json.dumps({**json.loads(handle), **fields})


def test_a_plain_handle_has_four_fields_and_no_more() -> None:
    assert json.loads(write_handle("codex", "s", "k")) == PLAIN


def test_the_four_fields_are_read_in_any_order_and_others_are_no_trouble() -> None:
    text = "\n " + json.dumps({"later": [1], **dict(reversed(PLAIN.items()))})
    assert read_handle(text) == Handle(version=1, provider="codex", session_id="s", resume_key="k")


def test_a_bare_session_id_is_a_handle_without_provider_and_key() -> None:
    assert read_handle("user/42 ") == Handle(version=1, provider="", session_id="user/42 ", resume_key="")


@given(text.filter(bool), text.filter(bool), text, text)
def test_what_is_written_is_what_is_read(provider: str, session_id: str, resume_key: str, cwd: str) -> None:
    handle = write_handle(provider, session_id, resume_key, cwd=cwd, expires=NOW, key=KEY)
    found = read_handle(handle, key=KEY, now=NOW - timedelta(seconds=1))
    said = (found.provider, found.session_id, found.resume_key, found.cwd, found.expires)
    assert said == (provider, session_id, resume_key, cwd, NOW)


def test_a_signature_can_be_made_by_any_program_from_the_documented_form() -> None:
    said = {**PLAIN, "cwd": "/häuser"}
    canonical = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    signature = hmac.new(KEY.encode(), b"clew-handle\n" + canonical.encode(), hashlib.sha256).hexdigest()
    assert write_handle("codex", "s", "k", cwd="/häuser", key=KEY) == json.dumps(
        {**said, "signature": signature}, separators=(",", ":"), ensure_ascii=False
    )


@pytest.mark.parametrize(
    "change",
    [
        {"session_id": "other"},
        {"provider": "opencode"},
        {"resume_key": ""},
        {"expires": "2099-01-01T00:00:00Z"},
        {"cwd": "/root"},
        {"unknown": 1},
        {"signature": "0" * 64},
        {"signature": "é"},
    ],
)
@pytest.mark.attack
def test_a_forged_handle_is_refused(change: dict[str, Any]) -> None:
    handle = write_handle("codex", "s", "k", key=KEY)
    assert read_handle(handle, key=KEY).session_id == "s"
    with pytest.raises(InvalidInput, match="signature of this handle is wrong"):
        read_handle(changed(handle, **change), key=KEY)


def test_an_unknown_field_is_covered_by_the_signature_of_who_put_it_there() -> None:
    said = {**PLAIN, "later": {"b": 1, "a": [2]}}
    canonical = json.dumps(said, sort_keys=True, separators=(",", ":"))
    signature = hmac.new(KEY.encode(), b"clew-handle\n" + canonical.encode(), hashlib.sha256).hexdigest()
    assert read_handle(json.dumps({**said, "signature": signature}), key=KEY).session_id == "s"


def test_a_handle_of_another_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match="another key"):
        read_handle(write_handle("codex", "s", "k", key="other"), key=KEY)


@pytest.mark.parametrize(("handle", "why"), [(json.dumps(PLAIN), "is not signed"), ("s", "bare session id")])
def test_an_unsigned_handle_is_refused_where_a_key_is_given(handle: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        read_handle(handle, key=KEY)


def test_an_empty_key_signs_nothing() -> None:
    with pytest.raises(InvalidInput, match="key for handles is empty"):
        write_handle("codex", "s", "k", key="")
    with pytest.raises(InvalidInput, match="key for handles is empty"):
        read_handle(changed(json.dumps(PLAIN), signature="x"), key=b"")


@pytest.mark.parametrize("key", [None, KEY])
def test_a_handle_is_good_until_it_expires_signed_or_not(key: str | None) -> None:
    handle = write_handle("codex", "s", "k", expires=NOW.astimezone(timezone(timedelta(hours=5))), key=key)
    assert read_handle(handle, key=key, now=NOW - timedelta(seconds=1)).expires == NOW
    with pytest.raises(InvalidInput, match="expired, on 2026-05-01 at 12:00 UTC"):
        read_handle(handle, key=key, now=NOW)


@pytest.mark.parametrize("lifetime", [60, "1h", timedelta.max])
def test_a_lifetime_that_is_none_is_refused_with_an_example(lifetime: Any) -> None:
    with pytest.raises(InvalidInput, match=r"expires_in=.* is (not a timedelta|too long)\."):
        expiry(lifetime)
    assert expiry(None) is None


@pytest.mark.parametrize(
    "damaged", [json.dumps(json.dumps(PLAIN)), json.dumps(PLAIN)[1:], f"handle: {json.dumps(PLAIN)}"]
)
def test_a_damaged_handle_is_refused_and_not_quoted(damaged: str) -> None:
    with pytest.raises(InvalidInput, match="not a whole handle") as caught:
        read_handle(damaged)
    assert 'resume_key"' not in str(caught.value)


def test_a_time_without_a_zone_is_no_expiry() -> None:
    with pytest.raises(InvalidInput, match="time zone"):
        write_handle("codex", "s", "k", expires=NOW.replace(tzinfo=None))
    with pytest.raises(InvalidInput, match="zone"):
        read_handle(changed(json.dumps(PLAIN), expires="2099-01-01T00:00:00"))


def test_a_newer_handle_says_what_to_do() -> None:
    with pytest.raises(
        InvalidInput, match=r"handle has version 2; this Clew reads up to 1\. Upgrade with: pip install"
    ):
        read_handle(changed(json.dumps(PLAIN), version=2, provider=["anything"]))


SECRET = "the-secret"


@pytest.mark.parametrize(
    ("handle", "why"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ('{"version": 1, "session_id": "the-secret', "cut off"),
        ('{"version": NaN, "x": "the-secret"}', "not valid JSON"),
        ("{" * 5000, "not valid JSON"),
        ("[" + "x" * 20_000, "longer than"),
        (json.dumps({**PLAIN, "session_id": 5, "resume_key": SECRET}), "session_id"),
        (json.dumps({**PLAIN, "cwd": {SECRET: 1}}), "cwd"),
        (json.dumps({**PLAIN, "expires": SECRET}), "expires"),
        (json.dumps({"version": 1, "provider": SECRET}), "session_id"),
        (json.dumps({**PLAIN, "version": True}), "version"),
        (json.dumps({**PLAIN, "version": 0}), "version"),
        (json.dumps({**PLAIN, "version": SECRET}), "version"),
        (json.dumps({**PLAIN, "session_id": "", "resume_key": SECRET}), "no session id"),
        (json.dumps({**PLAIN, "provider": "", "resume_key": SECRET}), "no provider"),
    ],
)
def test_what_can_be_no_handle_says_why_and_never_what_it_held(handle: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as error:
        read_handle(handle)
    assert SECRET not in str(error.value)


def test_only_text_is_a_handle() -> None:
    with pytest.raises(InvalidInput, match="not of type bytes"):
        read_handle(b"{}")  # type: ignore[arg-type]


@pytest.mark.parametrize(("provider", "session_id"), [("", "s"), ("codex", "")])
def test_a_handle_needs_a_provider_and_a_session(provider: str, session_id: str) -> None:
    with pytest.raises(InvalidInput, match="not empty"):
        write_handle(provider, session_id, "k")


def test_a_handle_that_nobody_could_read_is_not_written() -> None:
    with pytest.raises(InvalidInput, match="longer"):
        write_handle("codex", "s", "k", cwd="x" * 20_000)
    with pytest.raises(InvalidInput, match="surrogate"):
        write_handle("codex", "\ud800", "k")


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("", ""),
        ("no url", ""),
        ("sqlite:////home/a@b/clew.db", "sqlite:////home/a@b/clew.db"),
        ("file:relative/dir", "file:relative/dir"),
        ("memory://", "memory://"),
        ("postgresql://me:pw@host:5432,other/db?schema=x", "postgresql://host:5432,other/db?schema=x"),
        ("postgresql://host/db?password=pw&sslmode=require", "postgresql://host/db?sslmode=require"),
        ("postgresql:///db?host=/path", "postgresql:///db?host=/path"),
        ("postgresql://me:p/w@host/db", "postgresql://host/db"),
        ("postgresql://me:p?w@host/db", ""),
        ("mysql://me:p#w@host/db", ""),
        ("redis://:pw@host:6379/0?prefix=clew:&ttl=5", "redis://host:6379/0?prefix=clew:&ttl=5"),
        ("s3://bucket/pre@fix?region=eu&secret_access_key=pw", "s3://bucket/pre@fix?region=eu"),
        ("s3://bucket/x?endpoint=http://me:pw@host&region=eu", "s3://bucket/x?region=eu"),
        ("https://me:pw@host/base", "https://host/base"),
        ("other://token@host?token=pw&unknown=pw", "other://host"),
    ],
)
def test_a_store_is_named_without_credentials(url: str, hint: str) -> None:
    assert without_credentials(url) == hint
    assert read_handle(write_handle("codex", "s", "k", store=url)).store == hint
    assert "pw" not in write_handle("codex", "s", "k", store=url)
