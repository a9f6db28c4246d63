"""`AgentResponse`, the answer that a `GenericAgent` returns, and `ResumptionReport`, the result of its test whether
sessions can be resumed."""

from __future__ import annotations

from dataclasses import dataclass

from clew.agent.run import ToolUse
from clew.log import Usage

__all__ = ["AgentResponse", "ResumptionReport"]


@dataclass(frozen=True)
class ResumptionReport:
    """The result of testing whether the sessions of one provider can be resumed."""

    provider: str
    session_resumption_tested: bool = False
    """Whether a session was established, so that resuming it could be tried."""
    session_resumption_working: bool = False
    """Whether another agent object that was given nothing but the session's id knew what was said in it."""
    session_id: str | None = None
    problem: str = ""
    """What went wrong; empty if resumption works."""

    def __str__(self) -> str:
        works = "works" if self.session_resumption_working else f"does not work: {self.problem}"
        return f"{self.provider}: resuming a session {works}"


@dataclass(frozen=True)
class AgentResponse:
    """The answer to one prompt, and the session in which it was given."""

    result: str | None = None
    """The agent's last words; None if it was stopped before them."""
    session_id: str | None = None
    """The id under which the provider itself knows the session: that of `claude --resume`, `codex resume` or
    `opencode --session`. For the built-in agent it is the id of the thread."""
    provider: str = ""
    model: str = ""
    thread_id: str = ""
    """The id of the thread in which Clew has recorded the session."""
    status: str = "done"
    """`done`; `interrupted` after a timeout, or when turns or the budget were used up; or `waiting` for a person."""
    reason: str = ""
    usage: Usage | None = None
    cost: float | None = None
    """The cost of this prompt in dollars; None if it is not known."""
    duration: float = 0.0
    tool_uses: tuple[ToolUse, ...] = ()
    resumption: ResumptionReport | None = None
    """The report of the self-test; None unless it was asked for with `test_session_resumption=True`."""
