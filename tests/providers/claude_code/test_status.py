"""How Claude Code is on a machine. No check ever shows a key or a token."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from clew.providers.base import Health, Program
from tests.providers.claude_code.homes import machine

PROGRAM = Program(Path("/usr/bin/claude"), "2.1.197")
NOW = datetime.now(UTC)


def check(root: Path, files: dict[str, Any] | None = None, **env: str) -> Health:
    claude = machine(root, **env)
    for name, value in (files or {}).items():
        path = claude.place.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))
    health = claude.check(PROGRAM)
    assert "secret" not in repr(health)
    return health


def kept(**more: Any) -> dict[str, Any]:
    return {".claude/.credentials.json": {"claudeAiOauth": {"accessToken": "secret", **more}}}


def milliseconds(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def test_what_is_not_installed_says_how_to_install_it(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    assert claude.program() is None
    health = claude.check(None)
    assert not health.ready
    assert "npm install -g @anthropic-ai/claude-code" in health.problem


def test_without_any_login_it_says_how_to_log_in(tmp_path: Path) -> None:
    health = check(tmp_path)
    assert health.logged_in is False
    assert "claude auth login" in health.problem


@pytest.mark.parametrize(
    ("variable", "account"),
    [
        ("ANTHROPIC_API_KEY", "api key"),
        ("ANTHROPIC_AUTH_TOKEN", "auth token"),
        ("CLAUDE_CODE_OAUTH_TOKEN", "subscription"),
    ],
)
def test_a_key_or_token_in_the_environment_is_a_login(tmp_path: Path, variable: str, account: str) -> None:
    health = check(tmp_path, {}, **{variable: "secret"})
    assert (health.logged_in, health.account, health.problem) == (True, account, "")


def test_a_cloud_is_asked_by_credentials_that_are_not_ours_to_judge(tmp_path: Path) -> None:
    health = check(tmp_path, CLAUDE_CODE_USE_BEDROCK="1", CLAUDE_CODE_USE_VERTEX="0")
    assert (health.logged_in, health.account, health.ready) == (None, "Bedrock", True)


def test_a_subscription_that_renews_itself_does_not_run_out_with_its_token(tmp_path: Path) -> None:
    old = milliseconds(NOW - timedelta(days=1))
    health = check(tmp_path, kept(refreshToken="secret", expiresAt=old, subscriptionType="max"))
    assert (health.logged_in, health.account, health.expires_at) == (True, "subscription (max)", None)


@pytest.mark.parametrize(("days", "holds"), [(30, True), (-1, False)])
def test_a_login_that_cannot_be_renewed_ends_when_it_says(tmp_path: Path, days: int, holds: bool) -> None:
    ends = milliseconds(NOW + timedelta(days=days))
    health = check(tmp_path, kept(expiresAt=ends))
    assert health.logged_in is holds
    assert health.expires_at == datetime.fromtimestamp(ends / 1000, UTC)
    assert ("expired" in health.problem) is not holds


def test_a_key_that_was_made_at_login_counts(tmp_path: Path) -> None:
    assert check(tmp_path, {".claude.json": {"primaryApiKey": "secret"}}).account == "api key"


def test_a_helper_that_gives_the_key_is_not_asked(tmp_path: Path) -> None:
    health = check(tmp_path, {".claude/settings.json": {"apiKeyHelper": "/bin/secret"}})
    assert (health.logged_in, health.account) == (None, "api key helper")


def test_the_files_are_those_of_the_configured_folder(tmp_path: Path) -> None:
    files = {"elsewhere/.claude.json": {"primaryApiKey": "secret"}, ".claude.json": {}}
    health = check(tmp_path, files, CLAUDE_CONFIG_DIR=str(tmp_path / "home" / "elsewhere"))
    assert health.account == "api key"


def test_a_damaged_file_is_a_problem_and_no_missing_login(tmp_path: Path) -> None:
    health = check(tmp_path, {".claude/.credentials.json": '{"claudeAiOauth": "secret'})
    assert health.logged_in is None
    assert ".credentials.json is not valid JSON" in health.problem
