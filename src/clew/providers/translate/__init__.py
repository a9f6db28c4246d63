"""Rewrites a conversation for another agent: with that agent's tools, ids and forms."""
