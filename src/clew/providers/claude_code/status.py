"""Checks Claude Code on this machine from its files and the environment. It looks whether keys and tokens are there,
but never stores or reports them."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from clew import advice
from clew.errors import Corrupt
from clew.providers.base import Health, Place, Program
from clew.providers.claude_code.storage import config_dir
from clew.providers.fields import from_milliseconds, values

__all__ = ["check"]

_CLOUDS = {
    "CLAUDE_CODE_USE_BEDROCK": "Bedrock",
    "CLAUDE_CODE_USE_VERTEX": "Vertex",
    "CLAUDE_CODE_USE_FOUNDRY": "Foundry",
}
_VARIABLES = {
    "ANTHROPIC_AUTH_TOKEN": "auth token",
    "ANTHROPIC_API_KEY": "api key",
    "CLAUDE_CODE_OAUTH_TOKEN": "subscription",
}
_OFF = ("", "0", "false", "no", "off")
_LOG_IN = f"Log in with: {advice.log_in('claude_code')}, or set ANTHROPIC_API_KEY."


class _Login(NamedTuple):
    holds: bool | None
    account: str = ""
    expires_at: datetime | None = None
    problem: str = ""


def check(place: Place, program: Program | None, provider: str, install: str) -> Health:
    """Return how Claude Code is installed and logged in on this machine, without asking its vendor. `place` gives the
    environment to judge by, and `program` is the installed program, or None. `provider` is the provider's name, which
    goes into the result. `install` is the shell command that installs the program; if there is no program, the result
    tells the user to run it."""
    if program is None:
        return Health(provider=provider, problem=f"it is not installed, or not on the PATH. Install it: {install}")
    try:
        login = _login(place)
    except Corrupt as error:
        login = _Login(None, problem=str(error))
    return Health(
        provider=provider,
        program=program,
        logged_in=login.holds,
        account=login.account,
        expires_at=login.expires_at,
        problem=login.problem,
    )


def _login(place: Place) -> _Login:
    """Return what is known of the login that Claude Code would use: whether it is there (None if unknown), its kind,
    when it expires, and what is wrong with it. It is looked for in the environment and in Claude Code's files, in the
    order in which Claude Code looks there. Raises `Corrupt` if one of these files cannot be read."""
    for name, cloud in _CLOUDS.items():
        if place.env.get(name, "").lower() not in _OFF:
            return _Login(None, cloud)
    settings = _json(config_dir(place) / "settings.json")
    if place.env.get("ANTHROPIC_AUTH_TOKEN") or place.env.get("ANTHROPIC_API_KEY"):
        return _Login(True, next(account for name, account in _VARIABLES.items() if place.env.get(name)))
    if settings.get("apiKeyHelper"):
        return _Login(None, "api key helper")
    if place.env.get("CLAUDE_CODE_OAUTH_TOKEN"):
        return _Login(True, _VARIABLES["CLAUDE_CODE_OAUTH_TOKEN"])
    kept = values(_json(config_dir(place) / ".credentials.json").get("claudeAiOauth"))
    if kept.get("accessToken") or kept.get("refreshToken"):
        return _subscription(kept)
    state = _json(_state_file(place))
    if state.get("primaryApiKey"):
        return _Login(True, "api key")
    if sys.platform == "darwin" and state.get("oauthAccount"):
        return _Login(None, "subscription")
    return _Login(False, problem=f"it is not logged in. {_LOG_IN}")


def _state_file(place: Place) -> Path:
    """Return the path of `.claude.json`, in which Claude Code keeps its state: in the configuration folder if
    CLAUDE_CONFIG_DIR names one, otherwise in the home folder."""
    return config_dir(place) / ".claude.json" if place.env.get("CLAUDE_CONFIG_DIR") else place.home / ".claude.json"


def _subscription(kept: dict[str, Any]) -> _Login:
    """Return whether the login of a subscription is valid, its kind, and when it expires, from `kept`, the stored
    tokens. If there is a refresh token, Claude Code renews the login by itself, so only the expiry of that token
    counts; otherwise that of the access token."""
    kind = kept.get("subscriptionType")
    account = f"subscription ({kind})" if isinstance(kind, str) and kind else "subscription"
    field = "refreshTokenExpiresAt" if kept.get("refreshToken") else "expiresAt"
    expires_at = from_milliseconds(kept.get(field))
    if expires_at is not None and expires_at <= datetime.now(UTC):
        return _Login(False, account, expires_at, f"its login has expired. {_LOG_IN}")
    return _Login(True, account, expires_at)


def _json(path: Path) -> dict[str, Any]:
    """Read a JSON file as a dict. The dict is empty if the file does not exist or holds something else than an object.
    Raises `Corrupt` if the file is not JSON or cannot be read. The error never quotes the content, which may be a
    token."""
    try:
        return values(json.loads(path.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, RecursionError):
        raise Corrupt(f"{path} is not valid JSON; repair it, or delete it and log in again") from None
    except OSError as error:
        raise Corrupt(f"{path} cannot be read: {error.strerror}") from None
