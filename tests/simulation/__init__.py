"""A deterministic simulation: several machines, their clocks, networks and disks in one process, under one seed.

Real code of Clew runs on an event loop of our own (`loop.py`), in virtual time. The seed decides which machine runs next,
how long everything takes, and which faults happen. One seed gives the same run every time, so that a fault that needs an
unlucky order of events can be found once and looked at as often as needed.
"""
