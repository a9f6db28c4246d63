"""Run the demo: one process works undisturbed; a second does the same work and is killed, and a third resumes it. Then
compare the results of the undisturbed and the resumed work."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from clew.demo.compare import Report, compare, look
from clew.demo.job import Places
from clew.demo.process import Process, run_worker
from clew.demo.views import Role, View
from clew.errors import ClewError
from clew.tools import Effect

__all__ = ["KILL_AT", "DemoFailed", "run_demo"]

KILL_AT = 17
"""The number of the turn in which the worker is killed."""


class DemoFailed(ClewError):
    """Raised if a process of the demo did not end as planned, so that there is nothing to compare."""

    def __init__(self, role: Role, ended: int) -> None:
        how = f"by signal {-ended}" if ended < 0 else f"with code {ended}"
        super().__init__(f"the {role} process of the demo ended {how}, which was not planned. Its output is above.")


def run_demo(folder: Path, view: View, *, effect: Effect = "once") -> Report:
    """Run the demo in this folder, show it on `view` as it happens, and return the report. One process does the work
    undisturbed. Then a second one does the same work and is killed, and a third one resumes it. The results of both
    runs are compared.

    `effect` is what the payment tool declares about running twice.
    """
    alone, disturbed = folder / "undisturbed", folder / "killed"
    for place in (alone, disturbed):
        Places(place).store.parent.mkdir(parents=True)
    view.open()
    try:
        undisturbed = _run("undisturbed", alone, view, effect)
        killed = _run("killed", disturbed, view, effect)
        at_kill = asyncio.run(look(Places(disturbed)))
        resumed = _run("resumed", disturbed, view, effect)
    finally:
        view.close()
    wanted, found = asyncio.run(look(Places(alone))), asyncio.run(look(Places(disturbed)))
    report = compare(undisturbed, wanted, killed, at_kill, resumed, found)
    view.show(report)
    return report


def _run(role: Role, folder: Path, view: View, effect: Effect) -> Process:
    """Run the worker process of one role (undisturbed, killed or resumed) in `folder` until it ends, and show it on
    `view`. `effect` is what the payment tool declares about running twice. Raises `DemoFailed` if the process did not
    end as planned."""
    process = run_worker(
        folder,
        lambda pid: view.began(role, pid),
        lambda line: view.heard(role, line),
        kill_at=KILL_AT if role == "killed" else 0,
        effect=effect,
    )
    as_meant = (
        process.ended == -signal.SIGKILL if role == "killed" else process.result is not None and not process.ended
    )
    if not as_meant:
        raise DemoFailed(role, process.ended)
    view.ended(role, process)
    return process
