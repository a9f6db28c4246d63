"""The routes of the service: threads, blobs, probes."""
