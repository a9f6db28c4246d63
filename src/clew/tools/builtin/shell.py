"""A tool that runs shell commands in the workspace."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Annotated

from clew._runtime.aio import settle, start_process
from clew.tools.context import ToolContext
from clew.tools.decorator import tool
from clew.tools.signals import ToolError

__all__ = ["run_command"]

KEPT = 15_000
"""How many bytes are kept at most from the beginning of a command's output, and how many from its end. The bytes
between them are dropped."""
LONGEST = 3600.0
_GRACE = 2.0


@tool(effect="once", needs_workspace=True)
async def run_command(
    command: Annotated[str, "As it would be typed into a shell."],
    ctx: ToolContext,
    timeout: Annotated[float, "Seconds after which it is killed."] = 120.0,
) -> str:
    """Run a shell command in the workspace and return what it prints, errors included, and its exit code. It has no
    input, and what it leaves running in the background is killed when it ends.

    The command starts in the workspace, but nothing keeps it there: users who want a sandbox have to provide it. It has
    the whole environment of this process, keys and tokens included.
    """
    if ctx.workspace is None:
        raise ToolError(
            "There is no workspace, so there is no folder to run a command in. Run the agent with workspace=…"
        )
    if not 0 < timeout <= LONGEST:
        raise ToolError(f"timeout= is a number of seconds above 0 and up to {LONGEST:g}.")
    if "\0" in command:
        raise ToolError("A command cannot hold a NUL character.")
    began = time.monotonic()
    output = await _Output.open()
    try:
        process, cancelled = await start_process(
            asyncio.create_subprocess_shell(
                command,
                cwd=ctx.workspace,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output.writing_end,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        )
    except BaseException:
        output.close()
        raise
    finally:
        os.close(output.writing_end)
    try:
        if cancelled is not None:
            raise cancelled
        async with asyncio.timeout(timeout) as limit:
            await process.wait()
    except TimeoutError:
        if not limit.expired():
            raise
    finally:
        await settle(_end(process, output))
    took = time.monotonic() - began
    if limit.expired():
        raise ToolError(f"{output}[timed out after {timeout:g} s, and was killed]")
    code = process.returncode
    ended = f"exit code {code}" if code is None or code >= 0 else f"killed by signal {-code}"
    return f"{output}[{ended}, after {took:.1f} s]"


async def _end(process: asyncio.subprocess.Process, output: _Output) -> None:
    """End a shell command: kill the processes of its process group that still run, and read the rest of the output."""
    if process.returncode is None:
        _signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(_GRACE):
                await process.wait()
        except TimeoutError:
            pass
    _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
    await process.wait()
    await output.drain(_GRACE)  # a process that left the group may hold the pipe open for ever
    output.close()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        else:
            process.kill()
    except (ProcessLookupError, PermissionError):
        pass  # its processes have ended


class _Output(asyncio.Protocol):
    """Collects the output of a command. Only the beginning and the end of a long output are kept.

    The command writes to a pipe that this class makes itself. With a pipe of asyncio, asyncio would report the command
    as ended only when every background process that has the pipe has ended too.
    """

    _transport: asyncio.ReadTransport
    writing_end: int

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0
        self._ended = asyncio.Event()

    @classmethod
    async def open(cls) -> _Output:
        reading_end, writing_end = os.pipe()
        output = cls()
        output.writing_end = writing_end
        loop = asyncio.get_running_loop()
        output._transport, _ = await loop.connect_read_pipe(lambda: output, os.fdopen(reading_end, "rb", 0))
        return output

    def data_received(self, data: bytes) -> None:
        room = max(0, KEPT - len(self._head))
        self._head += data[:room]
        self._tail += data[room:]
        over = max(0, len(self._tail) - KEPT)
        del self._tail[:over]
        self._dropped += over

    def connection_lost(self, error: Exception | None) -> None:
        self._ended.set()

    async def drain(self, timeout: float) -> None:
        """Wait until all output is read, or until `timeout` seconds have passed. Raises nothing."""
        try:
            async with asyncio.timeout(timeout):
                await self._ended.wait()
        except TimeoutError:
            pass

    def close(self) -> None:
        self._transport.close()

    def __str__(self) -> str:
        note = f"\n[… {self._dropped} bytes left out …]\n".encode() if self._dropped else b""
        text = (bytes(self._head) + note + bytes(self._tail)).decode("utf-8", "replace")
        return text if not text or text.endswith("\n") else text + "\n"
