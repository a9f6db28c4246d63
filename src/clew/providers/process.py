"""Runs a provider's program so that neither it nor this process can make the other wait for ever, and so that no
process of the program outlives this process. Also finds programs on the PATH and says why one cannot be run.

The program is not started directly but by a small process, the guard. When the program ends, the guard kills every
process that the program left running. When this process dies, the guard kills the program too.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from clew._runtime.aio import settle, start_process
from clew.checkpointers import Owner
from clew.errors import InvalidInput, UsageError
from clew.providers.base import Command, Place
from clew.threads.leases import provably_dead, this_process

__all__ = ["CannotRun", "Ended", "is_binary", "on_path", "printed_version", "problem_of", "reap", "run", "signal_name"]


OWNER_VARIABLE = "CLEW_PROVIDER_OF"
"""The environment variable that is set in every process started for a provider. It names the process that started it,
so that leftovers of a dead process can be found."""
_GUARD = Path(__file__).with_name("guard.py")
NOT_STARTED, SAYS_WHY = 127, "clew cannot start "
"""The exit status of the guard (the process that starts a provider's program), and the beginning of its error message,
if the system cannot start the program."""
_PIECE = 2**16
_KEPT = 2**16
"""The most bytes that are kept of a program's standard error. They are the last ones."""
GRACE = 5.0
"""Seconds that an interrupted program has to end by itself before it is killed."""


class CannotRun(Exception):
    """Raised if the system cannot start a program. The message says which program, and why."""


class Ended(msgspec.Struct, frozen=True):
    """How a program ended: its exit status, and the end of what it wrote to its standard error."""

    status: int
    """The program's exit status, or the negative number of the signal that ended it."""
    stderr: str
    """The end of the program's standard error, as text."""


async def run(
    command: Command,
    place: Place,
    on_line: Callable[[bytes], None],
    *,
    timeout: float | None = None,
    stop: asyncio.Future[None] | None = None,
) -> Ended:
    """Run a command line to its end, in the working folder and environment of `place`, and pass each line of its
    standard output to `on_line` as it comes. Returns how it ended.

    On cancellation or after `timeout` seconds the program is interrupted as by Ctrl+C, so that it can tidy up; what
    still runs after `GRACE` (5) seconds is killed. The same happens if `on_line` raises an error or the caller sets an
    error on the future `stop`; that error is raised. When this function returns or raises, no process of the program
    runs any more. If this process is killed, the program is killed within milliseconds.

    Raises `TimeoutError` after the timeout, `CannotRun` if the system cannot start the program, `InvalidInput` if the
    folder does not exist or an argument has a NUL character, and `UsageError` on Windows.
    """
    _check(command, place)
    reading, lifeline = os.pipe()
    try:
        process, cancelled = await start_process(
            asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_GUARD), str(reading), str(os.getpid()), "--", *command.argv),
                cwd=place.cwd,
                env={**place.env, **command.env, OWNER_VARIABLE: _owner()},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                pass_fds=[reading],
            )
        )
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        os.close(reading)
    broken: asyncio.Future[None] = asyncio.get_running_loop().create_future() if stop is None else stop
    talking: asyncio.Future[Any] = asyncio.gather(
        _write(process, command.stdin), _read_lines(process, on_line, broken), _read_end(process)
    )
    try:
        if cancelled is not None:
            raise cancelled
        async with asyncio.timeout(timeout):
            either: list[asyncio.Future[Any]] = [talking, broken]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if broken.done():
                broken.result()
            _, _, stderr = await asyncio.shield(talking)
            status = await process.wait()
    except BaseException:
        await settle(_stop(process, lifeline, talking))
        raise
    finally:
        os.close(lifeline)
        await settle(_let_go(process, talking, broken))
    if status == NOT_STARTED and stderr.startswith(SAYS_WHY):
        raise CannotRun(stderr.removeprefix(SAYS_WHY))
    return Ended(status, stderr)


def _check(command: Command, place: Place) -> None:
    if os.name == "nt":
        raise UsageError(
            "providers work on Linux and macOS only: Windows cannot end all processes that a program starts."
        )
    if not place.cwd.is_dir():
        raise InvalidInput(
            f"{place.cwd} is not a folder, so the program cannot work there. Create it, or give another cwd."
        )
    words = [*command.argv, *place.env, *place.env.values(), *command.env, *command.env.values()]
    if any("\0" in word for word in words):
        raise InvalidInput("an argument or a variable for the provider's program holds a NUL character. Take it out.")


def _owner() -> str:
    return msgspec.json.encode(this_process()).decode()


async def _stop(process: asyncio.subprocess.Process, lifeline: int, talking: asyncio.Future[Any]) -> None:
    """Interrupt the program as by Ctrl+C, and wait up to `GRACE` (5) seconds for its end. Does not kill it. `lifeline`
    is the pipe over which the guard, the small process that runs the program, gets the signal. `talking` is the asyncio
    task that reads and writes the program's streams, and is waited for too."""
    with suppress(BrokenPipeError):
        os.write(lifeline, bytes([signal.SIGINT]))
    await asyncio.wait([talking, asyncio.ensure_future(process.wait())], timeout=GRACE)


async def _let_go(
    process: asyncio.subprocess.Process, talking: asyncio.Future[Any], broken: asyncio.Future[None]
) -> None:
    """Wait for the end of the program, and for the end of `talking`, the asyncio task that reads and writes its
    streams. The program runs under a small process, the guard. The pipe to the guard is closed by now, so the guard
    kills what still runs. `broken` is a future that may hold an error for which the program was stopped. Errors of
    `talking` and `broken` are ignored here, because the caller has raised the first of them already."""
    await asyncio.wait([talking])
    if not talking.cancelled():
        talking.exception()
    if broken.done():
        broken.exception()
    await process.wait()


async def _write(process: asyncio.subprocess.Process, data: bytes) -> None:
    """Write `data` to the program's standard input and close it. Raises no error if the program ends, or closes its
    input, before it has read all of it: the caller sees from its output and exit status why it did so."""
    stdin = process.stdin
    assert stdin is not None  # noqa: S101 - a pipe was asked for
    with suppress(BrokenPipeError, ConnectionResetError):
        stdin.write(data)
        await stdin.drain()
    with suppress(BrokenPipeError, ConnectionResetError):
        stdin.close()
        await stdin.wait_closed()


async def _read_lines(
    process: asyncio.subprocess.Process, on_line: Callable[[bytes], None], broken: asyncio.Future[None]
) -> None:
    """Pass each line of the standard output to `on_line`. A line may have any length: a picture in a tool's result is
    one line. An error that `on_line` raises is set on the future `broken`. The remaining output is then read and
    dropped, because a program that cannot write would never end."""
    stdout = process.stdout
    assert stdout is not None  # noqa: S101 - a pipe was asked for
    waiting: list[bytes] = []
    while piece := await stdout.read(_PIECE):
        first, *others = piece.split(b"\n")
        waiting.append(first)
        for line in others:
            _tell(b"".join(waiting), on_line, broken)
            waiting = [line]
    if last := b"".join(waiting):
        _tell(last, on_line, broken)


def _tell(line: bytes, on_line: Callable[[bytes], None], broken: asyncio.Future[None]) -> None:
    if broken.done():
        return
    try:
        on_line(line)
    except Exception as error:  # noqa: BLE001 - raised where the program is awaited
        broken.set_exception(error)


async def _read_end(process: asyncio.subprocess.Process) -> str:
    stderr = process.stderr
    assert stderr is not None  # noqa: S101 - a pipe was asked for
    kept = b""
    while piece := await stderr.read(_PIECE):
        kept = (kept + piece)[-_KEPT:]
    return kept.decode(errors="replace").strip()


def signal_name(number: int) -> str:
    """Return a signal's name, for example `SIGKILL`; a text such as `signal 99` if the number has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def reap() -> list[int]:
    """Kill processes that were started for a provider by a process of Clew that no longer exists, and return the ids of
    the killed ones. Usually a small process beside the program, the guard, kills them when Clew's process dies; they
    are left only if the guard was killed too. Works on Linux alone, because other systems do not show the environment
    of a process, which names Clew's process."""
    spared = _with_ancestors(os.getpid())
    return [pid for pid, owner in _marked() if pid not in spared and provably_dead(owner) and _kill(pid)]


def _with_ancestors(pid: int) -> set[int]:
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return found


def _marked() -> list[tuple[int, Owner]]:
    start = f"{OWNER_VARIABLE}=".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or belongs to another user
            continue
        for word in words:
            if word.startswith(start):
                with suppress(msgspec.MsgspecError):
                    found.append((int(folder.name), msgspec.json.decode(word.removeprefix(start), type=Owner)))
    return found


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


_ELF = b"\x7fELF"
_MACH_O = (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_BINARIES = (_ELF, *_MACH_O, b"MZ")
_MACHINES = {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
"""The processor that a machine number in the header of a Linux executable (ELF) stands for."""
_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}
VERSION_TIMEOUT = 5.0
"""Seconds that a program has to print its version; after that the version counts as unknown."""


_HEAD = 4096


def on_path(name: str, env: Mapping[str, str]) -> Path | None:
    """Return the path of the program of this name on the PATH of the environment `env`. If no file of that name can be
    run, return the first one, so that `problem_of` can say what is wrong with it. Returns None if there is none."""
    path = env.get("PATH", "")
    found = shutil.which(name, path=path)
    if found is not None:
        return Path(found)
    entries = (Path(folder, name) for folder in path.split(os.pathsep) if folder)
    return next((entry for entry in entries if os.path.lexists(entry)), None)


def printed_version(path: Path, env: Mapping[str, str]) -> str:
    """Run a program with `--version` and return what it prints, stripped; empty if that fails or takes more than 5
    seconds."""
    try:
        answer = subprocess.run(  # noqa: S603 - the program that is about to be run in any case
            [path, "--version"],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.decode(errors="replace").strip()


def is_binary(path: Path) -> bool:
    """Return whether a file is a native executable and not a script. True for a file that may not be read, because a
    script that cannot be read cannot be run."""
    try:
        with path.open("rb") as file:
            return file.read(4).startswith(_BINARIES)
    except PermissionError:
        return True
    except OSError:
        return False


def problem_of(path: Path, env: Mapping[str, str]) -> str:
    """Return in words why this file cannot be run here; empty if it can. A file that looks as if it could not be run is
    started once with `--version`, because a system can be set up to run foreign programs."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"{path}: {error.strerror}"
    if stat.S_ISDIR(mode):
        return f"{path} is a folder, not a program"
    if not stat.S_ISREG(mode):
        return f"{path} is not a program"
    if not os.access(path, os.X_OK):
        return f"this user may not run {path}: it is not marked as a program (chmod +x marks it)"
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return ""  # it cannot be read, but may be executable all the same
    looks = _looks_wrong(path, head, env)
    return looks if looks and not _starts(path, env) else ""


def _looks_wrong(path: Path, head: bytes, env: Mapping[str, str]) -> str:
    if head.startswith(b"#!"):
        return _script(path, head, env)
    if head.startswith(_ELF):
        return _elf(path, head)
    if head.startswith(_MACH_O):
        return "" if sys.platform == "darwin" else f"{path} is a program for macOS"
    if head.startswith(b"MZ"):
        return "" if sys.platform == "win32" else f"{path} is a program for Windows"
    if not head:
        return f"{path} is empty"
    return (
        f"{path} is a placeholder, not a program: it was installed without its install script (npm's --ignore-scripts) "
        "and without the package for this system (npm's --omit=optional)"
    )


def _script(path: Path, head: bytes, env: Mapping[str, str]) -> str:
    words = os.fsdecode(head[2:].split(b"\n")[0]).split()
    if words and os.path.basename(words[0]) == "env" and os.path.exists(words[0]):
        needed = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
        if needed and shutil.which(needed, path=env.get("PATH", "")) is None:
            return f"{path} is a script for {needed}, which is not on the PATH"
    elif not words or not os.path.exists(words[0]):
        return f"{path} is a script for {words[0] if words else 'nothing'}, which is not there"
    return ""


def _elf(path: Path, head: bytes) -> str:
    if sys.platform != "linux":
        return f"{path} is a program for Linux"
    order = "big" if head[5:6] == b"\x02" else "little"
    machine = int.from_bytes(head[18:20], order)  # type: ignore[arg-type]
    here = _NAMES.get(platform.machine().lower(), platform.machine().lower())
    named = _MACHINES.get(machine, f"another kind of processor (number {machine})")
    if named != here:
        return f"{path} is a program for {named}, and this is {here}"
    loader = _loader(head)
    return f"{path} needs {loader}, which is not there: it is for another kind of Linux" if _is_gone(loader) else ""


def _loader(head: bytes) -> str:
    """Return the path of the dynamic loader that a 64-bit little-endian Linux executable names; empty if it names none.
    `head` is the beginning of the executable."""
    start, size, count = (int.from_bytes(head[at : at + n], "little") for at, n in ((32, 8), (54, 2), (56, 2)))
    for at in range(start, min(start + size * count, len(head) - 56), size or 56):
        if int.from_bytes(head[at : at + 4], "little") == 3:
            where = int.from_bytes(head[at + 8 : at + 16], "little")
            return os.fsdecode(head[where : where + 256].split(b"\0")[0])
    return ""


def _is_gone(loader: str) -> bool:
    return bool(loader) and not os.path.exists(loader)


def _starts(path: Path, env: Mapping[str, str]) -> bool:
    try:
        process = subprocess.Popen(  # noqa: S603 - the program that is about to be run in any case
            [path, "--version"],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return False
    try:
        return process.wait(timeout=5.0) not in (126, 127)
    except subprocess.TimeoutExpired:
        return True
    finally:
        process.kill()
        process.wait()
