"""An agent that writes files until it is stopped: the built-in one, or a provider's.

`python -m tests.crash.files_worker JOB` does it in a process of its own, to be sent signals. It prints `hanging` when its
files are written and it waits, and `keeping` when a snapshot begins that never ends.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from clew.agent import Agent, RunResult, ToolStarted
from clew.checkpointers import open_checkpointer
from clew.providers import ProviderAgent
from clew.testing import Response, ScriptedModel, call
from clew.tools import ToolContext, tool
from clew.workspace import Workspace, restore
from clew.workspace import apply as applying
from tests.providers.toy import toy_place
from tests.providers.toys import toy_agent

__all__ = ["LAST", "THREAD", "Job", "Stop", "make_agent", "script", "work"]

THREAD = "t"
MODEL = "openai:gpt-5"
WRITES = ("one", "two", "three")
LAST = "last"
"""The file that is written right before the stop, in the turn that is never settled."""
Stop = Literal["400", "exception", "cancel", "timeout", "SIGTERM", "second Ctrl-C", "SIGKILL"]


def script(stop: Stop) -> list[Response]:
    """What the model of the built-in agent says; for a vendor's error, up to it."""
    last: dict[str, list[Response]] = {"400": [], "exception": ["boom"]}
    return [*(call("write", name=name) for name in WRITES), *last.get(stop, [call("hang")])]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and how it is to be stopped."""

    kind: Literal["built-in", "provider"]
    stop: Stop
    every: int
    """Turns from one snapshot to the next; for a provider, which is snapshotted after each prompt, files in the prompt."""
    folder: str
    model_url: str = ""
    ruin: bool = False
    """Remove the folder before the stop: there can be no snapshot of it then."""
    resume_in: str = ""
    """Go on in this folder instead, and hang when the first of the files is restored there."""

    @property
    def store(self) -> str:
        return f"sqlite:///{self.folder}/clew.db"

    @property
    def files(self) -> Path:
        return Path(self.folder) / "files"


@tool
async def write(name: str, ctx: ToolContext) -> str:
    """Write a file."""
    assert ctx.workspace is not None
    (ctx.workspace / name).write_bytes(name.encode() * 100)
    return "written"


def make_agent(job: Job, model: Any, files: Path, store: Any, hanging: Callable[[], None], **more: Any) -> Agent:
    """The built-in agent, whose last call never returns."""

    @tool
    async def hang(ctx: ToolContext) -> str:
        """Write a file, and never return."""
        assert ctx.workspace is not None
        (ctx.workspace / LAST).write_bytes(b"half of it")
        if job.ruin:
            shutil.rmtree(ctx.workspace)
        hanging()
        await asyncio.Event().wait()
        return "never"

    more.setdefault("snapshot_every", job.every)
    return Agent(model, tools=[write, hang], checkpointer=store, workspace=files, **more)


def _broken(text: str) -> str:
    """A hook of the user's that fails."""
    if text == "boom":
        raise ValueError("the hook broke")
    return text


async def work(job: Job, hanging: Callable[[], None]) -> RunResult:
    """Run until it is stopped."""
    how: dict[str, Any] = {"handle_signals": job.stop in ("SIGTERM", "second Ctrl-C")}
    if job.stop == "exception":
        how["redact"] = _broken
    timeout = 1.0 if job.stop == "timeout" else None
    async with open_checkpointer(job.store) as store:
        if job.resume_in:
            model = ScriptedModel(lambda request: "Done.")
            return await make_agent(job, model, Path(job.resume_in), store, hanging).resume(thread_id=THREAD)
        if job.kind == "provider":
            async with toy_agent(toy_place(Path(job.folder)), store, workspace=job.files, **how) as agent:
                return await _prompts(job, agent, timeout, hanging)
        vendor = MODEL if job.stop == "400" else ScriptedModel(script(job.stop))
        async with make_agent(job, vendor, job.files, store, hanging, **how) as builtin:
            return await builtin.run("Write.", thread_id=THREAD, timeout=timeout)


async def _prompts(job: Job, agent: ProviderAgent, timeout: float | None, hanging: Callable[[], None]) -> RunResult:
    session = agent.start_session(thread_id=THREAD)
    await session.send("write first 1\nsay ok")
    lines = [f"write {name} {name}" for name in (*WRITES, "four", "five")[: job.every]]
    end = {"400": f"ask {job.model_url}", "exception": "say boom"}.get(job.stop, "sleep 3600")
    run = session.send("\n".join([*lines, f"write {LAST} half", "call c1 Bash", end]), timeout=timeout)
    async for event in run:
        if isinstance(event, ToolStarted):
            if job.ruin:
                shutil.rmtree(job.files)
            hanging()
    return await run


def _never_keep() -> None:
    """Let the snapshot at the end take for ever, so that a second signal finds it under way."""
    snapshot = Workspace.snapshot

    async def stuck(self: Workspace, *given: Any) -> Any:
        if (self.path / LAST).exists():
            print("keeping", flush=True)
            await asyncio.Event().wait()
        return await snapshot(self, *given)

    Workspace.snapshot = stuck  # type: ignore[method-assign, assignment]


def _restore_half() -> None:
    """Let a restore write one file, and never end."""
    apply = applying.apply_plan

    async def half(root: int, plan: Any, *given: Any) -> Any:
        plan.files = plan.files[:1]
        await apply(root, plan, *given)
        print("hanging", flush=True)
        await asyncio.Event().wait()

    setattr(restore, "apply_plan", half)  # noqa: B010 - it is imported there, and not exported


if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[1], type=Job)
    if given.resume_in:
        _restore_half()
    if given.stop == "second Ctrl-C":
        _never_keep()
    asyncio.run(work(given, lambda: print("hanging", flush=True)))
