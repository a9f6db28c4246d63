"""The OpenSearch store: threads and blobs as documents in three indices of an OpenSearch cluster."""

from __future__ import annotations

from clew.checkpointers.opensearch.store import OpenSearchCheckpointer

__all__ = ["OpenSearchCheckpointer"]
