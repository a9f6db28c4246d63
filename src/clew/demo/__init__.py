"""The demo: an agent killed with SIGKILL inside a tool and resumed in a new process, beside one that nobody disturbed."""

from __future__ import annotations

from clew.demo.run import DemoFailed, run_demo

__all__ = ["DemoFailed", "run_demo"]
