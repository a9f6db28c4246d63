"""Attacks on the product, on this machine only and bounded. `make attack` runs all of them, `make test-all` a sample."""
