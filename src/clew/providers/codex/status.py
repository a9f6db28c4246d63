"""Checks Codex on this machine: whether it is installed, logged in, and within its usage limits."""

from __future__ import annotations

import base64
import binascii
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from clew import advice
from clew.errors import Corrupt
from clew.providers.base import Health, Place, Program
from clew.providers.codex.rollout import codex_home, limit_end, lines_from_end, newest_first, record_of
from clew.providers.fields import from_seconds, values

__all__ = ["check"]

_LOG_IN = f"Run: {advice.log_in('codex')}"
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
"""The form that an environment variable's name must have to be shown in a message. Some users write their key where the
name of its variable belongs, and a key must not be shown."""
_SPOT = re.compile(r"\(at [^()]*\)$")


class _Login(msgspec.Struct, frozen=True):
    logged_in: bool | None
    account: str = ""
    expires_at: datetime | None = None
    problem: str = ""


def check(place: Place, program: Program | None, install: str) -> Health:
    """Return how Codex is installed and logged in on this machine, without asking its vendor. `place` gives the
    environment to judge by, and `program` is the installed program, or None. `install` is the shell command that
    installs it, for the advice in the result."""
    home = codex_home(place)
    login = _login(home, place.env)
    problem = login.problem if program else f"codex is not on the PATH. Install it: {install}"
    return Health(
        provider="codex",
        program=program,
        logged_in=login.logged_in,
        account=login.account,
        expires_at=login.expires_at,
        limited_until=_limited_until(home),
        problem=problem,
    )


def _login(home: Path, env: Mapping[str, str]) -> _Login:
    """Return what is known of the login that Codex would use: whether it is there (None if unknown), its kind, when it
    expires, and what is wrong with it. Codex uses the key of the configured model provider, then CODEX_API_KEY, then
    what `codex login` stored. `home` is Codex's home folder.

    OPENAI_API_KEY alone does not count, because Codex reads it only if a model provider is configured to. A file that
    cannot be read is reported in the `problem` of the result, without its content.
    """
    file = home / "config.toml"
    try:
        config = tomllib.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        config = {}
    except OSError as error:
        return _Login(None, problem=f"{file} cannot be read: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        spot = _SPOT.search(str(error))
        return _Login(None, problem=f"{file} cannot be read: it is not valid TOML {spot[0] if spot else ''}".rstrip())
    provider = values(values(config.get("model_providers")).get(str(config.get("model_provider", ""))))
    variable = provider.get("env_key")
    if isinstance(variable, str):
        named = variable if _VARIABLE.fullmatch(variable) else f"the variable that `env_key` in {file} names"
        if env.get(variable):
            return _Login(True, f"api key in {named}")
        return _Login(False, problem=f"the configured provider takes its key from {named}, which is not set. Set it.")
    if provider and not provider.get("requires_openai_auth"):
        return _Login(None)
    if env.get("CODEX_API_KEY"):
        return _Login(True, "api key")
    return _stored(home, config)


def _stored(home: Path, config: Mapping[str, Any]) -> _Login:
    file = home / "auth.json"
    try:
        stored = record_of(file.read_bytes())
    except OSError as error:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return _Login(None, problem=f"{file} cannot be read: {error.strerror}")
        if config.get("cli_auth_credentials_store") in ("keyring", "auto"):
            return _Login(None)
        return _Login(False, problem=f"not logged in. {_LOG_IN}")
    if stored is None:
        return _Login(False, problem=f"{file} is damaged. {_LOG_IN}")
    if stored.get("OPENAI_API_KEY"):
        return _Login(True, "api key")
    tokens = values(stored.get("tokens"))
    if not tokens.get("access_token"):
        return _Login(False, problem=f"not logged in. {_LOG_IN}")
    ends = _expiry(str(tokens["access_token"])) or _expiry(str(tokens.get("id_token", "")))
    if ends is not None and ends <= datetime.now(UTC) and not tokens.get("refresh_token"):
        return _Login(False, "subscription", ends, f"the login ran out on {ends:%Y-%m-%d}. {_LOG_IN}")
    return _Login(True, "subscription", ends)


def _expiry(token: str) -> datetime | None:
    """Return when a login token (a JSON web token) expires; None if it does not say."""
    claims = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        moment = values(record_of(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))).get("exp")
    except (binascii.Error, ValueError):
        return None
    return from_seconds(moment)


def _limited_until(home: Path) -> datetime | None:
    """Return when Codex can be used again, if its newest conversation reports that a usage limit is used up; None if no
    limit is. `home` is Codex's home folder."""
    newest = newest_first(home)[:1]
    with suppress(Corrupt):  # of a compressed file that is damaged
        for row in lines_from_end(newest[0][2]) if newest else ():
            if b'"rate_limits"' in row:
                end = limit_end(values((record_of(row) or {}).get("payload")).get("rate_limits"))
                return end if end is not None and end > datetime.now(UTC) else None
    return None
