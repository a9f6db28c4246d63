"""The logs of the program `llm` that its own versions wrote, for tests: `make_llm_logs` made them."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path

__all__ = ["LOGS", "PICTURE", "unpacked"]

PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""A PNG of one pixel."""

LOGS = tuple(sorted(path.name.removesuffix(".db.gz") for path in Path(__file__).parent.glob("llm-*.db.gz")))


def unpacked(name: str, folder: Path) -> Path:
    """Write one of the logs into a folder, as `logs.db`, and return its path."""
    path = folder / "logs.db"
    path.write_bytes(gzip.decompress((Path(__file__).parent / f"{name}.db.gz").read_bytes()))
    return path
