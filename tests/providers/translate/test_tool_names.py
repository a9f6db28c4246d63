"""Tool calls in the words of another agent, and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.messages import ToolCall, ToolResult, assistant, tool, user
from clew.messages.dialects import from_dialect, to_dialect
from clew.providers.translate.tool_forms import SIDES
from clew.providers.translate.tool_names import map_call
from clew.tools.builtin.defaults import DEFAULT_TOOLS
from tests.sampling import examples
from tests.strategies import json_values, text

CWD = "/home/ada/work"
PATCH = "*** Begin Patch\n*** Update File: a.txt\n@@\n one\n-two\n+2\n three\n*** End Patch\n"
NEW_FILE = "*** Begin Patch\n*** Add File: src/a.txt\n+one\n+\n*** End Patch\n"
DELETION = "*** Begin Patch\n*** Delete File: a.txt\n*** End Patch\n"
TODOS = [{"content": "Test it", "status": "pending"}]


def mapped(name: str, arguments: Any, source: str, target: str) -> tuple[str, Any, int]:
    found = map_call(ToolCall("id", name, arguments), source, target, cwd=CWD)
    assert found.call.id == "id"
    return found.call.name, found.call.arguments, len(found.losses)


COUNTERPARTS: list[tuple[str, str, Any, str, str, Any]] = [
    ("claude_code", "Bash", {"command": "ls"}, "codex", "exec_command", {"cmd": "ls"}),
    ("claude_code", "Bash", {"command": "ls"}, "clew", "run_command", {"command": "ls"}),
    (
        *("claude_code", "Bash", {"command": "ls", "timeout": 5000, "description": "List"}),
        *("opencode", "bash", {"command": "ls", "timeout": 5000, "description": "List"}),
    ),
    ("opencode", "bash", {"command": "ls", "workdir": "/x"}, "codex", "exec_command", {"cmd": "ls", "workdir": "/x"}),
    ("opencode", "bash", {"command": "ls", "timeout": 1500}, "clew", "run_command", {"command": "ls", "timeout": 1.5}),
    (
        *("claude_code", "Read", {"file_path": f"{CWD}/a", "offset": 3, "limit": 2}),
        *("opencode", "read", {"filePath": f"{CWD}/a", "offset": 3, "limit": 2}),
    ),
    (
        *("claude_code", "Read", {"file_path": f"{CWD}/a", "offset": 3, "limit": 2}),
        *("clew", "read_file", {"path": "a", "start_line": 3, "end_line": 4}),
    ),
    ("claude_code", "Read", {"file_path": f"{CWD}/a"}, "codex", "Read", {"file_path": f"{CWD}/a"}),
    ("claude_code", "Write", {"file_path": f"{CWD}/src/a.txt", "content": "one\n\n"}, "codex", "apply_patch", NEW_FILE),
    ("opencode", "write", {"filePath": "/b", "content": "x"}, "clew", "write_file", {"path": "/b", "content": "x"}),
    ("clew", "write_file", {"path": "src/a.txt", "content": "one\n\n"}, "codex", "apply_patch", NEW_FILE),
    (
        *("claude_code", "Edit", {"file_path": "/a", "old_string": "x", "new_string": "y", "replace_all": True}),
        *("opencode", "edit", {"filePath": "/a", "oldString": "x", "newString": "y", "replaceAll": True}),
    ),
    (
        *("codex", "apply_patch", PATCH, "claude_code", "Edit"),
        {"file_path": f"{CWD}/a.txt", "old_string": "one\ntwo\nthree\n", "new_string": "one\n2\nthree\n"},
    ),
    (
        *("codex", "apply_patch", PATCH, "clew", "edit_file"),
        {"path": "a.txt", "old_text": "one\ntwo\nthree\n", "new_text": "one\n2\nthree\n"},
    ),
    (
        *("codex", "apply_patch", PATCH.replace("*** End", "@@\n-5\n*** End"), "claude_code", "MultiEdit"),
        {
            "file_path": f"{CWD}/a.txt",
            "edits": [
                {"old_string": "one\ntwo\nthree\n", "new_string": "one\n2\nthree\n"},
                {"old_string": "5\n", "new_string": ""},
            ],
        },
    ),
    ("codex", "apply_patch", DELETION, "claude_code", "apply_patch", {"input": DELETION}),
    ("codex", "apply_patch", DELETION, "opencode", "apply_patch", {"patchText": DELETION}),
    ("claude_code", "Glob", {"pattern": "**/*.py"}, "opencode", "glob", {"pattern": "**/*.py"}),
    ("claude_code", "Glob", {"pattern": "*.py", "path": CWD}, "clew", "list_files", {"pattern": "/*.py", "path": "."}),
    ("clew", "list_files", {"pattern": "*.py"}, "opencode", "glob", {"pattern": "**/*.py"}),
    ("clew", "list_files", {}, "claude_code", "Glob", {"pattern": "**/*"}),
    (
        *("claude_code", "Grep", {"pattern": "x", "glob": "*.py"}),
        *("opencode", "grep", {"pattern": "x", "include": "*.py"}),
    ),
    ("opencode", "webfetch", {"url": "http://x"}, "claude_code", "WebFetch", {"url": "http://x"}),
    ("claude_code", "WebSearch", {"query": "x"}, "opencode", "websearch", {"query": "x"}),
    ("claude_code", "TodoWrite", {"todos": TODOS}, "opencode", "todowrite", {"todos": TODOS}),
    (
        *("claude_code", "TodoWrite", {"todos": TODOS}),
        *("codex", "update_plan", {"plan": [{"step": "Test it", "status": "pending"}]}),
    ),
    (
        *("claude_code", "Agent", {"description": "d", "prompt": "p", "subagent_type": "general-purpose"}),
        *("opencode", "task", {"description": "d", "prompt": "p", "subagent_type": "general"}),
    ),
    ("claude_code", "Skill", {"skill": "x"}, "opencode", "skill", {"name": "x"}),
    ("claude_code", "mcp__db__query", {"sql": "x"}, "codex", "mcp__db__query", {"sql": "x"}),
]


@pytest.mark.parametrize(("source", "name", "arguments", "target", "there", "said"), COUNTERPARTS)
def test_a_call_has_its_counterparts_name_and_arguments_and_comes_back_as_it_was(
    source: str, name: str, arguments: Any, target: str, there: str, said: Any
) -> None:
    assert mapped(name, arguments, source, target) == (there, said, 0)
    assert mapped(there, said, target, source) == (name, arguments, 0)


@pytest.mark.parametrize(
    ("source", "name", "arguments", "target", "there", "said"),
    [
        ("claude_code", "Bash", {"command": "ls", "run_in_background": True}, "codex", "exec_command", {"cmd": "ls"}),
        ("codex", "exec_command", {"cmd": "ls", "yield_time_ms": 9}, "claude_code", "Bash", {"command": "ls"}),
        ("codex", "exec_command", {"cmd": "ls", "workdir": CWD}, "claude_code", "Bash", {"command": "ls"}),
        (
            *("codex", "exec_command", {"cmd": "ls", "workdir": "/a b"}),
            *("claude_code", "Bash", {"command": "cd '/a b' && ls"}),
        ),
        ("codex", "shell", {"command": ["bash", "-lc", "ls | wc"]}, "opencode", "bash", {"command": "ls | wc"}),
        ("codex", "shell", {"command": ["ls", "a b"]}, "opencode", "bash", {"command": "ls 'a b'"}),
        ("claude_code", "WebFetch", {"url": "u", "prompt": "p"}, "opencode", "webfetch", {"url": "u"}),
        ("claude_code", "Task", {"prompt": "p"}, "opencode", "task", {"prompt": "p"}),
        (
            *("claude_code", "TodoWrite", {"todos": [{"content": "c", "activeForm": "a"}]}),
            *("codex", "update_plan", {"plan": [{"step": "c"}]}),
        ),
        (
            *("claude_code", "Edit"),
            {"file_path": f"{CWD}/a", "old_string": "x\n", "new_string": "y\n", "replace_all": False},
            *("codex", "apply_patch", "*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n*** End Patch\n"),
        ),
        ("codex", "exec", "text()", "claude_code", "exec", {"input": "text()"}),
        ("claude_code", "bash", {"x": 1}, "opencode", "bash", {"x": 1}),
    ],
)
def test_what_has_no_place_on_the_other_side_is_told(
    source: str, name: str, arguments: Any, target: str, there: str, said: Any
) -> None:
    assert mapped(name, arguments, source, target) == (there, said, 1)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Write", {"file_path": f"{CWD}/a", "content": "no end of line"}),
        ("Write", {"file_path": f"{CWD}/a", "content": ""}),
        ("Write", {"file_path": f"{CWD}/a", "content": "one\r\n"}),
        ("Edit", {"file_path": f"{CWD}/a", "old_string": "part", "new_string": "of a line"}),
        ("Edit", {"file_path": f"{CWD}/a", "old_string": "x\n", "new_string": "y\n", "replace_all": True}),
        ("Edit", {"file_path": f"{CWD}/a\n", "old_string": "x\n", "new_string": "y\n"}),
    ],
)
def test_what_no_patch_does_exactly_stays_under_its_own_name(name: str, arguments: Any) -> None:
    assert mapped(name, arguments, "claude_code", "codex") == (name, arguments, 0)


@pytest.mark.parametrize(
    "patch",
    [
        PATCH.removesuffix("\n"),
        PATCH.replace("@@", "@@ def f():"),
        PATCH.replace("*** End Patch", "*** End of File\n*** End Patch"),
        PATCH.replace("a.txt\n", "a.txt\n*** Move to: b.txt\n"),
        PATCH.replace("@@\n one\n", ""),
        PATCH.replace("-two\n+2", "+2\n-two"),
        PATCH.replace("*** End Patch", "*** Add File: b\n+x\n*** End Patch"),
        "*** Begin Patch\n*** End Patch\n",
        "no patch",
        "",
    ],
)
def test_a_patch_that_is_no_plain_edit_stays_a_patch(patch: str) -> None:
    assert mapped("apply_patch", patch, "codex", "claude_code") == ("apply_patch", {"input": patch}, 0)
    assert mapped("apply_patch", {"input": patch}, "claude_code", "codex") == ("apply_patch", patch, 0)


def test_what_codex_tells_of_a_patch_beside_its_text_stays_as_it_is() -> None:
    changes = {"changes": [{"path": "a.txt", "kind": "update"}]}
    for target in ("claude_code", "opencode", "clew"):
        assert mapped("apply_patch", changes, "codex", target) == ("apply_patch", changes, 0)


def test_a_patch_for_codex_is_a_call_with_a_text_as_its_api_has_it() -> None:
    call = map_call(ToolCall("c", "write_file", {"path": "src/a.txt", "content": "one\n\n"}), "clew", "codex").call
    conversation = (user("Go"), assistant(call), tool(ToolResult("c")))
    items = to_dialect(conversation, "openai-responses")
    assert items[1] == {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": NEW_FILE}
    assert items[2]["type"] == "custom_tool_call_output"
    assert from_dialect(items, "openai-responses") == conversation


def test_between_the_same_two_nothing_changes() -> None:
    call = ToolCall("c", "Bash", {"command": "ls", "odd": 1}, {"anthropic": {"x": 1}})
    assert map_call(call, "claude_code", "claude_code") == (call, ())


def test_the_built_in_tools_are_all_known_with_the_arguments_they_have() -> None:
    known = {form.name: set(form.arguments) for form in SIDES["clew"]}
    for built_in in DEFAULT_TOOLS:
        assert known[built_in.name] == set(built_in.schema["properties"])


@st.composite
def calls(draw: st.DrawFn, side: str) -> ToolCall:
    """Calls of a side's own tools, mostly with arguments they have and values that make sense."""
    form = draw(st.sampled_from(SIDES[side]))
    sensible = text | st.integers(-1, 5000) | st.booleans() | paths | lines | patches | st.floats(0, 100)
    values = sensible | st.lists(st.dictionaries(st.sampled_from(KEYS), text, max_size=3), max_size=2) | json_values
    names = st.sampled_from([*form.arguments, *form.arguments, "other"])
    arguments: Any = draw(st.dictionaries(names, values, max_size=4))
    if form.kind == "patch" and side == "codex":
        arguments = draw(patches | text)
    return ToolCall("id", form.name, arguments)


KEYS = ["content", "status", "step", "priority", "activeForm", "old_string", "new_string", "replace_all"]
paths = st.sampled_from(
    [".", "a", "./a", "", "/", CWD, f"{CWD}/", f"{CWD}/a", "/etc/x", "*.py", "/*.py", "**/*", "a/*"]
)
lines = st.lists(text, max_size=4).map(lambda found: "".join(f"{line}\n" for line in found))
patches = st.builds(
    lambda body: "\n".join(["*** Begin Patch", *body, "*** End Patch", ""]),
    st.lists(st.sampled_from(["*** Update File: a", "*** Add File: b", "@@", " x", "-x", "+y", "+", "-"]), max_size=7),
)


@settings(max_examples=examples(400))
@given(st.data(), st.sampled_from(["", CWD, "/", "C:\\work"]))
def test_a_call_that_lost_nothing_comes_back_the_same(data: st.DataObject, cwd: str) -> None:
    source, target = data.draw(st.permutations(sorted(SIDES)))[:2]
    call = data.draw(calls(source))
    there = map_call(call, source, target, cwd=cwd)
    back = map_call(there.call, target, source, cwd=cwd)
    if not there.losses:
        assert (back.call.name, back.call.arguments) == (call.name, call.arguments)
    if target in ("claude_code", "opencode"):
        assert isinstance(there.call.arguments, dict)
