"""No key, address, profile or proxy of this machine is used: each test says what there is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clew.models import retry

_VENDORS = ("OPENAI", "ANTHROPIC", "AZURE", "GEMINI", "GOOGLE", "OCI_", "OLLAMA", "OPENROUTER")


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.upper().startswith(_VENDORS) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.01)
