"""Attacks on a running service, on this machine only and bounded. `make attack` runs all of them, `make test-all` a sample.

Attacks by forged logs, archives and so on are tested beside what they attack, and marked `attack`: see `test_marks.py`.
"""
