"""A process that appends to one thread until it is ended, and says after each append how many there were."""

from __future__ import annotations

import asyncio
import os
import sys

from clew import Thread
from clew.checkpointers import SQLiteCheckpointer
from clew.log import MessageAdded
from clew.messages import user


async def main(path: str) -> None:
    count = 0
    async with SQLiteCheckpointer(path) as store, Thread.open(store, "busy") as thread:
        while True:
            await thread.append(MessageAdded(user(os.urandom(1000).hex())))
            count += 1
            os.write(1, f"{count}\n".encode())
            await asyncio.sleep(0.001)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
