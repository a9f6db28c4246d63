"""A warm process that forks the workers of a lab, so that each starts in a moment: `python -m tests.crash.lab.nursery`.

It reads births from its input, a line each, and answers with the id of the process, as this machine counts it.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import logging
import os
import signal
import socket
import sys
import traceback

import msgspec

from tests.crash.lab import worker
from tests.crash.lab.worker import Job

__all__ = ["Birth"]

_NEW_MOUNTS, _NEW_HOSTNAME, _NEW_PIDS = 0x00020000, 0x04000000, 0x20000000
_RECURSIVE, _PRIVATE = 0x4000, 1 << 18
_DEATH_SIGNAL = 1
_STORES = {"postgresql": "postgres", "redis": "redis", "s3": "objects", "http": "http"}


class Birth(msgspec.Struct, frozen=True, kw_only=True):
    """A worker to start."""

    job: Job
    log: str
    host: str = ""
    """The name of the machine in whose namespaces it lives; empty for those of this process."""


def _check(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _move_out(libc: ctypes.CDLL, host: str) -> int:
    """Have the next child of this process live in namespaces of its own, and fork it. Return 0 in the child, and the
    child's id here."""
    _check(libc.unshare(_NEW_MOUNTS | _NEW_HOSTNAME | _NEW_PIDS), "unshare")
    child = os.fork()
    if not child:
        _check(libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0), "prctl")
        _check(libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None), "mount")
        _check(libc.mount(b"proc", b"/proc", b"proc", 0, None), "mount")
        socket.sethostname(host)
    return child


def _live(birth: Birth, said: int) -> None:
    """Become the worker, or its keeper, which says the worker's id to the pipe `said` and waits for its end."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0), "prctl")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(birth.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    child = _move_out(libc, birth.host) if birth.host else 0
    if child:
        os.write(said, f"pid {child}\n".encode())
        os.close(said)
        os.waitpid(child, 0)
        return
    if not birth.host:
        os.write(said, f"pid {os.getpid()}\n".encode())
    os.close(said)
    logging.basicConfig(level=logging.WARNING, format=f"%(asctime)s {birth.job.life} %(name)s %(message)s")
    if birth.job.temporal:
        from tests.crash.lab import temporal_worker

        asyncio.run(temporal_worker.work(birth.job))
    else:
        asyncio.run(worker.work(birth.job))


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        birth = msgspec.json.decode(line, type=Birth)
        for scheme, package in _STORES.items():
            if birth.job.url.startswith(scheme):
                importlib.import_module(f"clew.checkpointers.{package}.store")
        if birth.job.temporal:
            importlib.import_module("tests.crash.lab.temporal_worker")
        heard, said = os.pipe()
        if not os.fork():
            code = 1
            try:
                os.close(heard)
                _live(birth, said)
                code = 0
            except BaseException:  # noqa: BLE001 - a forked child ends here, whatever happens
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(said)
        with os.fdopen(heard) as answer:
            print(answer.read().strip() or "nothing", flush=True)


if __name__ == "__main__":
    main()
