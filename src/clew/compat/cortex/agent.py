"""`GenericAgent`, which asks a provider one prompt after another and remembers its last session."""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from clew.agent import RunResult
from clew.checkpointers import Checkpointer as AsyncCheckpointer
from clew.checkpointers import Head, HeadQuery
from clew.compat.cortex.config import BUILT_IN, AgentConfig
from clew.compat.cortex.response import AgentResponse, ResumptionReport
from clew.compat.importers.transfer import AS, FROM, KEY
from clew.errors import ClewError, InvalidInput, ProviderError, UsageError
from clew.log import Described
from clew.providers import Place, discover, read_handle, write_handle
from clew.sync import Agent, Checkpointer, FileCheckpointer, MemoryCheckpointer, Session, Thread, open_checkpointer

__all__ = ["GenericAgent", "check_session_resumption", "get_claude_session_id"]

log = logging.getLogger("clew.compat.cortex")

_TAG = "cortex:"
"""Prefix of the tags of a thread by which `resume_from` finds it. After it comes a provider's own id of the session. There
are several if the session had to be written anew: each of its ids stands for the same conversation."""
_NAMES = ("Alice", "Bruno", "Chiara", "Dmitri", "Esther", "Femi", "Greta", "Hamid")


class GenericAgent:
    """An agent that sends prompts to a provider: with `run` the prompt of its config, and with `resume` further prompts
    in the same session.

        agent = GenericAgent(AgentConfig("My name is Alice.", model_provider="claude"))
        response = agent.run()
        print(agent.resume("What is my name?").result, response.session_id)

    All calls block until they are done. Everything is recorded as it happens, so a session can be resumed after any
    stop. Any `GenericAgent` that is given the session's id can do that: `AgentConfig(…, resume_from=session_id)`.
    """

    def __init__(self, config: AgentConfig) -> None:
        if not isinstance(config, AgentConfig):
            raise InvalidInput(f"GenericAgent takes an AgentConfig, and not {config!r}.")
        config.check()
        self.config = config
        self._last_session_id: str | None = None
        self._opened: Checkpointer | None = None

    @property
    def session_id(self) -> str | None:
        """The id of the session that the method `resume` continues; None if there is none yet."""
        return self._last_session_id or self.config.resume_from

    def run(self) -> AgentResponse:
        """Ask the `user_prompt` of the config, in the session that `resume_from` names or else in a new one, and return
        the answer.

        Raises `SessionNotFound` or `ThreadNotFound` if `resume_from` names a session that does not exist. Errors of the
        provider are raised too, and never returned as an answer.
        """
        config = self.config
        response = self._ask(config.user_prompt, config.resume_from, config.max_turns, config.timeout)
        if not config.test_session_resumption:
            return response
        return dataclasses.replace(response, resumption=check_session_resumption(config))

    def resume(self, user_prompt: str, max_turns: int | None = None, timeout: float | None = None) -> AgentResponse:
        """Ask a prompt in the session that this agent used last, or else in the one that the config names as
        `resume_from`, and return the answer. `max_turns` and `timeout` (in seconds) replace those of the config for
        this prompt; all other settings stay.

        Raises `UsageError` if there is no session yet, and `NotImplementedError` if the provider cannot resume one.
        """
        if self.session_id is None:
            raise UsageError(
                "this agent has no session to resume yet. Call run() first, or give the id of a session: "
                "AgentConfig(…, resume_from=…)."
            )
        config = self.config
        turns = config.max_turns if max_turns is None else max_turns
        return self._ask(user_prompt, self.session_id, turns, config.timeout if timeout is None else timeout)

    def close(self) -> None:
        """Close the store, if this agent has opened one. Without this call, the store is closed at the end of the
        process."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _ask(self, prompt: str, session_id: str | None, max_turns: int | None, timeout: float | None) -> AgentResponse:
        self.config.check()
        self.config.check_turns(max_turns)
        if not isinstance(prompt, str) or not prompt.strip():
            raise InvalidInput(
                f"user_prompt is a text that is not empty, and not {prompt!r}. Give one: AgentConfig('…'), or resume('…')."
            )
        if session_id is not None and (not isinstance(session_id, str) or not session_id.strip()):
            raise InvalidInput(f"resume_from is the session_id of an earlier response, and not {session_id!r}.")
        ask = self._ask_model if self.config.provider == BUILT_IN else self._ask_program
        return ask(prompt, session_id, max_turns, timeout)

    def _ask_model(
        self, prompt: str, session_id: str | None, max_turns: int | None, timeout: float | None
    ) -> AgentResponse:
        """Ask a prompt with Clew's built-in agent, which calls a model's API, and return the answer. `session_id` is
        the id of the thread to go on with; None begins a new thread. `timeout` is in seconds. Raises
        `NotImplementedError` if the config has no store and `session_id` is not the last session of this object."""
        config = self.config
        if session_id is not None and config.checkpointer is None and session_id != self._last_session_id:
            raise NotImplementedError(
                f"{config.model}: a model's API keeps no sessions, and with checkpointer=None nothing else keeps them, so "
                f"session {session_id!r} cannot be resumed. Give the store that has it: AgentConfig(…, checkpointer=…)."
            )
        settings: dict[str, Any] = {} if config.workspace is None else {"workspace": config.workspace}
        store = self._store()
        with Agent(
            config.model,
            name=config.name,
            system_prompt=config.system_prompt,
            tools=config.tools,
            budget=config.budget,
            checkpointer=store,
            **settings,
        ) as agent:
            if session_id is not None:
                agent.check_thread(session_id)
            self._last_session_id = session_id or agent.new_id()
            result = agent.run(prompt, thread_id=self._last_session_id, max_turns=max_turns, timeout=timeout)
        return _response(result, self._last_session_id)

    def _ask_program(
        self, prompt: str, session_id: str | None, max_turns: int | None, timeout: float | None
    ) -> AgentResponse:
        config = self.config
        turns = [] if max_turns is None else ["--max-turns", str(max_turns)]
        store = self._store()
        with Agent(
            cast(str, config.model),
            provider=config.provider,
            name=config.name,
            system_prompt=config.system_prompt,
            cwd=config.cwd,
            env=config.env,
            permissions=config.permissions,
            workspace=config.workspace,
            budget=config.budget,
            checkpointer=store,
            options=[*config.options, *turns],
        ) as agent:
            if session_id is None:
                session = agent.start_session()
                session_id = read_handle(session.resume_handle).resume_key
                _note(store, session.thread_id, config.provider, session_id)
            else:
                session = self._session(agent, store, session_id)
            before, self._last_session_id = self._last_session_id, session_id
            try:
                result = session.send(prompt, timeout=timeout)
            except ProviderError as error:
                if _discard_if_empty(store, session.thread_id):
                    self._last_session_id = before
                if max_turns is None or not _is_out_of_turns(error):
                    raise
                last = session.trajectory().exchanges[-1]
                return _response(last, self._key(store, session), "interrupted", f"max_turns: {max_turns}")
            return _response(result, self._key(store, session))

    def _session(self, agent: Agent, store: Checkpointer, session_id: str) -> Session:
        """Return the session with the provider's own id `session_id`, which `agent` is to continue. If the store has a
        thread of this session, made by an agent or by `clew import --from native`, that thread is continued. Otherwise
        the session that the provider's program keeps on this machine is continued."""
        provider = self.config.provider
        found = list(Thread.list(store, HeadQuery(tags={f"{_TAG}{session_id}": provider})))
        if not found:
            imported = HeadQuery(tags={FROM: "native", KEY: f"{provider}:{session_id}"})
            found = [head for head in Thread.list(store, imported) if head.tags.get(AS) == head.thread_id]
        thread = min(found, key=lambda head: (head.parent is not None, head.created_at), default=None)
        if thread is not None:  # and not a fork of it, which has the same tags until it is used
            return agent.resume_session(thread.thread_id)
        return agent.resume_session(write_handle(provider, session_id, session_id))

    def _key(self, store: Checkpointer, session: Session) -> str:
        """Return the provider's own id of the session. Also make it the session that the method `resume` continues, and
        tag the session's thread in `store` with the id, so that the thread can be found by the id. The id is a new one
        if the session had to be written anew, for example on another machine."""
        key = read_handle(session.resume_handle).resume_key
        _note(store, session.thread_id, self.config.provider, key)
        self._last_session_id = key
        return key

    def _store(self) -> Checkpointer:
        """Return the store in which this agent records its sessions: the one in the config, or one that is opened at
        the first call."""
        config = self.config
        if isinstance(config.checkpointer, AsyncCheckpointer | Checkpointer):
            return cast(Checkpointer, config.checkpointer)
        if self._opened is None:
            self._opened = _open(config)
        return self._opened


def _open(config: AgentConfig) -> Checkpointer:
    if config.data_dir is not None:
        if config.checkpointer is not ...:
            raise InvalidInput(
                "data_dir= is a folder to keep everything in, and checkpointer= a store: give one of them."
            )
        return FileCheckpointer(os.path.abspath(config.data_dir))
    if config.checkpointer is None:
        return MemoryCheckpointer()
    if config.checkpointer is not ... and not isinstance(config.checkpointer, str):
        raise InvalidInput(f"checkpointer={config.checkpointer!r} is not a store. Give one, its URL, or None.")
    return open_checkpointer(None if config.checkpointer is ... else config.checkpointer)


def _note(store: Checkpointer, thread_id: str, provider: str, key: str) -> None:
    """Give the thread of a session a tag, so that the thread can be found by `key`, the provider's own id of the
    session. The tag has `key` in its name, and `provider`, the provider's name, as its value. Does nothing if the
    thread has the tag already."""
    head = _head(store, thread_id)
    if head is None or f"{_TAG}{key}" not in head.tags:
        with Thread.open(store, thread_id) as thread:
            thread.append(Described(tags={**thread.checkpoint.tags, f"{_TAG}{key}": provider}))


def _discard_if_empty(store: Checkpointer, thread_id: str) -> bool:
    """Delete the thread if no prompt is recorded in it, for example because its provider is not installed. Returns True
    if there is no such thread now, else False."""
    if _head(store, thread_id) is None:
        return True
    if Thread.load(store, thread_id).history:
        return False
    with Thread.open(store, thread_id) as thread:
        thread.delete()
    return True


def _head(store: Checkpointer, thread_id: str) -> Head | None:
    """Return the head of a thread; None if there is no such thread. `store` may be a store of `clew.sync`, or one of
    `clew`, whose methods are async."""
    found = Thread.list(store, HeadQuery(prefix=thread_id))
    return next((head for head in found if head.thread_id == thread_id), None)


def _response(result: RunResult, session_id: str, status: str = "", reason: str = "") -> AgentResponse:
    return AgentResponse(
        result=None if result.output is None else str(result.output),
        session_id=session_id,
        provider=result.provider,
        model=result.model,
        thread_id=result.thread_id,
        status=status or result.status,
        reason=reason or result.reason,
        usage=result.usage,
        cost=result.cost,
        duration=result.duration,
        tool_uses=result.tool_uses,
    )


def _is_out_of_turns(error: ProviderError) -> bool:
    """Return whether the error says that Claude Code has stopped at the limit of turns that its option `--max-turns`
    sets."""
    return "max_turns" in error.reason or "maximum number of turns" in error.reason


def check_session_resumption(config: AgentConfig) -> ResumptionReport:
    """Test whether sessions of the provider in `config` can be resumed, and return a report. The test asks two prompts,
    which cost money.

    One agent is told a name and a number. A second agent, which is given only the id of the first agent's session, is
    asked for them. Errors of the provider are put into the report and not raised.
    """
    name, number = secrets.choice(_NAMES), str(secrets.randbelow(900_000) + 100_000)
    told = config.changed(
        user_prompt=f"My name is {name} and my number is {number}. Remember both. Answer only: OK.",
        resume_from=None,
        test_session_resumption=False,
    )
    first = GenericAgent(told)
    second = None
    session_id = None
    try:
        session_id = first.run().session_id
        second = GenericAgent(told.changed(resume_from=session_id))
        said = second.resume("What is my name, and what is my number?").result or ""
    except (ClewError, NotImplementedError) as error:
        return _logged(
            ResumptionReport(
                config.provider,
                session_resumption_tested=session_id is not None,
                session_id=session_id,
                problem=str(error),
            )
        )
    finally:
        for agent in (first, second):
            if agent is not None:
                agent.close()
    missing = [what for what, value in (("name", name), ("number", number)) if value not in said]
    problem = f"the resumed session did not know the {' and the '.join(missing)}" if missing else ""
    return _logged(ResumptionReport(config.provider, True, not missing, session_id, problem))


def _logged(report: ResumptionReport) -> ResumptionReport:
    log.info("%s: session_resumption_tested: %s", report.provider, str(report.session_resumption_tested).lower())
    log.info("%s: session_resumption_working: %s", report.provider, str(report.session_resumption_working).lower())
    if report.problem:
        log.warning("%s", report)
    return report


def get_claude_session_id(
    start_time: datetime | float,
    cwd: str | os.PathLike[str] | None = None,
    *,
    env: Mapping[str, str] | None = None,
) -> str | None:
    """Return the id of the session of Claude Code that was used last in a folder, if that was at or after `start_time`;
    otherwise None. The folder is `cwd`, by default the current one. `start_time` is a datetime, or a number of seconds
    since 1970. `env` are the environment variables that say where Claude Code keeps its sessions, by default those of
    this process.

    This is for sessions that were begun without Clew. The response of a `GenericAgent` has the id of its session
    already.
    """
    place = Place(Path(os.path.abspath(cwd or Path.cwd())), dict(os.environ if env is None else env))
    since = start_time.astimezone(UTC) if isinstance(start_time, datetime) else datetime.fromtimestamp(start_time, UTC)
    for session in discover("claude_code", cwd=place.cwd, place=place):
        if session.updated_at is not None and session.updated_at >= since:
            return session.key
    return None
