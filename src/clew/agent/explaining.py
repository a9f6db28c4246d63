"""What a thread is waiting for, and who holds it: read from the record, without touching it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from clew.agent.answering import open_questions
from clew.agent.events import Question
from clew.agent.filing import unkept
from clew.agent.prompts import prompts_waiting
from clew.agent.ways import Way, way_of
from clew.checkpointers import Checkpointer, Head, Lease, Owner
from clew.checkpointers.heads import Status
from clew.threads.leases import boot, is_live, provably_dead
from clew.threads.views.timeline import Mark, TimelineCall, is_abandoned, reader_of

__all__ = ["Holder", "Standing", "standing_of"]


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process that a thread's lease names."""

    owner: Owner
    expires_at: datetime
    is_live: bool
    """Whether nobody else may take the thread yet, unless told to."""
    is_here: bool
    """It is a process of this machine, since its last boot."""
    is_gone: bool | None
    """Whether it has ended; None if nobody here can tell."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a thread stands, and what it takes to go on."""

    head: Head
    title: str
    status: Status
    """A thread that is said to run, and that nobody alive runs, is interrupted."""
    reason: str
    holder: Holder | None
    questions: tuple[Question, ...]
    """What people are asked."""
    calls: tuple[TimelineCall, ...]
    """The calls of the last turn that have no outcome."""
    asked_at: datetime | None
    """When the model was asked, if its answer is awaited now."""
    prompts: tuple[str, ...]
    """What is to be asked of the model once those calls are settled."""
    is_empty: bool
    """Whether there is no prompt to go on with: nothing was asked, or all was rewound."""
    unaccounted: int
    """Model calls that were lost and may have been paid for."""
    files: str
    """Which turn the files on record are of, if that is not the last; empty if it is."""
    last: Mark | None
    """What happened to it last, beside its turns."""
    way: Way
    """How it goes on, once nobody works on it."""


async def standing_of(store: Checkpointer, thread_id: str) -> Standing:
    """Read where a thread stands. Takes no lease and changes nothing."""
    reader, head = await reader_of(store, thread_id)
    abandoned = is_abandoned(head)
    timeline = reader.timeline(-1, abandoned=abandoned)
    state = timeline.checkpoint
    current = [turn for turn in timeline.turns if not turn.rewound]
    return Standing(
        head=head,
        title=state.title,
        status="interrupted" if abandoned else state.status,
        reason=state.reason,
        holder=None if head.lease is None else _holder(head.lease),
        questions=tuple(open_questions(state)) if abandoned or state.status != "running" else (),
        calls=tuple(call for turn in current for call in turn.calls if call.result is None),
        asked_at=timeline.asked_at,
        prompts=tuple(prompt.text for prompt in prompts_waiting(state)),
        is_empty=not (state.messages or prompts_waiting(state)),
        unaccounted=state.unaccounted,
        files="" if state.status == "running" and not abandoned else unkept(state),
        last=timeline.marks[-1] if timeline.marks else None,
        way=await way_of(store, head, state),
    )


def _holder(lease: Lease) -> Holder:
    owner = lease.owner
    here = bool(owner.boot) and owner.boot == boot()
    gone = provably_dead(owner) if here else None
    return Holder(owner=owner, expires_at=lease.expires_at, is_live=is_live(lease), is_here=here, is_gone=gone)
