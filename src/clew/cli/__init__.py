"""The `clew` command."""

from __future__ import annotations

from clew.cli.app import app, main

__all__ = ["app", "main"]
