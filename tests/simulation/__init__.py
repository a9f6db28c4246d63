"""A deterministic simulation: several machines, their clocks, networks and disks in one process, under one seed.

Real code of Clew runs on an event loop of our own (`loop.py`), in virtual time. The seed decides which machine runs next,
how long everything takes, and which faults happen. One seed gives the same run every time, so that a fault that needs an
unlucky order of events can be found once and looked at as often as needed.

What is simulated is in the folders here, and each says at its top what it leaves out. Out of scope of all of them, and
tested with real programs instead (`tests/crash`, `tests/contract`, `tests/e2e`):

- the engine of SQLite, and real kernels, file systems, sockets and OS threads;
- the wires of MySQL, Redis, OpenSearch, Oracle and HTTP: their drivers have no seam that a simulation could take;
- the coding agents (Claude Code, Codex, opencode), which are programs of others;
- workspaces: snapshots and restores of folders;
- clocks that run at different speeds. A simulated clock may be wrong by any amount and may be set, but its seconds are
  as long as those of the others.
"""
