"""The proof of a store: one test class, with a test for each promise of the waist."""

from __future__ import annotations

from clew.testing.contract.suite import CheckpointerContract

__all__ = ["CheckpointerContract"]
