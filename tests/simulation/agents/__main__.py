"""Replay one seed and print its trace: `python -m tests.simulation.agents 717`."""

from __future__ import annotations

import sys

from tests.simulation.agents.history import Broken
from tests.simulation.agents.work import simulate

try:
    print(*simulate(int(sys.argv[1])), sep="\n")
except Broken as broken:
    print(*broken.trace, sep="\n")
    sys.exit(str(broken).partition("\n")[0])
