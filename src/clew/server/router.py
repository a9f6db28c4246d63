"""The router of the service: finds the function for a request's method and path, and turns its errors into responses."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from clew.server.auth import Scope
from clew.server.failures import Refused, WrongMethod
from clew.server.request import Request
from clew.server.response import Response

__all__ = ["Handler", "Route", "Router"]

Handler = Callable[[Request], Awaitable[Response]]

_HOST = re.compile(rb"[0-9A-Za-z!$&'()*+,;=\-._~:\[\]@%]*")


class Route(NamedTuple):
    """A row of the table of routes: the function that responds to a method at a path.

    In `path`, a name in braces stands for one segment: `/v1/threads/{thread}`. The function is called only for a
    request whose token has `scope` (a right, such as `read`); without a scope, for any request.
    """

    method: str
    path: str
    scope: Scope | None
    handler: Handler


class Router:
    """Responds to requests by a table of routes. Before the function of a route is called, the function `begin`, if
    given, is called with the request and the route's scope; an error that `begin` raises refuses the request. For every
    error, the function `failed` is called with the request and the error, and returns the response.

    A route whose path has no name in braces goes first: a request for `/v1/blobs/get` never goes to the route
    `/v1/blobs/{digest}`.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        failed: Callable[[Request, Exception], Response],
        begin: Callable[[Request, Scope | None], Awaitable[None]] | None = None,
    ) -> None:
        self.routes = tuple(routes)
        self._failed = failed
        self._begin = begin
        self._plain: dict[str, dict[str, Route]] = {}
        # A tree of segments, in which None stands for any segment, and "" leads to the routes of the path that ends there.
        self._tree: dict[str | None, Any] = {}
        for route in self.routes:
            if "{" not in route.path:
                self._plain.setdefault(route.path, {})[route.method] = route
                continue
            node = self._tree
            for segment in route.path.split("/")[1:]:
                node = node.setdefault(None if segment.startswith("{") else segment, {})
            node.setdefault("", {})[route.method] = route

    async def answer(self, request: Request) -> Response:
        """Return the response to a request. Every error becomes a response too."""
        try:
            if not _HOST.fullmatch(request.headers.get(b"host", b"")):
                raise Refused("invalid", "the header Host has characters that no host name has")
            methods, values = self._find(request.path)
            route = methods.get(request.method)
            if route is None:
                raise WrongMethod(methods)
            request.route = route.path
            if values:
                names = [segment[1:-1] for segment in route.path.split("/") if segment.startswith("{")]
                request.path_params = dict(zip(names, values, strict=True))
            # Before anything else, so that a refusal reveals nothing about what exists.
            if route.scope is not None:
                request.need(route.scope)
            if self._begin is not None:
                await self._begin(request, route.scope)
            return await route.handler(request)
        except Exception as error:  # noqa: BLE001 - the client gets every error as a response
            return self._failed(request, error)

    def _find(self, path: str) -> tuple[dict[str, Route], list[str]]:
        """Find the routes for the path of a request. Returns them as a dict by method, and a list of those segments of
        the path that stand where the routes have a name in braces. Raises `Refused` if no route fits the path."""
        if path in self._plain:
            return self._plain[path], []
        node: Any = self._tree
        values = []
        for segment in path.split("/")[1:]:
            if segment in node:
                node = node[segment]
            elif None in node:
                node = node[None]
                values.append(segment)
            else:
                break
        else:
            if "" in node:
                return node[""], values
        raise Refused("no_such_path", "there is no such path")
