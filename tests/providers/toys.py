"""Agents over toy providers, for tests of what all sessions have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clew.checkpointers import Checkpointer
from clew.providers import Place, ProviderAgent, registry

__all__ = ["toy_agent", "with_toys"]


def with_toys() -> None:
    """Let the toys be found by their names, as an installed package's providers are."""
    registry._BUILT_IN.update(toy="tests.providers.toy:Toy", twin="tests.providers.toy:Twin")


def toy_agent(
    place: Place, store: Checkpointer | str | None, provider: str | Sequence[str] = "toy", **settings: Any
) -> ProviderAgent:
    with_toys()
    where: dict[str, Any] = {} if "workspace" in settings else {"cwd": place.cwd}
    return ProviderAgent(provider=provider, env=place.env, checkpointer=store, **where, **settings)
