"""The proof of a store: one test class, with a test for each promise of the waist. Needs pytest."""
