"""The PostgreSQL store in the simulation: the real store, engine and wire, on a simulated libpq, network and server.

The seam is `psycopg.AsyncConnection.connect` and the few methods of its `pgconn` that `wire.py` calls (`link.py`). Behind it
are a network that delays, holds back, cuts and swallows, and a server (`server.py`) that restarts, freezes and refuses, with
a model of the tables and functions (`tables.py`, `functions.py`). `work.py` has the clients and their calls; what must hold
for them is in `tests/simulation/history.py`.

Out of scope: libpq and the bytes of its protocol, the planner and the disk of the server (a committed transaction survives
everything), other isolation levels, poolers, and the engine for MySQL, whose driver is another seam.
"""
