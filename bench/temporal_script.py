"""What agents do on Temporal in the measurement: read one report a turn."""

from __future__ import annotations

__all__ = ["REPORT"]

REPORT = " ".join(f"line {number} of the report has {number * number % 97} items" for number in range(80))[:3000]
"""What the tool returns: 3 KB."""
