"""Which messages of a rollout somebody said, and which the program itself tells the model beside them."""

from __future__ import annotations

from typing import Any

from clew.providers.base import values

__all__ = ["MARKS", "SUMMARY", "USER_MARKS", "is_prompt", "said_parts", "text_of", "title_of"]

MARKS = "internal_chat_message_metadata_passthrough"
SUMMARY = "compaction.summary"
"""What Codex calls the message that stands for all that a compaction took away."""
USER_MARKS: dict[str, list[Any]] = {
    "content_item_kinds": ["user.text"],
    "content_item_metadata": [{"provenance": {"type": "user"}}],
}
"""The marks of a text of the user's own."""
_HARNESS = (
    "<environment_context>",
    "<permissions instructions>",
    "<skills_instructions>",
    "<subagent_notification>",
    "<turn_aborted>",
    "<user_instructions>",
    "# AGENTS.md instructions",
)
"""How the program's own texts begin, for rollouts of versions that did not mark them."""
_TITLE = 100

Part = dict[str, Any]


def said_parts(message: Part) -> list[Part]:
    """The parts of a message that are not the program's own. Of those to the model from its developer, these are all,
    unless they are marked as the user's."""
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    role = message.get("role")
    if role == "assistant":
        return parts
    marks = values(message.get(MARKS))
    kinds, metadata = _listed(marks.get("content_item_kinds")), _listed(marks.get("content_item_metadata"))
    return [
        part
        for at, part in enumerate(parts)
        if _is_said(part, role, kinds[at] if at < len(kinds) else None, metadata[at] if at < len(metadata) else None)
    ]


def _is_said(part: Part, role: Any, kind: Any, metadata: Any) -> bool:
    origin = values(values(metadata).get("provenance")).get("type")
    if role != "user":
        return bool(origin == "user")
    if kind == SUMMARY or origin == "user":
        return True
    if origin is not None:
        return False
    if isinstance(kind, str):
        return kind.startswith("user.") or kind == "unknown"
    return not str(part.get("text", "")).lstrip().startswith(_HARNESS)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def is_prompt(item: Part) -> bool:
    """Whether an item is something that the user said; a summary is not."""
    if item.get("type") != "message" or item.get("role") != "user" or not said_parts(item):
        return False
    return SUMMARY not in _listed(values(item.get(MARKS)).get("content_item_kinds"))


def text_of(message: Part) -> str:
    return "\n".join(str(part.get("text", "")) for part in said_parts(message) if part.get("text"))


def title_of(text: str) -> str:
    """The first words of a prompt, on one line."""
    words = " ".join(text[: _TITLE * 4].split())
    return words if len(words) <= _TITLE else words[: _TITLE - 2].rstrip() + " …"
