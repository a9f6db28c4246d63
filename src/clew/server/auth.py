"""The tokens by which the service knows its callers, and the limit on how often each may call. A token grants scopes
(what its holder may do) in one namespace (a part of the store with threads of its own), and only its hash is stored.
The module `token_file` reads and writes the file that lists the tokens."""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Literal, get_args

import msgspec
from blake3 import blake3

from clew import advice
from clew._runtime.clock import now
from clew.checkpointers.base import MAX_ID
from clew.checkpointers.checks import check_namespace
from clew.errors import InvalidInput

__all__ = [
    "ANYBODY",
    "EVERY_NAMESPACE",
    "NOBODY",
    "SCOPES",
    "Rates",
    "Scope",
    "Token",
    "check_token",
    "in_store",
    "make_token",
    "new_token",
    "parse_tokens",
]


Scope = Literal["read", "append", "write", "delete", "admin", "metrics"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
_INCLUDED: dict[Scope, frozenset[Scope]] = {
    "write": frozenset({"append", "delete"}),
    "admin": frozenset({"metrics"}),
}
"""For each larger scope, the smaller scopes that it includes."""
EVERY_NAMESPACE = "*"
"""The namespace of an operator's token. Such a token reaches the whole store: its holder may name any namespace in the
store."""

_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = r"^[0-9a-f]{64}$"
_SHORTEST = 16


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One token that the service accepts, as a line of the token file has it. It grants its `scopes` (rights, such as
    `read`) in its `namespace`, a part of the store with threads of its own. `sha256` is the hash of its secret; the
    secret itself is not stored."""

    sha256: Annotated[str, msgspec.Meta(pattern=_HASH)]
    namespace: str
    scopes: tuple[Scope, ...]
    label: str = ""
    """The name of the token in logs, and for the commands that rotate and revoke it."""
    created: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """The moment from which on the token is not accepted. None is never."""

    @property
    def id(self) -> str:
        """The first 12 digits of the token's hash. They identify the token in lists, logs and commands, even if it has
        no label."""
        return self.sha256[:12]

    @property
    def has_expired(self) -> bool:
        return self.expires is not None and self.expires <= now()

    def allows(self, scope: Scope) -> bool:
        """Return whether the token has this scope (a right, such as `read`), or a larger one that includes it."""
        return scope in self.scopes or any(scope in _INCLUDED.get(one, ()) for one in self.scopes)


ANYBODY = Token("", EVERY_NAMESPACE, SCOPES, "anybody")
"""The token that stands for every caller if the service has no tokens. It allows everything, because such a service
listens on a unix socket of its user, or was told to serve every user of this machine."""
NOBODY = Token("", "", (), "")
"""The token of a request that was refused, or that needs none. It allows nothing."""


def new_token(namespace: str, scopes: Iterable[str], label: str = "") -> tuple[str, str]:
    """Make a new token, which grants `scopes` (rights, such as `read`) in `namespace`, a part of the store with threads
    of its own. `label` is its name in the logs. Returns its secret, which is shown to the user once and not stored, and
    its line for the token file."""
    secret, token = make_token(namespace, scopes, label)
    return secret, msgspec.json.encode(token).decode()


def make_token(
    namespace: str, scopes: Iterable[str], label: str = "", expires: datetime | None = None
) -> tuple[str, Token]:
    """Make a new token, which grants `scopes` (rights, such as `read`) in `namespace`, a part of the store with threads
    of its own, until the moment `expires`; None is for ever. `label` is its name in logs and commands. Returns its
    secret, which is not stored, and the token."""
    secret = f"clew_{secrets.token_urlsafe(32)}"
    token = _token(secret, namespace, scopes, label)
    return secret, msgspec.structs.replace(token, created=now().replace(microsecond=0), expires=expires)


def check_token(token: Token) -> None:
    """Check a token that was read from a file. Raises `InvalidInput` if it has no scopes (rights, such as `read`), an
    unknown scope, or a namespace (a part of the store) that is neither `*`, for all, nor a valid name."""
    _check_namespace(token.namespace)
    _check_scopes(token.scopes)


def parse_tokens(text: str) -> tuple[Token, ...]:
    """Parse the value of the environment variable `CLEW_SERVE_TOKENS`: words separated by spaces, such as TOKEN,
    TOKEN@NAMESPACE or TOKEN@NAMESPACE:read,write. TOKEN is a secret, NAMESPACE a part of the store with threads of its
    own, and `read` and `write` are scopes (rights). A token without a namespace reaches all namespaces, and one without
    scopes has all scopes. Raises `InvalidInput` for a wrong word, and for a token that is given twice."""
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
            f"{namespace!r} is not a namespace for a token. Use 1 to 64 letters, digits, '.', '_' and '-', with a letter "
            "or digit first; or * for all namespaces"
        )


def _check_scopes(scopes: Iterable[str]) -> tuple[Scope, ...]:
    given = set(scopes)
    if not given or (unknown := given - set(SCOPES)):
        wrong = f"{', '.join(sorted(unknown))!r} is not one of them" if given else "give at least one"
        raise InvalidInput(f"scopes are {', '.join(SCOPES)}; {wrong}")
    return tuple(scope for scope in SCOPES if scope in given)


def in_store(tenant: str, inner: str) -> str:
    """Return the namespace (a part of the store with threads of its own) that a request uses. `tenant` is the namespace
    of the request's token, and `inner` the namespace that the client names within it, which may be empty.

    The result is `tenant` if `inner` is empty, and otherwise `tenant/inner`. If that is longer than a namespace may be,
    the result is `tenant#` and a hash (blake3) of `inner`. A tenant's name contains neither `/` nor `#`, so no client
    can reach a namespace outside its tenant. If `tenant` is `*`, the namespace of an operator's token, the result is
    `inner` itself.
    """
    check_namespace(inner)
    if tenant == EVERY_NAMESPACE:
        return inner
    if not inner:
        return tenant
    whole = f"{tenant}/{inner}"
    return whole if len(whole.encode()) <= MAX_ID else f"{tenant}#{blake3(inner.encode()).hexdigest()}"


_MOST_CALLERS = 10_000
"""How many callers `Rates` remembers. If there are more, it forgets the caller that was quiet for longest, so that
invented addresses cannot fill the memory."""


class Rates:
    """Limits how many requests each token may make: `rate` a second in the long run and, after a quiet time, at most
    `burst` at once (a token bucket). If `rate` is None, there is no limit. If `burst` is None, it is the number of
    requests that `rate` allows in one second, but at least 1. `now` returns the time in seconds."""

    def __init__(self, rate: float | None, burst: int | None, now: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate or 0.0
        self._size = float(burst or max(1, math.ceil(self._rate)))
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait(self, who: str, *, count: bool = True, spare: bool = False) -> int:
        """Count a request of the caller `who`, such as the hash of a token. Returns 0 if the request is allowed;
        otherwise the seconds, as a whole number, to wait until the next request is allowed. With `count=False`, the
        result is the same, but no request is counted. With `spare`, the request is allowed only while more than half of
        the bucket is left, so that such requests never take the place of others."""
        if not self._rate:
            return 0
        now = self._now()
        level, since = self._buckets.get(who, (self._size, now))
        level = min(self._size, level + (now - since) * self._rate)
        needed = 1 + self._size / 2 if spare else 1
        if level < needed:
            wait, after = math.ceil((needed - level) / self._rate), level
        else:
            wait, after = 0, level - 1
        if count:
            self._buckets.pop(who, None)
            self._buckets[who] = (after, now)
            if len(self._buckets) > _MOST_CALLERS:
                del self._buckets[next(iter(self._buckets))]
        return wait
