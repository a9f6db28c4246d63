"""Make the commands that Clew advises its users to run.

An error, a hint or a page that tells the user what to run takes the command from this module: `advice.resume("trip")`
returns `clew resume trip`. The functions return the command as text and run nothing; the caller writes the sentence
around it.

Each function for a kind of advice is listed in `KINDS`. For each kind a test brings about the situation in which it is
given, and runs the command that is printed. Tests also fail if another module writes out a command itself. This module
imports nothing of Clew, because errors, the lowest layer, print advice too.

The parameter `store` is the URL to name with --store, without credentials; empty for the default store.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from clew._runtime.text import UNSEEN

__all__ = [
    "ANSWER",
    "FOLDER",
    "KEY_IN_PROGRAM",
    "KEY_IN_SHELL",
    "KINDS",
    "MODEL",
    "MODULE",
    "NO_BUDGET",
    "PROMPT",
    "THREAD",
    "adopt",
    "budget_in_program",
    "budget_words",
    "collect",
    "discover",
    "enqueue_again",
    "files",
    "for_shell",
    "fork",
    "install",
    "install_program",
    "list_in_program",
    "list_sessions",
    "list_threads",
    "list_tokens",
    "log_in",
    "make_private",
    "new_token",
    "open_session",
    "post_in_program",
    "quoted",
    "remove",
    "repair",
    "restore_files",
    "resume",
    "resume_in_program",
    "run_again",
    "send",
    "show",
    "start",
    "tail",
    "take_over",
    "unlock",
    "upgrade",
    "why",
]

THREAD = "ID"
"""Placeholder for the id of a thread that does not exist yet."""
PROMPT = "what to do next"
"""Placeholder for a prompt that the user writes."""
ANSWER = "your answer"
"""Placeholder for an answer that the user gives."""
MODEL = "VENDOR:MODEL"
"""Placeholder for a model that the user chooses."""
MODULE = "MODULE"
"""Placeholder for the Python module that has a tool."""
FOLDER = "a new folder"
"""Placeholder for a folder that the user chooses."""

NO_BUDGET = "none"
"""The value of --budget that removes a thread's budget."""

KEY_IN_PROGRAM = "with open_checkpointer(url, key=…) or CLEW_KEY; several are read from a list"
"""How a Python program gives the key of an encrypted store; words for an error message."""
KEY_IN_SHELL = "in the environment, as CLEW_KEY"
"""How a user of the `clew` command gives the key of an encrypted store; words for an error message."""

ALLOW_PLAIN = (
    "open the store with allow_plain=True, or CLEW_ALLOW_PLAIN=1 in the environment, and seal it with "
    "`clew rekey --allow-plain`"
)
"""Words for an error message: how to read, in a store that has a key, data that was written without a key, and how to
encrypt that data."""

KINDS: dict[str, Callable[..., str]] = {}
"""The functions of this module that return a command as advice, by the name of the function."""

_F = TypeVar("_F", bound=Callable[..., str])
_CONTROL = re.compile(f"(?:\t|{UNSEEN})+")
"""Matches control characters, and those that change the direction of writing. They are never printed unescaped."""


def _kind(make: _F) -> _F:
    KINDS[make.__name__] = make
    return make


def quoted(text: str) -> str:
    """Quote a text as one word of a shell command. Control characters become `"$(printf '\\033')"`, so that a terminal that
    shows the command does not obey them."""
    parts, end = [], 0
    for found in _CONTROL.finditer(text):
        if found.start() > end:
            parts.append(shlex.quote(text[end : found.start()]))
        octal = "".join(f"\\{byte:03o}" for byte in found[0].encode("utf-8", "surrogatepass"))
        parts.append(f"\"$(printf '{octal}')\"")
        end = found.end()
    if end < len(text) or not text:
        parts.append(shlex.quote(text[end:]))
    return "".join(parts)


def _clew(command: str, *words: str, options: Sequence[str] = (), store: str = "") -> str:
    """Return the shell command `clew COMMAND WORDS OPTIONS`, everything quoted. If a word begins with a dash, the words
    come last, after `--`. If `store`, the URL of a store, is not empty, the option --store is added."""
    given = [quoted(option) for option in options] + (["--store", quoted(store)] if store else [])
    named = [quoted(word) for word in words]
    if any(word.startswith("-") for word in words):
        return " ".join(["clew", command, *given, "--", *named])
    return " ".join(["clew", command, *named, *given])


@_kind
def start(*, store: str = "") -> str:
    """Return the shell command that starts a new thread with an example task. The thread is made in the store at the
    URL `store`; empty means the default store."""
    return _clew("run", "Plan a trip to Paris.", store=store)


@_kind
def resume(
    thread_id: str,
    prompt: str | None = None,
    *,
    answer: str | None = None,
    max_turns: int | None = None,
    budget: Sequence[str] = (),
    tools: Sequence[str] = (),
    without_tools: bool = False,
    model: str = "",
    provider: str = "",
    workspace: str = "",
    store: str = "",
) -> str:
    """Return the shell command that goes on with a thread, with these values as its argument PROMPT and its options. A
    value that is None, empty or False is left out.

    `answer` is a value of --answer: JSON, or a plain text. `budget` has values of --budget, such as `2usd`, as
    `budget_words` returns them. `tools` has values of --tool, written `module:function`. `store` is the URL of the
    thread's store.
    """
    options: list[str] = []
    options += [] if answer is None else ["--answer", answer]
    options += [] if max_turns is None else ["--max-turns", str(max_turns)]
    options += [word for amount in budget for word in ("--budget", amount)]
    options += [word for tool in tools for word in ("--tool", tool)]
    options += ["--without-tools"] if without_tools else []
    options += ["--provider", provider] if provider else []
    options += ["--model", model] if model else []
    options += ["--workspace", workspace] if workspace else []
    return _clew("resume", *[thread_id, *([] if prompt is None else [prompt])], options=options, store=store)


@_kind
def resume_in_program(
    thread_id: str, prompt: str | None = None, *, answer: Any = None, max_turns: int | None = None
) -> str:
    """Return the Python call that goes on with a thread: `agent.resume(…)` with these values as arguments, as far as
    they are not None. It is for a program that has a variable `agent`: the agent with the thread's tools."""
    given = [] if prompt is None else [repr(prompt)]
    given.append(f"thread_id={thread_id!r}")
    given += [] if answer is None else [f"answer={answer!r}"]
    given += [] if max_turns is None else [f"max_turns={max_turns}"]
    return f"agent.resume({', '.join(given)})"


@_kind
def send(thread_id: str, prompt: str, *, store: str = "") -> str:
    """Return the shell command that posts a prompt to a thread, also while another process works on it. `store` is the
    URL of the thread's store; empty means the default store."""
    return _clew("send", thread_id, prompt, store=store)


@_kind
def enqueue_again(thread_id: str, *, store: str = "") -> str:
    """Return the shell command that puts a thread into the queue of the workers again, with nothing new to say. `store`
    is the URL of the thread's store; empty means the default store."""
    return _clew("enqueue", thread_id, options=["--again"], store=store)


@_kind
def post_in_program(thread_id: str) -> str:
    """Return the Python call that posts a prompt to a thread, also while another process works on it."""
    return f"Thread.post(checkpointer, {thread_id!r}, {PROMPT!r})"


@_kind
def budget_in_program(**limits: float) -> str:
    """Return the Python argument that gives an `Agent` a budget with these limits, such as `budget=Budget(usd=2.0)`. It
    is advised so that a thread may spend more."""
    return f"budget=Budget({', '.join(f'{name}={value!r}' for name, value in limits.items())})"


@_kind
def run_again() -> str:
    """Return the shell command that runs the current program again with the same arguments."""
    return " ".join(map(quoted, sys.orig_argv))


@_kind
def unlock(thread_id: str, *, store: str = "") -> str:
    """Return the shell command that takes a thread's lease from the process that holds it, even if that process is
    alive. `store` is the URL of the thread's store; empty means the default store."""
    return _clew("unlock", thread_id, options=["--force"], store=store)


@_kind
def take_over() -> str:
    """Return the argument `takeover=True`. Given to `Agent` or to `Thread.open`, it takes a thread's lease from the process
    that holds it."""
    return "takeover=True"


@_kind
def list_threads(*, store: str = "") -> str:
    """Return the shell command that lists the threads of the store at the URL `store`; empty means the default store."""
    return _clew("ls", store=store)


@_kind
def list_in_program() -> str:
    """Return the Python call that lists the threads of a store."""
    return "Thread.list(checkpointer)"


@_kind
def list_sessions() -> str:
    """Return the shell command that lists the coding agents' own sessions on this machine."""
    return _clew("sessions")


@_kind
def discover() -> str:
    """Return the Python call that lists the coding agents' own sessions on this machine."""
    return "clew.providers.discover()"


@_kind
def why(thread_id: str, *, store: str = "") -> str:
    """Return the shell command that says what a thread waits for, and what to do. `store` is the URL of the thread's
    store; empty means the default store."""
    return _clew("why", thread_id, store=store)


@_kind
def tail(thread_id: str, *, store: str = "") -> str:
    """Return the shell command that follows a thread while another process works on it. `store` is the URL of the
    thread's store; empty means the default store."""
    return _clew("tail", thread_id, store=store)


@_kind
def show(thread_id: str, *, store: str = "") -> str:
    """Return the shell command that prints a thread's conversation. `store` is the URL of the thread's store; empty
    means the default store."""
    return _clew("show", thread_id, store=store)


@_kind
def files(thread_id: str, turn: int, *, store: str = "") -> str:
    """Return the shell command that copies a thread's files, as they were at the end of turn number `turn`, to a
    folder. The command has a placeholder for the folder, which the user replaces. `store` is the URL of the thread's
    store; empty means the default store."""
    return _clew("files", thread_id, options=["--turn", str(turn), "--out", FOLDER], store=store)


@_kind
def fork(thread_id: str, frame: int, *, store: str = "") -> str:
    """Return the shell command that makes a new thread from an earlier state of a thread: the state after its first
    `frame` frames. `store` is the URL of the thread's store; empty means the default store."""
    return _clew("fork", thread_id, options=["--frame", str(frame)], store=store)


@_kind
def restore_files(thread_id: str, frame: int, folder: str, *, store: str = "") -> str:
    """Return the shell command that restores a thread's files into `folder` as they were after the thread's first
    `frame` frames. `store` is the URL of the thread's store; empty means the default store."""
    return _clew("rewind", thread_id, options=["--files", "--frame", str(frame), "--workspace", folder], store=store)


@_kind
def remove(thread_id: str, *, store: str = "") -> str:
    """Return the shell command that deletes a thread. `store` is the URL of the thread's store; empty means the default
    store."""
    return _clew("rm", thread_id, store=store)


@_kind
def collect(*, store: str = "") -> str:
    """Return the shell command that deletes, from the store at the URL `store`, the blobs that no thread refers to. If
    `store` is empty, the command is for the default store."""
    return _clew("gc", store=store)


@_kind
def repair(thread_id: str = "", *, store: str = "") -> str:
    """Return the shell command that copies the intact part of a damaged thread to a new thread; without an id, it does
    so for all damaged threads. `store` is the URL of the threads' store; empty means the default store."""
    return _clew("verify", *([thread_id] if thread_id else []), options=["--repair"], store=store)


@_kind
def make_private(*paths: str) -> str:
    """Return the shell command that takes all access to the files at these paths from other users of this machine."""
    return " ".join(["chmod", "go=", *map(quoted, paths)])


@_kind
def adopt(session: str) -> str:
    """Return the shell command that stores a session of a coding agent's own program as a thread of Clew. `session` is
    the id of the session, the beginning of that id, or its file."""
    return _clew("adopt", session)


@_kind
def new_token(file: str = "") -> str:
    """Return the shell command that makes a new access token for a server of Clew and adds it to a file of tokens. The
    token is valid in all namespaces. `file` is the path of that file; empty means the usual one."""
    options = ["--namespace", "*", "--scopes", "read,write", *(["--file", file] if file else [])]
    return _clew("tokens", "new", "me", options=options)


@_kind
def list_tokens(file: str = "") -> str:
    """Return the shell command that lists the access tokens of servers in the file at this path. An empty path means
    the usual file."""
    return _clew("tokens", options=["--file", file] if file else [])


@_kind
def install(extra: str) -> str:
    """Return the pip command that installs `extra`, an optional group of dependencies of Clew."""
    return f"pip install {quoted(f'clew[{extra}]')}"


@_kind
def upgrade() -> str:
    """Return the shell command that installs the newest Clew."""
    return "pip install --upgrade clew"


_PACKAGES = {"claude_code": "@anthropic-ai/claude-code", "codex": "@openai/codex", "opencode": "opencode-ai"}


@_kind
def install_program(provider: str, version: str = "") -> str:
    """Return the shell command that installs the program of `provider` with npm. `provider` is `claude_code`, `codex`
    or `opencode`; another name raises `KeyError`. `version` is the number to install, or `latest`, which also replaces
    an older program. If it is empty, npm chooses."""
    return f"npm install -g {_PACKAGES[provider]}{f'@{version}' if version else ''}"


_LOGINS = {"claude_code": "claude auth login", "codex": "codex login", "opencode": "opencode auth login"}


@_kind
def log_in(provider: str) -> str:
    """Return the shell command with which a user logs in to the program of `provider`: `claude_code`, `codex` or
    `opencode`. Raises `KeyError` for another name."""
    return _LOGINS[provider]


_OPENS = {"claude_code": "claude --resume", "codex": "codex resume", "opencode": "opencode --session"}


@_kind
def open_session(provider: str, key: str, folder: str = "") -> str:
    """Return the shell command that opens a session in the program of the coding agent `provider`, in `folder` if
    given. `key` is the id by which that program knows the session. Returns an empty text for a provider that does not
    come with Clew."""
    if provider not in _OPENS:
        return ""
    there = f"cd {quoted(folder)} && " if folder else ""
    return f"{there}{_OPENS[provider]} {quoted(key)}"


_REPAIR = re.compile(r"clew verify .*?--repair", re.DOTALL)


def for_shell(text: str, thread_id: str = "", *, store: str = "") -> str:
    """Return the text of an error, with the Python calls that it advises replaced by shell commands. The commands name
    the thread `thread_id`, and the store at the URL `store`, where they need them."""
    pairs = {
        list_in_program(): list_threads(store=store),
        discover(): list_sessions(),
        take_over(): unlock(thread_id, store=store),
        post_in_program(thread_id): send(thread_id, PROMPT, store=store),
        KEY_IN_PROGRAM: KEY_IN_SHELL,
    }
    for python, shell in pairs.items():
        text = text.replace(python, shell)
    return _REPAIR.sub(lambda found: f"{found[0]} --store {quoted(store)}", text) if store else text


def budget_words(
    *, tokens: float | None = None, usd: float | None = None, seconds: float | None = None
) -> tuple[str, ...]:
    """Return a budget as values of the option --budget, one for each limit that is not None: `50000tokens`, `2usd`,
    `90s`."""
    found = [] if tokens is None else [f"{math.ceil(tokens)}tokens"]
    found += [] if usd is None else [f"{_plain(usd)}usd"]
    found += [] if seconds is None else [f"{_plain(seconds)}s"]
    return tuple(found)


def _plain(value: float) -> str:
    """Write a number without an exponent, because the option --budget does not take exponents."""
    from decimal import Decimal  # 3 ms, which `import clew` is spared

    return format(Decimal(repr(value)).normalize(), "f")
