"""Threads on another machine: the client of `clew serve`, and the protocol it shares with the service."""

from __future__ import annotations

from clew.checkpointers.http.store import HTTPCheckpointer

__all__ = ["HTTPCheckpointer"]
