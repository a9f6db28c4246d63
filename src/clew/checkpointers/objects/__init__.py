"""Object storage: Amazon S3 and what speaks S3, Google Cloud Storage, Azure Blob Storage, OCI Object Storage."""

from __future__ import annotations

from clew.checkpointers.objects.store import ObjectCheckpointer

__all__ = ["ObjectCheckpointer"]
