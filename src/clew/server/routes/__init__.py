"""The routes of the HTTP API: threads, blobs, and probes for operators."""
