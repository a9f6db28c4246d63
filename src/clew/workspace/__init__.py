"""Workspaces: folders of files, whose snapshots are kept in the same store as the threads that work on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
    from clew.workspace.compare import Change, Difference
    from clew.workspace.manifest import Limits, Progress, Skipped, SnapshotRef
    from clew.workspace.restore import Restored
    from clew.workspace.workspace import Workspace

__all__ = ["Change", "Difference", "Limits", "Progress", "Restored", "Skipped", "SnapshotRef", "Workspace"]

__getattr__, __dir__ = exports(
    __name__,
    {
        "Change": "clew.workspace.compare",
        "Difference": "clew.workspace.compare",
        "Limits": "clew.workspace.manifest",
        "Progress": "clew.workspace.manifest",
        "Restored": "clew.workspace.restore",
        "Skipped": "clew.workspace.manifest",
        "SnapshotRef": "clew.workspace.manifest",
        "Workspace": "clew.workspace.workspace",
    },
)
