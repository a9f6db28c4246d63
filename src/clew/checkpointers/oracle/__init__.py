"""A store in Oracle Database."""

from __future__ import annotations

from clew.checkpointers.oracle.store import OracleCheckpointer

__all__ = ["OracleCheckpointer"]
