"""Tests that every store has to pass: one class with a test for each promise of `Checkpointer`. Needs pytest."""
