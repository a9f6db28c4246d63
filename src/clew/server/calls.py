"""One request as the handlers see it: whose it is, in which namespace, and what the log may say of it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from litestar import Request

from clew.checkpointers import Checkpointer
from clew.checkpointers._http_wire import decode_text
from clew.checkpointers.checks import check_thread_id
from clew.checkpointers.heads import thread_key
from clew.server.failures import Refused
from clew.server.settings import Settings
from clew.server.stores import Stores
from clew.server.tokens import Scope, Token

__all__ = ["KEY", "Call", "entered"]

KEY = "clew.call"
"""Where a call stands in an ASGI scope."""


class Call:
    """Made by the gate for each request that it lets in."""

    __slots__ = ("namespace", "settings", "stores", "thread", "token")

    def __init__(self, token: Token, namespace: str, stores: Stores, settings: Settings) -> None:
        self.token = token
        self.namespace = namespace
        self.stores = stores
        self.settings = settings
        self.thread = ""
        """The first digits of the key of the thread that it is about."""

    def store(self) -> AbstractAsyncContextManager[Checkpointer]:
        return self.stores.use(self.namespace)

    def thread_id(self, request: Request[Any, Any, Any]) -> str:
        """The thread that the path names."""
        thread_id = decode_text("a thread id", request.path_params["thread"])
        check_thread_id(thread_id)
        self.thread = thread_key(thread_id)[:16]
        return thread_id


def entered(request: Request[Any, Any, Any], scope: Scope) -> Call:
    """The call that a request is, if its token has this scope. Asked before anything that could tell what exists."""
    call: Call = request.scope[KEY]  # type: ignore[literal-required]
    if scope not in call.token.scopes:
        raise Refused(
            "forbidden",
            f"this needs a token with the scope {scope!r}; the one given has {', '.join(call.token.scopes)}",
        )
    return call
