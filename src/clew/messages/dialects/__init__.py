"""Translate conversations from Clew's own form to the formats of the vendors' APIs, and back. Each such format is
called a dialect."""

from __future__ import annotations

from clew.messages.dialects.losses import Loss
from clew.messages.dialects.translation import DIALECTS, Dialect, from_dialect, losses, to_dialect

__all__ = ["DIALECTS", "Dialect", "Loss", "from_dialect", "losses", "to_dialect"]
