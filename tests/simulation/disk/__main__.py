"""Replay one seed and print its trace: `python -m tests.simulation.disk 717`."""

from __future__ import annotations

import sys

from tests.simulation.disk.work import simulate

print(*simulate(int(sys.argv[1])), sep="\n")
