"""Tests that every store has to pass: one class, `CheckpointerContract`, with a test for each promise that a
`Checkpointer` makes. Needs pytest."""
