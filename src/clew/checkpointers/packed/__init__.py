"""Code that object storage and OpenSearch share: logs whose older frames are moved into packs (objects or documents
that hold many frames each)."""
