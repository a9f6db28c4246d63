"""What users need to test their own agents and stores. Needs pytest, which `import clew` never imports."""

from __future__ import annotations

from clew.testing.contract import CheckpointerContract, OpenStore

__all__ = ["CheckpointerContract", "OpenStore"]
