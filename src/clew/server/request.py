"""One request as the handlers see it: whose it is, in which namespace, and what the log may say of it."""

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
"""Where a call stands in an ASGI scope."""


class Call:
    """Made by the gate for each request that it lets in."""

    __slots__ = ("headers", "settings", "stores", "thread", "token")

    def __init__(self, token: Token, headers: Mapping[bytes, bytes], stores: Stores, settings: Settings) -> None:
        self.token = token
        self.headers = headers
        self.stores = stores
        self.settings = settings
        self.thread = ""
        """The first digits of the key of the thread that it is about."""

    def store(self) -> Use:
        """The store, in the namespace that the token and the client name together."""
        named = self.headers.get(NAMESPACE_HEADER.encode(), b"").decode("latin-1")
        inner = decode_text("a namespace", named) if named else ""
        return self.stores.use(in_store(self.token.namespace, inner))

    def thread_id(self, encoded: str) -> str:
        """The thread that a path names."""
        thread_id = decode_text("a thread id", encoded)
        check_thread_id(thread_id)
        self.thread = thread_key(thread_id)[:16]
        return thread_id

    def need(self, scope: Scope) -> None:
        """Refuse the call if its token lacks this scope. Asked before anything that could tell what exists."""
        if scope not in self.token.scopes:
            raise Refused(
                "forbidden",
                f"this needs a token with the scope {scope!r}; the one given has {', '.join(self.token.scopes)}",
            )


def entered(request: Request[Any, Any, Any], scope: Scope) -> Call:
    """The call that a request is, if its token has this scope."""
    call: Call = request.scope[KEY]  # type: ignore[literal-required]
    call.need(scope)
    return call
