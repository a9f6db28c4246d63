"""The same run as the OpenAI Agents SDK's plugin for Temporal makes it: each model call and each tool call is an activity.

Imported only if `openai-agents` is installed.
"""

from __future__ import annotations

import json
from datetime import timedelta

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from agents import Agent, Runner
    from openai.types.responses import ResponseFunctionToolCall
    from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
    from temporalio.openai_agents.testing import ResponseBuilders, TestModel, TestModelProvider
    from temporalio.openai_agents.workflow import activity_as_tool

    from bench.temporal_script import REPORT

__all__ = ["PeerRun", "Script", "look_up", "peer_plugin"]

_MINUTE = timedelta(minutes=1)


@activity.defn
async def look_up(place: int) -> str:
    """Look up a report."""
    return REPORT


@workflow.defn
class PeerRun:
    """One run of an agent."""

    @workflow.run
    async def run(self, turns: int) -> str:
        tools = [activity_as_tool(look_up, start_to_close_timeout=_MINUTE)]
        agent = Agent(name="bench", model="scripted", tools=tools)
        result = await Runner.run(agent, "Read all reports.", max_turns=turns + 2)
        return str(result.final_output)


class Script:
    """Says what the model answers: so many calls of the tool in turn, then a text."""

    def __init__(self) -> None:
        self.left = 0

    def answer(self) -> object:
        self.left -= 1
        if self.left < 0:
            return ResponseBuilders.output_message("All is read.")
        said = json.dumps({"place": self.left})
        called = ResponseFunctionToolCall(
            arguments=said, call_id=f"call-{self.left}", name="look_up", type="function_call"
        )
        return ResponseBuilders.model_response(called)


def peer_plugin(script: Script) -> OpenAIAgentsPlugin:
    model = TestModel(script.answer)  # type: ignore[arg-type, unused-ignore]
    parameters = ModelActivityParameters(start_to_close_timeout=_MINUTE)
    return OpenAIAgentsPlugin(model_params=parameters, model_provider=TestModelProvider(model))
