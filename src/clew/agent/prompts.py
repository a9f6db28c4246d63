"""What is asked of an agent: what can be, what was, and what waits for its turn."""

from __future__ import annotations

from clew.agent.notes import is_prompt
from clew.errors import InvalidInput
from clew.log import Checkpoint
from clew.messages import Assistant, Message, plain_text

__all__ = ["PROMPTS", "check_prompt", "last_prompt", "prompts_waiting", "turns_of_task"]

PROMPTS = "clew:prompts"
"""The thread's value that holds what is to be asked once the open calls are done."""


def check_prompt(prompt: str) -> None:
    if not isinstance(prompt, str) or not prompt.strip():
        raise InvalidInput(
            f"a prompt is a text that is not empty, and not {prompt!r}. To go on with a thread without one: "
            "agent.resume(thread_id=…)"
        )


def prompts_waiting(state: Checkpoint) -> list[str]:
    """What is to be asked once the calls of the open turn are done."""
    return state.state.get(PROMPTS) or []


def _line_of_work(state: Checkpoint) -> tuple[Message, ...]:
    """The messages that the model sees; if a summary stands for the last prompt, all there are."""
    return state.messages if any(map(is_prompt, state.messages)) else state.history if state.messages else ()


def last_prompt(state: Checkpoint) -> str:
    """What the user asked last in this line of work; empty if nothing."""
    found = next(filter(is_prompt, reversed(_line_of_work(state))), None)
    return "" if found is None else plain_text(found)


def turns_of_task(state: Checkpoint) -> int:
    """Responses since the last prompt."""
    turns = 0
    for message in reversed(_line_of_work(state)):
        if is_prompt(message):
            break
        turns += type(message) is Assistant
    return turns
