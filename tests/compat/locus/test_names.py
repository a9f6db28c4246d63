"""The names, parameters and attributes that Locus' page on persistent conversations shows, and those that its users
know from there."""

from __future__ import annotations

import importlib
import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from clew.compat import locus
from clew.compat.locus import Agent, AgentConfig, AgentState, TerminateEvent, ThinkEvent, tool
from clew.compat.locus.memory import BaseCheckpointer, backends
from clew.compat.locus.memory.backends import FileCheckpointer, HTTPCheckpointer, OCIBucketBackend
from clew.errors import InvalidInput
from clew.testing import ScriptedModel

PARAMETERS: list[tuple[Any, list[str]]] = [
    (Agent, ["model", "tools", "system_prompt", "max_iterations", "checkpointer", "config"]),
    (AgentConfig, ["model", "tools", "checkpointer", "checkpoint_every_n_iterations", "max_iterations", "agent_id"]),
    (Agent.run, ["prompt", "thread_id", "metadata"]),
    (Agent.resume, ["response", "thread_id"]),
    (backends.MemoryCheckpointer, []),
    (FileCheckpointer, ["base_dir"]),
    (HTTPCheckpointer, ["base_url", "headers", "auth", "timeout"]),
    (OCIBucketBackend, ["bucket_name", "namespace", "prefix", "profile_name", "auth_type", "region"]),
    (backends.redis_checkpointer, ["url", "prefix", "ttl_seconds", "db"]),
    (backends.postgresql_checkpointer, ["host", "port", "database", "user", "password", "dsn"]),
    (backends.mysql_checkpointer, ["host", "port", "database", "user", "password", "dsn"]),
    (backends.sqlite_checkpointer, ["path"]),
    (backends.opensearch_checkpointer, ["hosts", "index_name", "username", "password", "use_ssl", "verify_certs"]),
    (backends.oracle_checkpointer, ["dsn", "user", "password", "wallet_location"]),
    (backends.oci_bucket_checkpointer, ["bucket_name", "namespace", "prefix"]),
    (backends.s3_checkpointer, ["bucket", "prefix"]),
    (BaseCheckpointer.save, ["state", "thread_id", "checkpoint_id", "metadata"]),
    (BaseCheckpointer.load, ["thread_id", "checkpoint_id"]),
    (BaseCheckpointer.list_checkpoints, ["thread_id", "limit"]),
    (BaseCheckpointer.delete, ["thread_id", "checkpoint_id"]),
    (BaseCheckpointer.exists, ["thread_id", "checkpoint_id"]),
    (BaseCheckpointer.search, ["query", "limit"]),
    (BaseCheckpointer.query_by_metadata, ["key", "value", "limit"]),
    (BaseCheckpointer.get_metadata, ["thread_id", "checkpoint_id"]),
    (BaseCheckpointer.vacuum, ["older_than_days"]),
    (BaseCheckpointer.copy_thread, ["source_thread_id", "dest_thread_id"]),
    (BaseCheckpointer.list_threads, ["limit", "pattern"]),
    (BaseCheckpointer.list_with_metadata, ["limit"]),
    (BaseCheckpointer.close, []),
]


@pytest.mark.parametrize(("what", "parameters"), PARAMETERS, ids=lambda value: getattr(value, "__qualname__", ""))
def test_everything_takes_the_parameters_of_locus(what: Any, parameters: list[str]) -> None:
    taken = list(inspect.signature(what).parameters)
    assert [name for name in parameters if name not in taken] == []


@pytest.mark.parametrize(
    ("made", "attributes"),
    [
        (
            AgentState(),
            [
                *[
                    "run_id",
                    "agent_id",
                    "messages",
                    "iteration",
                    "max_iterations",
                    "tool_executions",
                    "reasoning_steps",
                ],
                *["confidence", "confidence_threshold", "confidence_history", "tool_history", "terminal_tools"],
                *["total_tokens_used", "prompt_tokens_used", "completion_tokens_used", "token_budget", "errors"],
                *["completion_mode", "provider_state", "metadata", "started_at", "updated_at"],
                *["with_message", "with_messages", "with_metadata", "to_checkpoint", "from_checkpoint", "total_tokens"],
            ],
        ),
        (ThinkEvent(iteration=1), ["event_type", "timestamp", "iteration", "reasoning", "tool_calls"]),
        (
            TerminateEvent(reason="complete", iterations_used=1),
            [
                *["event_type", "timestamp", "reason", "iterations_used", "final_confidence", "total_tool_calls"],
                *["final_message", "usage", "cost_usd", "error"],
            ],
        ),
        (
            backends.MemoryCheckpointer().capabilities,
            [
                *["search", "metadata_query", "vacuum", "branching", "ttl", "list_threads", "list_with_metadata"],
                "persistent_checkpoint_ids",
            ],
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_everything_has_the_attributes_of_locus(made: Any, attributes: list[str]) -> None:
    assert [name for name in attributes if not hasattr(made, name)] == []


def test_the_modules_have_the_names_that_a_changed_import_asks_for() -> None:
    for module in ("clew.compat.locus", "clew.compat.locus.memory", "clew.compat.locus.memory.backends"):
        found = importlib.import_module(module)
        assert [name for name in found.__all__ if not hasattr(found, name)] == []
    assert {"Agent", "AgentConfig", "AgentState", "tool"} <= set(locus.__all__)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"reflexion": True}, "reflexion= is not taken: Clew does not rate its own answers"),
        ({"conversation_manager": object()}, "summed up by itself"),
        ({"hooks": []}, "hooks= is not taken: read the events"),
        ({"terminal_tools": {"done"}}, "finish=tool"),
        ({"checkpoint_every": 5}, "checkpoint_every= is not known; did you mean checkpoint_every_n_iterations=?"),
        ({"checkpoint_every_n_iterations": -1}, "0 or more"),
        ({"checkpointer": object()}, "no checkpointer of Clew"),
        ({"system_prompt": lambda context: ""}, "system_prompt is a text"),
        ({"max_iterations": 0}, "max_turns"),
        ({"config": AgentConfig(model=ScriptedModel([]))}, "config= holds all settings"),
    ],
)
def test_a_setting_that_is_not_there_is_an_error_that_says_what_is(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Agent(**{"model": ScriptedModel([]), **settings})
    assert says in str(caught.value)


def test_a_checkpointer_with_its_own_save_is_refused_and_not_passed_over() -> None:
    with pytest.raises(InvalidInput, match=r"Mine has save of its own.* Write a clew.checkpointers.Checkpointer"):

        class Mine(BaseCheckpointer):
            async def save(self, *given: Any, **more: Any) -> str:
                return "kept elsewhere"


def test_an_agent_needs_a_model_with_its_vendor() -> None:
    with pytest.raises(InvalidInput, match="needs a model"):
        Agent()
    with pytest.raises(InvalidInput, match="openai:gpt-5"):
        Agent(model="gpt-5")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FileCheckpointer("c", pretty=True), "clew show THREAD --json"),
        (lambda: FileCheckpointer("c", folder="d"), "folder= is not known"),
        (lambda: HTTPCheckpointer("http://127.0.0.1:1", auth=("me", "secret")), "Bearer TOKEN"),
        (lambda: HTTPCheckpointer("http://127.0.0.1:1", headers={"X-Team": "a"}), "X-Team is not sent"),
        (lambda: HTTPCheckpointer("http://127.0.0.1:1", headers={"Authorization": "Basic abc"}), "Bearer and a token"),
        (lambda: backends.postgresql_checkpointer(table_name="t"), "table_name= is not taken"),
        (lambda: backends.postgresql_checkpointer(hots="db"), "did you mean host=?"),
        (lambda: backends.sqlite_checkpointer("c.db", table_name="t"), "table_name= is not taken"),
        (lambda: backends.opensearch_checkpointer(hosts=["a:9200", "b:9200"]), "a list with one host"),
        (lambda: backends.opensearch_checkpointer(hosts="a:9200"), "a list with one host"),
        (lambda: backends.oracle_checkpointer(), "dsn='host:1521/service'"),
        (lambda: backends.redis_checkpointer("redis://127.0.0.1:6379/1", db=2), "two databases"),
    ],
)
def test_an_option_of_a_store_that_is_not_there_is_an_error_too(make: Any, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_tool_has_the_options_of_clew_and_says_so() -> None:
    @tool(name="look", description="Look out.", effect="none")
    def look_out() -> str:
        return "seen"

    assert (look_out.name, look_out.description, look_out()) == ("look", "Look out.", "seen")
    with pytest.raises(InvalidInput, match="answers a repeated call from the earlier result"):
        tool(idempotent=True)
    with pytest.raises(InvalidInput, match=r"did you mean name=\?"):
        tool(nam="look")


def test_a_tool_that_locus_made_is_refused_by_its_name() -> None:
    theirs = SimpleNamespace(name="weather", parameters={}, fn=print)
    with pytest.raises(InvalidInput, match="'weather' was made by another decorator"):
        Agent(model=ScriptedModel([]), tools=[theirs])


def test_the_data_of_locus_is_never_taken_for_a_store(tmp_path: Any) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "1.json").write_text("{}")
    with pytest.raises(InvalidInput, match="clew import --from locus PATH"):
        FileCheckpointer(tmp_path)
