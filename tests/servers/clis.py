"""Machines for the three real coding agents: programs, homes and environments that lead to one scripted model alone."""

from __future__ import annotations

import asyncio
import functools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from clew.messages import Message
from clew.models.base import ModelRequest
from clew.providers.base import Place
from clew.testing import Fault, ModelServer, Response, turns_in
from tests.servers import npm
from tests.servers.npm import VERSIONS, NotInstalled, install, install_also
from tests.servers.running import lacking

__all__ = [
    "MODELS",
    "OPENCODE_THINKING",
    "Machine",
    "answering",
    "cli_path",
    "is_main",
    "main_requests",
]

MODELS = {"claude_code": "claude-sonnet-4-5", "codex": "gpt-5.5", "opencode": "scripted/scripted-1"}
"""The model to name to each provider. Claude Code and Codex know by heart what models of these names can do."""
OPENCODE_THINKING = "messages/claude-sonnet-4-5"
"""A model that opencode asks by Anthropic's messages, where thinking shows; the other it asks by chat completions."""
_PACKAGES = {"claude_code": "@anthropic-ai/claude-code", "codex": "@openai/codex", "opencode": "opencode-ai"}
_SMALL = "claude-haiku-4-5"

_CODEX = """\
model = "{model}"
model_provider = "scripted"
check_for_update_on_startup = false
[analytics]
enabled = false
[features]
plugins = false
remote_plugin = false
apps = false
plugin_discovery_prefetch = false
[model_providers.scripted]
name = "scripted"
base_url = "{url}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 1
stream_max_retries = 1
"""


def cli_path(package: str = "", version: str = "") -> Path:
    """A folder for PATH that has claude, codex and opencode, or one package in this version; skips with the reason if they
    cannot be had (fails in CI)."""
    if not npm.is_allowed:
        pytest.fail(
            "a test that starts a coding agent has to be marked slow: `make test` does not install the programs"
        )
    reason, path = _installed(package, version)
    if path is None:
        lacking(reason, install="nodejs and npm")
    return path


@functools.cache
def _installed(package: str, version: str) -> tuple[str, Path | None]:
    try:
        return "", install_also(package, version) if package else install()
    except NotInstalled as missing:
        return str(missing), None


class Machine:
    """A machine of a test: a home, a folder to work in, and the environment in which the three programs reach one
    `ModelServer` and nothing else."""

    def __init__(self, root: Path, server: ModelServer, **others: str) -> None:
        """`others` are versions of packages that are to be found in place of those the tests know: `claude_code="2.1.325"`,
        `opencode="1.15.0"`."""
        self.home = root / "home"
        self.cwd = root / "work"
        self.models = dict(MODELS)
        self._server = server
        temporary = root / "tmp"
        for folder in (self.home, self.cwd, temporary):
            folder.mkdir(parents=True, exist_ok=True)
        self.env = {
            "PATH": _path(others),
            "HOME": str(self.home),
            "TMPDIR": str(temporary),
            "LANG": "C.UTF-8",
            "XDG_CACHE_HOME": str(self.home / ".cache"),
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "XDG_DATA_HOME": str(self.home / ".local" / "share"),
            "XDG_STATE_HOME": str(self.home / ".local" / "state"),
            **server.env(),
            **_claude(),
            "CODEX_HOME": str(self.home / ".codex"),
            **_OPENCODE,
        }
        _write_codex(self.home / ".codex", server)
        _write_opencode(self.home / ".config" / "opencode", server)

    def place(self, cwd: Path | None = None) -> Place:
        return Place(cwd or self.cwd, self.env)

    async def until_hanging(self, timeout: float = 60) -> None:
        """Return once an answer that hangs, by a fault, has come as far as it will."""
        async with asyncio.timeout(timeout):
            while not self.is_hanging:
                await asyncio.sleep(0.02)

    @property
    def is_hanging(self) -> bool:
        """Whether an answer has come as far as it will, and somebody still waits for the rest."""
        return any(record.outcome == "hanging" for record in self._server.requests)

    @property
    def asked(self) -> list[tuple[Message, ...]]:
        """What the model was sent in each call of a conversation itself, in the order in which they came, by all that use
        this server; without titles and the like."""
        return [request.messages for request in main_requests(self._server)]


def _path(others: dict[str, str]) -> str:
    """With the folder of node, which the command `codex` is a script for."""
    node = shutil.which("node")
    special = [str(cli_path(_PACKAGES[name], version)) for name, version in others.items()]
    folders = [*special, str(cli_path()), *([str(Path(node).parent)] if node else []), "/usr/bin", "/bin"]
    return ":".join(dict.fromkeys(folders))


def _claude() -> dict[str, str]:
    return {
        "ANTHROPIC_MODEL": MODELS["claude_code"],
        "ANTHROPIC_SMALL_FAST_MODEL": _SMALL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",  # else root may not skip the permissions
    }


_OPENCODE = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_SHARE": "1",
}


def _write_codex(home: Path, server: ModelServer) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(_CODEX.format(model=MODELS["codex"], url=server.openai_url))


def _write_opencode(config: Path, server: ModelServer) -> None:
    providers = {
        **_opencode_provider(MODELS["opencode"], "@ai-sdk/openai-compatible", server),
        **_opencode_provider(OPENCODE_THINKING, "@ai-sdk/anthropic", server, reasoning=True),
    }
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "model": MODELS["opencode"],
        "small_model": MODELS["opencode"],
        "enabled_providers": list(providers),
        "provider": providers,
    }
    (config / "node_modules").mkdir(parents=True, exist_ok=True)
    (config / "opencode.json").write_text(json.dumps(settings))
    # It would install this at every start, did it not find it installed.
    plugin = {"dependencies": {"@opencode-ai/plugin": VERSIONS["opencode-ai"]}}
    (config / "package.json").write_text(json.dumps(plugin))
    (config / "package-lock.json").write_text(json.dumps({"lockfileVersion": 3, "packages": {"": plugin}}))


def _opencode_provider(name: str, client: str, server: ModelServer, *, reasoning: bool = False) -> dict[str, Any]:
    """With a client that opencode has in it, so that it need not be installed."""
    provider, model = name.split("/")
    limits = {"context": 200_000, "output": 8_000}
    options = {"baseURL": server.openai_url, "apiKey": server.env()["OPENAI_API_KEY"]}
    models = {model: {"name": model, "tool_call": True, "reasoning": reasoning, "limit": limits}}
    return {provider: {"npm": client, "name": provider, "options": options, "models": models}}


def is_main(request: ModelRequest) -> bool:
    """Whether this is a call of the conversation itself, and none beside it: to find it a title, or a topic."""
    return bool(request.tools)


def main_requests(server: ModelServer) -> list[ModelRequest]:
    """The calls of conversations themselves that came to this server."""
    return [record.request for record in server.requests if record.request is not None and is_main(record.request)]


ScriptFunction = Callable[[ModelRequest], Response | Fault]


def answering(
    main: Sequence[Response | Fault] | ScriptFunction, *, by_turns: bool = False, aside: str = "A title"
) -> ScriptFunction:
    """A script for a `ModelServer` that a coding agent asks: calls beside the conversation get `aside`, the others what
    `main` says. That is a function of the request, or a list: the next response of it for each call, or with `by_turns`
    the one whose place is the number of assistant messages in the request."""
    came = 0

    def respond(request: ModelRequest) -> Response | Fault:
        nonlocal came
        if not is_main(request):
            return aside
        if callable(main):
            return main(request)
        number, came = (turns_in(request) if by_turns else came), came + 1
        if number >= len(main):
            raise AssertionError(f"the script has {len(main)} responses, and number {number + 1} was asked for")
        return main[number]

    return respond
