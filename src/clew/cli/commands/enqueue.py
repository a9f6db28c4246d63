"""`clew enqueue`: put threads into the queue of the workers, one or a whole file of them."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

import clew
from clew import advice
from clew._runtime.text import one_line, plural
from clew.cli.deferred import agent_questions, asyncio, leases, worker_places, workers
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store
from clew.cli.output.console import hint, print_json, say, working
from clew.cli.output.heads import head_object
from clew.cli.quantities import duration, tags
from clew.cli.stores import find_thread, on_store, shown_store
from clew.errors import ClewError, InvalidInput

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer, Head
    from clew.cli.orders import Order

__all__ = ["enqueue"]

_AT_ONCE = 16
"""How many lines of a file are enqueued at a time."""


@report_errors
def enqueue(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID] [PROMPT]", help="The thread, new or not, and what to tell its agent; - reads the prompt."
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="The agent that is to run it, by its name.")
    ] = None,
    priority: Annotated[
        int, typer.Option("--priority", "-p", metavar="N", help="From -9 to 9: each step is an hour in the queue.")
    ] = 0,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="TIME", help="Not before this time has passed: 45s, 10min, 2h, 1d.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="NAME=VALUE", help="A tag for the thread. Repeatable."),
    ] = None,
    prompt_id: Annotated[
        str | None, typer.Option("--prompt-id", metavar="TEXT", help="Asked only once under this id.")
    ] = None,
    answer: Annotated[
        str | None, typer.Option("--answer", "-a", metavar="TEXT|JSON", help="The answer that the thread waits for.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Queue the thread ID again, with nothing new to say.")] = False,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="FILE", help="Many at once: JSON lines with prompt, id, agent, tags, …"),
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Put a thread into the queue of the workers.

    `clew work` runs it. Without an ID a new thread is made, and its id printed. If an agent runs the thread already, it
    takes the prompt in at the end of its turn.

    A line of a file has a prompt, and if you like id, agent, tags, priority, delay in seconds and prompt_id. Options
    hold for lines without their own. The same file again enqueues nothing twice, so a run that was stopped can be
    repeated.

    \b
    Examples:
      clew enqueue "Send the invoices of May." --agent clerk
      clew enqueue user-42 "Send them." --agent clerk --priority 2 --delay 10min
      clew enqueue user-42 --again
      echo '{"prompt": "Send it.", "id": "user-43"}' > orders.jsonl
      clew enqueue --from orders.jsonl --agent clerk --tag month=may
    """
    options: dict[str, Any] = {
        "agent": agent,
        "priority": priority,
        "delay": 0.0 if delay is None else duration(delay, "--delay").total_seconds(),
        "tags": tags(tag or [], "--tag"),
    }
    if source is not None:
        if words or again or answer is not None or prompt_id is not None:
            raise InvalidInput(
                "--from takes threads and prompts from the file. Leave out ID, PROMPT and their options."
            )
        _enqueue_file(source, options, store, json)
        return
    given, prompt = _split(words or [], is_about_thread=again or answer is not None)
    if again and (prompt is not None or answer is not None):
        raise InvalidInput("--again has nothing new to say. Leave it out, or leave out the prompt and the answer.")
    said = None if answer is None else _read_answer(answer)
    head = on_store(
        store,
        lambda opened: _enqueue(opened, given, prompt, prompt_id, said, **options),
        "made" if prompt is not None else "refused",
    )
    if json:
        print_json(head_object(head))
        return
    say(one_line(head.thread_id))
    if head.due is None:
        hint(
            f"An agent runs it, and takes this in. To follow it: {advice.tail(head.thread_id, store=shown_store(store))}"
        )
    else:
        hint(f"queued: {worker_places.place_words(head)}")


def _split(words: list[str], *, is_about_thread: bool) -> tuple[str | None, str | None]:
    """Return the thread's id and the prompt that these arguments are; None for what is not among them. A single argument
    is a prompt, unless other options say something about a thread."""
    if len(words) > 2 or not words:
        raise InvalidInput("give a prompt, or the id of a thread and a prompt; a text with spaces needs quotes")
    given, prompt = (words[0], None) if is_about_thread and len(words) == 1 else (None, words[0])
    if len(words) == 2:
        given, prompt = words
    if prompt == "-":
        prompt = sys.stdin.read()
    if prompt is not None and not prompt.strip():
        raise InvalidInput("the prompt is empty. Say what the agent is to do.")
    return given, prompt


def _read_answer(text: str) -> Any:
    from clew.cli.work import read_answer

    return read_answer(text)


async def _enqueue(
    store: Checkpointer, given: str | None, prompt: str | None, prompt_id: str | None, answer: Any, **options: Any
) -> Head:
    """Enqueue one thread and return its head. `given` names the thread: with a prompt, which may begin a new thread, by
    its complete id. None makes a new thread with an id of its own. Raises `InvalidInput` if a new thread has no agent."""
    if given is not None and prompt is None:
        thread_id = await find_thread(store, given)
        head = await store.head(thread_id)
        if answer is not None and head is not None and not leases.is_live(head.lease):
            agent_questions.answers_to(thread_id, await clew.Thread.load(store, thread_id), answer)
    else:
        thread_id = given or f"{options['agent'] or 'run'}-{secrets.token_hex(6)}"
        if options["agent"] is None and await store.head(thread_id) is None:
            raise InvalidInput(
                "which agent is to run the new thread? Name it with --agent NAME: the name that it has where the "
                "workers run, Agent(…, name=…)."
            )
    return await workers.enqueue(store, thread_id, prompt, prompt_id=prompt_id, answer=answer, **options)


def _enqueue_file(source: str, options: dict[str, Any], url: str | None, json: bool) -> None:
    """Enqueue what the lines of a file say, several at a time, and print what was done. `options` hold for lines that do
    not say otherwise."""
    from clew.cli.orders import is_there, read_orders

    orders = read_orders(source, options)

    async def one(store: Checkpointer, order: Order) -> Head | None:
        if await is_there(store, order):
            return None
        return await workers.enqueue(store, order.thread_id, order.prompt, prompt_id=order.prompt_id, **order.options)

    async def work(store: Checkpointer) -> tuple[int, int]:
        done = new = 0
        with working("Enqueuing", len(orders)) as tick:
            for batch in _batches(orders):
                found = await asyncio.gather(*(one(store, order) for order in batch), return_exceptions=True)
                for order, head in zip(batch, found, strict=True):
                    if isinstance(head, BaseException):
                        if isinstance(head, ClewError):
                            head.add_note(
                                f"That was line {order.line}. {new} of {len(orders)} were enqueued. {_REPEAT}"
                            )
                        raise head
                    new += head is not None
                    if json and head is not None:
                        print_json(head_object(head))
                done += len(batch)
                tick(done)
        return new, done - new

    new, known = on_store(url, work, "made")
    already = f"; {plural(known, 'line')} of it {'was' if known == 1 else 'were'} there already" if known else ""
    say(f"{plural(new, 'prompt')} enqueued{already}", err=json)


_REPEAT = "The same command again goes on there."


def _batches(orders: Sequence[Order]) -> Iterator[list[Order]]:
    """Divide the lines of a file into lists of at most `_AT_ONCE`, so that none has two lines about the same thread:
    these are enqueued in the order of the file."""
    batch: dict[str, Order] = {}
    for order in orders:
        if len(batch) == _AT_ONCE or order.thread_id in batch:
            yield list(batch.values())
            batch = {}
        batch[order.thread_id] = order
    if batch:
        yield list(batch.values())
