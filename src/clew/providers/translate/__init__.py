"""Rewrites a conversation of one agent for another: with that agent's tools, ids and formats."""
