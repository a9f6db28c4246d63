from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from clew.providers.base import Health, Place, Program
from clew.providers.opencode import OpenCode

_PROGRAM = Program(Path("/bin/opencode"), "1.18.33")
_PAST, _FUTURE = 1_000_000_000_000, 4_000_000_000_000


def _check(home: Path, logins: Any = None, settings: str = "", **env: str) -> Health:
    if logins is not None:
        path = home / ".local" / "share" / "opencode" / "auth.json"
        path.parent.mkdir(parents=True)
        path.write_text(logins if isinstance(logins, str) else json.dumps(logins))
    if settings:
        path = home / ".config" / "opencode" / "opencode.jsonc"
        path.parent.mkdir(parents=True)
        path.write_text(settings)
    return OpenCode(Place(home, {"HOME": str(home), **env})).check(_PROGRAM)


def test_what_is_not_installed_says_how_to_install_it(tmp_path: Path) -> None:
    health = OpenCode(Place(tmp_path, {"HOME": str(tmp_path)})).check(None)
    assert not health.ready
    assert "npm install -g opencode-ai" in health.problem


def test_without_any_login_it_is_not_ready_and_says_what_to_do(tmp_path: Path) -> None:
    health = _check(tmp_path)
    assert (health.logged_in, health.ready, health.program) == (False, False, _PROGRAM)
    assert "opencode auth login" in health.problem


def test_logins_are_told_by_their_kind_and_never_with_their_key(tmp_path: Path) -> None:
    health = _check(
        tmp_path,
        {
            "openai": {"type": "api", "key": "sk-secret"},
            "anthropic": {"type": "oauth", "access": "sk-secret", "refresh": "sk-secret", "expires": _PAST},
            "https://example.com": {"type": "wellknown", "key": "X", "token": "sk-secret"},
        },
    )
    assert health.ready
    assert health.account == "openai: api key, anthropic: subscription, https://example.com: token of an organization"
    assert health.expires_at == datetime.fromtimestamp(_PAST / 1000, UTC)
    assert "secret" not in repr(health)


@pytest.mark.parametrize(("expires", "holds"), [(_PAST, False), (_FUTURE, True)])
def test_a_login_that_cannot_be_renewed_holds_until_it_runs_out(tmp_path: Path, expires: int, holds: bool) -> None:
    health = _check(tmp_path, {"anthropic": {"type": "oauth", "access": "a", "expires": expires}})
    assert health.logged_in is holds
    assert ("run out" in health.problem) is not holds


def test_a_key_in_the_environment_is_a_login(tmp_path: Path) -> None:
    health = _check(tmp_path, OPENAI_API_KEY="sk-secret")
    assert (health.logged_in, health.account) == (True, "openai: api key")


def test_a_provider_in_the_settings_is_a_login(tmp_path: Path) -> None:
    settings = '{ // mine\n "provider": {"local": {"options": {"baseURL": "http://127.0.0.1:1//v1"},}, "x": {}} }'
    health = _check(tmp_path, settings=settings)
    assert (health.logged_in, health.account) == (True, "local: settings")


@pytest.mark.parametrize("content", [b'{"openai": {"key": "secret', b'{"secret\xff": 1}'])
def test_logins_that_are_damaged_are_told_of_without_what_is_in_them(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / ".local" / "share" / "opencode" / "auth.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    health = OpenCode(Place(tmp_path, {"HOME": str(tmp_path)})).check(_PROGRAM)
    assert "auth.json is damaged" in health.problem
    assert "secret" not in repr(health)


def test_settings_that_cannot_be_read_are_opencodes_to_tell_of(tmp_path: Path) -> None:
    health = _check(tmp_path, settings='{"secret', OPENCODE_CONFIG_CONTENT="secret \udcff", OPENAI_API_KEY="secret")
    assert health.account == "openai: api key"
    assert "secret" not in repr(health)


def test_logins_that_cannot_be_read_are_a_problem_and_not_none(tmp_path: Path) -> None:
    health = _check(tmp_path, "{", ANTHROPIC_API_KEY="key")
    assert health.logged_in
    assert "auth.json" in health.problem
