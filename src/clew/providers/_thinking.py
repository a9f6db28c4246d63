"""Thinking, which a vendor signs or seals and takes back from nobody else."""

from __future__ import annotations

from clew.messages import Thinking
from clew.providers.base import values

__all__ = ["thinking_for"]

_RESPONSES = "openai-responses"
_OPENCODE = "opencode"


def thinking_for(block: Thinking, target: str) -> Thinking | None:
    """The block as this agent can give it back to a model, or None if it cannot.

    Claude Code gives back what Anthropic signed or sealed, Codex what the responses API gave an id. opencode keeps it all,
    with whose it is; so does a thread, and a provider that is not Clew's own says for itself.
    """
    item = _item_of(block)
    if target == "claude_code":
        is_sealed = bool(block.encrypted) and not block.text and item is None
        own = values(block.extra).get("anthropic")
        kept = Thinking(block.text, block.signature, block.encrypted, {"anthropic": own} if own else None)
        return kept if block.signature or is_sealed else None
    if target == "codex":
        return Thinking(block.text, None, block.encrypted, {_RESPONSES: item}) if item else None
    return block


def _item_of(block: Thinking) -> dict[str, object] | None:
    """What the responses API said of it, its id above all; None if it is not from there, and empty if it has no id."""
    own = values(block.extra).get(_RESPONSES)
    if isinstance(own, dict):
        return own
    for said in values(values(block.extra).get(_OPENCODE)).values():
        fields = values(said)
        if isinstance(fields.get("itemId"), str):
            return {"id": fields["itemId"]}
        if fields.get("reasoningEncryptedContent"):
            return {}
    return None
