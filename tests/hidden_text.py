"""Text that a terminal or a browser would obey or hide, and a thread that has it everywhere."""

from __future__ import annotations

import re

from clew import Thread, open_checkpointer
from clew.log import Described, MessageAdded, ThreadStarted
from clew.messages import assistant, user

__all__ = ["OBEYED", "write_everywhere"]

OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\xad\u061c\u200b-\u200f\ufeff\U000e0000-\U000e0fff]"
)


async def write_everywhere(url: str, text: str) -> None:
    """Write a thread with this text as its id, title, agent, model, tags and messages, held by a process with this label."""
    async with open_checkpointer(url) as store, Thread.open(store, text, label=text) as thread:
        await thread.append(
            ThreadStarted(text, text, text),
            Described(title=text, tags={text: text}),
            MessageAdded(user(text)),
            MessageAdded(assistant(text)),
        )
