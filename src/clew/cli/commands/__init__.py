"""One module a command, named like it."""
