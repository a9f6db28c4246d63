"""Rewrites a conversation of one agent for another, which has other tools, other ids of tool calls, and another format
of conversations."""
