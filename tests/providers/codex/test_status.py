"""How Codex is on a machine, from its files and its environment."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from clew.providers.base import Health, Program
from tests.providers.codex.kept import at_home, keep, rollout_line

PROGRAM = Program(Path("/opt/codex"), "0.166.0")
CUSTOM = 'model_provider = "mine"\n[model_providers.mine]\nbase_url = "http://127.0.0.1"\n'


def token(ends: int) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": ends}).encode()).decode().rstrip("=")
    return f"e30.{claims}.sig"


def health(tmp_path: Path, auth: Any = None, config: str = "", **env: str) -> Health:
    home = tmp_path / ".codex"
    home.mkdir(exist_ok=True)
    if auth is not None:
        (home / "auth.json").write_text(auth if isinstance(auth, str) else json.dumps(auth))
    (home / "config.toml").write_text(config)
    return at_home(tmp_path, **env).check(PROGRAM)


def test_a_program_that_is_not_there_is_said_to_be_so_with_the_way_to_get_it(tmp_path: Path) -> None:
    told = at_home(tmp_path).check(None)
    assert not told.ready
    assert "npm install -g @openai/codex" in told.problem


@pytest.mark.parametrize(
    ("auth", "config", "env", "logged_in", "account"),
    [
        (None, "", {}, False, ""),
        (None, "", {"OPENAI_API_KEY": "k"}, False, ""),
        (None, "", {"CODEX_API_KEY": "k"}, True, "api key"),
        ({"OPENAI_API_KEY": "k"}, "", {}, True, "api key"),
        ({"OPENAI_API_KEY": None, "tokens": None}, "", {}, False, ""),
        ("not json", "", {}, False, ""),
        (None, 'cli_auth_credentials_store = "keyring"', {}, None, ""),
        (None, CUSTOM + 'env_key = "MY_KEY"', {"MY_KEY": "k"}, True, "api key in MY_KEY"),
        ({"OPENAI_API_KEY": "k"}, CUSTOM + 'env_key = "MY_KEY"', {}, False, ""),
        (None, CUSTOM, {}, None, ""),
    ],
)
def test_the_login_is_the_one_that_codex_would_use(
    tmp_path: Path, auth: Any, config: str, env: dict[str, str], logged_in: bool | None, account: str
) -> None:
    told = health(tmp_path, auth, config, **env)
    assert (told.logged_in, told.account) == (logged_in, account)
    assert bool(told.problem) == (logged_in is False)


def test_a_subscription_says_when_its_token_ends_and_is_renewed_where_it_can_be(tmp_path: Path) -> None:
    past, future = 1_000_000_000, 4_000_000_000
    fresh = health(tmp_path, {"tokens": {"access_token": token(future)}})
    assert (fresh.logged_in, fresh.account) == (True, "subscription")
    assert fresh.expires_at == datetime.fromtimestamp(future, UTC)
    renewed = health(tmp_path, {"tokens": {"access_token": token(past), "refresh_token": "r"}})
    assert renewed.ready
    ended = health(tmp_path, {"tokens": {"access_token": token(past)}})
    assert not ended.ready
    assert "codex login" in ended.problem


def test_a_key_that_stands_where_its_name_belongs_is_not_shown(tmp_path: Path) -> None:
    told = health(tmp_path, config=CUSTOM + 'env_key = "sk-proj-secret"')
    assert told.logged_in is False
    assert "`env_key` in" in told.problem
    assert "secret" not in repr(told)


@pytest.mark.parametrize(
    ("auth", "config"),
    [
        ('{"OPENAI_API_KEY": "secret', ""),
        (b'"secret\xff"', ""),
        (None, 'key = "secret'),
        (None, "a = {secret = 1, secret = 2}"),
        (None, b'key = "secret\xff"'),
    ],
)
def test_a_file_that_cannot_be_read_is_told_of_without_what_is_in_it(
    tmp_path: Path, auth: str | bytes | None, config: str | bytes
) -> None:
    home = tmp_path / ".codex"
    home.mkdir()
    for name, content in (("auth.json", auth), ("config.toml", config)):
        if content:
            (home / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    told = at_home(tmp_path, CODEX_HOME=str(home)).check(PROGRAM)
    assert ("auth.json is damaged" if auth else "config.toml cannot be read") in told.problem
    assert "secret" not in repr(told)


@pytest.mark.parametrize("name", ["auth.json", "config.toml"])
def test_a_folder_in_the_place_of_a_file_is_a_problem_and_no_crash(tmp_path: Path, name: str) -> None:
    (tmp_path / ".codex" / name).mkdir(parents=True)
    told = at_home(tmp_path).check(PROGRAM)
    assert told.logged_in is None
    assert f"{name} cannot be read: Is a directory" in told.problem


def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    told = health(tmp_path, config="model = ")
    assert told.logged_in is None
    assert "config.toml cannot be read" in told.problem


@pytest.mark.parametrize(
    ("used", "ends", "limited"), [(100, 4_000_000_000, True), (99, 4_000_000_000, False), (100, 5, False)]
)
def test_a_limit_holds_that_the_newest_conversation_has_met(
    tmp_path: Path, used: int, ends: int, limited: bool
) -> None:
    _, path = keep(tmp_path, "rollout-tools.jsonl")
    assert health(tmp_path).limited_until is None
    limits = {"primary": {"used_percent": used, "resets_at": ends}, "secondary": None}
    with path.open("ab") as rollout:
        rollout.write(rollout_line("event_msg", {"type": "token_count", "info": None, "rate_limits": limits}))
    assert health(tmp_path).limited_until == (datetime.fromtimestamp(ends, UTC) if limited else None)
