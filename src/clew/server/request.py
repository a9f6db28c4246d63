"""An admitted request as the function of its route sees it: the token, the store in the right namespace, and the thread
for the access log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litestar import Request

from clew.checkpointers.checks import check_thread_id
from clew.checkpointers.heads import thread_key
from clew.checkpointers.http.protocol import NAMESPACE_HEADER, decode_text
from clew.server.auth import Scope, Token, in_store
from clew.server.failures import Refused
from clew.server.settings import Settings
from clew.server.stores import Stores, Use

__all__ = ["KEY", "Call", "entered"]

KEY = "clew.call"
"""The key under which an ASGI scope (the dict about a request) holds the `Call`, which is the admitted request with its
token."""


class Call:
    """A request that the service's gate (`Gate`) has admitted, with its token."""

    __slots__ = ("headers", "settings", "stores", "thread", "token")

    def __init__(self, token: Token, headers: Mapping[bytes, bytes], stores: Stores, settings: Settings) -> None:
        self.token = token
        self.headers = headers
        self.stores = stores
        self.settings = settings
        self.thread = ""
        """The thread that the request names, for the access log: the first 16 digits of the thread's key, a hash of its
        id. Empty if it names none."""

    def store(self) -> Use:
        """Return a context manager that gives the store, in the right namespace: the token's namespace, joined with the
        one that the client names in a header, if any."""
        named = self.headers.get(NAMESPACE_HEADER.encode(), b"").decode("latin-1")
        inner = decode_text("a namespace", named) if named else ""
        return self.stores.use(in_store(self.token.namespace, inner))

    def thread_id(self, encoded: str) -> str:
        """Return the thread id that `encoded`, a part of the request's path, stands for. Raises `InvalidInput` if it is
        not valid. Sets the attribute `thread` for the access log."""
        thread_id = decode_text("a thread id", encoded)
        check_thread_id(thread_id)
        self.thread = thread_key(thread_id)[:16]
        return thread_id

    def need(self, scope: Scope) -> None:
        """Raise `Refused` if the token lacks this scope.

        The function of a route calls this first, so that a refusal reveals nothing about what exists.
        """
        if scope not in self.token.scopes:
            raise Refused(
                "forbidden",
                f"this needs a token with the scope {scope!r}; the one given has {', '.join(self.token.scopes)}",
            )


def entered(request: Request[Any, Any, Any], scope: Scope) -> Call:
    """Return the `Call` of an admitted request. Raises `Refused` if its token lacks this scope."""
    call: Call = request.scope[KEY]  # type: ignore[literal-required]
    call.need(scope)
    return call
