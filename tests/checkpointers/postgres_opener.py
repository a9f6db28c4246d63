"""Opens a PostgreSQL store at the moment it is told, appends once, and leaves: run as a process by test_postgres.py."""

from __future__ import annotations

import asyncio
import sys

from clew.checkpointers.postgres.store import PostgresCheckpointer
from clew.testing.contract.builders import append


async def main(url: str, schema: str, name: str) -> None:
    async with PostgresCheckpointer(url, schema=schema) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        await append(store, name, b"frame")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
