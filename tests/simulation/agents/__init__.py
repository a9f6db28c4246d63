"""Agents in the simulation: the real agent, loop, journal, leases and log, on several machines that share one store.

`store.py` is the store: the memory store behind a network that delays, loses and reorders calls and answers. `world.py` has
the model and the tools of every effect, and sees each request and each act. `work.py` has the processes that ask, resume,
take over and cancel, and the faults: processes that are frozen or killed, clocks that are set, a store that is away or out
of reach. `history.py` says what must hold.

Out of scope: workspaces, sync tools (they need OS threads), compaction, durability `exit`, redaction and encryption, forks
and rewinds, streamed pieces of responses, and the stores themselves, which are simulated or tested on their own.
"""
