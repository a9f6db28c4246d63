"""`python -m tests.fuzz TARGET RUNS`: the coverage-guided fuzzer on one target. Needs atheris (dependency group `fuzz`)."""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

atheris: Any = import_module("atheris")

with atheris.instrument_imports(include=["clew"]):
    from tests.fuzz.seeds import seeds
    from tests.fuzz.targets import TARGETS


def main() -> None:
    name, runs = sys.argv[1], sys.argv[2]
    target: Any = TARGETS[name]
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(seeds(name)):
            (Path(folder) / str(number)).write_bytes(seed)
        limits = ["-timeout=60", "-rss_limit_mb=2048", "-malloc_limit_mb=512", "-max_len=65536", "-print_final_stats=1"]
        atheris.Setup([sys.argv[0], folder, f"-runs={runs}", *limits], target)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
