"""Who may do what: bearer tokens with a namespace and scopes each, kept as hashes."""

from __future__ import annotations

import hmac
import math
import re
import secrets
import time
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
from blake3 import blake3

from clew import advice
from clew.checkpointers.base import MAX_ID
from clew.checkpointers.checks import check_namespace
from clew.errors import InvalidInput

__all__ = [
    "ANYBODY",
    "EVERY_NAMESPACE",
    "SCOPES",
    "Rates",
    "Scope",
    "Token",
    "Tokens",
    "in_store",
    "new_token",
    "parse_tokens",
    "read_tokens",
]


Scope = Literal["read", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
EVERY_NAMESPACE = "*"
"""The operator's own namespace: a client's namespace is then the store's, as it is."""

_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = r"^[0-9a-f]{64}$"
_SHORTEST = 16


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the token file. It holds no secret: a token cannot be found from its hash."""

    sha256: Annotated[str, msgspec.Meta(pattern=_HASH)]
    namespace: str
    scopes: tuple[Scope, ...]
    label: str = ""
    """Names the token in access logs."""


ANYBODY = Token("", EVERY_NAMESPACE, SCOPES, "anybody")
"""Who calls a service that knows no tokens: somebody on this machine."""


class Tokens:
    """The tokens a service knows.

    A token is looked up by its hash, and what is found is compared in constant time. How long the lookup takes depends
    on the hash alone, and who could choose that would have broken SHA-256.
    """

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._by_hash = {bytes.fromhex(token.sha256): token for token in tokens}

    def __bool__(self) -> bool:
        return bool(self._by_hash)

    def find(self, authorization: bytes) -> Token | None:
        """The token that this header carries, if it is known."""
        kind, _, secret = authorization.partition(b" ")
        hashed = sha256(secret.strip()).digest()
        found = self._by_hash.get(hashed)
        known = bytes.fromhex(found.sha256) if found else bytes(32)
        return found if hmac.compare_digest(known, hashed) and kind.lower() == b"bearer" else None


def new_token(namespace: str, scopes: Iterable[str], label: str = "") -> tuple[str, str]:
    """A fresh token, to be shown once, and its line for the token file."""
    secret = f"clew_{secrets.token_urlsafe(32)}"
    token = _token(secret, namespace, scopes, label)
    return secret, msgspec.json.encode(token).decode()


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The tokens of a file: a JSON object a line. Empty lines and those that start with # are skipped."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: the token file cannot be read: {getattr(error, 'strerror', error)}") from None
    tokens: dict[str, Token] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            token = msgspec.json.decode(line, type=Token)
            _check_namespace(token.namespace)
            _check_scopes(token.scopes)
        except (msgspec.MsgspecError, InvalidInput) as error:
            raise InvalidInput(f"{path}, line {number}: {error}. `{advice.new_token()}` prints a sound line.") from None
        if token.sha256 in tokens:
            raise InvalidInput(f"{path}, line {number}: this token stands in an earlier line too. Keep one.")
        tokens[token.sha256] = token
    if not tokens:
        raise InvalidInput(f"{path}: no token in it. `{advice.new_token(str(path))}` makes one.")
    return tuple(tokens.values())


def parse_tokens(text: str) -> tuple[Token, ...]:
    """The tokens of `CLEW_SERVE_TOKENS`: words of the form TOKEN, TOKEN@NAMESPACE or TOKEN@NAMESPACE:read,write."""
    tokens = []
    for number, word in enumerate(text.split(), start=1):
        secret, _, rest = word.partition("@")
        namespace, _, scopes = rest.partition(":")
        try:
            tokens.append(
                _token(secret, namespace or EVERY_NAMESPACE, scopes.split(",") if scopes else SCOPES, f"token {number}")
            )
        except InvalidInput as error:
            raise InvalidInput(f"CLEW_SERVE_TOKENS, token {number}: {error}") from None
    if len({token.sha256 for token in tokens}) < len(tokens):
        raise InvalidInput("CLEW_SERVE_TOKENS holds a token twice. Keep one.")
    return tuple(tokens)


def _token(secret: str, namespace: str, scopes: Iterable[str], label: str) -> Token:
    if len(secret) < _SHORTEST or not secret.isascii():
        raise InvalidInput(f"a token has {_SHORTEST} ASCII characters or more. `{advice.new_token()}` makes one.")
    _check_namespace(namespace)
    return Token(sha256(secret.encode()).hexdigest(), namespace, _check_scopes(scopes), label)


def _check_namespace(namespace: str) -> None:
    if namespace != EVERY_NAMESPACE and not _NAMESPACE.fullmatch(namespace):
        raise InvalidInput(
            f"{namespace!r} is no namespace for a token: 1 to 64 letters, digits, '.', '_' and '-', "
            "not a sign first; or * for all of them"
        )


def _check_scopes(scopes: Iterable[str]) -> tuple[Scope, ...]:
    given = set(scopes)
    if not given or (unknown := given - set(SCOPES)):
        wrong = f"{', '.join(sorted(unknown))!r} is none" if given else "none is given"
        raise InvalidInput(f"scopes are {', '.join(SCOPES)}; {wrong}")
    return tuple(scope for scope in SCOPES if scope in given)


def in_store(tenant: str, inner: str) -> str:
    """`tenant`, or `tenant/inner`; `tenant#` and the blake3 of `inner` where that is too long for a namespace.

    A tenant's name holds neither `/` nor `#`, so the first of them in a namespace ends the tenant, and nothing that a
    client sends leads out of its own tenant. The operator's `*` stands for no tenant: the client's namespace is the
    store's, and with it every tenant's.
    """
    check_namespace(inner)
    if tenant == EVERY_NAMESPACE:
        return inner
    if not inner:
        return tenant
    whole = f"{tenant}/{inner}"
    return whole if len(whole.encode()) <= MAX_ID else f"{tenant}#{blake3(inner.encode()).hexdigest()}"


class Rates:
    """A bucket for each token. There are as many as there are tokens, so nothing has to be forgotten."""

    def __init__(self, rate: float | None, burst: int | None, now: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate or 0.0
        self._size = float(burst or max(1, math.ceil(self._rate)))
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait(self, who: str) -> int:
        """0 if this call may go on; else the seconds, rounded up, after which one may."""
        if not self._rate:
            return 0
        now = self._now()
        level, since = self._buckets.get(who, (self._size, now))
        level = min(self._size, level + (now - since) * self._rate)
        if level < 1:
            self._buckets[who] = (level, now)
            return math.ceil((1 - level) / self._rate)
        self._buckets[who] = (level - 1, now)
        return 0
