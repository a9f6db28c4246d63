"""The OpenSearch store."""

from __future__ import annotations

from clew.checkpointers.opensearch.store import OpenSearchCheckpointer

__all__ = ["OpenSearchCheckpointer"]
