"""The `clew` command line: `main` runs it, and `app` is its Typer application."""

from __future__ import annotations

from clew.cli.app import app, main

__all__ = ["app", "main"]
