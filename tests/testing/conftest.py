"""Nothing of this machine's own accounts and proxies reaches a client that a test makes."""

from __future__ import annotations

import os

import pytest

_OURS = ("ANTHROPIC_", "OPENAI_", "CLAUDE_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith(_OURS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "*")
