"""`clew send`: post a prompt or an answer to a thread, also while another process works on it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

import clew
from clew import advice
from clew._runtime.text import one_line
from clew.cli.deferred import agent_questions, leases, msgspec, way_forward
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store, ThreadId
from clew.cli.output.console import hint, print_json, say
from clew.cli.stores import find_thread, on_store, shown_store
from clew.errors import InvalidInput, ThreadNotFound

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer

__all__ = ["send"]


@report_errors
def send(
    thread: ThreadId,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="What to tell its agent; - reads the standard input.")
    ] = None,
    answer: Annotated[
        str | None, typer.Option("--answer", "-a", metavar="TEXT|JSON", help="The answer that it waits for.")
    ] = None,
    prompt_id: Annotated[
        str | None, typer.Option("--prompt-id", metavar="TEXT", help="Posted only once under this id.")
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Say something to a thread, even while an agent runs it.

    Posts to the thread's inbox and returns at once. A running agent takes it in at the end of its turn: the model sees
    it together with the results of its tools. If nobody runs the thread, the next run or resume asks it. Each post is
    asked exactly once; with --prompt-id, also if this command is repeated.

    \b
    Examples:
      clew send report "Also look at June."
      clew send visa --answer "The blue one."
      echo "And the bridge." | clew send trip - --prompt-id bridge
    """
    from clew.cli.work import read_answer

    if prompt is None and answer is None:
        raise InvalidInput(f"there is nothing to send. Write it: {advice.send(thread, advice.PROMPT)}")
    text = sys.stdin.read() if prompt == "-" else prompt
    said = None if answer is None else read_answer(answer)
    sent = on_store(store, lambda opened: _send(opened, thread, text, said, prompt_id, shown_store(store)))
    words = sent.pop("words")
    if json:
        print_json(sent)
        return
    say(f"{one_line(sent['thread_id'])}: posted as {one_line(sent['prompt_id'])}")
    if sent["holder"] is not None:
        hint(f"{sent['holder']} runs it, and takes this in at the end of its turn. To follow it: {sent['next']}")
    else:
        hint(f"Nobody runs it now. To go on with it{words}")


async def _send(
    store: Checkpointer, given: str, prompt: str | None, answer: Any, prompt_id: str | None, url: str
) -> dict[str, Any]:
    """Post to the thread that `given` names. Return the object that --json prints, and in `words` how to run the thread.
    `url` is the URL of the store, for commands.

    An answer that does not fit the questions of the thread is refused, unless a process works on the thread: it may have
    other questions by then.
    """
    thread_id = await find_thread(store, given)
    head = await store.head(thread_id)
    if head is None:
        raise ThreadNotFound(thread_id)
    state = await clew.Thread.load(store, thread_id)
    holder = str(head.lease.owner) if head.lease is not None and leases.is_live(head.lease) else None
    if answer is not None and holder is None:
        agent_questions.answers_to(thread_id, state, answer)
    posted = await clew.Thread.post(store, thread_id, prompt, prompt_id=prompt_id, answer=answer)
    way = await way_forward.way_of(store, head, state)
    way = msgspec.structs.replace(way, prompt=None, questions=() if answer is not None else way.questions)
    following = advice.tail(thread_id, store=url) if holder is not None else way.command(url)
    return {"thread_id": thread_id, "prompt_id": posted, "holder": holder, "next": following, "words": way.words(url)}
