"""The demo, with a payment of which it is said that it may run again; which is not so."""

from __future__ import annotations

import sys
from pathlib import Path

from clew.demo import run_demo
from clew.demo.views import PlainView

if __name__ == "__main__":
    report = run_demo(Path(sys.argv[1]), PlainView(sys.stdout), effect="idempotent")
    sys.exit(not report.is_whole)
