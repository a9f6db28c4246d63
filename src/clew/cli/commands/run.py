"""`clew run`: give an agent a task and show its work, which is stored from the start."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

import clew
from clew import advice
from clew.cli.consent import TrustOption, agree, review_of
from clew.cli.deferred import agent_settings
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store
from clew.cli.setups import (
    Asked,
    BudgetOption,
    McpOption,
    ModelOption,
    NameOption,
    PermissionsOption,
    ProviderOption,
    SystemOption,
    TimeoutOption,
    ToolOption,
    TurnsOption,
    WorkspaceOption,
    check_timeout,
    merged,
)
from clew.cli.stores import on_store
from clew.errors import InvalidInput, ThreadNotFound

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer
    from clew.cli.consent import Review
    from clew.cli.work import Job

__all__ = ["run"]


@report_errors
def run(
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="What the agent is to do; - reads it from the standard input.")
    ],
    model: ModelOption = None,
    provider: ProviderOption = None,
    workspace: WorkspaceOption = None,
    tool: ToolOption = None,
    mcp: McpOption = None,
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="ID", help="The thread's id. An existing thread goes on.")
    ] = None,
    budget: BudgetOption = None,
    max_turns: TurnsOption = None,
    system: SystemOption = None,
    permissions: PermissionsOption = None,
    timeout: TimeoutOption = None,
    name: NameOption = None,
    trust: TrustOption = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Give an agent a task, and watch it work.

    However it is stopped, `clew resume` goes on exactly where it was.

    The agent is a model (--model or CLEW_MODEL) with the tools you give it,
    and with tools for files if there is a --workspace. Or it is a coding
    agent (--provider). All options are stored with the thread, so a resume
    does not need them again. In a pipe, stdout has the answer alone. Exits
    with 0 if the task is done, and with 1 if it stopped before that.

    \b
    Examples:
      clew run "Plan a trip to Paris." --model openai:gpt-5 -w ./paris
      clew run "Which files are large?" -w . --permissions full --budget 2usd
    """
    from clew.cli.work import work_on

    check_timeout(timeout)
    asked = Asked(
        model=model,
        provider=provider,
        workspace=workspace,
        tool=tool,
        mcp=mcp,
        budget=budget,
        max_turns=max_turns,
        system=system,
        permissions=permissions,
        name=name,
    )
    prompt = _prompt(task)
    found = on_store(store, lambda opened: _job(opened, thread, asked), "made") if thread else (_new(asked), None)
    job, review = found
    agree(review, trust=trust, json=json)
    work_on(job._replace(prompt=prompt, timeout=timeout), store, json)


def _prompt(task: str) -> str:
    """Return the task; `-` stands for the text on the standard input. Raises `InvalidInput` if it is empty."""
    text = sys.stdin.read() if task == "-" else task
    if not text.strip():
        raise InvalidInput(f"the task is empty. Say what is to be done: {advice.start()}")
    return text


def _new(asked: Asked) -> Job:
    from clew.cli.work import Job

    return Job(merged(agent_settings.Setup(folder=os.getcwd()), asked))


async def _job(store: Checkpointer, thread_id: str, asked: Asked) -> tuple[Job, Review | None]:
    """Return the job of `clew run`, which has the thread with this id and the options for its agent. The thread need
    not exist. Also return what the user has to agree to before the agent runs, such as these options; None if there is
    nothing. `asked` has the options that the user gave. If the thread exists, options that are not given keep their
    stored values, so the same command can be repeated after a crash."""
    from clew.cli.work import resumed_job

    try:
        state = await clew.Thread.load(store, thread_id)
    except ThreadNotFound:
        return _new(asked)._replace(thread_id=thread_id), None
    job, head = resumed_job(thread_id, state, asked), await store.head(thread_id)
    return job, None if head is None else await review_of(store, head, state, job.setup)
