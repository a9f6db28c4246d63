"""What a shell offers while a command is typed."""

from __future__ import annotations

__all__ = ["complete_thread"]


def complete_thread(incomplete: str) -> list[str]:
    """The newest threads of the store whose ids begin so. A store that cannot be read offers nothing: a shell has no place
    for an error while somebody types."""
    import asyncio

    from clew import Thread
    from clew.checkpointers import HeadQuery
    from clew.cli._stores import opened
    from clew.errors import ClewError

    async def look() -> list[str]:
        async with opened(None) as store:
            return [head.thread_id async for head in Thread.list(store, HeadQuery(prefix=incomplete, limit=30))]

    try:
        return asyncio.run(look())
    except ClewError:
        return []
