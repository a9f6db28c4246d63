"""The file of tokens that a service accepts: one JSON object a line. This module reads it, changes it for `clew tokens`, and
notices while the service runs that it has changed, so that a token is created or revoked without a restart."""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256
from pathlib import Path

import msgspec

from clew import advice
from clew._runtime import files
from clew.errors import InvalidInput
from clew.server.auth import ANYBODY, Token, check_token, make_token

__all__ = ["Tokens", "add_token", "read_tokens", "revoke_token", "rotate_token"]

logger = logging.getLogger("clew.server")


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Read a token file: one JSON object per line. Empty lines and lines that start with # are skipped. Raises
    `InvalidInput` for a wrong line, and if the file has no token."""
    tokens = _parse(path, _read(path).splitlines())
    if not tokens:
        raise InvalidInput(f"{path}: no token in it. `{advice.new_token(str(path))}` makes one.")
    return tokens


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: the token file cannot be read: {getattr(error, 'strerror', error)}") from None


def _parse(path: Path, lines: Iterable[str]) -> tuple[Token, ...]:
    tokens: dict[str, Token] = {}
    for number, line in enumerate(lines, start=1):
        if not _is_token(line):
            continue
        try:
            token = msgspec.json.decode(line, type=Token)
            check_token(token)
        except (msgspec.MsgspecError, InvalidInput) as error:
            raise InvalidInput(f"{path}, line {number}: {error}. `{advice.new_token()}` makes a sound line.") from None
        if token.sha256 in tokens:
            raise InvalidInput(f"{path}, line {number}: this token is in an earlier line too. Keep one of them.")
        tokens[token.sha256] = token
    return tuple(tokens.values())


def _is_token(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


class Tokens:
    """The tokens that a service accepts, found by the hash of their secret: some given as arguments, and those in a
    file.

    The file is looked at before every use and read again when it has changed. If it cannot be read then, or has a wrong
    line, the tokens that were read before stay valid, so that a half-written file does not lock everybody out. The log
    says so.

    A caller cannot learn a secret by measuring how long a lookup takes. The time depends only on the hash of the secret
    that was sent, and nobody can choose a secret by its hash. The comparison that follows takes constant time.
    """

    def __init__(self, tokens: Iterable[Token] = (), path: Path | None = None) -> None:
        """Accept `tokens` and, if `path` is given, those in the file at `path`. Raises `InvalidInput` if the file
        cannot be read or has no token."""
        self._given = {bytes.fromhex(token.sha256): token for token in tokens}
        self._path = path
        self._seen: object = None
        self._by_hash = dict(self._given)
        if path is not None:
            self._seen = _signature(path)
            self._take(read_tokens(path))

    def find(self, authorization: bytes) -> Token | None:
        """Return the token whose secret is in an `Authorization` header. None if the service does not know it, or it has
        expired."""
        self._refresh()
        kind, _, secret = authorization.partition(b" ")
        hashed = sha256(secret.strip()).digest()
        found = self._by_hash.get(hashed)
        known = bytes.fromhex(found.sha256) if found else bytes(32)
        is_known = hmac.compare_digest(known, hashed) and kind.lower() == b"bearer"
        return found if is_known and found is not None and not found.has_expired else None

    def current(self, token: Token) -> Token | None:
        """Return this token with the rights that it has now, because the token file may have changed since the
        token was looked up. None if the token was revoked or has expired."""
        if token is ANYBODY:
            return token
        self._refresh()
        found = self._by_hash.get(bytes.fromhex(token.sha256))
        return None if found is None or found.has_expired else found

    def _take(self, tokens: Iterable[Token]) -> None:
        self._by_hash = self._given | {bytes.fromhex(token.sha256): token for token in tokens}

    def _refresh(self) -> None:
        if self._path is None or (now := _signature(self._path)) == self._seen:
            return
        self._seen = now
        try:
            self._take(_parse(self._path, _read(self._path).splitlines()))
        except InvalidInput as error:
            event: dict[str, object] = {
                "event": "error",
                "kind": "tokens",
                "message": f"{error} The tokens from before stay valid.",
            }
        else:
            event = {"event": "tokens", "count": len(self._by_hash)}
        logger.info(msgspec.json.encode(event).decode())


def _signature(path: Path) -> object:
    """Return a value that is different after the file was changed or replaced."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


# Changes, for `clew tokens`


def add_token(
    path: Path, namespace: str, scopes: Iterable[str], label: str, expires: datetime | None = None
) -> tuple[str, Token]:
    """Add a new token to the file at `path`, which is made if it does not exist. The token grants `scopes` (rights,
    such as `read`) in `namespace`, a part of the store with threads of its own, until the moment `expires`; None is for
    ever. Returns its secret, and the token. Raises `InvalidInput` if a token of the file has the name `label`
    already."""
    secret, token = make_token(namespace, scopes, label, expires)
    with _changing(path) as (lines, tokens):
        if any(label in (one.label, one.id) for one in tokens):
            raise InvalidInput(f"{path} has a token {label!r} already. Choose another name, or rotate that one.")
        lines.append(_line(token))
    return secret, token


def rotate_token(path: Path, name: str, until: datetime | None) -> tuple[str, Token]:
    """Give a token of the file a new secret, and return that secret and the new token. The old secret is accepted until
    the moment `until`; None revokes it at once. `name` is the token's label or id. Raises `InvalidInput` if there is no
    such token."""
    with _changing(path) as (lines, tokens):
        *older, old = _named(path, tokens, name)
        secret, token = make_token(old.namespace, old.scopes, old.label, old.expires)

        def change(one: Token) -> Token | None:
            if one in older or (one == old and until is None):
                return None
            if one != old or until is None:
                return one
            return msgspec.structs.replace(one, expires=min(one.expires or until, until))

        _rewrite(lines, change)
        lines.append(_line(token))
    return secret, token


def revoke_token(path: Path, name: str) -> list[Token]:
    """Take all tokens with this label or id out of the file, and return them. Raises `InvalidInput` if there are none."""
    with _changing(path) as (lines, tokens):
        gone = _named(path, tokens, name)
        _rewrite(lines, lambda one: None if one in gone else one)
    return gone


def _named(path: Path, tokens: Iterable[Token], name: str) -> list[Token]:
    found = [token for token in tokens if name in (token.label, token.id)]
    if not found:
        raise InvalidInput(f"{path} has no token {name!r}. `{advice.list_tokens(str(path))}` lists those that it has.")
    return found


def _line(token: Token) -> str:
    return msgspec.json.encode(token).decode()


def _rewrite(lines: list[str], change: Callable[[Token], Token | None]) -> None:
    """Change the lines of a token file in place: replace each token by the token that `change` returns for it, or
    remove its line if that is None. Comments and empty lines stay as they are."""
    kept = []
    for line in lines:
        if not _is_token(line):
            kept.append(line)
            continue
        before = msgspec.json.decode(line, type=Token)
        after = change(before)
        if after is not None:
            kept.append(line if after == before else _line(after))
    lines[:] = kept


@contextmanager
def _changing(path: Path) -> Iterator[tuple[list[str], tuple[Token, ...]]]:
    """A context manager to change a token file. It gives the lines of the file, which the block may change, and the
    tokens in them. If the block succeeds, the lines are written back.

    The file is replaced as a whole, so that a service never reads half of it, and other users cannot read it. Two
    processes that change the same file wait for each other.
    """
    path = path.resolve()  # so that a link stays, and the file that it leads to is replaced
    try:
        guard = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidInput(f"{path}: the token file cannot be changed: {error.strerror}") from None
    try:
        files.lock(guard, f"{path}.lock", shared=False)
        lines = _read(path).splitlines() if path.exists() else []
        yield lines, _parse(path, lines)
        temporary = files.write_beside(path, "".join(f"{line}\n" for line in lines).encode(), durable=True)
        os.replace(temporary, path)
        files.sync_folder(path.parent)
    finally:
        os.close(guard)
