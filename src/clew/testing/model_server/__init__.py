"""A model server for tests: an HTTP server that speaks the vendors' APIs and answers from a script, which holds the
prepared responses."""
