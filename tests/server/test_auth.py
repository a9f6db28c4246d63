"""Tokens: the file, the environment, and who is let in."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from clew.errors import InvalidInput
from clew.server.auth import SCOPES, Token, new_token, parse_tokens
from clew.server.token_file import Tokens, read_tokens


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "tokens.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_a_new_token_is_let_in_by_its_line(tmp_path: Path) -> None:
    secret, line = new_token("team", ["write", "read"], "ci")
    [token] = read_tokens(written(tmp_path, "# ours", "", line))
    assert (token.namespace, token.scopes, token.label) == ("team", ("read", "write"), "ci")
    assert Tokens([token]).find(f"Bearer {secret}".encode()) is token
    assert secret not in line


def test_no_two_new_tokens_are_the_same() -> None:
    assert len({new_token("team", ["read"])[0] for _ in range(50)}) == 50


@pytest.mark.parametrize(
    "header", [b"", b"Bearer", b"Bearer ", b"Bearer wrong-token-wrong-token", b"Basic {}", b"{}", b"Bearer {}x"]
)
def test_what_is_not_a_known_token_is_nobody(header: bytes) -> None:
    secret, line = new_token("team", ["read"])
    tokens = Tokens([msgspec.json.decode(line, type=Token)])
    assert tokens.find(header.replace(b"{}", secret.encode())) is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json", "malformed"),
        ("{}", "sha256"),
        ('{"sha256": "abc", "namespace": "a", "scopes": ["read"]}', "sha256"),
        ('{"sha256": "%s", "namespace": "a/b", "scopes": ["read"]}' % ("0" * 64), "a/b"),
        ('{"sha256": "%s", "namespace": "", "scopes": ["read"]}' % ("0" * 64), "not a namespace"),
        ('{"sha256": "%s", "namespace": "a", "scopes": []}' % ("0" * 64), "give at least one"),
        ('{"sha256": "%s", "namespace": "a", "scopes": ["root"]}' % ("0" * 64), "root"),
        ('{"sha256": "%s", "namespace": "a", "scopes": ["read"], "extra": 1}' % ("0" * 64), "extra"),
    ],
)
def test_a_malformed_line_is_named_with_what_is_wrong(line: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="line 2") as caught:
        read_tokens(written(tmp_path, "", line))
    assert said in str(caught.value)


def test_a_token_that_stands_twice_is_refused(tmp_path: Path) -> None:
    _, line = new_token("team", ["read"])
    with pytest.raises(InvalidInput, match="line 2"):
        read_tokens(written(tmp_path, line, line))


def test_a_file_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"absent\.jsonl"):
        read_tokens(tmp_path / "absent.jsonl")
    with pytest.raises(InvalidInput, match="no token"):
        read_tokens(written(tmp_path, "# nothing"))


def test_tokens_of_the_environment_have_all_or_what_they_say() -> None:
    every, some, one = parse_tokens("first-long-secret second-long-secret@team\nthird-long-secret@team:read,admin")
    assert (every.namespace, every.scopes) == ("*", SCOPES)
    assert (some.namespace, some.scopes) == ("team", SCOPES)
    assert (one.namespace, one.scopes) == ("team", ("read", "admin"))
    assert Tokens([every, some, one]).find(b"Bearer second-long-secret") is some


@pytest.mark.parametrize(
    "text", ["short", "a-long-enough-secret@a/b", "a-long-enough-secret@a:root", "same-long-secret-1 " * 2]
)
def test_bad_tokens_of_the_environment_are_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidInput, match="CLEW_SERVE_TOKENS") as caught:
        parse_tokens(text)
    assert text.split("@")[0].strip() not in str(caught.value)
