"""A process that imports conversations in small parts, and says when it begins, before and after each append to the
store, and when it is done."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from clew.checkpointers import open_checkpointer
from clew.compat.importers import import_all
from clew.threads.ops import copy as copying
from tests.compat.importers.sources import Told


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


async def main(source: str, target: str, key: str) -> None:
    copying.PART_SIZE = 100_000
    async with open_checkpointer(target, key=key or None) as store:
        append = store.append

        async def told(*given: Any, **named: Any) -> None:
            say("append")
            await append(*given, **named)
            say("appended")

        setattr(store, "append", told)  # noqa: B010 - mypy knows that a method is not to be replaced
        say("start")
        done = await import_all(Told.open(Path(source)), store)
        assert not done.failed, done.failed
        say("done")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
