"""The file store in the simulation: the real store on a simulated disk, with several processes on one machine.

The seam are the functions of `os`, `fcntl.flock` and `io.open` for paths and descriptors of the simulated disk
(`calls.py`). Behind it is a file system in memory (`filesystem.py`) with a cache: what was not synced is kept or lost in a
power cut, sector by sector and name by name, in any order. The store's jobs run as strands (`strands.py`), which the seed
interrupts at system calls to run another process or OS thread. `work.py` has the processes and the faults, `history.py`
what must hold for them.

Out of scope: two system calls that fail in one call of the store; a process that is killed right after a failed sync,
before it has cut off what it wrote; writes that the system ends inside a sector; bits that change on the disk; network file
systems, macOS and Windows.
"""
