"""The routes of the HTTP API: threads, appends, blobs and probes."""
