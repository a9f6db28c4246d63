"""`clew demo`: kill an agent inside a tool, resume it in a new process, and compare the result with that of a run that
was not disturbed."""

from __future__ import annotations

from clew.demo.run import DemoFailed, run_demo

__all__ = ["DemoFailed", "run_demo"]
