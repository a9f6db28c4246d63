"""The services (`clew serve`) of this user that run on this machine. Each leaves a note of its address in a folder, where
`clew doctor` finds it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clew.checkpointers.registry import data_folder

__all__ = ["announced", "running_services"]


def _folder() -> Path:
    return data_folder() / "services"


@contextmanager
def announced() -> Iterator[Callable[[str], None]]:
    """Give the `with` block, which runs a service, a function to call with the service's address. The function writes
    the address into a file, where `running_services` finds it. The file is removed when the block ends. If the file
    cannot be written, the service runs all the same, and is not found."""
    note = _folder() / str(os.getpid())

    def announce(url: str) -> None:
        with suppress(OSError):
            note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            note.write_text(url)

    try:
        yield announce
    finally:
        with suppress(OSError):
            note.unlink()


def running_services() -> list[str]:
    """Return the addresses of the services (`clew serve`) of this user that run on this machine now. Each service has
    written its address into a file; the files of processes that are gone are removed."""
    found = []
    with suppress(OSError):
        for note in sorted(_folder().iterdir()):
            if not note.name.isdecimal():
                continue
            if _is_alive(int(note.name)):
                found.append(note.read_text())
            else:
                note.unlink(missing_ok=True)
    return found


def _is_alive(pid: int) -> bool:
    if sys.platform == "win32":
        return True  # Windows has no harmless signal to ask with: there, the caller finds out if the service answers
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
