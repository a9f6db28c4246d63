"""A session of caw (a library that wraps coding agents): a conversation with a coding agent over several prompts, which
any process can go on with."""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import msgspec

from clew import sync
from clew.agent import RunResult
from clew.compat.caw.display import Display
from clew.compat.caw.files import SessionFile
from clew.compat.caw.trajectory import Trajectory, Turn, as_trajectory, as_turn
from clew.compat.importers.caw import CawSource
from clew.errors import ClewError, Corrupt, ProviderLimited, ThreadNotFound, UsageError

__all__ = ["Session"]

log = logging.getLogger("clew.compat.caw")


class Session:
    """A conversation with Claude Code, Codex or opencode. Made by `Agent.start_session` and `Agent.resume_session`.

    Each prompt starts the coding agent's program, which ends when the prompt is answered: between prompts nothing runs.
    If the agent has a `data_dir`, a folder for its data, everything is recorded there as it happens, so a process that
    is killed loses nothing that was recorded.
    """

    def __init__(self, settings: dict[str, Any], file: SessionFile | None, session_id: str, handle: str = "") -> None:
        """Begin a new session with the id `session_id` or, if `handle` is given, go on with the session that the handle
        names. `settings` are the arguments for `clew.sync.Agent`, without a store. If they have no `system_prompt`, a
        session that goes on keeps its own. `file` is the session's file in the agent's data_dir, and names the
        session's store; if it is None, the session is kept only in this object."""
        self._session_id = session_id
        self._file = file
        self._display = Display()
        self._closing = ExitStack()
        self._ended = False
        self._asked = bool(handle)
        """Whether a prompt is on record, so that a handle leads somewhere."""
        is_bare = bool(handle) and not handle.lstrip().startswith("{")
        if is_bare and file is not None and not (file.exists or file.store.exists()):
            raise _not_found(session_id, file)
        try:
            store = self._open_store()
            if handle and store is not None and file is not None:
                _bring(file, store, session_id)
                settings = {"system_prompt": _prompt_on_record(store, session_id), **settings}
            self._about = {"system_prompt": settings.get("system_prompt", "")}
            self._agent = self._closing.enter_context(sync.Agent(**settings, checkpointer=store))
            self._began = (file.text("created_at") if file else "") or datetime.now(UTC).isoformat()
            if handle:
                self._session = self._agent.resume_session(handle)
            else:
                self._session = self._agent.start_session(thread_id=session_id)
            self._trajectory = self._read() if handle else self._empty(session_id)
            if is_bare and file is not None and not self._trajectory.turns:
                raise _not_found(session_id, file)
        except BaseException:
            self._closing.close()
            raise
        self._display.began(self._session.provider, self._trajectory.model, session_id)

    def _open_store(self) -> sync.SQLiteCheckpointer | None:
        if self._file is None:
            return None
        return self._closing.enter_context(sync.SQLiteCheckpointer(self._file.store))

    @property
    def session_id(self) -> str:
        return self._session_id

    @property
    def resume_handle(self) -> str:
        """A string from which any process can go on with the session. Keep it as you would a password.

        Raises `UsageError` before the first prompt of a new session.
        """
        if not self._asked:
            raise UsageError(
                "this session has no handle yet: the coding agent knows the conversation once it has had a prompt. Send "
                "one first: session.send(…)"
            )
        return self._handle if self._ended else self._session.resume_handle

    @property
    def trajectory(self) -> Trajectory:
        """The record of what was done in the session so far. If the agent has no data_dir (a folder for its data), the
        record of a resumed session begins empty."""
        return self._trajectory

    def send(self, message: str) -> Turn:
        """Ask a prompt, wait for the answer, and return the turn. Its `result` is the answer as text.

        If the provider fails, its error is raised, and never returned as an answer: `ProviderLimited` if the account
        has reached a limit, `NotLoggedIn`, `ProviderMissing` and others. Raises `UsageError` if the session has ended.
        """
        if self._ended:
            raise UsageError(
                "this session has ended. To go on with it: agent.resume_session(handle), with the resume_handle that it had"
            )
        self._display.asked(message)
        try:
            turn = as_turn(self._ask(message))
        except BaseException as error:
            if isinstance(error, ProviderLimited):
                self._display.limited(error)
            with suppress(ClewError):
                self._note()
            raise
        self._note()
        self._display.answered(turn)
        return turn

    def end(self) -> Trajectory:
        """End the session and return its trajectory, the record of its turns. The handle stays valid: any process can
        go on with the session. If the session has ended already, only return the trajectory."""
        if self._ended:
            return self._trajectory
        if self._asked:
            self._handle = self._session.resume_handle
            self._trajectory = msgspec.structs.replace(self._trajectory, completed_at=datetime.now(UTC).isoformat())
            self._show()
        self._ended = True
        self._closing.close()
        self._display.ended(self._trajectory.num_turns, self._trajectory.usage)
        return self._trajectory

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _ask(self, message: str) -> RunResult:
        if self._display.mode in ("off", "result"):
            return self._session.send(message)
        run = self._session.stream(message)
        for event in run:
            self._display.take(event)
        return run.result

    def _note(self) -> None:
        """Update the trajectory, which is the record of what was done in the session so far, and write it to the
        session's file."""
        self._trajectory = self._read()
        self._asked = self._asked or bool(self._trajectory.turns)
        self._show()

    def _read(self) -> Trajectory:
        found = self._session.trajectory()
        return as_trajectory(found, self._session.provider, created_at=self._began, **self._about)

    def _empty(self, session_id: str) -> Trajectory:
        return Trajectory(agent=self._session.provider, session_id=session_id, created_at=self._began, **self._about)

    def _show(self) -> None:
        """Write the trajectory, the record of the session, to the session's file. A failure is only logged: the store
        has everything, and the next prompt tries again."""
        if self._file is None or not self._trajectory.turns:
            return
        try:
            self._file.write(self._trajectory, _key_in(self._session.resume_handle))
        except ClewError as error:
            log.warning("session %r: its file could not be written: %s", self.session_id, error)


def _bring(file: SessionFile, store: sync.SQLiteCheckpointer, session_id: str) -> None:
    """Copy the session `session_id` into `store` if the store does not have it but its file exists, because caw itself
    made the session. `file` is that file, which is not changed. If it is damaged, nothing is copied and a warning is
    logged: the session then goes on without its history."""
    if not file.exists or store.head(session_id) is not None:
        return
    with CawSource.open(file.folder) as source:
        try:
            found = source.read(file.folder.name)
        except Corrupt as error:
            log.warning("session %r goes on without its history: %s", session_id, error)
            return
    with sync.Thread.open(store, session_id) as thread:
        if not thread.checkpoint.history:
            thread.append(*found.entries)
    for loss in found.losses:
        log.warning("session %r, which caw made: left behind: %s", session_id, loss)


def _prompt_on_record(store: sync.SQLiteCheckpointer, session_id: str) -> str:
    """Return the system prompt with which the session was last asked; empty if the store does not have the session."""
    return "" if store.head(session_id) is None else sync.Thread.load(store, session_id).system_prompt


def _not_found(session_id: str, file: SessionFile) -> ThreadNotFound:
    where = f"the data_dir {str(file.store.parent)!r}"
    return ThreadNotFound(session_id, where, "Give the whole handle, or the data_dir that the session was made with")


def _key_in(handle: str) -> str:
    return str(msgspec.json.decode(handle)["resume_key"])
