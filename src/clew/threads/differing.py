"""What has to be appended so that one state becomes another."""

from __future__ import annotations

from clew.errors import InvalidInput
from clew.log import (
    Checkpoint,
    Described,
    Logged,
    MessageAdded,
    Rewound,
    Spend,
    StateSet,
    StatusChanged,
    ThreadStarted,
    Usage,
)

__all__ = ["difference"]


def difference(old: Checkpoint, new: Checkpoint) -> list[Logged]:
    """The entries that lead from one to the other: what was added; a rewind first where the conversation parts."""
    if missing := old.state.keys() - new.state.keys():
        raise InvalidInput(
            f"state cannot be taken away by saving; set these keys to None: {', '.join(sorted(missing))}"
        )
    return [*_start(old, new), *_conversation(old, new), *_spend(old, new), *_facts(old, new), *_standing(old, new)]


def _start(old: Checkpoint, new: Checkpoint) -> list[Logged]:
    def start(state: Checkpoint) -> ThreadStarted:
        return ThreadStarted(state.agent, state.model, state.system_prompt, state.tools, state.limits, state.parent)

    return [start(new)] if start(new) != start(old) else []


def _conversation(old: Checkpoint, new: Checkpoint) -> list[Logged]:
    before, after = old.messages, new.messages
    same = 0
    for mine, theirs in zip(before, after, strict=False):
        if mine is not theirs and mine != theirs:
            break
        same += 1
    rewind: list[Logged] = [Rewound(messages=same)] if same < len(before) else []
    return [*rewind, *(MessageAdded(message) for message in after[same:])]


def _spend(old: Checkpoint, new: Checkpoint) -> list[Logged]:
    """Spend only ever grows: a checkpoint that knows of less than the record does adds nothing."""
    usage = Usage(*(max(0, getattr(new.usage, field) - getattr(old.usage, field)) for field in Usage.__struct_fields__))
    cost = None if new.cost_usd is None or old.cost_usd is None else max(0.0, new.cost_usd - old.cost_usd)
    seconds = max(0.0, new.seconds - old.seconds)
    unknown = new.cost_usd is None and old.cost_usd is not None
    return [Spend(usage, cost, seconds)] if cost or seconds or unknown or usage != Usage() else []


def _facts(old: Checkpoint, new: Checkpoint) -> list[Logged]:
    entries: list[Logged] = [
        StateSet(key, value) for key, value in new.state.items() if key not in old.state or old.state[key] != value
    ]
    entries += [known for name, known in new.providers.items() if old.providers.get(name) != known]
    if new.workspace is not None and new.workspace != old.workspace:
        entries.append(new.workspace)
    return entries


def _standing(old: Checkpoint, new: Checkpoint) -> list[Logged]:
    entries: list[Logged] = []
    if new.title != old.title or new.tags != old.tags:
        entries.append(Described(new.title, new.tags))
    if (new.status, new.reason) != (old.status, old.reason) and new.status != "running":
        entries.append(StatusChanged(new.status, new.reason))
    return entries
