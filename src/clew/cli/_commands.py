"""All commands, by name: what each is for, and where it is. Its module is imported only when it is called, so that help
comes at once."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COMMANDS", "Entry"]


class Entry(NamedTuple):
    panel: str
    place: str
    """`module:function` below `clew.cli`."""
    summary: str
    """The first sentence of its own help, and with it the line of its own in `clew --help`: up to 55 characters."""


COMMANDS: dict[str, Entry] = {
    "run": Entry("Work", "running:run", "Give an agent a task, and watch it work."),
    "resume": Entry("Work", "resuming:resume", "Go on with a thread where it stopped, or tell it more."),
    "ls": Entry("Look", "listing:ls", "List the threads of a store, the newest first."),
    "show": Entry("Look", "showing:show", "Show a thread: what was said, done, and went wrong."),
    "tail": Entry("Look", "tailing:tail", "Follow a thread while another process works on it."),
    "diff": Entry("Look", "differing:diff", "Show what changed between two turns, files included."),
    "files": Entry("Look", "filing:files", "List the files of a thread, or bring a copy of them."),
    "search": Entry("Look", "searching:search", "Find words in the titles and messages of all threads."),
    "stats": Entry("Look", "stats:stats", "Count threads, tokens, dollars and storage."),
    "why": Entry("Look", "why:why", "Say what a thread waits for, and what to do about it."),
    "fork": Entry("Change", "forking:fork", "Start a new thread from a turn of another."),
    "rewind": Entry("Change", "rewinding:rewind", "Go back to the end of an earlier turn."),
    "unlock": Entry("Change", "unlocking:unlock", "Take a thread's lease from whoever has it."),
    "rm": Entry("Change", "removing:rm", "Remove threads from the store."),
    "prune": Entry("Keep", "pruning:prune", "Remove old threads."),
    "gc": Entry("Keep", "collecting:gc", "Free what no thread needs any more."),
    "verify": Entry("Keep", "verifying:verify", "Check that all that is stored is whole."),
    "export": Entry("Keep", "archiving:export", "Write a thread to a file."),
    "import": Entry("Keep", "archiving:import_", "Bring a thread back from a file."),
    "copy": Entry("Keep", "copying:copy", "Copy threads to another store."),
    "sessions": Entry("Coding agents", "native:sessions", "List the sessions of Claude Code, Codex and opencode."),
    "adopt": Entry("Coding agents", "native:adopt", "Take a session of a coding agent into a thread."),
    "move": Entry("Coding agents", "native:move", "Carry a session from one coding agent to another."),
    "doctor": Entry("Machine", "doctoring:doctor", "Check that all Clew needs is here and in order."),
    "serve": Entry("Machine", "serve:serve", "Serve a store over HTTP, with an inspector for people."),
    "demo": Entry("Machine", "demo:demo", "Kill an agent inside a tool, and resume it, offline."),
}
