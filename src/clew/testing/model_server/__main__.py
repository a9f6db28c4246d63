"""Run a model server from the command line: `python -m clew.testing.model_server script.json`."""

from __future__ import annotations

from clew.testing.model_server.command import main

main()
