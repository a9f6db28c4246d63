"""Tasks of Stirrup as threads. The files in `stirrup_caches` were written by Stirrup itself, at the version that their
names begin with; only the fixed sentences that it adds to a conversation are replaced by others."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from clew import Thread, Workspace
from clew.checkpointers import MemoryCheckpointer
from clew.compat.importers import Conversation
from clew.compat.importers.stirrup import StirrupSource
from clew.compat.stirrup import Agent, compute_task_hash
from clew.errors import Corrupt, InvalidInput
from clew.log import fold
from clew.messages import Assistant, Image, Text, Thinking, ToolCall, plain_text, tool_calls
from clew.testing import ScriptedModel, call

CACHES = Path(__file__).parent / "stirrup_caches"
PROMPT = "Analyze all datasets in the data folder"
HASH = compute_task_hash(PROMPT)
PNG = "iVBORw0KGgoAAAANSUhEUg=="


def cache(folder: Path, name: str, files: int = 15) -> Path:
    """Lay out a cache folder as Stirrup does: one task, with these files in its working folder."""
    task = folder / "cache" / HASH
    (task / "files").mkdir(parents=True)
    shutil.copyfile(CACHES / f"{name}.json", task / "state.json")
    for number in range(1, files + 1):
        (task / "files" / f"f{number}.txt").write_text(f"{number}\n")
    return folder / "cache"


def written(folder: Path, messages: list[dict[str, Any]], **state: Any) -> StirrupSource:
    """Return the source of a cache folder with one task of these messages."""
    task = folder / HASH
    task.mkdir()
    content = {"msgs": messages, "full_msg_history": [], "task_hash": HASH, "agent_name": "researcher", **state}
    (task / "state.json").write_text(json.dumps(content))
    return StirrupSource.open(folder)


def asked(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "Work."}, {"role": "user", "content": PROMPT}, *messages]


def tool_call(name: str, call_id: str | None, arguments: str = "{}") -> dict[str, Any]:
    return {"kind": "tool_call", "name": name, "arguments": arguments, "tool_call_id": call_id}


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


async def stored(store: MemoryCheckpointer, conversation: Conversation) -> None:
    """Store a conversation by the public calls that an import makes."""
    async with Thread.open(store, conversation.thread_id) as thread:
        await thread.append(*conversation.entries)
        if conversation.files is not None:
            await thread.append((await Workspace(conversation.files, store).snapshot()).entry())


@pytest.mark.parametrize("name", ["0.2.1-interrupted", "0.1.6-interrupted"])
def test_a_task_of_stirrup_has_all_its_turns_calls_results_tokens_and_metadata(name: str, tmp_path: Path) -> None:
    folder = cache(tmp_path, name)
    before = tree(folder)
    with StirrupSource.open(folder) as source:
        assert source.keys() == [HASH]
        found = source.read(HASH)
    state = fold(found.entries)
    assert tree(folder) == before, "reading changed the cache"
    assert (found.thread_id, found.losses, found.files) == (f"stirrup:{HASH}", (), folder / HASH / "files")
    assert (state.turns, state.agent, state.status, state.calls) == (15, "researcher", "interrupted", ())
    assert state.system_prompt == "Work on the task with the tools that you have."
    assert state.title == PROMPT
    assert state.tags["saved_at"].startswith("2026-")
    responses = [message for message in state.messages if isinstance(message, Assistant)]
    (last,) = tool_calls(responses[-1])
    assert (plain_text(responses[-1]), last.name, last.arguments) == (
        "Step 15.",
        "code_exec",
        {"cmd": "echo 15 > f15.txt"},
    )
    raw = json.loads((folder / HASH / "state.json").read_text())
    counts = [message["token_usage"] for message in raw["msgs"] if message["role"] == "assistant"]
    assert state.usage.input_tokens == sum(one["input"] for one in counts) > 0
    assert state.usage.output_tokens == sum(one.get("answer", one.get("output")) for one in counts) > 0
    assert state.cost_usd is None, "its price is not known"
    if name.startswith("0.2"):
        assert state.metadata == {turn: {"code_exec": [{"num_uses": 1}]} for turn in range(1, 16)}
    else:
        assert state.state == {"stirrup:run_metadata": {"": {"code_exec": [{"num_uses": 1}] * 15}}}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "turns", "files"),
    [
        ("0.2.1-interrupted", 15, 15),
        ("0.1.6-interrupted", 15, 15),
        ("0.2.1-max-turns", 14, 15),
        ("0.2.1-summary", 5, 5),
    ],
)
async def test_the_same_program_goes_on_with_an_imported_task_and_its_files(
    name: str, turns: int, files: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = StirrupSource.open(cache(tmp_path, name, files)).read(HASH)
    model = ScriptedModel([call("finish", reason="All is analysed.", paths=["f1.txt", f"f{files}.txt"])], by="order")
    async with MemoryCheckpointer() as store:
        await stored(store, found)
        agent = Agent(model, "researcher", max_turns=50, checkpointer=store)
        async with agent.session(tmp_path / "output", resume=True, clear_cache_on_success=False) as session:
            outcome = await session.run(PROMPT)
        state = await Thread.load(store, found.thread_id)
    assert capsys.readouterr().err == f"Resuming from cached state at turn {turns}\n"
    assert outcome.finish_params is not None
    assert outcome.finish_params.paths == ["f1.txt", f"f{files}.txt"]
    assert (model.calls, state.turns, state.status) == (1, turns + 1, "done")
    assert sorted(path.name for path in (tmp_path / "output").iterdir()) == sorted(
        f"f{number}.txt" for number in range(1, files + 1)
    )
    prompts = [message for message in model.requests[0].messages if plain_text(message) == PROMPT]
    assert len(prompts) == (0 if name == "0.2.1-summary" else 1), "the prompt was asked twice"


def test_what_stirrup_said_itself_becomes_a_note_and_not_a_prompt(tmp_path: Path) -> None:
    state = fold(StirrupSource.open(cache(tmp_path, "0.2.1-max-turns")).read(HASH).entries)
    said = [plain_text(message) for message in state.messages if message.__class__.__name__ == "User"]
    assert said[:3] == [PROMPT, "[clew] 14 turns are left.", "[clew] 13 turns are left."]
    assert all(text.startswith("[clew] ") for text in said[1:])


def test_a_summary_replaces_what_it_stands_for_and_the_history_keeps_it(tmp_path: Path) -> None:
    state = fold(StirrupSource.open(cache(tmp_path, "0.2.1-summary")).read(HASH).entries)
    summary, *others = state.messages
    assert plain_text(summary).startswith(f"[clew] {PROMPT}\n\nWhat happened before: Three files are written")
    assert [plain_text(message) for message in others if isinstance(message, Assistant)] == ["Step 4.", "Step 5."]
    assert [plain_text(message) for message in state.history if isinstance(message, Assistant)] == [
        f"Step {number}." for number in range(1, 6)
    ]
    assert (state.turns, plain_text(state.history[0])) == (5, PROMPT)


def test_reasoning_images_failures_and_odd_calls_are_carried_over(tmp_path: Path) -> None:
    image = {"kind": "image_content_block", "data": PNG}
    source = written(
        tmp_path,
        asked(
            {
                "role": "assistant",
                "blocks": [
                    {"kind": "signed_reasoning", "content": "Hm.", "signature": "s"},
                    tool_call("look", "same", "no JSON"),
                    tool_call("look", "same"),
                    {"kind": "opaque", "data": "{}"},
                ],
            },
            {"role": "tool", "content": ["a picture", image], "tool_call_id": "same", "name": "look", "success": True},
            {"role": "tool", "content": "no", "tool_call_id": "same", "name": "look", "success": False},
            {"role": "tool", "content": "nobody asked", "tool_call_id": "other", "name": "look"},
            {"role": "user", "kind": "user", "content": [image]},
            {"role": "assistant", "content": "", "reasoning": {"content": "Hm."}, "tool_calls": [{"name": "a"}]},
        ),
        run_metadata_by_turn={"__legacy__": {"look": [1]}},
    )
    found = source.read(HASH)
    state = fold(found.entries)
    response, results, note, last = state.messages[1:]
    assert response.content[:2] == (Thinking("Hm.", "s"), ToolCall("same", "look", "no JSON"))
    assert [(result.content, result.is_error) for result in results.content] == [  # type: ignore[union-attr]
        ((Text("a picture"), state.messages[3].content[1]), False),
        ((Text("no"),), True),
    ]
    assert note.content[0] == Text("[clew] ")
    assert isinstance(note.content[1], Image)
    assert note.content[1].media_type == "image/png"
    assert last.content[0] == Thinking("Hm.")
    assert [call.status for call in state.calls] == ["in_doubt"], "nobody knows whether the last call took effect"
    assert state.state == {"stirrup:run_metadata": {"__legacy__": {"look": [1]}}}
    assert len(found.losses) == 2
    assert "'opaque'" in found.losses[0]
    assert "its call is not in the conversation" in found.losses[1]


def test_media_that_no_model_takes_are_named_as_losses(tmp_path: Path) -> None:
    video = {"kind": "video_content_block", "data": "AAAA"}
    found = written(tmp_path, asked({"role": "assistant", "content": [video, "Seen."]})).read(HASH)
    assert plain_text(fold(found.entries).messages[-1]) == "[video of 3 bytes, not carried over]\nSeen."
    assert found.losses == ("Each video of a kind that models do not take is replaced by a line with its size.",)


def test_a_conversation_that_began_with_several_messages_keeps_its_prompts(tmp_path: Path) -> None:
    messages = asked({"role": "assistant", "content": "Done."}, {"role": "user", "content": "And now?"})
    found = written(tmp_path, messages, task_hash="0123456789ab").read(HASH)
    assert found.thread_id == f"stirrup:{HASH}"
    assert plain_text(fold(found.entries).messages[-1]) == "And now?"


def test_a_version_changes_with_the_state_and_tasks_are_listed_oldest_first(tmp_path: Path) -> None:
    folder = cache(tmp_path, "0.2.1-interrupted", files=0)
    shutil.copytree(folder / HASH, folder / "older")
    os.utime(folder / "older" / "state.json", (1, 1))
    source = StirrupSource.open(folder)
    assert source.keys() == ["older", HASH]
    assert source.version("older") == source.version(HASH)
    shutil.copyfile(CACHES / "0.1.6-interrupted.json", folder / HASH / "state.json")
    assert source.version("older") != source.version(HASH)
    assert source.read(HASH).files is None


@pytest.mark.parametrize("below", ["", HASH, f"{HASH}/state.json"])
def test_a_cache_folder_one_task_and_its_state_can_be_opened(below: str, tmp_path: Path) -> None:
    folder = cache(tmp_path, "0.2.1-interrupted", files=1)
    assert StirrupSource.open(folder / below).keys() == [HASH]


def test_what_is_no_cache_is_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not a folder"):
        StirrupSource.open(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match=r"there is no state\.json"):
        StirrupSource.open(tmp_path)
    with pytest.raises(InvalidInput, match="no task 'other'"):
        StirrupSource.open(cache(tmp_path, "0.2.1-interrupted", files=0)).read("other")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"msgs": 1}',
        '{"msgs": [1]}',
        '{"msgs": [{}]}',
        '{"msgs": [{"role": "user"}]}',
        '{"msgs": [{"role": "user", "content": [{"kind": "image_content_block", "data": "?"}]}]}',
        '{"msgs": [{"role": "assistant", "blocks": [{}]}]}',
        '{"msgs": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}',
        '{"msgs": [{"role": "assistant", "content": "", "tool_calls": [{"name": "a", "tool_call_id": 7}]}]}',
        '{"msgs": [{"role": "assistant", "content": "", "token_usage": {"input": 1' + "0" * 30 + "}}]}",
        "[" * 100_000,
    ],
)
def test_a_damaged_task_is_an_error_with_its_name(content: str, tmp_path: Path) -> None:
    task = tmp_path / HASH
    task.mkdir()
    (task / "state.json").write_text(content)
    with pytest.raises(Corrupt, match=HASH):
        StirrupSource.open(tmp_path).read(HASH)
