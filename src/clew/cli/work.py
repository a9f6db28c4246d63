"""Run an agent on a thread and show its work as it happens: what `clew run` and `clew resume` have in common."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import typer

from clew import Thread, advice
from clew.agent import events as of
from clew.agent.prompts import is_prompt, prompts_waiting
from clew.agent.settings import keep_setup, kept_setup, setup_of
from clew.agent.way_forward import Way, at_provider, shown_prompt, way_of, way_on, with_prompt
from clew.cli.agents import ToolsMissing, make_agent
from clew.cli.consent import keep_trust
from clew.cli.output.live import Ended, View, live_view, question_text
from clew.cli.output.pages import fits_terminal, print_whole
from clew.cli.setups import changes, merged
from clew.cli.stores import on_store, shown_store
from clew.errors import ClewError, ContextTooLong, InvalidInput, ThreadBusy, ThreadNotFound, UsageError
from clew.providers.native_sync import take_in_thread
from clew.providers.registry import default_place

if TYPE_CHECKING:
    from clew.agent import Event, Question, RunResult, Session
    from clew.agent.settings import Setup
    from clew.checkpointers import Checkpointer
    from clew.cli.setups import Asked
    from clew.log import Checkpoint

__all__ = ["Job", "ask", "read_answer", "resumed_job", "work_on", "write_answer"]


class Job(NamedTuple):
    """What an agent is to do: the options for the agent (its setup), the thread, and the prompt or answer to go on
    with."""

    setup: Setup
    thread_id: str = ""
    """Empty for a new thread, which gets an id of its own."""
    prompt: str | None = None
    answer: Any = None
    timeout: float | None = None
    before: Checkpoint | None = None
    """The state of the thread as stored; None for a new thread."""
    handle: str = ""
    """The handle of a provider's session that is not in the store. If it is set, the session is resumed instead of a
    thread."""
    notes: tuple[str, ...] = ()
    """Lines to show before the work begins."""
    without_tools: bool = False
    """Whether the thread may go on without the tools that only the program which made it has."""


def resumed_job(thread_id: str, state: Checkpoint, asked: Asked) -> Job:
    """Return the job of going on with a thread. The agent's options are those stored with the thread, of which `state`
    is the present state, changed by the options that the user gave now (`asked`). The job's notes, which are shown to
    the user, list these changes."""
    before = setup_of(state)
    now = merged(before, asked)
    then = msgspec.structs.replace(before, model=before.model or state.model, folder=before.folder or now.folder)
    return Job(now, thread_id, before=state, notes=tuple(changes(then, now)))


def work_on(job: Job, store: str | None, json: bool) -> None:
    """Run the job (a thread, the options for its agent, and the prompt or answer to go on with) on the store at the URL
    `store`. Show the agent's events, as JSON if `json` is set, and then exit the command: with 0 if the work is done,
    with 1 if it stopped before.

    On a terminal, questions of the agent are put to the user at once, and the work goes on with the answers. With
    `json` nothing is asked.
    """
    with live_view(json) as view:
        ended = on_store(store, lambda opened: _work(opened, job, store, view), "made")
        while True:
            view.end(ended)
            if ended.status != "waiting" or (answer := ask(ended.questions, json)) is None:
                break
            ended = on_store(store, partial(_answer, job, ended.thread_id, answer, store, view), "made")
    raise typer.Exit(0 if ended.status == "done" else 1)


async def _answer(job: Job, thread_id: str, answer: Any, url: str | None, view: View, store: Checkpointer) -> Ended:
    """Go on with the thread `thread_id`, which waited for an answer that the user has now given. `job` is the job that
    stopped to wait; its options are used again. `url` is the URL of the store, and `view` shows the run. Returns the
    summary of the new run."""
    before = await Thread.load(store, thread_id)
    job = job._replace(thread_id=thread_id, prompt=None, answer=answer, before=before, handle="", notes=())
    return await _work(store, job, url, view)


async def _work(store: Checkpointer, job: Job, url: str | None, view: View) -> Ended:
    """Run the job until it is done or waits for an answer, and return the summary of the run. `view` shows the run, and
    `url` is the URL of the store.

    Raises the error with which the run fails. A note on the error has the command that goes on afterwards, unless the
    input was wrong, the command was used wrongly, or another process holds the thread.
    """
    watched = _Watched(view, job, url)
    async with AsyncExitStack() as stack:
        try:
            agent, setup, notes = await make_agent(
                job.setup, job.thread_id, job.before, store, stack, watched.stopped, without_tools=job.without_tools
            )
        except ToolsMissing as missing:
            await _add_ways_out(missing, store, job, url)
            raise
        job = job._replace(setup=setup)
        await _take_in(store, job)
        thread_id = job.thread_id or agent.new_id()
        session = agent.resume_session(job.handle) if job.handle else agent.start_session(thread_id=thread_id)
        try:
            if not job.handle:
                await _keep(store, thread_id, job)
                await keep_trust(store, thread_id, job.setup)
            view.begin(thread_id, _who(job))
            for note in (*job.notes, *notes):
                view.note(note)
            result = await watched.run(session)
        except (InvalidInput, ThreadBusy, UsageError):
            view.pause()
            raise
        except ClewError as error:
            view.pause()
            error.add_note(f"To go on{await _after(error, store, thread_id, job, url)}")
            raise
        if job.handle:
            await _keep(store, result.thread_id, job)
            await keep_trust(store, result.thread_id, job.setup)
        return await _ended(store, result, job, url)


async def _take_in(store: Checkpointer, job: Job) -> None:
    """Append to the thread what the user did in a provider's own program since the last prompt. Called before the
    built-in agent goes on with the thread. Does nothing if a provider is to go on with the thread."""
    if job.setup.provider or job.before is None or not job.before.providers or not job.thread_id:
        return

    await take_in_thread(store, job.thread_id, default_place())


async def _keep(store: Checkpointer, thread_id: str, job: Job) -> None:
    """Store the job's setup (the agent's options) with the thread, unless the same setup is stored already."""
    if job.before is None or kept_setup(job.before) != job.setup:
        await keep_setup(store, thread_id, job.setup)


class _Watched:
    """Runs a session of the agent with the prompt or answer of a job, and passes the events to the view. If a signal
    stops the run, the method `stopped` is called and returns the command that resumes the thread."""

    def __init__(self, view: View, job: Job, url: str | None) -> None:
        self._view = view
        self._job = job
        self._url = url
        self._has_begun = False
        """Whether the agent has sent an event that only comes after the prompt was stored."""

    async def run(self, session: Session) -> RunResult:
        running = session.resume(self._job.prompt, answer=self._job.answer, timeout=self._job.timeout)
        async for event in running:
            self._has_begun = self._has_begun or _comes_of_prompt(event)
            self._view.show(event)
        return await running

    def stopped(self, thread_id: str) -> str:
        """Return the shell command that resumes the thread, after a signal has stopped the run. The command contains
        the prompt if the prompt was not stored yet. Also ends the line on which the view was printing text."""
        self._view.pause()
        way = Way(thread_id=thread_id)
        if self._job.prompt is not None and not self._has_begun:
            way = with_prompt(way, self._job.prompt)
        if not self._has_begun and _is_still_to_move(self._job, self._job.before):
            way = at_provider(way, self._job.setup.provider, self._job.setup.model)
        return way.command(shown_store(self._url))


def _comes_of_prompt(event: Event) -> bool:
    return isinstance(event, of.TurnStarted | of.ToolStarted | of.ToolReplayed | of.ToolInDoubt | of.Waiting)


async def _add_ways_out(missing: ToolsMissing, store: Checkpointer, job: Job, url: str | None) -> None:
    """Add notes to the error `missing`, each with another way to go on with the job's thread: in the program that made
    the thread, with the module that has the missing tools, or without these tools. The last is left out if a call of
    such a tool has no result yet.

    The commands in the notes repeat the options that were given. If a limit of the thread is used up, they set a higher
    one, because the run would otherwise end at once. A sub-agent's thread cannot go on by itself, so the first note
    then has the command for its parent.
    """
    assert job.before is not None  # noqa: S101 - a new thread has no tools of a program
    way, recorded, setup = way_on(job.thread_id, job.before), setup_of(job.before), job.setup
    prompt = None if job.prompt is None else shown_prompt(job.prompt)
    turns = way.max_turns if prompt is None else None  # a new prompt may use the full number of turns
    if setup.max_turns != recorded.max_turns:
        turns = setup.max_turns
    budget = way.budget if setup.budget == recorded.budget else setup.budget

    def command(**more: Any) -> str:
        return advice.resume(
            job.thread_id,
            prompt,
            answer=None if job.answer is None else write_answer(job.answer),
            max_turns=turns,
            budget=() if budget is None else advice.budget_words(**budget.limits) or (advice.NO_BUDGET,),
            model="" if setup.model in (recorded.model, os.environ.get("CLEW_MODEL")) else setup.model,
            workspace="" if setup.workspace == recorded.workspace else setup.workspace,
            store=shown_store(url),
            **more,
        )

    if (above := await _way_above(store, job.thread_id)) is not None:
        words = above.words(shown_store(url))
        if len(above.questions) == 1 and job.answer is not None and not isinstance(job.answer, dict):
            same = advice.resume(above.thread_id, answer=write_answer(job.answer), store=shown_store(url))
            there = advice.resume_in_program(above.thread_id, answer=job.answer)
            words = f" in {above.program}: {there}" if above.is_program else f": {same}"
        missing.add_note(f"It is a sub-agent's thread, and goes on with {above.thread_id!r}{words}")
    else:
        program = advice.resume_in_program(job.thread_id, prompt, answer=job.answer, max_turns=turns)
        allowed = f", with {advice.budget_in_program(**budget.limits)}" if budget is not None else ""
        missing.add_note(f"In the program that made it{allowed}: {program}")
    given = [*setup.tools, *(f"{advice.MODULE}:{name}" for name in missing.tools)]
    several = len(missing.tools) > 1
    missing.add_note(f"With the module that has {'each of them' if several else 'it'}: {command(tools=given)}")
    if not missing.in_the_middle:
        missing.add_note(f"Without {'them' if several else 'it'}: {command(without_tools=True)}")


async def _way_above(store: Checkpointer, thread_id: str) -> Way | None:
    """Return what is needed to go on with the parent of a sub-agent's thread, as a `Way`: a sub-agent goes on only
    together with its parent. Returns None if the thread is not a sub-agent's."""
    head = await store.head(thread_id)
    way = None if head is None else await way_of(store, head)
    return None if way is None or way.thread_id == thread_id else way


async def _after(error: ClewError, store: Checkpointer, thread_id: str, job: Job, url: str | None) -> str:
    """Return how to go on after this error: the text to print after the words "To go on".

    The text holds a command that resumes the thread. If the job's prompt was not stored, the command repeats it. If the
    thread could not be taken to the provider that the job names, the command names that provider. If the conversation
    is too long for the model, the command has a placeholder for a larger model. If the thread cannot be read, the
    command has only the thread's id and, if needed, the URL of the store.
    """
    at = shown_store(url)
    try:
        state = await Thread.load(store, thread_id)
    except ClewError:
        return Way(thread_id=thread_id).words(at)
    if isinstance(error, ContextTooLong):
        return f" with a larger model: {advice.resume(thread_id, model=advice.MODEL, store=at)}"
    way = way_on(thread_id, state)
    if job.prompt is not None and _prompts(state) == _prompts(job.before):
        way = with_prompt(way, job.prompt)
    elif (above := await _way_above(store, thread_id)) is not None:
        return above.words(at)
    if _is_still_to_move(job, state):
        way = at_provider(way, job.setup.provider, job.setup.model)
    return way.words(at)


def _is_still_to_move(job: Job, now: Checkpoint | None) -> bool:
    """Tell whether the job was to take the thread to another provider, but the thread is still at its old provider.
    `now` is the thread's present state."""
    if not job.setup.provider or job.before is None or now is None or not job.before.limits:
        return False
    was, is_now = job.before.limits.get("provider"), now.limits.get("provider")
    return was == is_now != job.setup.provider


def _prompts(state: Checkpoint | None) -> int:
    """Count the prompts in the state of a thread, including those that are stored and not yet asked. None counts as 0."""
    return 0 if state is None else sum(map(is_prompt, state.history)) + len(prompts_waiting(state))


def _who(job: Job) -> str:
    """Describe which provider or model works on the job's thread and, unless the thread is new, after which turn it
    goes on."""
    setup = job.setup
    who = " ".join(filter(None, (setup.provider, setup.model)))
    if job.before is None or not job.before.history:
        return who
    return f"goes on from turn {job.before.turns} with {who}"


async def _ended(store: Checkpointer, result: RunResult, job: Job, url: str | None) -> Ended:
    """Return the summary of the run of `job` that has ended with `result`. Turns, tokens and cost in it are totals of
    the whole thread; it also has the command that goes on with the thread. `url` is the URL of the store, for that
    command."""
    head = await store.head(result.thread_id)
    if head is None:
        raise ThreadNotFound(result.thread_id)
    state = await Thread.load(store, result.thread_id)
    way = await way_of(store, head, state)
    is_own = way.thread_id == result.thread_id
    if result.status == "interrupted" and way.prompt is not None and job.prompt is not None and is_own:
        way = with_prompt(way, job.prompt)  # a budget refused the prompt, so it is not stored
    return Ended(
        thread_id=result.thread_id,
        status=result.status,
        resume=way.command(shown_store(url)),
        go_on=way.words(shown_store(url)),
        program_budget=way.program_budget,
        reason="" if result.questions else result.reason,  # `prompts` lists what is asked later
        output=result.output,
        questions=result.questions,
        prompts=tuple(prompt.text for prompt in prompts_waiting(state)) if result.questions else (),
        turns=head.turns,
        input_tokens=head.input_tokens,
        output_tokens=head.output_tokens,
        cost_usd=head.cost_usd,
        seconds=result.duration,
        drift=dict(result.drift),
    )


_WANTED = {
    "approval": "y, n, or why not (empty: decide later): ",
    "question": "Your answer (empty: answer later): ",
    "in doubt": "run, or what it came to (empty: decide later): ",
}
_YES_OR_NO = {"y": True, "yes": True, "n": False, "no": False}


def read_answer(text: str) -> Any:
    """Parse a value of --answer. Text that is valid JSON is decoded, any other text is the answer itself: `42` is a
    number, `"42"` in quotes a text. Raises `InvalidInput` if it is empty or null."""
    if not text.strip():
        raise InvalidInput("--answer is empty. Give a text, or JSON.")
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if found is None:
        raise InvalidInput("--answer null is not an answer. Give a text, or other JSON.")
    return found


def write_answer(answer: Any) -> str:
    """Write an answer as a value of --answer, so that `read_answer` returns the same answer."""
    try:
        if isinstance(answer, str) and read_answer(answer) == answer:
            return answer
    except InvalidInput:
        pass
    return json.dumps(answer, ensure_ascii=False)


def ask(questions: Collection[Question], json: bool) -> Any:
    """Ask the user these questions at the terminal, and return a dict with the answer to each by the question's id.

    A question that is longer than the terminal is high, because of its arguments, is shown page by page first: it can be
    answered only after its last page. Returns None if `json` is set, if there is no terminal, or if the user leaves a
    question open.
    """
    if json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    answers = {}
    for question in questions:
        text = question_text(question)
        if (len(questions) > 1 or not fits_terminal(text)) and not print_whole(text):
            return None
        sys.stderr.write(_WANTED[question.kind])
        sys.stderr.flush()
        said = sys.stdin.readline().strip()
        if not said:
            return None
        answers[question.id] = _meant(question, said)
    return answers


def _meant(question: Question, said: str) -> Any:
    """Return the answer that the user's words `said` stand for. For an approval, y and n are yes and no, and any other
    text is the reason to refuse. For other questions it is what `read_answer` returns."""
    return _YES_OR_NO.get(said.lower(), said) if question.kind == "approval" else read_answer(said)
