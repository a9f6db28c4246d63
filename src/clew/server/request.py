"""An admitted request as its handler sees it: the token, the store in the right namespace, and the thread for the log."""

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
"""The key of the `Call` in an ASGI scope."""


class Call:
    """A request that the gate has admitted, with its token."""

    __slots__ = ("headers", "settings", "stores", "thread", "token")

    def __init__(self, token: Token, headers: Mapping[bytes, bytes], stores: Stores, settings: Settings) -> None:
        self.token = token
        self.headers = headers
        self.stores = stores
        self.settings = settings
        self.thread = ""
        """The first 16 digits of the key of the thread that the request names, for the access log. Empty for no thread."""

    def store(self) -> Use:
        """Return a context manager that gives the store, in the namespace of the token and of the client's header."""
        named = self.headers.get(NAMESPACE_HEADER.encode(), b"").decode("latin-1")
        inner = decode_text("a namespace", named) if named else ""
        return self.stores.use(in_store(self.token.namespace, inner))

    def thread_id(self, encoded: str) -> str:
        """Decode and check the thread id in a path, and note it for the access log."""
        thread_id = decode_text("a thread id", encoded)
        check_thread_id(thread_id)
        self.thread = thread_key(thread_id)[:16]
        return thread_id

    def need(self, scope: Scope) -> None:
        """Raise `Refused` if the token lacks this scope.

        Handlers call this first, so that a refusal reveals nothing about what exists.
        """
        if scope not in self.token.scopes:
            raise Refused(
                "forbidden",
                f"this needs a token with the scope {scope!r}; the one given has {', '.join(self.token.scopes)}",
            )


def entered(request: Request[Any, Any, Any], scope: Scope) -> Call:
    """Return the call of a request. Raises `Refused` if its token lacks this scope."""
    call: Call = request.scope[KEY]  # type: ignore[literal-required]
    call.need(scope)
    return call
