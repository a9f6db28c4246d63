"""`clew resume`: go on with a thread where it stopped, with the options for its agent that are stored with the thread."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

import clew
from clew import advice
from clew._runtime.text import ago, one_line
from clew.cli.consent import TrustOption, agree, review_of
from clew.cli.deferred import (
    agent_questions,
    agent_settings,
    handles,
    leases,
    prompts,
    provider_registry,
    thread_heads,
    thread_inbox,
    way_forward,
)
from clew.cli.failures import EXIT_CODES, report_errors
from clew.cli.options import Json, Store, complete_thread
from clew.cli.output.console import say
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
from clew.cli.stores import find_thread, on_store, shown_store
from clew.errors import InvalidInput, ThreadNotFound, UsageError

if TYPE_CHECKING:
    from clew.agent.way_forward import Way
    from clew.checkpointers import Checkpointer, Head
    from clew.cli.consent import Review
    from clew.cli.output.live import Ended
    from clew.cli.stores import Absent
    from clew.cli.work import Job
    from clew.log import Checkpoint
    from clew.threads.inbox import Post

__all__ = ["resume"]

_NOT_FOUND = next(code for code, meaning in EXIT_CODES.items() if meaning == "not found")
_SHOWN = 5


@report_errors
def resume(
    thread: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="A thread: its id, an unambiguous beginning of it, or a handle.",
            autocompletion=complete_thread,
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="What to ask next. Without it, the thread just goes on.")
    ] = None,
    last: Annotated[
        bool, typer.Option("--last", "-l", help="The thread that changed last and that no process works on.")
    ] = False,
    answer: Annotated[
        str | None, typer.Option("--answer", "-a", metavar="TEXT|JSON", help="The answer that it waits for.")
    ] = None,
    model: ModelOption = None,
    provider: ProviderOption = None,
    workspace: WorkspaceOption = None,
    tool: ToolOption = None,
    mcp: McpOption = None,
    budget: BudgetOption = None,
    max_turns: TurnsOption = None,
    without_tools: Annotated[
        bool, typer.Option("--without-tools", help="Go on without tools that only the program that made it has.")
    ] = False,
    system: SystemOption = None,
    permissions: PermissionsOption = None,
    timeout: TimeoutOption = None,
    name: NameOption = None,
    trust: TrustOption = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Go on with a thread where it stopped, or tell it more.

    A response that is stored is not requested again, and a tool that must
    not run twice does not. Model, tools, folder and limits are those that
    were stored; options change them. --provider takes the thread to another
    agent (`clew` is the built-in one). Answer a thread that waits with
    --answer, or at the terminal. A prompt to such a thread is stored, and
    asked after the answer.

    If you neither ran nor agreed to its tools, commands, folder and
    permissions on this machine, all of that is shown first, and you are
    asked. --trust agrees, for scripts.

    \b
    Examples:
      clew resume --last
      clew resume trip "Add the museum."
      clew resume trip "Now in French." --model openai:gpt-5
    """
    from clew.cli.output.live import live_view
    from clew.cli.work import ask, read_answer, work_on

    check_timeout(timeout)
    if last and prompt is not None:
        raise InvalidInput(f"--last and {thread!r} both name a thread. Give one of them.")
    if last:
        thread, prompt = None, thread
    if prompt is not None and not prompt.strip():
        raise InvalidInput("the prompt is empty. Write what to do, or leave it out to go on without a prompt.")
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
    said = None if answer is None else read_answer(answer)
    absent: Absent = "empty" if thread is not None and _is_of_provider(thread) else "refused"
    found = on_store(store, lambda opened: _find(opened, thread, last, prompt, asked, store), absent)
    if said is not None and found.job.setup.provider:
        raise InvalidInput(
            f"--answer: {found.job.setup.provider} never waits for an answer. Give your answer as a prompt: "
            f"{advice.resume(found.job.thread_id, advice.PROMPT, store=shown_store(store))}"
        )
    job = found.job._replace(prompt=prompt, answer=said, timeout=timeout, without_tools=without_tools)
    standing = _standing(found, job, shown_store(store))
    if standing is not None:
        with live_view(json) as view:
            view.end(standing)
        is_asked_here = found.way is not None and found.way.thread_id == standing.thread_id  # not a sub-agent's
        answered = ask(standing.questions, json) if standing.questions and is_asked_here else None
        if answered is None:
            raise typer.Exit(0 if standing.status == "done" else 1)
        job = job._replace(answer=answered)
    agree(found.review, trust=trust, json=json)
    work_on(job, store, json)


def _is_of_provider(given: str) -> bool:
    """Tell whether `given` is the handle of a provider's session. Such a session can be resumed even if no store has
    it, because the provider may keep it on this machine."""

    try:
        return bool(handles.read_handle(given).provider)
    except InvalidInput:
        return False  # an id may look like a handle and not be one


class _Found(NamedTuple):
    """The result of finding the thread to resume: the job of resuming it (the thread's id, and the options for its
    agent), and what the store has about the thread."""

    job: Job
    head: Head | None = None
    """The thread's head; None for a provider's session that is not in the store."""
    state: Checkpoint | None = None
    way: Way | None = None
    """What is needed to go on with the thread, such as an answer or a higher limit. For a sub-agent's thread, this is
    what its parent's thread needs, because the two go on together."""
    posts: tuple[Post, ...] = ()
    """What was posted to the thread's inbox, and is asked when the thread is resumed."""
    review: Review | None = None
    """What the user has to agree to before the agent goes on with the thread, such as the options for the agent; None
    if there is nothing."""


async def _find(
    store: Checkpointer, given: str | None, last: bool, prompt: str | None, asked: Asked, url: str | None
) -> _Found:
    """Find the thread or the provider's session that `given` names. If `given` is None and `last` is set, find the
    thread that changed last. `prompt` is the prompt to go on with, None if there is none. `asked` has the options that
    the user gave for the agent. `url` is the URL of the store, for messages.

    Raises `UsageError` if `given` is None and `last` is not set. Also raises it if there is nothing to go on with:
    `prompt` is None, and the thread has no messages and no stored prompt.
    """
    from clew.cli.work import resumed_job

    if given is None:
        thread_id = await _last(store, url) if last else await _unnamed(store)
    else:
        try:
            thread_id = await find_thread(store, given)
        except ThreadNotFound:
            if (job := _by_handle(given, asked)) is None:
                raise
            return _Found(job)
    state = await clew.Thread.load(store, thread_id)
    head = await store.head(thread_id)
    way = None if head is None else await way_forward.way_of(store, head, state)
    if way is not None and prompt is None and not (state.messages or prompts.prompts_waiting(state)):
        error = UsageError(f"thread {thread_id!r} has no prompt to go on with: nothing was asked, or all was rewound.")
        error.add_note(f"To {'go on' if way.prompt is None else 'ask it'}{way.words(shown_store(url))}")
        raise error
    job = resumed_job(thread_id, state, asked)
    review = None if head is None else await review_of(store, head, state, job.setup)
    posts = () if head is None else await thread_inbox.new_posts(store, head, state.inbox_read)
    return _Found(job, head, state, way, posts, review)


async def _resumable(store: Checkpointer) -> AsyncIterator[Head]:
    """Yield the heads of the threads that no live process holds, the last changed one first. Threads of sub-agents are
    left out."""
    async for head in clew.Thread.list(store):
        if not thread_heads.is_child(head) and not leases.is_live(head.lease):
            yield head


async def _last(store: Checkpointer, url: str | None) -> str:
    """Return the id of the last changed thread that no live process holds, which is what --last means. If there is
    none, print an error and exit the command with the code for "not found". `url` is the URL of the store, for the
    command in the error."""
    async for head in _resumable(store):
        return head.thread_id
    start = advice.start(store=shown_store(url))
    say(f"Error: there is no thread in this store to go on with. Start one: {start}", err=True)
    raise typer.Exit(_NOT_FOUND)


async def _unnamed(store: Checkpointer) -> str:
    """Raise a `UsageError` that asks which thread is meant. The notes of the error list the newest threads, at most as
    many as the constant `_SHOWN` says. Never returns."""
    error = UsageError("which thread? Give its id, or --last for the one that changed last.")
    shown = 0
    async for head in _resumable(store):
        error.add_note(
            f"{one_line(head.thread_id)} · {head.status} · {ago(head.updated_at)} ago · {one_line(head.title, 60)}"
        )
        if (shown := shown + 1) == _SHOWN:
            break
    raise error


def _by_handle(given: str, asked: Asked) -> Job | None:
    """Return the job (the options for the agent, and the session) that resumes a provider's session which is not in the
    store. `given` is the text that the user named the session by, and `asked` has the options that the user gave.
    Returns None if `given` is not the handle of a provider's session, the string by which any process can resume it."""
    from clew.cli.work import Job

    handle = handles.read_handle(given)
    if handle.provider in ("", provider_registry.BUILT_IN_AGENT):
        return None
    setup = merged(
        agent_settings.Setup(provider=provider_registry.provider_name(handle.provider), folder=os.getcwd()), asked
    )
    return Job(setup, handle.session_id, handle=given)


def _standing(found: _Found, job: Job, store: str) -> Ended | None:
    """Return the summary to print if there is nothing to run: the job has no prompt and no answer, the thread is done or
    waits for an answer, and nothing was posted to it. `found` is what the store has about the thread. `store` is the URL
    that the commands in the summary name.

    Returns None if there is something to run, which is always so if the job has an answer or a prompt. A prompt to a
    thread that waits is stored for later.
    """
    from clew.cli.output.live import Ended

    head, state, way = found.head, found.state, found.way
    if head is None or state is None or way is None or job.answer is not None or job.prompt is not None:
        return None
    questions = tuple(agent_questions.open_questions(state))
    if found.posts or (not questions and state.status != "done"):
        return None
    return Ended(
        thread_id=head.thread_id,
        status="waiting" if questions else "done",
        resume=way.command(store),
        go_on=way.words(store),
        program_budget=way.program_budget,
        reason="" if questions else "nothing is left to do",
        questions=questions,
        prompts=tuple(prompt.text for prompt in prompts.prompts_waiting(state)) if questions else (),
        turns=head.turns,
        input_tokens=head.input_tokens,
        output_tokens=head.output_tokens,
        cost_usd=head.cost_usd,
        seconds=state.seconds,
    )
