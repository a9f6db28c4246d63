"""Writes golden-1.json: frames as version 1 wrote them, with what they say. Never run again for a released format.

python -m tests.log.make_golden
"""

from __future__ import annotations

import json
from pathlib import Path

from clew.log import (
    FIRST,
    Compacted,
    Described,
    FoldedState,
    LeaseTaken,
    Logged,
    MessageAdded,
    ModelCallStarted,
    ProviderKey,
    Rewound,
    Spend,
    StateSet,
    StatusChanged,
    StepIntent,
    StepOutcome,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    Usage,
    WorkspaceSnapshot,
    encode_entries,
    encode_frame,
    fold,
)
from clew.messages import (
    File,
    Image,
    Json,
    Opaque,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    assistant,
    system,
    tool,
    user,
)

GOLDEN = Path(__file__).parent / "golden-1.json"


def entries() -> list[list[Logged]]:
    """One of everything, in the frames it is stored in."""
    result = ToolResult(
        "call-2", (Text("fine"), Json({"rows": [1, 2.5, None, True]}), Image("image/png", b"\x89PNG")), True
    )
    first: list[Logged] = [
        ThreadStarted("ada", "m-1", "Be brief.", {"look": "d1"}, {"max_turns": 50}, ("parent", 3)),
        LeaseTaken("process 1 on host", "token"),
        MessageAdded(system("Mind the gap.")),
        MessageAdded(
            user("Wörter 🧵", Image("image/gif", None, "https://example.org/a.gif"), File("a.pdf", data=b"%PDF"))
        ),
        ModelCallStarted("m-1", "request-1"),
    ]
    second: list[Logged] = [
        MessageAdded(
            assistant(
                Thinking("hm", "signature", "sealed", {"id": "rs_1"}),
                "Looking.",
                ToolCall("call-1", "look", {"at": ["a", 1]}),
                ToolCall("call-2", "look", "not json {"),
                Opaque("elsewhere", {"x": 1}),
                model="m-1",
                stop="tool_use",
            ),
            Usage(10, 20, 3, 4, 5),
            0.25,
        ),
        ToolIntent(2, 0, "key-1", 2),
        StepIntent(2, 0, "pay"),
        StepOutcome(2, 0, "pay", {"id": 7}),
        ToolOutcome(2, 0, ToolResult("call-1", (Text("done"),))),
        MessageAdded(tool(result)),
    ]
    third: list[Logged] = [
        WorkspaceSnapshot("d" * 64, 3, 4096),
        ProviderKey("codex", "thread-7"),
        StateSet("note", {"deep": [1, {"er": b"bytes"}]}),
        StateSet("took", 1.5, "turn"),
        Described("A title", {"team": "x"}),
        Spend(Usage(1), None),
        Compacted(user("In short: nothing."), 1, Usage(2, 3), 0.5),
        Rewound(turn=1),
        Rewound(messages=2),
        StatusChanged("waiting", "for an answer"),
        StateSet("long", "long " * 20_000),
    ]
    return [first, second, third, [FoldedState(fold([*first, *second, *third]))]]


def main() -> None:
    if GOLDEN.exists():
        raise SystemExit(f"{GOLDEN.name} exists. What version 1 wrote never changes; remove it only before a release.")
    previous = FIRST
    frames: list[str] = []
    blobs: dict[str, str] = {}
    for group in entries():
        frame = encode_frame([encode_entries(group)], previous=previous, now=1_800_000_000_000_000)
        previous = frame.digest
        frames.append(frame.data.hex())
        blobs |= {digest: data.hex() for digest, data in frame.blobs.items()}
    GOLDEN.write_text(json.dumps({"frames": frames, "blobs": blobs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
