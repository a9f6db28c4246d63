"""`clew tokens`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clew.server.token_file import Tokens, read_tokens
from tests.cli.command_line import clew

pytestmark = pytest.mark.slow


def test_a_token_is_made_listed_rotated_and_revoked(tmp_path: Path) -> None:
    file = tmp_path / "tokens.jsonl"
    at = ("--file", str(file))
    made = clew("tokens", "new", "ci", "--namespace", "team", "--expires", "90d", *at)
    assert made.returncode == 0, made.stderr
    secret = made.stdout.strip()
    assert "read, append in the namespace team, until " in made.stderr
    listed = clew("tokens", *at)
    assert "ci" in listed.stdout
    assert "read,append" in listed.stdout
    assert secret not in listed.stdout
    rotated = clew("tokens", "rotate", "ci", "--json", *at)
    fields = json.loads(rotated.stdout)
    tokens = Tokens(path=file)
    assert tokens.find(f"Bearer {secret}".encode()) is None
    found = tokens.find(f"Bearer {fields['secret']}".encode())
    assert found is not None
    assert (fields["name"], fields["scopes"], fields["id"]) == ("ci", ["read", "append"], found.id)
    assert found.expires == read_tokens(file)[0].expires is not None
    gone = clew("tokens", "revoke", "ci", *at)
    assert "Revoked ci." in gone.stderr
    assert "no token in it" in clew("tokens", *at).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["make", "ci"], "'make' is not one of list, new, rotate, revoke"),
        (["new"], "name the token"),
        (["new", "ci", "--scopes", "root"], "root"),
        (["new", "ci", "--namespace", "a/b"], "a/b"),
        (["new", "ci", "--expires", "soon"], "--expires 'soon'"),
        (["rotate", "ci", "--keep", "soon"], "--keep 'soon'"),
        (["revoke", "ci"], "no token 'ci'"),
        ([], "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    run = clew("tokens", *arguments, "--file", str(tmp_path / "tokens.jsonl"))
    assert run.returncode == 2
    assert run.stderr.startswith("Error: ")
    assert said in run.stderr
    assert run.stdout == ""
