"""A store in Redis or Valkey."""

from __future__ import annotations

from clew.checkpointers.redis.store import RedisCheckpointer

__all__ = ["RedisCheckpointer"]
