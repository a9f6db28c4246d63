"""Threads as people read them: timelines, entries, Markdown and JSON, search results and totals."""
