"""How many tokens known models accept and produce: a table by model name, and functions that look a model up in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from clew.models.prices import find

__all__ = ["WINDOWS", "Window", "context_window", "output_limit"]


class Window(NamedTuple):
    """The limits of a model: the most tokens of a request and its response together, and the most tokens of the
    response alone."""

    context: int
    output: int


_CLAUDE = Window(1_000_000, 128_000)
_GPT = Window(1_050_000, 128_000)
_GPT_5 = Window(400_000, 128_000)
_GPT_4_1 = Window(1_047_576, 32_768)
_CHAT = Window(128_000, 16_384)
_O = Window(200_000, 100_000)
_GEMINI = Window(1_048_576, 65_536)

WINDOWS: dict[str, Window] = {
    "claude-fable-5-1": _CLAUDE,
    "claude-mythos-5-1": _CLAUDE,
    "claude-fable-5": _CLAUDE,
    "claude-mythos-5": _CLAUDE,
    "claude-opus-5-5": _CLAUDE,
    "claude-opus-5": _CLAUDE,
    "claude-opus-4-8": _CLAUDE,
    "claude-opus-4-7": _CLAUDE,
    "claude-opus-4-6": _CLAUDE,
    "claude-opus-4-5": Window(200_000, 64_000),
    "claude-opus-4-1": Window(200_000, 32_000),
    "claude-opus-4-0": Window(200_000, 32_000),
    "claude-opus-4": Window(200_000, 32_000),
    "claude-sonnet-5-5": _CLAUDE,
    "claude-sonnet-5": _CLAUDE,
    "claude-sonnet-4-6": Window(1_000_000, 64_000),
    "claude-sonnet-4-5": Window(200_000, 64_000),
    "claude-sonnet-4-0": Window(200_000, 64_000),
    "claude-sonnet-4": Window(200_000, 64_000),
    "claude-3-7-sonnet": Window(200_000, 64_000),
    "claude-haiku-5-5": _CLAUDE,
    "claude-haiku-4-5": Window(200_000, 64_000),
    "claude-3-5-haiku": Window(200_000, 8_192),
    "gpt-6.1-sol": _GPT,
    "gpt-6.1-terra": _GPT,
    "gpt-6-astra": _GPT,
    "gpt-6-sol": _GPT,
    "gpt-6-luna": _GPT,
    "gpt-5.6": _GPT,
    "gpt-5.6-sol": _GPT,
    "gpt-5.6-terra": _GPT,
    "gpt-5.6-luna": _GPT,
    "gpt-5.5": _GPT,
    "gpt-5.5-pro": _GPT,
    "gpt-5.4": _GPT,
    "gpt-5.4-pro": _GPT,
    "gpt-5.4-mini": _GPT_5,
    "gpt-5.4-nano": _GPT_5,
    "gpt-5.3-chat": _CHAT,
    "gpt-5.3-codex": _GPT_5,
    "gpt-5.2": _GPT_5,
    "gpt-5.2-chat": _CHAT,
    "gpt-5.2-codex": _GPT_5,
    "gpt-5.2-pro": _GPT_5,
    "gpt-5.1": _GPT_5,
    "gpt-5.1-chat": _CHAT,
    "gpt-5.1-codex": _GPT_5,
    "gpt-5.1-codex-max": _GPT_5,
    "gpt-5.1-codex-mini": _GPT_5,
    "gpt-5": _GPT_5,
    "gpt-5-chat": _CHAT,
    "gpt-5-codex": _GPT_5,
    "gpt-5-mini": _GPT_5,
    "gpt-5-nano": _GPT_5,
    "gpt-5-pro": _GPT_5,
    "gpt-4.1": _GPT_4_1,
    "gpt-4.1-mini": _GPT_4_1,
    "gpt-4.1-nano": _GPT_4_1,
    "gpt-4o": _CHAT,
    "gpt-4o-mini": _CHAT,
    "o4-mini": _O,
    "o3": _O,
    "o3-mini": _O,
    "o1": _O,
    "gemini-4-argon": _GEMINI,
    "gemini-3.8-flash": _GEMINI,
    "gemini-3.7-flash": _GEMINI,
    "gemini-3.6-flash": _GEMINI,
    "gemini-3.5-flash": _GEMINI,
    "gemini-3.5-flash-lite": _GEMINI,
    "gemini-3.1-pro-preview": _GEMINI,
    "gemini-3.1-pro-preview-customtools": _GEMINI,
    "gemini-3.1-flash-lite": _GEMINI,
    "gemini-3-flash-preview": _GEMINI,
    "gemini-2.5-pro": _GEMINI,
    "gemini-2.5-flash": _GEMINI,
    "gemini-2.5-flash-lite": _GEMINI,
}


def context_window(names: str | Iterable[str]) -> int | None:
    """Return the most tokens that a request and its response may have together; None if unknown. `names` are possible
    names of the model, and the first known name decides."""
    found = find(names, WINDOWS)
    return found.context if found else None


def output_limit(names: str | Iterable[str]) -> int | None:
    """Return the most tokens that one response may have; None if unknown. `names` are possible names of the model, and
    the first known name decides."""
    found = find(names, WINDOWS)
    return found.output if found else None
