"""`AgentConfig`: the settings that an agent has in Locus (another agent library) and in Clew. For each other setting of
Locus there is an error message that says what Clew has instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clew.agent import Budget
from clew.checkpointers import Checkpointer
from clew.compat.locus.memory.checkpointer import BaseCheckpointer
from clew.compat.locus.refusal import refuse
from clew.compat.locus.tools import checked_tools
from clew.errors import InvalidInput
from clew.models import Model
from clew.tools import AnyTool

__all__ = ["AgentConfig"]

_SUMMED_UP = "a conversation that no longer fits is summed up by itself: clew.Agent(compact_at=…, on_overflow=…)"
_INSTEAD = {
    "reflexion": "Clew does not rate its own answers; let a tool or another agent among the tools check them",
    "grounding": "Clew does not rate its own answers; let a tool or another agent among the tools check them",
    "gsar": "Clew does not rate its own answers; let a tool or another agent among the tools check them",
    "planning": "ask for a plan in system_prompt=",
    "conversation_manager": _SUMMED_UP,
    "compaction": _SUMMED_UP,
    "auxiliary_model": "the agent's own model sums up conversations. For side work, add an agent to tools=",
    "hooks": "read the events of the run, or wrap the function of a tool",
    "plugins": "give their tools as tools=",
    "callback_handler": "read the events: async for event in agent.run(…)",
    "skills": "say it in system_prompt=",
    "playbook": "say it in system_prompt=",
    "termination": "max_iterations=, token_budget=, max_cost_usd= and time_budget_seconds= end runs; clew.Agent(finish=…) "
    "ends one by a tool",
    "terminal_tools": "clew.Agent(finish=tool) ends a run by a tool",
    "completion_mode": "clew.Agent(finish=True) lets a run end only by a tool",
    "verify_tools": "say it in system_prompt=, or let the tool verify what it wrote",
    "verification_tools": "say it in system_prompt=, or let the tool verify what it wrote",
    "require_verification": "say it in system_prompt=, or let the tool verify what it wrote",
    "tool_loop_threshold": "max_iterations= and the budgets end a run that goes round in circles",
    "tool_execution": "calls of one response run side by side; a tool that cannot bear that takes a lock of its own",
    "max_concurrency": "calls of one response run side by side; a tool that cannot bear that takes a semaphore of its own",
    "max_tool_result_length": "results are kept whole. Cut them in the tool",
    "tool_result_store": "large results are kept as blobs of the same store by themselves",
    "model_retry": "the model retries: give a model object, clew.models.resolve_model(name, max_retries=…)",
    "mcp_servers": "give the tools of the servers as tools=: clew.tools.mcp_tools",
    "output_schema_retries": "the model corrects its answer until it fits, within max_iterations=",
    "output_schema_strict": "the schema is sent to vendors that can keep to it",
    "output_key": "the answer is in the thread: await checkpointer.load(thread_id)",
    "metadata": "give values with each run: agent.run(prompt, metadata=…); tools read them as ctx.state",
}


class AgentConfig:
    """The settings of an agent, by the names that they have in Locus. A setting of Locus that Clew does not have raises
    `InvalidInput`, which says what Clew has instead."""

    def __init__(
        self,
        *,
        model: str | Model,
        tools: list[AnyTool | Callable[..., Any] | Any] | None = None,
        system_prompt: str | None = None,
        max_iterations: int = 20,
        token_budget: int | None = None,
        max_cost_usd: float | None = None,
        time_budget_seconds: float | None = None,
        checkpointer: BaseCheckpointer | Checkpointer | str | None = None,
        checkpoint_every_n_iterations: int = 0,
        output_schema: Any = None,
        agent_id: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        context_window: int | None = None,
        **others: Any,
    ) -> None:
        """`max_iterations` limits the responses of the model to one prompt; `token_budget` and `max_cost_usd` limit
        what a thread may spend. `output_schema` is the type of the final answer, and `agent_id` the agent's name. The
        items of `model_kwargs` are added to each request to the model. `context_window` is the size of the model's
        context window in tokens, for a model that Clew does not know.

        `checkpointer` is a checkpointer of `clew.compat.locus.memory.backends`, a store of Clew, or the URL of one.
        Without one, threads are kept as long as the agent lives.

        Each iteration, which is a response of the model with its tool calls, is on record before the next one begins.
        So `checkpoint_every_n_iterations` has no effect: its value is only checked. After `time_budget_seconds` a run
        is interrupted, whatever it is doing, and can be resumed. If `temperature` or `max_tokens` is None, the vendor's
        default applies. Any argument in `others` raises `InvalidInput`.
        """
        refuse("Agent", others, _KNOWN, _INSTEAD)
        if isinstance(model, str) and ":" not in model:
            raise InvalidInput(f"model={model!r}: write the vendor before the name, such as openai:{model}")
        every = checkpoint_every_n_iterations
        if not isinstance(every, int) or isinstance(every, bool) or every < 0:
            raise InvalidInput(f"checkpoint_every_n_iterations is a whole number, 0 or more, not {every!r}")
        if callable(system_prompt):
            raise InvalidInput(
                "system_prompt is a text: make one agent for each prompt, or put what changes into the prompt"
            )
        if not (checkpointer is None or isinstance(checkpointer, BaseCheckpointer | Checkpointer | str)):
            raise InvalidInput(
                f"checkpointer={checkpointer!r} is no checkpointer of Clew. Take one of clew.compat.locus.memory.backends, "
                "or a URL such as 'sqlite:///clew.db'."
            )
        self.model = model
        self.tools = checked_tools([] if tools is None else list(tools) if isinstance(tools, list | tuple) else [tools])
        self.system_prompt = system_prompt or ""
        self.max_iterations = max_iterations
        self.token_budget = token_budget
        self.max_cost_usd = max_cost_usd
        self.time_budget_seconds = time_budget_seconds
        self.checkpointer = checkpointer
        self.checkpoint_every_n_iterations = every
        self.output_schema = output_schema
        self.agent_id = agent_id
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.model_kwargs = dict(model_kwargs or {})
        self.context_window = context_window

    def settings(self) -> dict[str, Any]:
        """Return these settings as keyword arguments of `clew.Agent`, except the model, the tools and the store."""
        options = dict(self.model_kwargs)
        if self.temperature is not None:
            options["temperature"] = self.temperature
        return {
            "name": self.agent_id or "",
            "system_prompt": self.system_prompt,
            "max_turns": self.max_iterations,
            "budget": Budget(tokens=self.token_budget, usd=self.max_cost_usd),
            "output": self.output_schema,
            "max_tokens": self.max_tokens,
            "options": options or None,
            "context_window": self.context_window,
        }


_KNOWN = [
    "model",
    "tools",
    "system_prompt",
    "max_iterations",
    "token_budget",
    "max_cost_usd",
    "time_budget_seconds",
    "checkpointer",
    "checkpoint_every_n_iterations",
    "output_schema",
    "agent_id",
    "temperature",
    "max_tokens",
    "model_kwargs",
    "context_window",
]
