"""Threads for people: timelines, entries, Markdown and JSON, searches, totals."""
