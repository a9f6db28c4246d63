"""The object storage stores: S3 and compatible servers, Google Cloud Storage, Azure Blob Storage, OCI Object Storage."""

from __future__ import annotations

from clew.checkpointers.objects.store import ObjectCheckpointer

__all__ = ["ObjectCheckpointer"]
