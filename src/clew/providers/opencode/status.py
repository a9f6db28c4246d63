"""Checks opencode on this machine, from its files and the environment: which logins it has and when they expire."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from clew import advice
from clew.providers.base import Health, Place, Program
from clew.providers.fields import values
from clew.providers.opencode.database import data_folder, now
from clew.providers.opencode.run import decode_jsonc

__all__ = ["check"]

_KINDS = {"api": "api key", "oauth": "subscription", "wellknown": "token of an organization"}
_VARIABLES = {
    "ANTHROPIC_API_KEY": "anthropic", "OPENAI_API_KEY": "openai", "GEMINI_API_KEY": "google",
    "GOOGLE_GENERATIVE_AI_API_KEY": "google", "OPENROUTER_API_KEY": "openrouter", "GROQ_API_KEY": "groq",
    "MISTRAL_API_KEY": "mistral", "DEEPSEEK_API_KEY": "deepseek", "XAI_API_KEY": "xai", "OPENCODE_API_KEY": "opencode",
    "AWS_BEARER_TOKEN_BEDROCK": "amazon-bedrock", "AZURE_API_KEY": "azure", "CEREBRAS_API_KEY": "cerebras",
    "GITHUB_TOKEN": "github-copilot",
}  # fmt: skip
"""Environment variables from which opencode reads API keys, each with the name of the model vendor that the key is for.
Only the most common vendors are listed."""


class _Login(msgspec.Struct, frozen=True):
    provider: str
    kind: str
    expires_at: datetime | None = None
    renews: bool = True

    @property
    def holds(self) -> bool:
        return self.renews or self.expires_at is None or self.expires_at.timestamp() * 1000 > now()


def check(program: Program | None, place: Place, install: str) -> Health:
    """Return how opencode is installed and logged in on this machine, without asking a vendor. `program` is the
    installed program, or None, and `place` gives the environment to judge by. `install` is the shell command that
    installs opencode, for the advice in the result."""
    if program is None:
        return Health(provider="opencode", problem=f"opencode is not installed. Install it: {install}")
    logins, problem = _stored_logins(place)
    known = {login.provider for login in logins}
    for variable, provider in _VARIABLES.items():
        if place.env.get(variable) and provider not in known:
            logins.append(_Login(provider, "api key"))
            known.add(provider)
    logins += [_Login(provider, "settings") for provider in _configured(place) if provider not in known]
    holding = [login for login in logins if login.holds]
    ends = [login.expires_at for login in holding or logins if login.expires_at is not None]
    if not holding and not problem:
        what = "all logins have run out" if logins else "no login was found"
        problem = f"{what}. Log in with: {advice.log_in('opencode')}"
    return Health(
        provider="opencode",
        program=program,
        logged_in=bool(holding),
        account=", ".join(f"{login.provider}: {login.kind}" for login in holding or logins),
        expires_at=min(ends, default=None),
        problem=problem,
    )


def _stored_logins(place: Place) -> tuple[list[_Login], str]:
    path = data_folder(place) / "auth.json"
    try:
        said = values(msgspec.json.decode(path.read_bytes()))
    except FileNotFoundError:
        return [], ""
    except OSError as error:
        return [], f"{path} cannot be read: {error.strerror}."
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [], f"{path} is damaged. Log in again with: {advice.log_in('opencode')}"
    return [_login(provider, values(entry)) for provider, entry in said.items()], ""


def _login(provider: str, entry: dict[str, Any]) -> _Login:
    kind = str(entry.get("type", ""))
    expires = entry.get("expires")
    if kind != "oauth" or not isinstance(expires, (int, float)) or expires <= 0:
        return _Login(provider, _KINDS.get(kind, "login"))
    until = datetime.fromtimestamp(expires / 1000, UTC)
    return _Login(provider, _KINDS[kind], until, renews=bool(entry.get("refresh")))


def _configured(place: Place) -> list[str]:
    """Return the names of the model vendors for which opencode's settings hold an API key or the address of an API. The
    settings are read from all files in which opencode looks for them at `place`, and from the environment."""
    found: list[str] = []
    for said in _settings(place):
        for name, provider in values(values(said).get("provider")).items():
            options = values(values(provider).get("options"))
            if options.get("apiKey") or options.get("baseURL"):
                found.append(name)
    return list(dict.fromkeys(found))


def _settings(place: Place) -> list[Any]:
    base = place.env.get("XDG_CONFIG_HOME")
    home = (Path(base) if base else place.home / ".config") / "opencode"
    paths = [home / name for name in ("config.json", "opencode.json", "opencode.jsonc")]
    named = place.env.get("OPENCODE_CONFIG")
    paths += [Path(named)] if named else []
    paths += [place.cwd / name for name in ("opencode.json", "opencode.jsonc")]
    found = []
    for path in [*(path for path in paths if path.is_file()), None]:
        try:
            text = path.read_text(errors="replace") if path else place.env.get("OPENCODE_CONFIG_CONTENT", "")
            found.append(decode_jsonc(text))
        except (OSError, msgspec.DecodeError):
            continue  # opencode itself reports what is wrong with the file
    return found
