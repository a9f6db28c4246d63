"""Random conversations and logs, for properties that must hold for all of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from clew.log import (
    Compacted,
    Described,
    LeaseTaken,
    Logged,
    MessageAdded,
    ModelCallRefused,
    ModelCallStarted,
    ProviderKey,
    Rewound,
    Spend,
    StateSet,
    StatusChanged,
    StepIntent,
    StepOutcome,
    Streamed,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    Usage,
    WorkspaceChanging,
    WorkspaceSnapshot,
)
from clew.messages import (
    Assistant,
    Block,
    File,
    Image,
    Json,
    Message,
    Opaque,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    User,
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
extra = st.none() | st.dictionaries(text, json_values, max_size=2)
small_counts = st.integers(0, 5)
costs = st.none() | st.floats(0, 100)

texts = st.builds(Text, text, extra)
images = st.builds(Image, text, st.none() | st.binary(max_size=30), st.none() | text, st.none() | text, extra)
files = st.builds(File, text, text, st.none() | st.binary(max_size=30), st.none() | text, st.none() | text, extra)
jsons = st.builds(Json, json_values, extra)
opaques = st.builds(Opaque, text, json_values)
thinkings = st.builds(Thinking, text, st.none() | text, st.none() | text, extra)
calls = st.builds(ToolCall, text, text, st.dictionaries(text, json_values, max_size=3) | text, extra)
results = st.builds(
    ToolResult, text, st.lists(texts | images | files | jsons | opaques, max_size=3).map(tuple), st.booleans(), extra
)
blocks: st.SearchStrategy[Block] = texts | images | files | jsons | opaques | thinkings | calls | results


def contents(kinds: st.SearchStrategy[Block]) -> st.SearchStrategy[tuple[Block, ...]]:
    return st.lists(kinds, max_size=4).map(tuple)


messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(System, contents(texts)),
    st.builds(User, contents(texts | images | files | opaques)),
    st.builds(Assistant, contents(texts | thinkings | calls | opaques), text, text),
    st.builds(Tool, contents(results)),
)
usages = st.builds(Usage, *[st.integers(0, 2**40)] * 5)

entries: st.SearchStrategy[Logged] = st.one_of(
    st.builds(
        ThreadStarted,
        text,
        text,
        text,
        st.dictionaries(text, text, max_size=2),
        st.dictionaries(text, json_values, max_size=2),
        st.none() | st.tuples(text, small_counts),
    ),
    st.builds(MessageAdded, messages, st.none() | usages, costs),
    st.builds(MessageAdded, messages),
    st.builds(ModelCallStarted, text, text),
    st.builds(ModelCallRefused, text),
    st.builds(ToolIntent, small_counts, small_counts, text, st.integers(1, 3)),
    st.builds(ToolOutcome, small_counts, small_counts, results),
    st.builds(StepIntent, small_counts, small_counts, text),
    st.builds(StepOutcome, small_counts, small_counts, text, json_values),
    st.builds(WorkspaceSnapshot, text, small_counts, small_counts),
    st.builds(WorkspaceChanging, small_counts, text),
    st.builds(ProviderKey, text, text),
    st.builds(Streamed, st.tuples(blocks), st.sampled_from(["", "call-1"])),
    st.builds(StatusChanged, st.sampled_from(["running", "waiting", "interrupted", "failed", "done"]), text),
    st.builds(LeaseTaken, text, text),
    st.builds(Rewound, small_counts),
    st.builds(Rewound, messages=small_counts),
    st.builds(Compacted, messages, small_counts, st.none() | usages, costs),
    st.builds(StateSet, text, json_values, st.sampled_from(["thread", "turn"])),
    st.builds(Described, st.none() | text, st.none() | st.dictionaries(text, text, max_size=2)),
    st.builds(Spend, usages, costs),
)
logs = st.lists(entries, max_size=25)
