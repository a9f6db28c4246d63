"""Finds a provider by a name like `claude_code`. Third parties add names through the entry point group
`clew.providers`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

from clew._runtime import plugins
from clew.errors import InvalidInput
from clew.providers.base import Place, Provider

__all__ = [
    "BUILT_IN_AGENT",
    "GROUP",
    "PROVIDERS",
    "default_place",
    "find_provider",
    "provider_name",
    "provider_names",
    "wanted",
]

GROUP = "clew.providers"
"""The entry point group in which installed packages add providers. An entry's name is the provider's name, and its
value a subclass of `Provider`."""
BUILT_IN_AGENT = "clew"
"""The name by which handles and translations mean Clew's own agent. It is not a provider."""

_BUILT_IN = {
    "claude_code": "clew.providers.claude_code:ClaudeCode",
    "codex": "clew.providers.codex:Codex",
    "opencode": "clew.providers.opencode:OpenCode",
}
_ALIASES = {"claude": "claude_code", "claude-code": "claude_code"}

PROVIDERS: tuple[str, ...] = tuple(_BUILT_IN)


def provider_name(name: str) -> str:
    """Return the standard name of a provider, such as `claude_code` for `claude` or `claude-code`. Any other name is
    returned as it is."""
    return _ALIASES.get(name, name)


def provider_names() -> tuple[str, ...]:
    """Return the names of Clew's own providers and of those that installed packages add."""
    return tuple(dict.fromkeys([*PROVIDERS, *sorted(plugin.name for plugin in entry_points(group=GROUP))]))


def wanted(providers: str | Iterable[str] | None) -> list[str]:
    """Return the standard names of the requested providers, each once; all known ones if `providers` is None. Raises
    `InvalidInput` for an unknown name."""
    if providers is None:
        return list(provider_names())
    named = [providers] if isinstance(providers, str) else providers
    names = list(dict.fromkeys(provider_name(name) for name in named))
    for name in names:
        find_provider(name)
    return names


def find_provider(name: str) -> type[Provider]:
    """Return the class of the provider with this name. Its module is imported only now. Raises `InvalidInput` if there
    is none."""
    if name == BUILT_IN_AGENT:
        raise InvalidInput("'clew' is the built-in agent, not a provider. Give a model instead: Agent(model)")
    try:
        found = plugins.find(provider_name(name), _BUILT_IN, GROUP, f"the provider {name!r}")
    except plugins.Unknown as unknown:
        guess = f" Did you mean {unknown.close!r}?" if unknown.close else ""
        raise InvalidInput(f"no provider {name!r}.{guess} Known here: {unknown.known}.") from None
    if not (isinstance(found, type) and issubclass(found, Provider)):
        raise InvalidInput(f"the provider {name!r} is installed, but is not a subclass of clew.providers.Provider.")
    return found


def default_place(cwd: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None) -> Place:
    """Return the `Place` at which a provider works by default: the working folder and environment of this process,
    unless others are given. `env` replaces the whole environment."""
    return Place(Path(os.path.abspath(cwd or Path.cwd())), dict(os.environ if env is None else env))
