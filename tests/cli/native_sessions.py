"""A machine with sessions of coding agents, for tests of the commands that work on them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from clew.messages import Text, ToolCall, ToolResult, assistant, tool, user
from clew.providers.base import Conversation, Place
from clew.providers.registry import find_provider
from tests.cli.command_line import clew


class Machine:
    """A home with sessions in it, and a store."""

    def __init__(self, root: Path) -> None:
        self.cwd = root / "work"
        self.cwd.mkdir()
        self.url = f"sqlite:///{root}/clew.db"
        self._root = root
        self.env = {"HOME": str(root / "home"), "CODEX_HOME": "", "CLAUDE_CONFIG_DIR": "", "XDG_DATA_HOME": ""}

    def keep(self, provider: str, title: str, cwd: Path | None = None, key: str = "") -> str:
        """A session as the provider keeps it, last changed just now; its key."""
        place = Place(cwd or self.cwd, {**self.env, "PATH": os.environ["PATH"]})
        found = find_provider(provider)(place)
        failed = tool(ToolResult("c1", (Text("no"),), is_error=True))
        messages = (user(title), assistant(ToolCall("c1", "Bash", {"command": "ls"})), failed)
        key, folder = key or found.new_key(), self._root / f"{provider}-{title}"
        folder.mkdir()
        found.write(Conversation(messages=messages, cwd=str(place.cwd)), key, folder)
        found.install_session(key, folder)
        return key

    def clew(self, *arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
        env = {**self.env, **how.pop("env", {})}
        return clew(*arguments, store=self.url, cwd=self.cwd, env=env, **how)
