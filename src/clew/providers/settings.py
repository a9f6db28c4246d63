"""The settings of an agent that works through a provider, and their checks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import get_args

import msgspec

from clew.agent.arguments import (
    check_budget,
    check_choice,
    check_flags,
    check_folder,
    check_mapping,
    check_name,
    check_text,
    check_timeout,
)
from clew.agent.settings import Budget, Folder
from clew.errors import InvalidInput
from clew.providers.base import Permissions, Place
from clew.providers.registry import find_provider, provider_name, provider_names
from clew.workspace.folders import absolute

__all__ = ["AUTO", "ProviderSettings", "in_folder", "make_settings"]

AUTO = "auto"


class ProviderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The checked arguments of `Agent(provider=…)`."""

    providers: tuple[str, ...]
    """The names of the providers, in the order in which they are tried."""
    models: Mapping[str, str]
    """The model for each provider, by the provider's name. A provider that is not in it uses the default of its
    program."""
    name: str
    system_prompt: str
    place: Place
    permissions: Permissions
    workspace: Path | None
    restore_files: bool
    options: tuple[str, ...]
    budget: Budget
    timeout: float | None

    def model_of(self, provider: str) -> str:
        return self.models.get(provider, "")


def make_settings(
    provider: str | Sequence[str],
    model: str | Mapping[str, str],
    *,
    name: str,
    system_prompt: str,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str] | None,
    permissions: Permissions,
    workspace: str | os.PathLike[str] | None,
    restore_files: bool,
    options: Sequence[str],
    budget: Budget | None,
    timeout: float | None,
) -> ProviderSettings:
    """Check the arguments of `Agent(provider=…)` and return them as settings. Raises `InvalidInput` for every mistake
    that can be recognised before a program is started."""
    names = _names(provider)
    check_name(name)
    check_text("system_prompt", system_prompt)
    check_folder("cwd", cwd)
    check_folder("workspace", workspace)
    check_mapping("env", env, str)
    check_budget(budget)
    check_choice("permissions", permissions, get_args(Permissions))
    check_flags(restore_files=restore_files)
    check_timeout(timeout)
    if (
        isinstance(options, str)
        or not isinstance(options, Iterable)
        or not all(isinstance(option, str) for option in options)
    ):
        raise InvalidInput("options is a list of arguments for the provider's program, such as options=['--verbose']")
    if env is not None and "PATH" not in env:
        raise InvalidInput(
            "env is the whole environment of the program, and has no PATH. To add variables: env={**os.environ, …}"
        )
    folder = None if workspace is None else absolute(workspace)
    if folder is not None and cwd is not None and absolute(cwd) != folder:
        raise InvalidInput(
            "workspace= and cwd= name different folders. The work is done in the workspace: leave out cwd=."
        )
    return ProviderSettings(
        providers=names,
        models=_models(model, names),
        name=name,
        system_prompt=system_prompt,
        place=Place(folder or absolute(cwd or Path.cwd()), dict(os.environ if env is None else env)),
        permissions=permissions,
        workspace=folder,
        restore_files=restore_files,
        options=tuple(options),
        budget=budget or Budget(),
        timeout=timeout,
    )


def in_folder(settings: ProviderSettings, folder: Folder) -> ProviderSettings:
    """Return the settings of an agent that works in this folder, which is its workspace."""
    check_folder("the folder that workspace= returns", folder)
    place = Place(absolute(folder), settings.place.env)
    return msgspec.structs.replace(settings, workspace=place.cwd, place=place)


def _names(provider: str | Sequence[str]) -> tuple[str, ...]:
    given = (provider,) if isinstance(provider, str) else tuple(provider) if isinstance(provider, Iterable) else ()
    if given == (AUTO,):
        return provider_names()
    if not given or not all(isinstance(name, str) for name in given):
        raise InvalidInput(f"provider is the name of a provider, several names, or 'auto', not {provider!r}")
    for name in given:
        find_provider(name)
    return tuple(dict.fromkeys(map(provider_name, given)))


def _models(model: str | Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    if not isinstance(model, str | Mapping):
        raise InvalidInput(f"model is the name of a model, or a dict of them by provider, not {model!r}")
    if not isinstance(model, str):
        check_mapping("model", model, str)
        found = {provider_name(name): value for name, value in model.items()}
        if unknown := found.keys() - set(names):
            raise InvalidInput(
                f"model names {', '.join(sorted(unknown))}, which provider does not name. Add it there, or leave it out."
            )
        return found
    if model and len(names) > 1:
        raise InvalidInput(
            f"one model is given for several providers. Say for which: model={{{names[0]!r}: {model!r}}}"
        )
    return {names[0]: model} if model else {}
