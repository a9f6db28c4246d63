"""A request as its route sees it: parameters, headers and body, the token it came with, and the store it may use."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from clew.checkpointers.base import is_abandoned
from clew.checkpointers.checks import check_thread_id
from clew.checkpointers.heads import thread_key
from clew.checkpointers.http.protocol import NAMESPACE_HEADER, decode_text
from clew.server.auth import EVERY_NAMESPACE, NOBODY, Scope, Token, in_store
from clew.server.failures import Refused
from clew.server.settings import CONNECTION, Settings
from clew.server.stores import Stores, Use

if TYPE_CHECKING:
    from clew.server.channels import ChannelKey, Channels
    from clew.server.connections import Connection
    from clew.server.limits import Room

__all__ = ["Request"]


class Request:
    """An HTTP request, made from `scope` and `receive`, with which ASGI describes it. The names in `headers` are in lower
    case; if a header was sent more than once, its last value counts."""

    def __init__(self, scope: Mapping[str, Any], receive: Any, stores: Stores, settings: Settings) -> None:
        self.method: str = scope["method"]
        self.path = _without_empty_segments(scope["path"])
        """The path without empty segments: `//metrics/` is `/metrics`. Everything that decides by the path uses this
        one, so that nobody gets around a check by writing the same path in another way."""
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self.receive = receive
        """The function of ASGI that waits for the next part of the request's body and returns it."""
        self.settings = settings
        self.room: Room | None = None
        """Counts the memory that the request takes for its body and for a large response. None if it is not counted."""
        self.is_secure = scope.get("scheme") == "https"
        """Whether the client uses TLS, to this service or to a proxy in front of it that the settings name."""
        self.address: str = (scope.get("client") or ("",))[0]
        """The address that the request comes from; behind a proxy that the settings name, the one that the proxy names.
        Empty on a unix socket."""
        self.browser = ""
        """The random id in the cookie of a browser that asks for a page. A browser without one gets one with the page."""
        self.audit_id = ""
        """The id of the lines that the audit log has about this request. Empty if it has none."""
        self.session_token: Token | None = None
        """The token that the browser is signed in with. None if it is not, and for requests to the API."""
        self.token: Token = NOBODY
        """The token of the caller. `NOBODY` if the request was refused, or its path needs no token."""
        self.route = "other"
        """The path of the request's route, such as `/v1/threads/{thread}`, for the access log and the metrics."""
        self.path_params: Mapping[str, str] = {}
        """The segments of the path that stand where the route's path has a name in braces, each under that name: for
        `/v1/threads/{thread}`, the segment under `thread`."""
        self.thread = ""
        """The thread that the request names, for the access log: the first 16 digits of the thread's key, a hash of its
        id. Empty if it names none."""
        self._connection: Connection | None = scope.get(CONNECTION)
        self._query: bytes = scope.get("query_string", b"")
        self._stores = stores

    @property
    def query(self) -> str:
        """The query of the address as it was sent, without the question mark."""
        return self._query.decode("latin-1")

    @property
    def query_params(self) -> list[tuple[str, str]]:
        """The parameters in the query of the address, each a name and a value, in the order in which they were sent. A
        name may occur more than once."""
        return parse_qsl(self.query, keep_blank_values=True)

    @property
    def inner_namespace(self) -> str:
        """The part of its token's namespace (a part of the store with threads of its own) that the client names in a
        header. Empty if it names none."""
        named = self.headers.get(NAMESPACE_HEADER.encode(), b"").decode("latin-1")
        return decode_text("a namespace", named) if named else ""

    @property
    def namespace(self) -> str:
        """The namespace (a part of the store with threads of its own) that the request uses: the token's namespace,
        joined with the one that the client names within it. Raises `Refused` if the request has no token."""
        if self.token is NOBODY:
            raise Refused("unauthenticated", "this needs a token")
        return in_store(self.token.namespace, self.inner_namespace)

    def store(self) -> Use:
        """Return a context manager that gives the part of the store that the request uses, without the service's
        encryption keys: what a client has encrypted is stored and returned as it is."""
        return self._stores.use(self.namespace, self._tenant, is_opaque=True)

    def lock(self, thread_id: str) -> asyncio.Lock:
        """Return the lock of a thread. Hold it to read the thread and then append what was checked against it: no other
        request that holds the lock appends to the thread meanwhile."""
        return self._stores.locks[f"{self.namespace}\0{thread_id}"]

    @property
    def channels(self) -> Channels:
        """The threads that somebody follows now, of all namespaces."""
        return self._stores.channels

    @property
    def channel(self) -> ChannelKey:
        """The key of the thread that the path names, among the threads that somebody follows."""
        return self.namespace, self.thread_id

    def readable_store(self) -> Use:
        """Return a context manager that gives the part of the store that the request uses. With the service's
        encryption keys, which it has, pages can show what is in a thread. `store` is the same without keys."""
        return self._stores.use(self.namespace, self._tenant)

    @property
    def _tenant(self) -> str:
        """The tenant whose quotas apply to the request: the namespace (part of the store) that its token grants access
        to. Empty for an operator's token, which reaches all namespaces, to which no quotas apply."""
        return "" if self.token.namespace == EVERY_NAMESPACE else self.token.namespace

    @property
    def thread_id(self) -> str:
        """The id of the thread that the path names. Reading this raises `InvalidInput` if the id is not valid. It also
        sets the attribute `thread`, by which the access log names the thread."""
        thread_id = decode_text("a thread id", self.path_params["thread"])
        check_thread_id(thread_id)
        self.thread = thread_key(thread_id)[:16]
        return thread_id

    def need_client(self) -> None:
        """Raise `Refused` if the client has closed the connection. Call this right before something is written. A
        client that gave up has taken the call as failed, so a service that was busy or frozen must not carry out the
        write after that. The store is told to check the connection again if it has to wait, for a lock for example,
        before it writes."""
        if self._connection is None:
            return
        if self._connection.is_gone():
            raise Refused("unavailable", "the client went away before its request was carried out; nothing was written")
        is_abandoned.set(self._connection.is_gone)

    def need(self, scope: Scope) -> None:
        """Raise `Refused` if the request's token lacks this scope (a right, such as `read`)."""
        if not self.token.allows(scope):
            raise Refused(
                "forbidden",
                f"this needs a token with the scope {scope!r}; the one given has {', '.join(self.token.scopes)}",
            )


def _without_empty_segments(path: str) -> str:
    if path[:1] == "/" and path[-1:] != "/" and "//" not in path:
        return path
    return "/" + "/".join(filter(None, path.split("/")))
