"""A store behind `clew serve`: its client, and the protocol that client and service share."""

from __future__ import annotations

from clew.checkpointers.http.store import HTTPCheckpointer

__all__ = ["HTTPCheckpointer"]
