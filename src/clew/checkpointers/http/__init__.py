"""A store behind a server that runs `clew serve`: the HTTP client, and the protocol that client and server share."""

from __future__ import annotations

from clew.checkpointers.http.store import HTTPCheckpointer

__all__ = ["HTTPCheckpointer"]
