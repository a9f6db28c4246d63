"""What the integration needs of an agent beyond running it: its store, a copy for another folder, its recorded results."""

from __future__ import annotations

import copy
from pathlib import Path

import msgspec

from clew.agent import Agent, RunResult
from clew.agent.exchanges import exchange_of
from clew.agent.loop import read_answer
from clew.agent.prompts import prompts_waiting
from clew.agent.questions import open_questions
from clew.agent.trajectory import exchange_result
from clew.checkpointers import Checkpointer
from clew.log import Checkpoint, Present
from clew.providers import Place, ProviderAgent
from clew.threads.redact import Redact

__all__ = ["has_own_folder", "of_attempt", "placed", "recorded_result", "redact_of", "store_of", "words_of"]


def store_of(agent: Agent) -> Checkpointer:
    """Return the agent's store, opened on first use."""
    return agent._store.open()


def redact_of(agent: Agent) -> Redact | None:
    return agent._redact


def has_own_folder(agent: Agent) -> bool:
    """Return whether the agent was made with a workspace."""
    settings = agent.settings if isinstance(agent, ProviderAgent) else agent._settings
    return settings.workspace is not None


def placed(agent: Agent, folder: Path) -> Agent:
    """Return a copy of an agent that works in this folder, and puts the files on record there before each run. It has
    the same store and the same runs under way."""
    made = copy.copy(agent)
    if isinstance(made, ProviderAgent):
        place = Place(folder, made.settings.place.env)
        made._provided = msgspec.structs.replace(made.settings, place=place, workspace=folder, restore_files=True)
    else:
        made._settings = msgspec.structs.replace(made._settings, workspace=folder, restore_files=True)
    return made


def of_attempt(agent: Agent, label: str, *, is_first: bool) -> Agent:
    """Return a copy of an agent for one attempt at an activity. `label` is the same for all attempts at that activity,
    and names them in leases, after the agent's own label.

    Temporal makes another attempt only after it has given up the one before, for example because its heartbeats did not
    come any more. So the copy takes a thread over from an earlier attempt at once, and does not wait until its lease has
    ended. An attempt that was only slow is fenced by that: it cannot write any more.
    """
    made = copy.copy(agent)
    made._label = f"{agent._label}, {label}" if agent._label else label
    if not is_first and made._takeover is False:
        made._takeover = lambda lease: lease.owner.label.endswith(label)
    return made


def words_of(state: Checkpoint, prompt_id: str) -> str | None:
    """Return the words of a prompt that is on record on a thread in this state, or None if it is not."""
    waiting = next((prompt.text for prompt in prompts_waiting(state) if prompt.id == prompt_id), None)
    found = exchange_of(state, prompt_id)
    return waiting if waiting is not None else None if found is None else found.prompt


def recorded_result(agent: Agent, thread_id: str, state: Checkpoint, prompt_id: str) -> RunResult | None:
    """Return what came of a prompt, as far as it is on record on a thread in this state, or None if the prompt is not
    on record. Usage, cost and duration are those of all runs that worked on it."""
    questions = tuple(open_questions(state)) if state.status == "waiting" else ()
    for prompt in prompts_waiting(state):
        if prompt.id == prompt_id:
            return RunResult(
                thread_id=thread_id,
                session_id=thread_id,
                prompt=prompt.text,
                prompt_id=prompt_id,
                status="waiting" if questions else "interrupted",
                reason="not asked yet: the thread has to finish an earlier prompt first",
                questions=questions,
                model=state.model,
                turns=state.turns,
            )
    found = exchange_of(state, prompt_id)
    if found is None:
        return None
    values = msgspec.structs.asdict(exchange_result(thread_id, state, found, state.turns))
    if found.status == "done" and not isinstance(agent, ProviderAgent):
        said = Present(messages=(state.history[found.place], *found.up_to_answer))
        values["output"] = read_answer(agent._settings, said)[0]
    return RunResult(**{**values, "questions": questions if found.status == "waiting" else ()})
