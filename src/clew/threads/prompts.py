"""Check prompts and their ids before they are recorded, and make ids for prompts that have none."""

from __future__ import annotations

import secrets

from clew import advice
from clew.errors import InvalidInput

__all__ = ["MADE", "check_prompt", "made_id", "quoted"]


MADE = "clew:"
"""The prefix of the prompt ids that Clew makes itself."""
_LONGEST_ID = 1024
_LONGEST_QUOTE = 60


def check_prompt(prompt: str, prompt_id: str | None = None) -> None:
    """Raise `InvalidInput` if this prompt or its id cannot be used: wrong type, empty, or text that cannot be stored."""
    if not isinstance(prompt, str) or not prompt.strip():
        raise InvalidInput(
            f"a prompt is a text that is not empty, and not {prompt!r}. To go on with a thread without one: "
            f"{advice.resume_in_program('…')}"
        )
    _check_storable("a prompt", prompt)
    if prompt_id is None:
        return
    if not isinstance(prompt_id, str) or not prompt_id.strip() or len(prompt_id) > _LONGEST_ID:
        raise InvalidInput(f"a prompt_id is a text of 1 to {_LONGEST_ID} characters, and not {prompt_id!r}")
    if prompt_id.startswith(MADE):
        raise InvalidInput(f"the prompt_id {prompt_id!r} begins like the ids that Clew makes itself. Choose another.")
    _check_storable("a prompt_id", prompt_id)


def made_id() -> str:
    """Return a new random id, for a prompt that was given without one."""
    return f"{MADE}{secrets.token_hex(8)}"


def quoted(text: str) -> str:
    """Return a text on one line in quotes, for an error message; cut off if it is long."""
    line = " ".join(text.split())
    return repr(line if len(line) <= _LONGEST_QUOTE else f"{line[: _LONGEST_QUOTE - 1]}…")


def _check_storable(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{what} is text that can be written as UTF-8, and not {quoted(text)}: half a surrogate pair is at character "
            f"{error.start + 1}"
        ) from None
