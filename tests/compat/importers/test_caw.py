"""Sessions of caw become threads: on data that the real caw has written, see `caw_fixtures.py`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from clew import Agent, Thread
from clew.checkpointers import MemoryCheckpointer
from clew.compat.importers import Conversation
from clew.compat.importers.caw import CawSource
from clew.errors import Corrupt, InvalidInput
from clew.log import MessageAdded, ProviderKey, Spend, StatusChanged, ThreadStarted, Usage, fold
from clew.messages import Text, ToolCall, ToolResult, plain_text, tool, user
from clew.testing import ScriptedModel

pytestmark = pytest.mark.anyio
DATA = Path(__file__).with_name("fixtures") / "caw"


def sessions() -> dict[str, Conversation]:
    """The sessions of the data by their providers; the one that was killed in its second turn as `killed`."""
    found = {}
    with CawSource.open(DATA) as source:
        for key in [*source.keys()]:
            if (DATA / "sessions" / key / "trajectory.json").exists():
                conversation = source.read(key)
                state = fold(conversation.entries)
                found["killed" if state.status == "interrupted" else str(state.limits["provider"])] = conversation
    return found


def copy_of(tmp_path: Path) -> tuple[Path, dict[str, Path]]:
    """A data_dir of the test's own, and the files of its sessions by provider."""
    shutil.copytree(DATA, tmp_path / "caw_data")
    files = sorted((tmp_path / "caw_data").glob("sessions/*/trajectory.json"))
    return tmp_path / "caw_data", {json.loads(file.read_text())["agent"]: file for file in files}


async def stored(conversation: Conversation) -> MemoryCheckpointer:
    store = MemoryCheckpointer()
    async with Thread.open(store, conversation.thread_id) as thread:
        await thread.append(*conversation.entries)
    return store


def test_all_sessions_are_listed_oldest_first() -> None:
    with CawSource.open(DATA) as source:
        keys = list(source.keys())
        assert len(keys) == 5
        assert sorted(keys) == sorted(folder.name for folder in (DATA / "sessions").iterdir())
        created = []
        for key in keys:
            folder = DATA / "sessions" / key
            file = next(folder / name for name in ("trajectory.json", "traj.jsonl") if (folder / name).exists())
            created.append(
                json.loads(file.read_text().splitlines()[0] if file.suffix == ".jsonl" else file.read_text())
            )
    assert [made["created_at"] for made in created] == sorted(made["created_at"] for made in created)


def test_a_session_of_claude_code_has_its_prompts_its_calls_with_outputs_and_its_answers() -> None:
    found = sessions()["claude_code"]
    state = fold(found.entries)
    messages = state.history
    assert messages[0] == user("RUN echo forty-two")
    (call,) = [block for block in messages[1].content if isinstance(block, ToolCall)]
    assert (call.name, call.arguments["command"]) == ("Bash", "echo forty-two")
    assert messages[2] == tool(ToolResult(call.id, (Text("forty-two"),)))
    assert plain_text(messages[3]) == "It printed: forty-two"
    assert messages[4] == user("My number is 42.")
    assert [type(message).__name__ for message in messages[5:]] == ["Assistant"]
    assert (state.status, state.system_prompt, state.model) == ("done", "Be kind.", "claude-sonnet-4-5")
    assert state.title == "RUN echo forty-two"
    assert set(state.tags) == {"created_at", "completed_at"}
    assert state.limits == {"provider": "claude_code"}
    assert state.providers["claude_code"].key == found.thread_id, "Claude Code knows it by the same id"
    assert list(found.losses) == []


@pytest.mark.parametrize("provider", ["codex", "opencode"])
def test_the_providers_own_id_comes_along(provider: str) -> None:
    found = sessions()[provider]
    known = fold(found.entries).providers[provider]
    assert known.key.startswith("ses_" if provider == "opencode" else "01")
    assert known.messages == len(fold(found.entries).history), "the provider's own session holds all of it"
    assert isinstance(found.entries[0], ThreadStarted)
    assert isinstance(found.entries[-1], StatusChanged)


async def test_usage_is_of_each_prompt_also_where_caw_counts_codex_again_and_again() -> None:
    requests = 3  # two for the prompt with a tool, one for the other
    for provider in ("claude_code", "codex", "opencode"):
        found = sessions()[provider]
        state = fold(found.entries)
        store = await stored(found)
        trajectory = await Agent(ScriptedModel([]), checkpointer=store).trajectory(found.thread_id)
        used = [exchange.usage for exchange in trajectory.exchanges]
        assert [usage is not None for usage in used] == [True, True]
        assert state.usage.input_tokens == 100 * requests, provider
        assert state.usage.output_tokens == 20 * requests
        assert state.usage.cache_read_tokens == 60 * requests
        assert [usage.output_tokens for usage in used if usage] == [40, 20]
    assert state.cost_usd is None, "caw writes 0 where it knows no price"
    assert (fold(sessions()["claude_code"].entries).cost_usd or 0) > 0
    assert any("running totals" in loss for loss in sessions()["codex"].losses)


def test_turns_that_clew_has_written_have_their_own_usage_and_status_also_for_codex(tmp_path: Path) -> None:
    folder, files = copy_of(tmp_path)
    told = json.loads(files["codex"].read_text())
    turn = {"input": "Go.", "output": [{"type": "text", "text": "Gone."}], "usage": told["turns"][0]["usage"]}

    def used(input_tokens: int, **more: str) -> dict[str, object]:
        return {**turn, "usage": {"input_tokens": input_tokens}, **more}

    told["turns"] = [used(100), used(250), used(30, status="done"), used(40, status="failed"), used(400)]
    files["codex"].write_text(json.dumps(told))
    with CawSource.open(folder) as source:
        found = source.read(files["codex"].parent.name)
    spent = [entry.usage.input_tokens for entry in found.entries if isinstance(entry, Spend)]
    assert spent == [100, 150, 30, 40, 80]


def test_what_caw_has_lost_is_named() -> None:
    assert any("the outputs of 1 tool call of Codex" in loss for loss in sessions()["codex"].losses)


async def test_an_imported_session_resumes_with_the_built_in_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for provider in ("claude_code", "codex", "opencode"):
        found = sessions()[provider]
        model = ScriptedModel(lambda request: "It is 42.")
        async with Agent(model, checkpointer=await stored(found)) as agent:
            result = await agent.run("What is my number?", thread_id=found.thread_id)
            assert (result.output, result.status) == ("It is 42.", "done")
            asked = model.requests[-1].messages
            assert "My number is 42." in "".join(map(plain_text, asked))
            trajectory = await agent.trajectory(found.thread_id)
            assert [exchange.provider for exchange in trajectory.exchanges] == [provider, provider, "clew"]
            assert [exchange.status for exchange in trajectory.exchanges] == ["done"] * 3


async def test_a_call_in_which_caw_was_killed_is_in_doubt_and_the_model_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = sessions()["killed"]
    state = fold(found.entries)
    assert (state.status, state.turns) == ("interrupted", 2)
    model = ScriptedModel(lambda request: "I do not know whether it slept.")
    async with Agent(model, checkpointer=await stored(found)) as agent:
        trajectory = await agent.trajectory(found.thread_id)
        assert [exchange.status for exchange in trajectory.exchanges] == ["done", "interrupted"]
        assert trajectory.exchanges[1].usage is None
        await agent.run("Did it?", thread_id=found.thread_id)
    results = [block for message in model.requests[-1].messages for block in message.content]
    (result,) = [block for block in results if isinstance(block, ToolResult)]
    assert result.is_error
    assert "not known" in plain_text(user(*result.content))


def test_a_session_in_which_nothing_was_said_is_reported_and_the_others_are_read() -> None:
    with CawSource.open(DATA) as source:
        (killed,) = [key for key in [*source.keys()] if not (DATA / "sessions" / key / "trajectory.json").exists()]
        with pytest.raises(InvalidInput, match="with the first words or tool call"):
            source.read(killed)
        with pytest.raises(InvalidInput, match="no session 'nobody'"):
            source.read("nobody")


def test_the_version_changes_with_the_session_and_nothing_is_written(tmp_path: Path) -> None:
    folder, files = copy_of(tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with CawSource.open(folder) as source, CawSource.open(DATA) as other:
        key = files["codex"].parent.name
        assert source.version(key) == other.version(key)
        source.read(key)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
        files["codex"].write_text(files["codex"].read_text().replace("42", "43"))
        assert source.version(key) != other.version(key)


@pytest.mark.parametrize("words", ["", "{", "[]", '{"agent": "codex"}', '{"agent": 1, "turns": []}'])
def test_a_damaged_file_is_named_and_so_is_a_folder_without_sessions(words: str, tmp_path: Path) -> None:
    folder, files = copy_of(tmp_path)
    files["codex"].write_text(words)
    with CawSource.open(folder) as source:
        with pytest.raises(Corrupt, match=r"trajectory\.json is not a trajectory of caw, or is damaged"):
            source.read(files["codex"].parent.name)
        assert source.read(files["claude_code"].parent.name).entries


def test_what_is_no_data_dir_is_refused_and_says_what_was_looked_for(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(InvalidInput, match=r"sessions/\*/trajectory.json"):
            CawSource.open(path)


def test_the_folder_of_one_session_is_read_alone() -> None:
    with CawSource.open(DATA) as source:
        key = next(key for key in [*source.keys()] if (DATA / "sessions" / key / "trajectory.json").exists())
        whole = source.read(key)
    with CawSource.open(DATA / "sessions" / key) as alone:
        assert list(alone.keys()) == [key]
        assert alone.read(key).thread_id == whole.thread_id


def test_parallel_calls_equal_ids_and_what_clew_does_not_know(tmp_path: Path) -> None:
    folder, files = copy_of(tmp_path)
    calls = [
        {"type": "tool_use", "id": "item_0", "name": "one", "arguments": {}, "output": "1"},
        {"type": "tool_use", "id": "item_0", "name": "two", "arguments": {}, "output": "2", "is_error": True},
        {"type": "thinking", "text": "hm"},
        {"type": "tool_use", "id": "", "name": "task", "output": "3", "subagent_trajectory": {"agent": "codex"}},
        {"type": "sound"},
    ]
    told = {
        **json.loads(files["opencode"].read_text()),
        "agent": "somebody",
        "turns": [{"input": "Go.", "output": calls}],
        "mcp_servers": [{"name": "files"}],
        "reasoning": "high",
        "metadata": {"team": "blue", "limits": [1], "clew:hidden": "yes"},
    }
    files["opencode"].write_text(json.dumps(told))
    with CawSource.open(folder) as source:
        found = source.read(files["opencode"].parent.name)
    added = [entry.message for entry in found.entries if isinstance(entry, MessageAdded)]
    assert added[1].content == (ToolCall("item_0", "one", {}), ToolCall("item_0-2", "two", {}))
    assert added[2] == tool(ToolResult("item_0", (Text("1"),)), ToolResult("item_0-2", (Text("2"),), True))
    assert [type(message).__name__ for message in added] == ["User", "Assistant", "Tool", "Assistant", "Tool"]
    assert not any(isinstance(entry, ProviderKey) for entry in found.entries)
    assert fold(found.entries).tags["team"] == "blue"
    said = "\n".join(found.losses)
    for part in ("'somebody'", "1 sub-agent", "1 MCP server", "'high'", "'limits'", "'clew:hidden'", "'sound'"):
        assert part in said


def test_the_tokens_of_the_cache_are_part_of_the_input() -> None:
    usage = fold(sessions()["opencode"].entries).usage
    assert msgspec.structs.asdict(usage) == msgspec.structs.asdict(Usage(300, 60, 180, 0, 0))


@pytest.mark.parametrize("beside", [False, True])
async def test_a_session_that_has_grown_begins_with_the_same_entries(
    beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So an import that is run again can add what is new."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder, _ = copy_of(tmp_path)
    key = sessions()["killed"].thread_id
    file = folder / "sessions" / key / "trajectory.json"
    if beside:  # another call came back before caw was killed
        told = json.loads(file.read_text())
        output = told["turns"][1]["output"]
        output.insert(0, {**output[0], "id": "first", "output": "done"})
        file.write_text(json.dumps(told))
    with CawSource.open(folder) as source:
        before = [entry for entry in source.read(key).entries if not isinstance(entry, ProviderKey | StatusChanged)]
        grown = json.loads(file.read_text())
        grown["turns"].append({**grown["turns"][0], "input": "Another."})
        file.write_text(json.dumps(grown))
        after = source.read(key)
    assert list(after.entries[: len(before)]) == before
    assert fold(after.entries).status == "done"
    model = ScriptedModel(lambda request: "Yes.")
    store = await stored(after)
    async with Agent(model, checkpointer=store) as agent:
        await agent.run("Did it sleep?", thread_id=key)
    roles = [type(message).__name__ for message in model.requests[-1].messages]
    assert roles == ["User", "Assistant", "User", "Assistant", "Tool", "User", "Assistant", "User"]
    results = [block for message in model.requests[-1].messages for block in message.content]
    failed = [block.is_error for block in results if isinstance(block, ToolResult)]
    assert failed == ([False, True] if beside else [True])
    trajectory = await Agent(model, checkpointer=store).trajectory(key)
    assert [exchange.prompt for exchange in trajectory.exchanges][-2:] == ["Another.", "Did it sleep?"]
    assert [exchange.status for exchange in trajectory.exchanges] == ["done", "interrupted", "done", "done"]
