"""What a `Store` keeps: every message as it was given, in threads and in files."""

from __future__ import annotations

import inspect
import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clew.compat.session import Checkpoint, Store
from clew.compat.session import store as module
from clew.compat.session.checkpoint import checked
from clew.compat.session.record import changes, checkpoint_of
from clew.errors import Corrupt, InvalidInput, ThreadBusy, ThreadNotFound
from clew.log import EMPTY, fold
from clew.sync import Thread, open_checkpointer

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
EITHER = pytest.mark.parametrize("json_files", [False, True])


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(name: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "look", "input": given}


def result(name: str, words: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": [text(words)], **more}


TALK: list[dict[str, Any]] = [
    {"role": "user", "content": [text("Look."), {**text("Twice."), "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, use("a"), use("b")]},
    {"role": "user", "content": [result("a", "one"), result("b", "two", is_error=False), text("And now?")]},
    {"role": "assistant", "content": [use("c", deep={"x": [1, 2.5, None, "é"]})]},
]


# The names: the fields, methods and parameters that the document of the Go package shows, in Python's spelling.


def test_a_checkpoint_has_the_fields_of_the_go_package_in_their_order() -> None:
    fields = ["run_id", "task_name", "iteration", "messages"]
    fields += ["system_prompt", "input_tokens", "output_tokens", "created_at"]
    assert list(inspect.signature(Checkpoint).parameters)[:-1] == fields
    assert list(vars(Checkpoint("r"))) == fields


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("__init__", ["dir"]),
        ("save", ["checkpoint"]),
        ("load", ["run_id"]),
        ("delete", ["run_id"]),
        ("has_checkpoint", ["run_id"]),
        ("list", []),
    ],
)
def test_a_store_has_the_methods_of_the_go_package(method: str, parameters: list[str]) -> None:
    required = [
        name
        for name, parameter in inspect.signature(getattr(Store, method)).parameters.items()
        if name != "self" and parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    assert required == parameters


@pytest.mark.parametrize(
    ("name", "said"), [("RunID", "is run_id"), ("TaskName", "is task_name"), ("model", "has no model"), ("x", "run_id")]
)
def test_an_unknown_argument_is_refused_with_the_name_that_it_has_here(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=said):
        Checkpoint("r", **cast(Any, {name: "x"}))
    with pytest.raises(InvalidInput, match="json_files=True"):
        Store(tmp_path, format="json")


# Keeping.


@EITHER
def test_what_was_saved_is_loaded(json_files: bool, tmp_path: Path) -> None:
    saved = Checkpoint("r", "task", 3, TALK, "Be kind.", 1000, 20, NOON)
    with Store(tmp_path / "new" / "folder", json_files=json_files) as store:
        store.save(saved)
        assert store.load("r") == saved
    with Store(tmp_path / "new" / "folder", json_files=json_files) as store:
        assert store.load("r") == saved
        assert store.has_checkpoint("r")


@EITHER
def test_a_save_replaces_the_former_checkpoint_whatever_that_was(json_files: bool, tmp_path: Path) -> None:
    others: list[list[Any]] = [
        TALK[:2],
        TALK,
        TALK[:1],
        [],
        [{"role": "assistant", "content": [text("I begin.")]}],
        TALK,
    ]
    with Store(tmp_path, json_files=json_files) as store:
        for number, messages in enumerate(others):
            saved = Checkpoint("r", f"task {number}", 9 - number, messages, "", 100 - number, 0, NOON)
            store.save(saved)
            assert store.load("r") == saved
            with Store(tmp_path, json_files=json_files) as other:
                assert other.load("r") == saved


@EITHER
def test_a_deleted_checkpoint_is_gone_and_may_be_deleted_again(json_files: bool, tmp_path: Path) -> None:
    with Store(tmp_path, json_files=json_files) as store:
        store.delete("r")
        store.save(Checkpoint("r"))
        store.save(Checkpoint("other"))
        store.delete("r")
        store.delete("r")
        assert not store.has_checkpoint("r")
        assert [run.run_id for run in store.list()] == ["other"]
        with pytest.raises(ThreadNotFound, match=r"'r'.*has_checkpoint"):
            store.load("r")
        store.save(Checkpoint("r", iteration=1))
        assert store.load("r").iteration == 1


@EITHER
def test_a_list_has_the_newest_first_and_reads_no_messages(
    json_files: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path, json_files=json_files) as store:
        for name, hour in (("b", 2), ("c", 3), ("a", 1)):
            store.save(Checkpoint(name, "task", hour, TALK, "Be kind.", 10, 5, NOON + timedelta(hours=hour)))
        monkeypatch.setattr(module, "Thread", None)
        found = store.list()
    assert [(run.run_id, run.iteration, run.task_name) for run in found] == [
        ("c", 3, "task"),
        ("b", 2, "task"),
        ("a", 1, "task"),
    ]
    assert (found[0].messages, found[0].system_prompt, found[0].input_tokens) == ([], "", 10)
    assert found[0].created_at == NOON + timedelta(hours=3)


def test_objects_of_the_sdk_and_plain_texts_are_kept_as_blocks(tmp_path: Path) -> None:
    from anthropic.types import TextBlock, ToolUseBlock

    said = [TextBlock(type="text", text="Let me look."), ToolUseBlock(type="tool_use", id="a", name="look", input={})]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": said},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "one"}]},
    ]
    with Store(tmp_path) as store:
        store.save(Checkpoint("r", messages=messages))
        assert store.load("r").messages == [
            {"role": "user", "content": [text("Look.")]},
            {"role": "assistant", "content": [text("Let me look."), use("a")]},
            {"role": "user", "content": [result("a", "one")]},
        ]
    assert messages[1]["content"] is said, "the loop's own list is not changed"


def test_a_save_records_only_what_is_new(tmp_path: Path) -> None:
    long = [{"role": "user", "content": [text("word " * 20_000)]}]
    with Store(tmp_path) as store, open_checkpointer(f"sqlite:///{tmp_path}/clew.db") as threads:
        store.save(Checkpoint("r", messages=long))
        before = len(threads.read("r"))
        store.save(Checkpoint("r", iteration=1, messages=[*long, {"role": "assistant", "content": [text("Hm.")]}]))
        assert sum(map(len, threads.read("r", start=before))) < 2_000
        with Store(tmp_path) as other:  # which has not seen the first save
            before = len(threads.read("r"))
            other.save(Checkpoint("r", iteration=2, messages=[*long, {"role": "assistant", "content": [text("Hm.")]}]))
            assert sum(map(len, threads.read("r", start=before))) < 2_000


def test_a_run_is_a_thread_that_all_of_clew_can_read(tmp_path: Path) -> None:
    with Store(tmp_path) as store, open_checkpointer(f"sqlite:///{tmp_path}/clew.db") as threads:
        store.save(Checkpoint("r", "task", 3, TALK, "Be kind.", 1000, 20))
        (head,) = threads.heads()
        assert (head.thread_id, head.agent, head.status, head.input_tokens) == ("r", "task", "interrupted", 1000)
        state = Thread.load(threads, "r")
        assert (state.system_prompt, state.turns, state.reason) == ("Be kind.", 2, "saved at iteration 3")
        assert [call.status for call in state.calls] == ["in_doubt"], "nobody knows whether the loop has run it"
        with Thread.open(threads, "r"), pytest.raises(ThreadBusy):
            store.save(Checkpoint("r", "task", 4))
        with Thread.open(threads, "another's") as thread:
            thread.append(*changes(EMPTY, checked(Checkpoint("x", messages=TALK[:1])))[0][:2])
        assert store.load("another's").messages == TALK[:1]


ids = st.sampled_from(["a", "b", "c d", ""])
blocks = st.one_of(
    st.builds(text, st.sampled_from(["", " ", "Hm.", "<system>x</system>", "(The conversation goes on.)"])),
    st.builds(use, ids, x=st.integers(0, 3)),
    st.builds(result, ids, st.sampled_from(["", "one"]), is_error=st.booleans()),
    st.just({"type": "thinking", "thinking": "Hm.", "signature": "s"}),
    st.just({"type": "something_new", "value": [1, {"x": None}]}),
    st.just({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K"}}),
    st.just({**text("x"), "citations": None}),
)
params = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "assistant"]),
    st.lists(blocks, max_size=3),
)


NEW = {"type": "something_new", "value": [1]}
RESURFACING = [
    [{"role": "user", "content": []}, {"role": "user", "content": []}],
    [{"role": "assistant", "content": [NEW]}],
    [{"role": "user", "content": [NEW]}],
]
"""After the second rewind, what the first save kept would be there again if it were not taken away."""


@given(st.lists(st.lists(params, max_size=5), min_size=1, max_size=3), st.booleans())
@example(RESURFACING, False)
def test_any_conversation_is_loaded_as_it_was_saved(saves: list[list[dict[str, Any]]], remembers: bool) -> None:
    state, known = EMPTY, None
    for number, messages in enumerate(saves):
        base = saves[number - 1][: len(messages)] if number else []
        run = checked(Checkpoint("r", "t", number, [*base, *messages], "s", number, number, NOON))
        entries, known = changes(state, run, known if remembers else None)
        state = fold(entries, state)
        assert checkpoint_of(state, "r", NOON) == run


# Files.


def test_a_file_has_the_fields_of_the_go_package_and_is_private(tmp_path: Path) -> None:
    with Store(tmp_path / "runs", json_files=True) as store:
        store.save(Checkpoint("run-1", "task", 2, TALK[:1], "Mind <this> & é.", 10, 5, NOON))
    (path,) = (tmp_path / "runs").iterdir()
    assert path.name == "run-1.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    written = path.read_text()
    assert written.startswith('{\n  "run_id": "run-1",\n  "task_name": "task",\n  "iteration": 2,\n  "messages": [\n')
    assert written.endswith('"output_tokens": 5,\n  "created_at": "2026-03-02T12:00:00Z"\n}')
    assert "Mind <this> & é." in written
    assert list(json.loads(written)) == list(inspect.signature(Checkpoint).parameters)[:-1]


GO = """{
  "run_id": "run-7",
  "task_name": "",
  "iteration": 15,
  "messages": [
    {"content": [{"text": "a \\u003c b", "type": "text"}], "role": "user"},
    {"content": [{"id": "t1", "input": {"n": 1}, "name": "look", "type": "tool_use"}], "role": "assistant"},
    {"content": [{"tool_use_id": "t1", "is_error": false, "content": [{"text": "one", "type": "text"}],
      "type": "tool_result"}], "role": "user"}
  ],
  "system_prompt": "Be kind.",
  "input_tokens": 12345678901,
  "output_tokens": 678,
  "created_at": "2026-03-02T13:00:00.123456789+01:00"
}"""


@EITHER
def test_a_file_that_the_go_package_has_written_is_read_where_it_is(json_files: bool, tmp_path: Path) -> None:
    (tmp_path / "run-7.json").write_text(GO)
    (tmp_path / "settings.json").write_text('{"theme": "dark"}')
    (tmp_path / "run-8.json.tmp").write_text("{")
    with Store(tmp_path, json_files=json_files) as store:
        assert [run.run_id for run in store.list()] == ["run-7"]
        found = store.load("run-7")
        assert (found.iteration, found.input_tokens) == (15, 12345678901)
        assert found.messages[0] == {"role": "user", "content": [text("a < b")]}
        assert found.created_at.replace(microsecond=0) == NOON
        found.iteration = 16
        store.save(found)
        assert store.load("run-7").iteration == 16
        assert [run.iteration for run in store.list()] == [16]
        store.delete("run-7")
        assert not store.has_checkpoint("run-7")
    assert not (tmp_path / "run-7.json").exists()


@EITHER
def test_a_file_goes_from_go_to_here_and_back_with_the_same_content(json_files: bool, tmp_path: Path) -> None:
    """The file was written by a program in Go, with anthropic-sdk-go 1.19.0 and the fields of its document."""
    written = (Path(__file__).parent / "fixtures" / "written-by-go.json").read_text()
    (tmp_path / "run-go.json").write_text(written)
    with Store(tmp_path, json_files=json_files) as store, Store(tmp_path / "again", json_files=True) as again:
        store.save(store.load("run-go"))
        again.save(store.load("run-go"))
    kept, given = (json.loads(text) for text in ((tmp_path / "again" / "run-go.json").read_text(), written))
    assert list(kept) == list(given)
    assert kept.pop("created_at")[:26] == given.pop("created_at")[:26], "to the microsecond"
    assert kept == given


@EITHER
def test_times_without_a_zone_and_gos_zero_time_are_kept(json_files: bool, tmp_path: Path) -> None:
    zero = GO.replace("2026-03-02T13:00:00.123456789+01:00", "0001-01-01T00:00:00Z")
    (tmp_path / "run-7.json").write_text(zero)
    (tmp_path / "run-8.json").write_text(zero.replace("run-7", "run-8").replace("00Z", "00"))
    with Store(tmp_path, json_files=json_files) as store:
        local = datetime(2026, 3, 2, 12)
        store.save(Checkpoint("local", created_at=local))
        assert store.load("local").created_at == local.astimezone(UTC)
        assert [run.run_id for run in store.list()].index("local") == 0
        for name in ("run-7", "run-8"):
            store.save(store.load(name))
            assert store.load(name).created_at.year == 1


@EITHER
def test_a_damaged_file_is_named_and_not_taken_for_an_absent_one(json_files: bool, tmp_path: Path) -> None:
    (tmp_path / "run-7.json").write_text(GO[:200])
    with Store(tmp_path, json_files=json_files) as store:
        for read in (store.list, lambda: store.load("run-7")):
            with pytest.raises(Corrupt, match=r"run-7\.json"):
                read()
        store.delete("run-7")
        assert store.list() == []


@pytest.mark.parametrize("run_id", ["../x", "a/b", "", ".hidden", "x" * 300, "a\nb", "C:x"])
def test_a_run_id_that_is_no_file_name_is_refused_for_files_and_taken_for_threads(run_id: str, tmp_path: Path) -> None:
    with Store(tmp_path / "files", json_files=True) as store, pytest.raises(InvalidInput, match="run_id"):
        store.save(Checkpoint(run_id))
    assert not store.has_checkpoint(run_id or "x")
    assert list((tmp_path / "files").iterdir()) == []
    if run_id:
        with Store(tmp_path / "threads") as threads:
            threads.save(Checkpoint(run_id, iteration=3))
            assert threads.load(run_id).iteration == 3


@EITHER
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"iteration": "3"}, "iteration"),
        ({"input_tokens": -1}, "input_tokens"),
        ({"messages": "Look."}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, r"messages\[0\]"),
        ({"messages": [TALK[0], {"role": "user"}]}, r"messages\[1\]"),
        ({"messages": [{"role": "user", "content": [object()]}]}, r"messages\[0\] holds a object"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, r"messages\[0\]"),
        ({"created_at": "today"}, "created_at"),
        ({"run_id": 7}, "run_id"),
        ({"system_prompt": None}, "system_prompt"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(
    wrong: dict[str, Any], said: str, json_files: bool, tmp_path: Path
) -> None:
    with Store(tmp_path, json_files=json_files) as store:
        with pytest.raises(InvalidInput, match=said):
            store.save(Checkpoint(**{"run_id": "r", **wrong}))
        assert store.list() == []
