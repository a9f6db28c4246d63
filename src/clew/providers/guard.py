"""A script that runs a provider's program and makes sure that no process of it is left. Clew starts the script as a
process of its own, which starts the program:

    python -I -S guard.py LIFELINE PARENT -- PROGRAM ARGUMENT…

LIFELINE is the number of a file descriptor, the reading end of a pipe. Clew's process holds the writing end, and PARENT
is its process id. When the writing end is closed, for example because Clew's process was killed, the program and every
process that it started are killed. A byte that comes through the pipe is the number of a signal to send to the program.
When the program ends, whatever it left running is killed too, and the script ends as the program did. The script
imports little, because it is started for every prompt.
"""

import _signal as signal  # type: ignore[import-not-found]  # `signal` imports enum: 9 of the 20 ms that this takes to start
import os
import select
import sys
import time

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_LINUX = sys.platform == "linux"


def _prctl(option: int, value: int) -> None:
    import ctypes  # for Linux alone

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _start(argv: list[str], lifeline: int) -> int:
    """Start the program in a child process and return the process id of the child. `argv` is the program with its
    arguments. On Linux the kernel kills the child if this process dies. The child closes `lifeline`, the pipe from
    Clew's process to this script."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.close(lifeline)
        if _LINUX:
            _prctl(_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(argv[0], argv, os.environ)  # noqa: S606 - the command that Clew was given to guard
    except OSError as error:
        os.write(2, f"clew cannot start {argv[0]}: {error.strerror}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def _table() -> dict[int, int]:
    """Return a dict from the id of every process on this machine to the id of its parent. Processes that end meanwhile
    are skipped."""
    if not _LINUX:
        import subprocess  # for macOS alone: it takes longer to import than all the rest

        lines = subprocess.run(["/bin/ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        return {int(pid): int(parent) for pid, parent in map(str.split, lines.splitlines())}
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            continue
    return found


def _below(root: int) -> list[int]:
    """Return the ids of all processes below the process `root`: its children, their children and so on. On Linux, and
    if `root` is this process, these are the provider's program and all running processes that it has started, because
    this process becomes the parent of every such process whose own parent has ended."""
    parents = _table()
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below and pid not in below}:
        below |= more
    return sorted(below - {root})


def _reap(program: int, status: int | None) -> int | None:
    """Collect all child processes that have ended. `program` is the process id of the program, and `status` its exit
    status if it is known already. Returns the program's exit status if it has ended now, otherwise `status`."""
    while True:
        try:
            pid, found = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == program:
            status = found


def _kill_all(program: int, status: int | None) -> int | None:
    """Kill all processes below this one, again and again until none is left, because new ones may be forked meanwhile.
    `program` is the process id of the program, and `status` its exit status if it is known already. Returns the
    program's exit status if it has ended now, otherwise `status`."""
    while below := _below(os.getpid()):
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        status = _reap(program, status)
        time.sleep(0.002)
    return status


def _end_like(status: int) -> None:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


def main() -> None:
    lifeline, parent, argv = int(sys.argv[1]), int(sys.argv[2]), sys.argv[4:]
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    if _LINUX:
        _prctl(_SET_CHILD_SUBREAPER, 1)
        _prctl(_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)
    program = _start(argv, lifeline)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    status: int | None = None
    waiting = select.poll()  # select.select cannot wait for descriptors above 1023
    waiting.register(lifeline, select.POLLIN)
    waiting.register(woken, select.POLLIN)
    while status is None:
        ready = {descriptor for descriptor, _ in waiting.poll()}
        if woken in ready and set(os.read(woken, 4096)) - {signal.SIGCHLD}:
            break
        if lifeline in ready:
            asked = os.read(lifeline, 1)
            if not asked:
                break
            os.kill(program, asked[0])
        status = _reap(program, status)
    status = _kill_all(program, status)
    _end_like(signal.SIGKILL if status is None else status)


main()
