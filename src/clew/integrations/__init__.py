"""Agents of Clew inside other systems, over Clew's public API. Each package or module is for one system, and needs the
extra with its name. Nothing else in Clew depends on this package.
"""
