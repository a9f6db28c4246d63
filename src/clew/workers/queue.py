"""The queue of a store: put threads into it, and back into it after a run that did not end their work.

A thread is in the queue as long as its head says when it is due. While it runs, it is due when its lease ends; so a thread
whose worker died is taken again like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clew._runtime.clock import now
from clew.agent.arguments import check_mapping, check_name
from clew.agent.exchanges import exchange_of
from clew.agent.prompts import Asked, WaitingPrompt, asked, prompts_waiting, waiting_prompts
from clew.agent.questions import answers_to
from clew.checkpointers import Checkpointer, Head, QueuePlace
from clew.checkpointers.bells import ring_soon
from clew.errors import Conflict, InvalidInput, Retry, ThreadBusy, ThreadNotFound
from clew.log import Checkpoint, Described, Logged, Queued, ThreadStarted
from clew.log.fold import TITLE_LENGTH
from clew.threads import Thread
from clew.threads.appends import append_frames
from clew.threads.heads import inbox_id, is_hidden, is_reserved, queued_in
from clew.threads.inbox import new_posts
from clew.threads.maintenance import put_aside_by
from clew.threads.prompts import check_prompt
from clew.threads.reader import load
from clew.threads.redact import Redact, redactor
from clew.workers.places import first_place
from clew.workers.retries import Retries, next_try

__all__ = ["enqueue", "put_back", "ring_if_queued", "settle_inbox"]

_TRIES = 20


async def enqueue(
    checkpointer: Checkpointer,
    thread_id: str,
    prompt: str | None = None,
    *,
    agent: str | None = None,
    prompt_id: str | None = None,
    answer: object = None,
    priority: int = 0,
    delay: float = 0.0,
    tags: Mapping[str, str] | None = None,
    redact: Redact | None = None,
) -> Head:
    """Put a thread into the queue, so that a worker runs its agent. Return the thread's head.

        await enqueue(store, "user-42", "Send the invoices of May.", agent="clerk")

    A thread that does not exist is made, for the agent named `agent`. The `prompt`, and the `answer` to questions that the
    thread waits for, are on record when this returns. If somebody runs the thread at this moment, they are posted to its
    inbox, as `Thread.post` does: the run takes them in at the end of its turn, and the thread is queued only if it does
    not. With a `prompt_id` the prompt is asked once, however often it is enqueued; so after `Unavailable`, enqueue again.

    Threads are taken in the order in which they were queued; each step of `priority`, from -9 to 9, moves a thread one
    hour to the front. With a `delay`, in seconds, no worker takes the thread before. `tags` are added to the thread's own;
    workers can be told to take only threads with certain tags. `redact` removes text that must not be on record.

    Raises `ThreadNotFound` if the thread does not exist and no prompt is given, and `InvalidInput` if the thread belongs to
    another agent.
    """
    if is_reserved(thread_id):
        raise InvalidInput(f"the thread id {thread_id!r} begins like the ids that Clew makes itself. Choose another.")
    check_name(agent or "")
    check_mapping("tags", tags, str)
    if own := [name for name in tags or {} if is_reserved(name)]:
        raise InvalidInput(f"the tag {own[0]!r} begins like the tags that Clew keeps for itself. Choose another.")
    if prompt is not None:
        check_prompt(prompt, prompt_id)
    first_place("", priority=priority, delay=delay)
    given = None if prompt is None else asked(prompt, redact, prompt_id=prompt_id)

    def decide(head: Head, state: Checkpoint) -> Sequence[Logged]:
        _check_is_for(head, agent)
        if not head.frames and given is None:
            raise ThreadNotFound(
                thread_id, more="To begin a new one, give it a prompt: enqueue(store, thread_id, prompt)"
            )
        said = _said(thread_id, state, given, answer, redact)
        place = first_place(head.log_id, priority=priority, delay=delay, turns=state.turns)
        queued = queued_in(state, head.log_id)
        keeps_place = queued is not None and state.status == "queued" and queued.due <= place.due
        is_answered = given is not None and not said and _is_answered(state, given)
        named = [*_named(state, agent), *_described(state, given, tags)]
        return [*named, *said, *([] if keeps_place or is_answered else [place])]

    try:
        marked = await put_aside_by(checkpointer, thread_id, decide, wait=0.0)
    except ThreadBusy:
        return await _post(checkpointer, thread_id, agent, prompt, given, answer, priority, redact)
    await ring_if_queued(checkpointer, marked)
    return marked


async def ring_if_queued(checkpointer: Checkpointer, head: Head) -> None:
    """Tell the workers that wait, on stores that can, to look into the queue, if this thread is in it. If it is due only
    later, they look again then."""
    if head.status == "queued":
        await ring_soon(checkpointer)


async def _post(
    checkpointer: Checkpointer,
    thread_id: str,
    agent: str | None,
    prompt: str | None,
    given: Asked | None,
    answer: object,
    priority: int,
    redact: Redact | None,
) -> Head:
    """Post what is enqueued for a thread that somebody may be running, and return the thread's head."""
    head = await checkpointer.head(thread_id)
    if head is None:
        raise ThreadNotFound(thread_id)
    _check_is_for(head, agent)
    if prompt is not None or answer is not None:
        prompt_id = given.id if given is not None and given.is_exact else None
        await Thread.post(checkpointer, thread_id, prompt, prompt_id=prompt_id, answer=answer, redact=redact)
        await _note_posts(checkpointer, head, agent or head.agent, priority)
    return head


def _check_is_for(head: Head, agent: str | None) -> None:
    """Raise `InvalidInput` if the thread belongs to another agent than the one with this name."""
    if agent is not None and head.agent not in ("", agent):
        raise InvalidInput(f"thread {head.thread_id!r} is one of the agent {head.agent!r}, and not of {agent!r}")


def _said(
    thread_id: str, state: Checkpoint, given: Asked | None, answer: object, redact: Redact | None
) -> list[Logged]:
    """Return the entries that record an answer, and a prompt as one that waits to be asked. A prompt whose id is on
    record is left out; raises `InvalidInput` if it is there with other words."""
    entries: list[Logged] = [] if answer is None else [*answers_to(thread_id, state, answer)]
    change = redactor(redact)
    entries = entries if change is None else [*change(entries)]
    if given is None:
        return entries
    waiting = prompts_waiting(state)
    known = given.among(waiting) if given.is_exact else None
    found = exchange_of(state, given.id)
    if known is None and found is None:
        return [*entries, *waiting_prompts([*waiting, WaitingPrompt(given.words, given.id)])]
    given.check_words(thread_id, known.text if known is not None else found.prompt if found is not None else "")
    return entries


def _is_answered(state: Checkpoint, given: Asked) -> bool:
    found = exchange_of(state, given.id)
    return found is not None and found.status == "done"


def _named(state: Checkpoint, agent: str | None) -> list[Logged]:
    """Return the entry that names the agent of a thread, if it has had none. Workers find threads by that name."""
    if not agent or state.agent == agent:
        return []
    return [ThreadStarted(agent, state.model, state.system_prompt, state.tools, state.limits, state.parent)]


def _described(state: Checkpoint, given: Asked | None, tags: Mapping[str, str] | None) -> list[Logged]:
    """Return the entry that gives a thread its tags and, if it has none, a title: the beginning of its prompt."""
    title = None if state.title or given is None else " ".join(given.words.split())[:TITLE_LENGTH]
    more = None if tags is None or tags.items() <= state.tags.items() else {**state.tags, **tags}
    return [] if title is None and more is None else [Described(title, more)]


async def _note_posts(checkpointer: Checkpointer, thread: Head, agent: str, priority: int) -> None:
    """Make the inbox of a running thread due, so that a worker looks at it. The run may end just before it would have
    taken in what is there, and nobody else would run the thread then. `agent` is the agent that is to run it."""
    place = QueuePlace(queued_at=now(), priority=priority)
    for _ in range(_TRIES):
        inbox = await checkpointer.head(inbox_id(thread.thread_id, thread.log_id))
        if inbox is None:
            return
        try:
            tags = {**thread.tags, **inbox.tags}
            await append_frames(checkpointer, inbox, [], due=now(), queue=place, agent=agent, tags=tags)
        except Conflict:
            continue
        return


async def settle_inbox(checkpointer: Checkpointer, inbox: Head) -> bool:
    """Look after an inbox that is due: if its posts were not taken in and nobody runs the thread, put the thread into the
    queue. Return False if the thread may be running, so that the inbox has to be looked at again later."""
    assert inbox.parent is not None  # noqa: S101 - every inbox names its thread
    thread_id = inbox.parent[0]
    head = await checkpointer.head(thread_id)
    if head is not None and not is_hidden(head) and inbox_id(thread_id, head.log_id) == inbox.thread_id:
        state = (await load(checkpointer, thread_id)).state
        waits = bool(await new_posts(checkpointer, head, state.inbox_read))
        if waits and state.status != "queued":
            priority = inbox.queue.priority if inbox.queue is not None else 0

            def decide(head: Head, state: Checkpoint) -> Sequence[Logged]:
                is_queued = queued_in(state, head.log_id) is not None and state.status == "queued"
                place = first_place(head.log_id, priority=priority, turns=state.turns)
                return () if is_queued else [*_named(state, inbox.agent), place]

            try:
                await ring_if_queued(checkpointer, await put_aside_by(checkpointer, thread_id, decide, wait=0.0))
            except ThreadBusy:
                return False
    try:
        await append_frames(checkpointer, inbox, [], due=None, queue=None)
    except Conflict:
        return False
    return True


async def put_back(checkpointer: Checkpointer, seen: Head, retries: Retries, reason: str, retry: Retry) -> Head | None:
    """Put a thread back into the queue after a run that could not say itself how it ended: its process died, or it failed
    before it had begun. After too many such runs without a new turn, set the thread aside.

    `seen` is the thread's head: with the status `running`, as it was when the process was found dead, or with the status
    `queued`, as it was when the run was tried. Returns the thread's head. Returns None, and writes nothing, if the thread
    is gone or another worker has put it back, run it or set it aside since: each try counts once, however many workers
    notice. Raises `ThreadBusy` if somebody may be running it.
    """
    is_put_back = False

    def decide(head: Head, state: Checkpoint) -> Sequence[Logged]:
        nonlocal is_put_back
        queued = queued_in(state, seen.log_id) if head.log_id == seen.log_id else None
        is_put_back = queued is not None and _is_same_try(seen, head, queued)
        return [next_try(retries, queued, state.turns, reason, retry)] if queued is not None and is_put_back else ()

    head = await checkpointer.head(seen.thread_id)
    if head is None or head.due is None:
        return None
    again = await put_aside_by(checkpointer, seen.thread_id, decide, wait=0.0)
    if not is_put_back:
        return None
    await ring_if_queued(checkpointer, again)
    return again


def _is_same_try(seen: Head, now: Head, queued: Queued) -> bool:
    """Return whether a thread whose head was `seen` has not been taken, put back or set aside since. `now` is its present
    head, and `queued` its place in the queue."""
    if seen.status == "running":
        return now.frames == seen.frames
    return now.status == "queued" and seen.queue is not None and queued.tries == seen.queue.tries
