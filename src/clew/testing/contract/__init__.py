"""The contract of stores as tests: one class with a test for each promise of `Checkpointer`. Needs pytest."""
