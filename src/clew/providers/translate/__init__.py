"""Conversations in the words of another agent: its tools, its ids, its forms."""
