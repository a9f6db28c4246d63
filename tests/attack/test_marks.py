"""`make attack` runs the tests of every kind of attack, wherever they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
KINDS = {
    "slow clients, floods, oversized and malformed requests": [
        "attack/test_service.py", "server/test_limits.py", "server/test_large_values.py", "server/test_paths.py",
    ],
    "forged frames, heads and handles": [
        "checkpointers/test_sealed.py", "log/test_weights.py", "agent/test_handles.py",
    ],
    "archives": ["threads/ops/test_export.py"],
    "native sessions": [
        "providers/test_links.py", "providers/opencode/test_hostile.py", "providers/codex/test_storage.py",
        "providers/claude_code/test_storage.py",
    ],
    "workspaces": ["workspace/test_hostile.py"],
    "databases": ["checkpointers/test_sqlite_hostile.py", "checkpointers/test_objects.py"],
    "terminals": ["_runtime/test_text.py", "cli/test_terminal_text.py", "cli/test_consent.py"],
    "pages": [
        "server/inspector/test_hidden_text.py", "server/inspector/test_large_pages.py", "server/inspector/test_markdown.py",
        "server/inspector/test_pages.py",
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_tests_of_this_kind_are_marked_as_attacks(kind: str) -> None:
    assert [
        name for name in KINDS[kind] if "pytest.mark.attack" not in (TESTS / name).read_text(encoding="utf-8")
    ] == []


def test_no_module_of_hostile_things_is_left_out() -> None:
    modules = [*TESTS.rglob("test_*hostile*.py"), *TESTS.rglob("test_*hidden*.py"), *TESTS.rglob("test_*links*.py")]
    marked = {name for names in KINDS.values() for name in names}
    assert len(modules) >= 5
    assert {str(module.relative_to(TESTS)) for module in modules} <= marked
