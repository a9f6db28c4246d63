"""`clew why`: say what a thread waits for, who holds it, and how to go on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from clew import advice
from clew._runtime.text import ago, clock, elapsed, one_line
from clew.cli.consent import setup_text
from clew.cli.deferred import msgspec, render, way_forward, worker_places, worker_retries
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store, ThreadId
from clew.cli.output.console import console, print_json
from clew.cli.output.conversation import Pen, call_text, json_text
from clew.cli.output.heads import head_object, status_cell
from clew.cli.stores import find_thread, on_store, shown_store

if TYPE_CHECKING:
    from clew.agent.way_forward import Holder, Standing
    from clew.checkpointers import Checkpointer

__all__ = ["why"]

_LONGEST = 400


@report_errors
def why(thread: ThreadId, json: Json = False, store: Store = None) -> None:
    """Say what a thread waits for, and what to do about it.

    It may wait for an answer, for a model, for a worker, or for a process that holds it. Also names tool calls whose
    outcome is unknown, what went wrong last, and, whole, the setup with which a resume would make its agent. The last
    line is the command that goes on from there, or the Python call if only a program has the thread's tools. Nothing is
    changed.

    \b
    Examples:
      clew why report
      clew why trip --json
    """

    async def work(opened: Checkpointer) -> None:
        standing = await way_forward.standing_of(opened, await find_thread(opened, thread))
        (_print_json if json else _print)(standing, shown_store(store))

    on_store(store, work)


def _print(standing: Standing, store: str) -> None:
    pen = Pen(console())
    pen.line(f"{one_line(standing.head.thread_id)}  {one_line(standing.title)}", "bold")
    _print_status(pen, standing)
    if place := worker_places.place_words(standing.head):
        _print_place(pen, standing, place)
    if standing.holder is not None:
        pen.line(_held(standing.holder))
    _print_calls(pen, standing)
    if standing.asked_at is not None:
        pen.line(f"The model was asked {_when(standing.asked_at)}, and has not answered yet.")
    for prompt in standing.prompts:
        pen.line(f"To be asked then: {one_line(prompt, _LONGEST)}")
    for post in standing.posts:
        said = "an answer" if post.prompt is None else one_line(post.prompt, _LONGEST)
        pen.line(f"Posted {_when(post.at)}, not taken in yet: {said}")
    if standing.unaccounted:
        pen.line(f"{standing.unaccounted} model call(s) have no answer on record, and may have been paid for.", "dim")
    if standing.files:
        pen.line(f"{standing.files.capitalize()}: calls after that may have changed others.", "dim")
    _print_questions(pen, standing, store)
    if standing.is_empty and not standing.posts:
        pen.line("There is no prompt to go on with: nothing was asked, or all was rewound.")
    pen.gap()
    if setup := setup_text(standing.setup):
        pen.text(f"Setup of a resume:\n{setup}", "dim", indent=0)
    if standing.status != "running" and standing.way.tools:
        pen.line(f"Its tools are in the program that made it: {', '.join(map(one_line, standing.way.tools))}", "dim")
    if again := _again(standing, store):
        pen.command("Let workers try it again", f": {again}")
    pen.command("Go on", f": {_next(standing, store)}" if standing.status == "running" else standing.way.words(store))


def _print_status(pen: Pen, standing: Standing) -> None:
    sign, style = status_cell(standing.status)
    last = standing.last
    if last is not None and last.kind in ("crashed", "failed", "interrupted", "waiting", "queued", "done"):
        text = one_line(last.text).removeprefix(f"{standing.status}: ").removeprefix(standing.status)
        when = "" if last.at is None else f" · {_when(last.at)}"
        pen.line(f"{sign}{': ' if text else ''}{text}{when}", style)
    else:
        pen.line(sign, style)


def _print_place(pen: Pen, standing: Standing, place: str) -> None:
    """Print where a queued thread is in the queue, and what it waits for."""
    head = standing.head
    when = "" if head.queue is None else f", queued {_when(head.queue.queued_at)}"
    pen.line(f"In the queue: {place}{when}.")
    agent = f"the agent {one_line(head.agent)}" if head.agent else "an agent without a name"
    if place.startswith("due in"):
        pen.line(f"No worker takes it before. Then one that runs {agent} does.", "dim")
    else:
        pen.line(f"It waits for a worker that runs {agent} and has room.", "dim")


def _again(standing: Standing, store: str) -> str:
    """Return the command that puts a thread into the queue again that workers have set aside; empty for others."""
    if standing.status != "failed" or not standing.reason.startswith(worker_retries.SET_ASIDE):
        return ""
    return advice.enqueue_again(standing.head.thread_id, store=store)


def _print_calls(pen: Pen, standing: Standing) -> None:
    for call in standing.calls:
        begun = "" if call.started_at is None else f", begun {_when(call.started_at)}"
        if call.status == "in doubt":
            pen.line(f"In doubt: {call_text(call.call)}{begun}. Nobody knows whether it took effect.", "bold red")
            pen.line("The tool says what then: run it again, ask a person, or tell the model.", "dim", 2)
        elif call.status != "waiting":
            pen.line(f"{call.status.capitalize()}: {call_text(call.call)}{begun}")


def _print_questions(pen: Pen, standing: Standing, store: str) -> None:
    for question in standing.questions:
        pen.gap()
        pen.line(f"{question.tool} asks ({question.kind}): {one_line(question.text)}", "yellow")
        if question.arguments:
            pen.text(json_text(question.arguments), "dim")
        pen.command("  Answer", f": {standing.way.answering(question, store)}", "")


def _held(holder: Holder) -> str:
    """Return a sentence about the process that holds the thread's lease or held it last."""
    who = f"{one_line(str(holder.owner))}"
    if not holder.is_live and holder.is_gone:
        return f"Held by nobody: {who} is gone."
    if not holder.is_live:
        return (
            f"Probably held by nobody: the lease of {who} has ended by the clock of this machine. A resume first waits to "
            "see whether it is renewed, up to 30 s."
        )
    seen = "which is alive on this machine" if holder.is_here else "which cannot be seen from here"
    return f"Held by {who}, {seen}; its lease ends {_when(holder.expires_at)} unless it renews it."


def _when(moment: Any) -> str:
    """Return a moment as text, with its distance from now: `at 14:05:09 (3m ago)`."""
    now = datetime.now(UTC)
    away = f"in {elapsed((moment - now).total_seconds())}" if moment > now else f"{ago(moment, now)} ago"
    return f"at {clock(moment)} ({away})"


def _next(standing: Standing, store: str) -> str:
    """Return the last line of the report: for a running thread the command that shows its work, for a stopped thread
    the command that goes on with it, or a Python call if only a Python program can go on with it.

    `standing` is everything that `clew why` has found out about the thread. `store` is the URL that the command names.
    """
    if standing.status == "running":
        return advice.tail(standing.head.thread_id, store=store)
    return standing.way.command(store)


def _print_json(standing: Standing, store: str) -> None:
    holder, last = standing.holder, standing.last
    print_json(
        {
            "thread_id": standing.head.thread_id,
            "title": standing.title,
            "status": standing.status,
            "reason": standing.reason,
            "turns": standing.head.turns,
            "queue": head_object(standing.head)["queue"],
            "holder": None if holder is None else _holder_object(holder),
            "questions": [
                {"id": asked.id, **render.plain_object(asked), "answer": standing.way.answering(asked, store)}
                for asked in standing.questions
            ],
            "calls": render.plain_object(standing.calls),
            "asked_at": standing.asked_at,
            "prompts": standing.prompts,
            "posts": render.posts_object(standing.posts),
            "unaccounted": standing.unaccounted,
            "files": standing.files,
            "last": None if last is None else {"kind": last.kind, "text": last.text, "at": last.at},
            "next": _next(standing, store),
            "again": _again(standing, store) or None,
            "program_tools": standing.way.tools,
            "program_budget": standing.way.program_budget,
            "setup": msgspec.to_builtins(standing.setup),
        }
    )


def _holder_object(holder: Holder) -> dict[str, Any]:
    return {
        "host": holder.owner.host,
        "pid": holder.owner.pid,
        "label": holder.owner.label,
        "expires_at": holder.expires_at,
        "is_live": holder.is_live,
        "is_here": holder.is_here,
        "is_gone": holder.is_gone,
    }
