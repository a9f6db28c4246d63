"""Find out from a thread's record what is needed to go on with it (`Way`), and which command does that.

`clew run`, `clew resume`, `clew why`, `clew fork` and the inspector all print this command. A command that would stop
again at once for the same reason is never advised. After `max_turns` or a budget stopped a thread, the command names a
higher limit. For a thread that waits for a person it contains an answer, and for a thread that is done a prompt. If a
thread needs tools that only a Python program has, a call for that program is advised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from clew import advice
from clew.agent.events import Question
from clew.agent.prompts import prompts_waiting, turns_of_task
from clew.agent.questions import open_questions
from clew.agent.settings import Budget, Setup, kept_setup, setup_of
from clew.agent.subagents import handed_up_key
from clew.agent.workspace import unkept
from clew.checkpointers import Checkpointer, Head, Lease, Owner
from clew.checkpointers.heads import Status
from clew.log import Checkpoint
from clew.messages import Assistant, tool_calls
from clew.threads import Thread
from clew.threads.heads import is_child
from clew.threads.inbox import Post, new_posts
from clew.threads.leases import boot, is_crashed, is_live, provably_dead
from clew.threads.views.timeline import Mark, TimelineCall, TimelineReader, Window, reader_of

__all__ = [
    "Holder",
    "Standing",
    "Way",
    "at_provider",
    "program_tools",
    "shown_prompt",
    "standing_of",
    "way_of",
    "way_on",
    "with_prompt",
]


_USUAL = {"approval": "yes", "in doubt": "run"}
"""The answer that an advised command contains, by the kind of question. Other kinds get a placeholder."""
_LONGEST = 200
"""How many characters a prompt may have at most to be repeated in a command. A longer one is replaced by a placeholder.
"""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """What a user has to give to go on with a thread: for example an answer, a new prompt or a higher limit. If only
    `thread_id` is set, a resume without options is enough."""

    thread_id: str
    prompt: str | None = None
    """The prompt to ask, or the placeholder `advice.PROMPT` if the user has to write one; None if no prompt is needed.
    """
    questions: tuple[Question, ...] = ()
    """The questions that a person has to answer first."""
    max_turns: int | None = None
    """A new `max_turns` for the last prompt, as a total that includes the turns already used, if its old limit is used
    up; else None."""
    budget: Budget | None = None
    """A new budget for the whole thread, if the recorded one is used up; else None. Its limits are totals that include
    what was already spent. It has no limit for dollars if the cost so far is not known."""
    provider: str = ""
    """The provider to which the thread was to move, if the move is not on record yet; else empty."""
    model: str = ""
    """The model that was asked for at that provider; or the placeholder `advice.MODEL` if no agent is on record and the
    user has to choose a model. Else empty."""
    is_program: bool = False
    """Whether only the Python program that made the thread can go on with it, because the command line lacks what it
    needs."""
    tools: tuple[str, ...] = ()
    """The names of the tools that only the Python program that made the thread has."""

    def command(self, store: str = "") -> str:
        """Return the shell command that goes on with the thread or, if only a program can do that, the call in Python.
        `store` is the store's URL for the command."""
        if self.is_program:
            answer = None if not self.questions else _answer(self.questions)
            return advice.resume_in_program(self.thread_id, self.prompt, answer=answer, max_turns=self.max_turns)
        return advice.resume(
            self.thread_id,
            self.prompt,
            answer=self.answer(self.questions) if self.questions else None,
            max_turns=self.max_turns,
            budget=self._budget_words(),
            provider=self.provider,
            model=self.model,
            store=store,
        )

    def answer(self, questions: Sequence[Question]) -> str:
        """Return a suggested answer to these questions of the thread, as text for the option `--answer`. The answer is
        `yes` to approve a call, `run` to run a call again that was begun and has no recorded outcome, and a placeholder
        for any other question. If the thread has several questions, the text is a JSON object from question ids to
        answers."""
        found = _answer(questions, by_id=len(self.questions) > 1)
        return found if isinstance(found, str) else msgspec.json.encode(found).decode()

    def answering(self, question: Question, store: str = "") -> str:
        """Return the shell command, or the call in Python, that answers one question.

        The question may be one of this thread or one of a sub-agent, which the parent thread asks under another id. If
        it is not clear which of the parent's questions it is, the command answers all of them. `store` is the store's
        URL for the command.
        """
        is_same = any(asked.id == question.id for asked in self.questions)
        if not is_same and self.questions:
            handed_up = [asked for asked in self.questions if asked.key.endswith(handed_up_key(question))]
            if len(handed_up) != 1:
                return self.command(store)
            (question,) = handed_up
        if self.is_program:
            answer = _answer([question], by_id=len(self.questions) > 1)
            return advice.resume_in_program(self.thread_id, answer=answer)
        return advice.resume(self.thread_id, answer=self.answer([question]), store=store)

    def words(self, store: str = "") -> str:
        """Return a text that says how to go on with the thread, to be printed right after the words `To go on`. It is a
        colon and the shell command. If only a Python program can go on with the thread, the text names that program and
        the call in Python. `store` is the store's URL for the command."""
        if not self.is_program:
            return f": {self.command(store)}"
        return f" in {self.program}: {self.command()}"

    @property
    def program(self) -> str:
        """Words that say where to make the Python call with which the thread goes on: in the program that made the
        thread. If the thread's budget is used up, they add the larger budget that the program must give its agent."""
        more = "" if self.budget is None else f", with {advice.budget_in_program(**self.budget.limits)}"
        return f"the program that made it{more}"

    @property
    def program_budget(self) -> dict[str, Any] | None:
        """The larger budget to give to the agent in the Python program that made the thread, because the recorded one
        is used up: a dict from the name of a limit, such as `usd`, to a total that includes what was already spent.
        None if the budget is not used up, or if the command line can go on with the thread, so that the program is not
        needed."""
        return self.budget.limits if self.is_program and self.budget is not None else None

    def _budget_words(self) -> tuple[str, ...]:
        if self.budget is None:
            return ()
        return advice.budget_words(**self.budget.limits) or (advice.NO_BUDGET,)


def way_on(thread_id: str, state: Checkpoint) -> Way:
    """Return a `Way`: what a user has to give to go on with a thread, such as an answer, a prompt or a higher limit.
    `state` is the thread's state."""
    is_program = _is_of_program(state)
    questions = tuple(open_questions(state))
    needs_prompt = not questions and _is_at_its_end(state)
    return Way(
        thread_id=thread_id,
        prompt=advice.PROMPT if needs_prompt else None,
        model="" if is_program or _names_agent(state) else advice.MODEL,
        questions=questions,
        max_turns=None if needs_prompt else _more_turns(state),
        budget=_more_budget(state),
        is_program=is_program,
        tools=program_tools(state) if is_program else (),
    )


async def way_of(store: Checkpointer, head: Head, state: Checkpoint | None = None) -> Way:
    """Return a `Way`: what a user has to give to go on with a stored thread. The thread of a sub-agent goes on with the
    thread that called it, so for such a thread the result is about the calling one. `head` is the thread's head.
    `state` is its state; None: it is read from the store."""
    if is_child(head) and head.parent is not None and (above := await store.head(head.parent[0])) is not None:
        return await way_of(store, above)
    return way_on(head.thread_id, state or await Thread.load(store, head.thread_id))


def with_prompt(way: Way, prompt: str) -> Way:
    """Return a copy of `way` for a user who wants to go on with the thread by asking this new prompt. A `Way` says what
    a user has to give to go on with a thread.

    In the copy, `prompt` is the new prompt, or a placeholder if it is too long for a command. `max_turns` is None,
    because no higher limit of turns is needed: the turns of a new prompt are counted from zero.
    """
    return msgspec.structs.replace(way, prompt=shown_prompt(prompt), max_turns=None)


def at_provider(way: Way, provider: str, model: str) -> Way:
    """Return a copy of `way` whose command goes on with the thread through `provider`, an outside coding program, with
    this model. A `Way` says what a user has to give to go on with a thread.

    Use it if the user wanted to move the thread to this provider, and the run ended before the thread was moved. The
    copy has no `max_turns` and no tools, because a provider counts no turns and has tools of its own.
    """
    return msgspec.structs.replace(way, provider=provider, model=model, max_turns=None, is_program=False, tools=())


def shown_prompt(prompt: str) -> str:
    """Return the prompt for use in a command, or a placeholder in its place if the prompt is long or has several lines."""
    return prompt if len(prompt) <= _LONGEST and "\n" not in prompt else advice.PROMPT


def program_tools(state: Checkpoint) -> tuple[str, ...]:
    """Return the names of tools that the log records for the thread, and that the command line cannot give to an agent:
    only the program that made the thread has their code."""
    kept = kept_setup(state)
    known = {name.rpartition(":")[2] for name in setup_of(state).tools} if kept is None else {*kept.supplies}
    return tuple(sorted(state.tools.keys() - known))


def _is_of_program(state: Checkpoint) -> bool:
    """Return whether only the Python program that made the thread can go on with it. That is so if the command line
    does not have the thread's tools, or if the record does not name its model in a form that the command line takes."""
    if state.limits.get("provider") or not state.history:
        return False
    if kept_setup(state) is None:
        return bool(state.tools) or ":" not in state.model
    return bool(program_tools(state))


def _names_agent(state: Checkpoint) -> bool:
    """Return whether the log of the thread with this state says which model or which provider works on the thread."""
    setup = setup_of(state)
    return bool(state.limits.get("provider") or state.model or setup.model or setup.provider)


def _is_at_its_end(state: Checkpoint) -> bool:
    """Return whether a thread in this state needs a new prompt to go on: a resume without one would find nothing to do."""
    if state.calls or prompts_waiting(state):
        return False
    if state.status == "done" or not state.messages:
        return True
    if state.limits.get("provider"):
        return state.reason.startswith("budget: ")  # the budget refused the prompt, so the prompt is not on record
    last = state.messages[-1]
    silent = type(last) is Assistant and not tool_calls(last) and last.stop != "pause_turn"
    was_cut_off = bool(state.reason) or state.status == "running"
    # A program's agent may ask the model for more after a last answer: a call of the finish tool, or an output type.
    return silent and not (was_cut_off and _is_of_program(state))


def _more_turns(state: Checkpoint) -> int | None:
    """Return a higher `max_turns` if the last prompt has used up its turns: the number of turns used so far plus the
    old limit. Return None if turns are left, prompts wait to be asked, or the thread is done."""
    limit = state.limits.get("max_turns")
    used = turns_of_task(state)
    if limit is None or used < limit or prompts_waiting(state) or state.status == "done":
        return None
    return used + int(limit)


def _more_budget(state: Checkpoint) -> Budget | None:
    """Return a larger budget for a thread if its budget is used up, or if it limits dollars and the cost is not known;
    else None.

    In the result, each limit that is used up is the amount spent so far plus the old limit, rounded up. Limits that are
    not used up stay as they were. If the cost is not known, the result has no limit for dollars.
    """
    budget = setup_of(state).budget
    if budget.exceeded(state) is None:
        return None
    spent = {
        "tokens": float(state.usage.input_tokens + state.usage.output_tokens),
        "usd": state.cost_usd,
        "seconds": state.seconds,
    }
    more: dict[str, Any] = {}
    for name, limit in budget.limits.items():
        done = spent[name]
        if done is not None:
            more[name] = limit if done < limit else _rounded(done + limit)
    if "tokens" in more:
        more["tokens"] = int(more["tokens"])
    return Budget(**more)


def _rounded(value: float) -> float:
    """Round up to two significant digits: 10 230 becomes 11 000."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / step) * step:.10g}")


def _answer(questions: Sequence[Question], *, by_id: bool | None = None) -> Any:
    meant = {asked.id: _USUAL.get(asked.kind, advice.ANSWER) for asked in questions}
    several = len(questions) > 1 if by_id is None else by_id
    return meant if several else meant[questions[0].id]


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process that is named in the lease of a thread. The lease may have expired, and the process may have ended."""

    owner: Owner
    expires_at: datetime
    is_live: bool
    """Whether the lease still keeps other processes from taking the thread. A process that asks for a takeover can take
    it nevertheless."""
    is_here: bool
    """Whether the process was started on this machine, since the machine was last booted."""
    is_gone: bool | None
    """Whether the process has ended; None if that cannot be known here."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What a user wants to know about a thread: its status, what it waits for, and how to go on with it."""

    head: Head
    title: str
    status: Status
    """The status on record. If the record says `running` but the process that ran it has ended, `interrupted`."""
    reason: str
    holder: Holder | None
    questions: tuple[Question, ...]
    """The questions that wait for an answer from a person."""
    calls: tuple[TimelineCall, ...]
    """The tool calls of the last turn that have no outcome yet."""
    asked_at: datetime | None
    """When the model was asked, if its response is awaited now; else None."""
    prompts: tuple[str, ...]
    """Recorded prompts that the model gets once the calls in `calls` have an outcome."""
    posts: tuple[Post, ...]
    """What was posted to the thread's inbox and is not taken in yet."""
    is_empty: bool
    """Whether the thread has no prompt at all: nothing was asked, or every prompt was rewound."""
    unaccounted: int
    """How many model calls on the whole thread got no response and may have been charged nevertheless."""
    files: str
    """A text that says after which turn the recorded files were taken, if they may be older than the conversation; else
    empty."""
    last: Mark | None
    """The last thing that happened to the thread besides its turns, such as a crash, a resume or a rewind."""
    way: Way
    """What a user has to give to go on with the thread, such as an answer or a prompt, once no process works on it."""
    setup: Setup
    """The setup in force: the options with which the command line would make the agent that goes on with the thread."""


async def standing_of(store: Checkpointer, thread_id: str) -> Standing:
    """Read how a thread stands: its status, what it waits for, and what is needed to go on with it. Takes no lease and
    changes nothing."""
    reader, head = await reader_of(store, thread_id, reader=TimelineReader(thread_id, Window()))
    abandoned = is_crashed(head)
    timeline = reader.timeline(-1, abandoned=abandoned)
    state = timeline.checkpoint
    current = [turn for turn in timeline.turns if not turn.rewound]
    posts = await new_posts(store, head, state.inbox_read)
    way = await way_of(store, head, state)
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
        posts=posts,
        is_empty=not (state.messages or prompts_waiting(state)),
        unaccounted=state.unaccounted,
        files="" if state.status == "running" and not abandoned else unkept(state),
        last=timeline.marks[-1] if timeline.marks else None,
        way=msgspec.structs.replace(way, prompt=None) if posts and state.messages else way,
        setup=setup_of(state),
    )


def _holder(lease: Lease) -> Holder:
    owner = lease.owner
    here = bool(owner.boot) and owner.boot == boot()
    gone = provably_dead(owner) if here else None
    return Holder(owner=owner, expires_at=lease.expires_at, is_live=is_live(lease), is_here=here, is_gone=gone)
