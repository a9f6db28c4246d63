"""The file of tokens: changed by commands, and taken up by a running service."""

from __future__ import annotations

import http.client
import stat
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from clew._runtime.clock import now
from clew.checkpointers.http.protocol import encode_text
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.errors import InvalidInput
from clew.server.token_file import Tokens, add_token, read_tokens, revoke_token, rotate_token
from clew.testing.contract.builders import append
from tests.clock import Clock
from tests.server.serving import Running, serving


def is_known(tokens: Tokens, secret: str) -> bool:
    return tokens.find(f"Bearer {secret}".encode()) is not None


def status(running: Running, secret: str) -> int:
    return httpx.get(f"{running.url}/v1/threads/YQ", headers={"authorization": f"Bearer {secret}"}).status_code


def test_a_running_service_takes_up_new_rotated_and_revoked_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    first, _ = add_token(path, "team", ["read"], "first")
    with serving(token_file=path) as running:
        assert status(running, first) == 404
        second, _ = add_token(path, "team", ["read"], "second")
        assert status(running, second) == 404
        rotated, _ = rotate_token(path, "second", None)
        assert (status(running, second), status(running, rotated)) == (401, 404)
        revoke_token(path, "first")
        assert (status(running, first), status(running, rotated)) == (401, 404)
        revoke_token(path, "second")
        assert status(running, rotated) == 401  # the last one: nobody gets in, not everybody


@pytest.mark.anyio
async def test_a_long_read_ends_when_its_token_is_revoked(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    secret, _ = add_token(path, "team", ["read", "write"], "ci")
    with serving(token_file=path) as running:
        async with HTTPCheckpointer(running.url, token=secret) as store:
            for number in range(12):  # more than the buffers between two sockets hold
                await append(store, "long", bytes(4 * 2**20), at=number)
        connection = http.client.HTTPConnection("127.0.0.1", running.server.port)
        address = f"/v1/threads/{encode_text('long')}/frames"
        connection.request("GET", address, headers={"authorization": f"Bearer {secret}"})
        answer = connection.getresponse()
        answer.read(1)
        revoke_token(path, "ci")
        with pytest.raises(http.client.IncompleteRead):
            answer.read()
        connection.close()


def test_a_file_that_is_broken_meanwhile_leaves_the_tokens_from_before(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    secret, _ = add_token(path, "team", ["read"], "ci")
    tokens = Tokens(path=path)
    path.write_text("half a li")
    assert is_known(tokens, secret)
    path.unlink()
    assert is_known(tokens, secret)


def test_an_expired_token_is_not_accepted(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "tokens.jsonl"
    secret, token = add_token(path, "team", ["read"], "ci", now() + timedelta(hours=1))
    tokens = Tokens(path=path)
    assert is_known(tokens, secret)
    assert tokens.current(token) == token
    clock.advance(3601)
    assert not is_known(tokens, secret)
    assert tokens.current(token) is None


def test_a_rotated_token_keeps_its_rights_and_its_old_secret_for_as_long_as_is_asked(
    tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "tokens.jsonl"
    old, before = add_token(path, "team", ["read", "append"], "ci")
    new, after = rotate_token(path, "ci", now() + timedelta(minutes=5))
    assert (after.namespace, after.scopes, after.label) == (before.namespace, before.scopes, before.label)
    tokens = Tokens(path=path)
    assert is_known(tokens, old)
    assert is_known(tokens, new)
    clock.advance(301)
    assert not is_known(tokens, old)
    assert is_known(tokens, new)
    newest, _ = rotate_token(path, "ci", None)
    assert [is_known(tokens, one) for one in (old, new, newest)] == [False, False, True]
    assert len(read_tokens(path)) == 1


def test_the_file_has_no_secret_is_private_and_keeps_its_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    path.write_text("# of our team\n\n")
    secrets = [add_token(path, "team", ["read"], name)[0] for name in ("a", "b")]
    secrets.append(rotate_token(path, "a", None)[0])
    revoke_token(path, "b")
    text = path.read_text()
    assert text.startswith("# of our team\n\n{")
    assert not any(secret in text for secret in secrets)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [token.label for token in read_tokens(path)] == ["a"]


def test_a_token_is_found_by_its_name_or_id_and_no_name_is_given_twice(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    _, token = add_token(path, "team", ["read"], "ci")
    with pytest.raises(InvalidInput, match="'ci' already"):
        add_token(path, "team", ["read"], "ci")
    with pytest.raises(InvalidInput, match="no token 'other'"):
        revoke_token(path, "other")
    assert revoke_token(path, token.id) == [token]
