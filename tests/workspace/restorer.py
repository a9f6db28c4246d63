"""A process that restores a snapshot, and is killed at the rename with the number it is told."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from clew.checkpointers import SQLiteCheckpointer
from clew.workspace import Workspace


async def main(store: str, folder: str, digest: str, number: str) -> None:
    left = int(number)
    rename = os.rename

    def killing(*args: Any, **more: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(*args, **more)

    async with SQLiteCheckpointer(store) as opened:
        workspace = Workspace(folder, opened)
        await workspace.snapshot()
        os.rename = killing
        await workspace.restore(digest, setuid=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
